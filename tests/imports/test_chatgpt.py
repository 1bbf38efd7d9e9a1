"""ChatGPT's export: the current path of each tree, packed or not, whole or damaged."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from contextinfinity.daemon.imports.formats import FORMATS, detect
from contextinfinity.protocol.blocks import Image, Reasoning, Text, ToolResult, ToolUse, Unknown
from tests.imports.harness import check, damaged, items, last_known, said, skipped, texts, write

CHATGPT = FORMATS["chatgpt"]


def node(name: str, parent: str | None, role: str | None, content: object, **more: object) -> dict[str, Any]:
    message = None
    if role is not None:
        author: dict[str, object] = {"role": role, "name": "python" if role == "tool" else None, "metadata": {}}
        base = {"id": f"m-{name}", "author": author, "create_time": 1700000000.5, "status": "finished_successfully"}
        message = {**base, "content": content, "recipient": "all", "metadata": {}, "weight": 1.0, **more}
    return {"id": name, "message": message, "parent": parent, "children": []}


def text(*parts: object) -> dict[str, object]:
    return {"content_type": "text", "parts": list(parts)}


PICTURE = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-1", "width": 10, "height": 10}
THOUGHTS = [{"summary": "Adding", "content": "2 and 2", "chunks": [], "finished": True}]
NODES = [
    node("root", None, None, None),
    node("sys", "root", "system", text(""), metadata={"is_visually_hidden_from_conversation": True}),
    node("ctx", "sys", "user", {"content_type": "user_editable_context", "user_profile": "Ada", "user_instructions": ""}),
    node("q0", "ctx", "user", text("What is 2 and 3?")),
    node("q1", "ctx", "user", {"content_type": "multimodal_text", "parts": [PICTURE, "What is 2 and 2?"]}),
    node("t1", "q1", "assistant", {"content_type": "thoughts", "thoughts": THOUGHTS, "source_analysis_msg_id": "x"}),
    node("c1", "t1", "assistant", {"content_type": "code", "language": "unknown", "text": "2 + 2"}, recipient="python"),
    node("r1", "c1", "tool", {"content_type": "execution_output", "text": "4"}),
    node("c2", "r1", "assistant", {"content_type": "code", "text": '{"query": "four"}'}, recipient="browser"),
    node("r2", "c2", "tool", {"content_type": "system_error", "name": "Timeout", "text": "too slow"}),
    node("rr", "r2", "assistant", {"content_type": "reasoning_recap", "content": "Thought for 2s"}),
    node("a1", "rr", "assistant", text("Four.")),
    node("a0", "q0", "assistant", text("Five.")),
    node("e1", "a1", "assistant", text("")),
    node("n1", "e1", "user", {"content_type": "hologram", "beam": 1}),
]
CONVERSATION: dict[str, Any] = {
    "title": "Sums",
    "create_time": 1700000000.123456,
    "update_time": 1700000009.0,
    "mapping": {one["id"]: one for one in NODES},
    "current_node": "n1",
    "conversation_id": "c-1",
    "id": "c-1",
}


def test_the_current_path_is_what_was_said(tmp_path: Path) -> None:
    found = check(CHATGPT, write(tmp_path / "conversations.json", [CONVERSATION]))
    assert damaged(found) == []
    assert [(item.message.external_id, item.message.blocks) for item in said(found)] == [
        ("m-q1", (Image("image/*", PICTURE), Text("What is 2 and 2?"))),
        ("m-t1", (Reasoning(summary="2 and 2", raw=THOUGHTS),)),
        ("m-c1", (ToolUse("m-c1", "python", "2 + 2"),)),
        ("m-r1", (ToolResult("m-c1", (Text("4"),)),)),
        ("m-c2", (ToolUse("m-c2", "browser", {"query": "four"}),)),
        ("m-r2", (ToolResult("m-c2", (Text("too slow"),), True),)),
        ("m-a1", (Text("Four."),)),
        ("m-n1", (Unknown("openai", {"content_type": "hologram", "beam": 1}),)),
    ]
    assert [item.continues for item in said(found)] == [False, False, True, True, True, True, True, False]
    assert said(found)[0].message.created_at == "2023-11-14T22:13:20.500Z"
    known = last_known(found)
    assert (known.key, known.title, known.created_at) == ("c-1", "Sums", "2023-11-14T22:13:20.123Z")


def test_other_branches_are_left_out(tmp_path: Path) -> None:
    found = items(CHATGPT, write(tmp_path / "conversations.json", [CONVERSATION]))
    whys = {item.where: item.why for item in skipped(found)}
    assert whys["item 1, node q0"] == whys["item 1, node a0"] == "not on the conversation's current path"
    assert whys["item 1, node ctx"] == "the user's standing instructions"
    assert len(whys) == 6


@pytest.mark.parametrize("current", [None, "gone", 7])
def test_without_a_current_node_the_last_leaf_stands_for_it(tmp_path: Path, current: object) -> None:
    found = check(CHATGPT, write(tmp_path / "conversations.json", [{**CONVERSATION, "current_node": current}]))
    assert texts(found)[-2:] == [("assistant", "Four."), ("user", "")]


def test_a_ring_of_nodes_ends(tmp_path: Path) -> None:
    ring = {"a": node("a", "b", "user", text("one")), "b": node("b", "a", "assistant", text("two"))}
    found = check(CHATGPT, write(tmp_path / "conversations.json", [{"mapping": ring, "current_node": "b", "id": "r"}]))
    assert texts(found) == [("user", "one"), ("assistant", "two")]


def test_the_archive_is_read_as_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("chat.html", "<html></html>")
        archive.writestr("conversations-001.json", json.dumps([{**CONVERSATION, "conversation_id": "c-2"}]))
        archive.writestr("conversations-000.json", json.dumps([CONVERSATION]))
    found = check(CHATGPT, path)
    assert list(dict.fromkeys(item.conversation for item in said(found))) == ["c-1", "c-2"]
    assert CHATGPT.files(tmp_path) == [path]
    assert detect(path) == detect(tmp_path) == "chatgpt"


def test_a_damaged_archive_says_so(tmp_path: Path) -> None:
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("conversations.json", json.dumps([CONVERSATION]))
    whole = path.read_bytes()
    for data in (whole[:-30], b"PK", whole.replace(b"Sums", b"Sumx")):
        path.write_bytes(data)
        assert (len(damaged(check(CHATGPT, path))), said(check(CHATGPT, path))) == (1, [])
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "nothing here")
    assert len(damaged(check(CHATGPT, path))) == 1


def test_a_damaged_conversation_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    one, two = json.dumps(CONVERSATION), json.dumps({**CONVERSATION, "conversation_id": "c-2"})
    broken = one.replace('"title"', '"title" oops').replace("What is", "\\ud83d What is")
    deep = '{"mapping": ' + "[" * 3000 + "]" * 3000 + "}"
    path.write_text(f"[{one}, {broken}, {deep}, 7, {{}}, {two}, {one[:100]}")
    found = check(CHATGPT, path)
    assert {item.conversation for item in said(found)} == {"c-1", "c-2"}
    assert [item.where for item in damaged(found)] == ["item 2", "item 3", "item 4", "item 5", "item 7"]
    path.write_bytes(b"no json at all")
    assert [item.where for item in damaged(check(CHATGPT, path))] == ["the document"]


def test_wrong_types_are_no_reason_to_stop(tmp_path: Path) -> None:
    odd: list[object] = [None, 1, "text", [], [1], {}, {"parts": 1}, {"content_type": ["text"]}, text(1, None, {})]
    values = [{**CONVERSATION, name: one} for name in CONVERSATION for one in odd]
    for name in ("message", "parent"):
        values += [{**CONVERSATION, "mapping": {"x": {"id": "x", name: one}}, "current_node": "x"} for one in odd]
    for name in ("author", "content", "metadata", "create_time", "id", "recipient"):
        for one in odd:
            changed = node("x", None, "assistant", text("hi"))
            changed["message"][name] = one
            values.append({**CONVERSATION, "mapping": {"x": changed}, "current_node": "x"})
    assert said(check(CHATGPT, write(tmp_path / "conversations.json", values)))


def test_files_and_detection(tmp_path: Path) -> None:
    path = write(tmp_path / "conversations.json", [CONVERSATION])
    (tmp_path / "old.zip").write_bytes(b"PK")
    assert CHATGPT.files(tmp_path) == CHATGPT.files(path) == [path]
    assert detect(path) == detect(tmp_path) == "chatgpt"
    assert detect(write(tmp_path / "one.json", CONVERSATION)) == "chatgpt"
