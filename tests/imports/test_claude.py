"""Claude.ai's export: messages with their blocks and attachments, on the path that was kept."""

import json
import zipfile
from pathlib import Path
from typing import Any

from contextinfinity.daemon.imports.claude import ROOT
from contextinfinity.daemon.imports.formats import FORMATS, detect
from contextinfinity.protocol.blocks import Reasoning, Text, ToolResult, ToolUse, Unknown
from tests.imports.harness import check, damaged, last_known, said, skipped, texts, write

CLAUDE = FORMATS["claude"]


def message(uuid: str, sender: str, *content: object, **more: object) -> dict[str, Any]:
    at = "2025-12-14T18:33:14.284238Z"
    base = {"uuid": uuid, "text": "", "sender": sender, "created_at": at, "updated_at": at, "attachments": [], "files": []}
    return {**base, "content": list(content), **more}


def text(words: str) -> dict[str, object]:
    stamps = {"start_timestamp": "2025-12-14T18:33:14Z", "stop_timestamp": "2025-12-14T18:33:15Z", "flags": None}
    return {**stamps, "type": "text", "text": words, "citations": []}


PASTED = {"file_name": "notes.txt", "file_size": 9, "file_type": "txt", "extracted_content": "my notes"}
CONVERSATION: dict[str, Any] = {
    "uuid": "afc58ea9",
    "name": "Notes",
    "summary": "",
    "created_at": "2025-12-14T18:33:11.903723Z",
    "updated_at": "2025-12-14T23:05:37.287929Z",
    "account": {"uuid": "a"},
    "chat_messages": [
        message("m1", "human", text("Sum these up"), attachments=[PASTED], files=[{"file_name": "a.png"}]),
        message(
            "m2",
            "assistant",
            {"type": "thinking", "thinking": "Short.", "summaries": []},
            {"type": "tool_use", "id": None, "name": "repl", "input": {"code": "1"}},
            {"type": "tool_result", "tool_use_id": None, "name": "repl", "content": [text("1")], "is_error": False},
            {"type": "token_budget"},
            text("Done."),
        ),
        message("m3", "human", text="An older export"),
        message("m4", "assistant"),
    ],
}


def test_messages_keep_their_blocks(tmp_path: Path) -> None:
    found = check(CLAUDE, write(tmp_path / "conversations.json", [CONVERSATION]))
    assert damaged(found) == []
    assert [(item.message.external_id, item.message.blocks) for item in said(found)] == [
        ("m1", (Text("Sum these up"), Text("my notes"), Unknown("anthropic", {"file_name": "a.png", "type": "file"}))),
        (
            "m2",
            (
                Reasoning(summary="Short."),
                ToolUse("m2:1", "repl", {"code": "1"}),
                ToolResult("m2:1", (Text("1"),)),
                Unknown("anthropic", {"type": "token_budget"}),
                Text("Done."),
            ),
        ),
        ("m3", (Text("An older export"),)),
    ]
    assert said(found)[0].message.created_at == "2025-12-14T18:33:14.284Z"
    assert (last_known(found).key, last_known(found).title) == ("afc58ea9", "Notes")
    assert [item.why for item in skipped(found)] == ["says nothing"]


def linked(uuid: str, sender: str, parent: str) -> dict[str, Any]:
    return message(uuid, sender, text(uuid), parent_message_uuid=parent)


def test_replaced_messages_are_left_out(tmp_path: Path) -> None:
    tree = [
        linked("q1", "human", ROOT),
        linked("a1", "assistant", "q1"),
        linked("q2", "human", "q1"),
        linked("a2", "assistant", "q1"),
    ]
    path = tmp_path / "conversations.json"
    for leaf, kept in ((None, ["q1", "a2"]), ("a1", ["q1", "a1"])):
        found = check(CLAUDE, write(path, [{**CONVERSATION, "chat_messages": tree, "current_leaf_message_uuid": leaf}]))
        assert [words for _, words in texts(found)] == kept
        assert len(skipped(found)) == 2
    broken = [linked("q9", "human", ROOT), linked("a9", "assistant", "not exported")]
    assert len(said(check(CLAUDE, write(path, [{**CONVERSATION, "chat_messages": broken}])))) == 2


def test_wrong_types_are_no_reason_to_stop(tmp_path: Path) -> None:
    odd: list[object] = [None, 1, "text", [], [1], {}, [{"type": "tool_use"}], [{"type": "image", "source": 1}]]
    values = [{**CONVERSATION, name: one} for name in CONVERSATION for one in odd]
    names = ("uuid", "sender", "content", "attachments", "files", "created_at", "parent_message_uuid")
    for name in names:
        for one in odd:
            values.append({**CONVERSATION, "chat_messages": [{**message("x", "human", text("hi")), name: one}, one]})
    assert said(check(CLAUDE, write(tmp_path / "conversations.json", values)))


def test_files_and_detection(tmp_path: Path) -> None:
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("users.json", "[]")
        archive.writestr("conversations.json", json.dumps([CONVERSATION]))
    assert detect(path) == detect(tmp_path) == "claude"
    assert CLAUDE.files(tmp_path) == [path]
    assert len(said(check(CLAUDE, path))) == 3
    assert detect(write(tmp_path / "conversations.json", [CONVERSATION])) == "claude"
