"""Codex's rollouts, wrapped and bare: what was said and done, without what the program told the model."""

from pathlib import Path

from contextinfinity.daemon.imports.formats import FORMATS, detect
from contextinfinity.protocol.blocks import Image, Reasoning, Text, ToolResult, ToolUse, Unknown
from tests.imports.harness import check, check_resuming, damaged, items, last_known, said, skipped, texts, write_lines

CODEX = FORMATS["codex"]
SESSION = "019a2d7a-41c4-78b1-b7cc-a45d62a89cd5"
NAME = f"rollout-2025-10-29T00-59-38-{SESSION}.jsonl"
ENVIRONMENT = "<environment_context>\n  <cwd>/work/shop</cwd>\n</environment_context>"
AGENTS = "# AGENTS.md instructions for /work/shop\n\n<INSTRUCTIONS>\nBe brief.\n</INSTRUCTIONS>"


def wrapped(kind: str, payload: dict[str, object]) -> dict[str, object]:
    return {"timestamp": "2025-10-29T00:59:39.522Z", "type": kind, "payload": payload}


def message(role: str, *texts: str) -> dict[str, object]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


META: dict[str, object] = {
    "id": SESSION,
    "timestamp": "2025-10-29T00:59:38.308Z",
    "cwd": "/work/shop",
    "originator": "codex_exec",
}
ITEMS: list[dict[str, object]] = [
    message("developer", "<permissions instructions>…</permissions instructions>"),
    message("user", AGENTS, ENVIRONMENT),
    message("user", ENVIRONMENT),
    message("user", "What is in the shop?"),
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "**Looking**"}], "encrypted_content": "gAAA"},
    {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "call_1"},
    {"type": "function_call_output", "call_id": "call_1", "output": "apples\n"},
    {"type": "custom_tool_call", "status": "completed", "call_id": "call_2", "name": "apply_patch", "input": "*** Begin"},
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done!"},
    {"type": "local_shell_call", "call_id": "call_3", "status": "completed", "action": {"type": "exec", "command": ["ls"]}},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "apples"}},
    {"type": "function_call_output", "call_id": "call_3", "output": {"content": "no", "success": False}},
    {"type": "ghost_snapshot", "ghost_commit": {"id": "abc"}},
    {"type": "tool_of_tomorrow", "wish": 1},
    message("assistant", "Apples."),
]
LINES = [
    wrapped("session_meta", META),
    wrapped("session_meta", {**META, "id": "the-parent-of-a-fork", "cwd": "/elsewhere"}),
    wrapped("turn_context", {"cwd": "/work/shop", "model": "gpt-5-codex"}),
    *(wrapped("response_item", item) for item in ITEMS),
    wrapped("event_msg", {"type": "user_message", "message": "What is in the shop?", "kind": "plain"}),
    wrapped("event_msg", {"type": "agent_message", "message": "Apples."}),
    wrapped("compacted", {"message": "The user asked for apples."}),
    wrapped("something_new", {"type": "message", "role": "user"}),
    wrapped("response_item", {"id": "msg-9", **message("user", "And pears?")}),
]


def test_items_become_one_answer(tmp_path: Path) -> None:
    found = check(CODEX, write_lines(tmp_path / NAME, LINES))
    assert damaged(found) == []
    assert [item.message.blocks for item in said(found)] == [
        (Text("What is in the shop?"),),
        (Reasoning("gAAA", "**Looking**"),),
        (ToolUse("call_1", "shell", {"command": ["ls"]}),),
        (ToolResult("call_1", (Text("apples\n"),)),),
        (ToolUse("call_2", "apply_patch", "*** Begin"),),
        (ToolResult("call_2", (Text("Done!"),)),),
        (ToolUse("call_3", "local_shell", {"type": "exec", "command": ["ls"]}),),
        (ToolUse("ws_1", "web_search", {"type": "search", "query": "apples"}),),
        (ToolResult("call_3", (Text("no"),), True),),
        (Unknown("openai", {"type": "tool_of_tomorrow", "wish": 1}),),
        (Text("Apples."),),
        (Text("And pears?"),),
    ]
    assert [item.continues for item in said(found)] == [False, False, *[True] * 9, False]
    assert len({item.message.external_id for item in said(found)}) == 12
    assert said(found)[-1].message.external_id == "msg-9"
    assert len(skipped(found)) == len(LINES) - 12


def test_the_first_line_names_the_session(tmp_path: Path) -> None:
    known = last_known(check(CODEX, write_lines(tmp_path / NAME, LINES)))
    assert (known.key, known.cwd, known.agent) == (SESSION, "/work/shop", "codex")
    assert known.created_at == "2025-10-29T00:59:38.308Z"


def test_bare_items_of_older_versions_are_read(tmp_path: Path) -> None:
    header = {"id": SESSION, "timestamp": "2025-08-18T01:16:13.522Z", "instructions": None, "git": {"branch": "main"}}
    path = write_lines(tmp_path / NAME, [header, {"record_type": "state"}, *ITEMS])
    found = check(CODEX, path)
    assert texts(found)[0] == ("user", "What is in the shop?")
    assert len(said(found)) == 11
    assert (last_known(found).key, last_known(found).created_at) == (SESSION, "2025-08-18T01:16:13.522Z")
    check_resuming(CODEX, path)


def test_a_damaged_first_line_leaves_the_name_of_the_file(tmp_path: Path) -> None:
    path = write_lines(tmp_path / NAME, LINES)
    path.write_bytes(b"x" + path.read_bytes())
    found = check(CODEX, path)
    assert {item.conversation for item in said(found)} == {SESSION}


def test_words_next_to_what_the_program_put_in_are_kept(tmp_path: Path) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    asked = message("user", ENVIRONMENT, "What is <environment_context>?")
    asked["content"] = [*asked["content"], picture]  # type: ignore[misc]
    (one,) = said(check(CODEX, write_lines(tmp_path / NAME, [LINES[0], wrapped("response_item", asked)])))
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    assert one.message.blocks == (Text("What is <environment_context>?"), Image("image/png", source))


def test_a_rollout_resumes_where_it_was_left(tmp_path: Path) -> None:
    check_resuming(CODEX, write_lines(tmp_path / NAME, LINES))


def test_files_and_detection(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "sessions" / "2025" / "10" / "29" / NAME, LINES)
    for folder in (tmp_path / "sessions", tmp_path / "sessions" / "2025", tmp_path):
        assert CODEX.files(folder) == [path]
        assert detect(folder) == "codex"
    assert detect(path) == "codex"
    assert items(CODEX, path)
