"""Claude Code's session files: tool loops as one answer, and nothing that the program put in."""

from pathlib import Path

import pytest

from contextinfinity.daemon.imports.formats import FORMATS, detect
from contextinfinity.protocol.blocks import Reasoning, Text, ToolResult, ToolUse
from tests.imports.harness import check, check_resuming, items, last_known, said, skipped, texts, write_lines

CLAUDE_CODE = FORMATS["claude_code"]
SESSION = "5b3f0e6a-6f1c-4ac6-8a8e-0d6f2f6a9b11"


def line(kind: str, uuid: str, content: object, **more: object) -> dict[str, object]:
    message: dict[str, object] = {"role": kind, "content": content}
    if kind == "assistant":
        message |= {"id": "msg_01", "type": "message", "model": "claude-sonnet-4-5", "usage": {"output_tokens": 3}}
    common = {"parentUuid": None, "isSidechain": False, "userType": "external", "cwd": "/home/ada/shop", "version": "2.1.0"}
    stamp = {"timestamp": "2026-02-03T10:00:00.000Z", "gitBranch": "main"}
    return {**common, **stamp, "sessionId": SESSION, "type": kind, "message": message, "uuid": uuid, **more}


RESULT = {"tool_use_id": "toolu_1", "type": "tool_result", "content": [{"type": "text", "text": "3 passed"}]}
LINES: list[dict[str, object]] = [
    {"type": "summary", "summary": "Fix the checkout test", "leafUuid": "u9"},
    {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}, "isSnapshotUpdate": False},
    {"type": "queue-operation", "operation": "enqueue", "timestamp": "2026-02-03T09:59:59.000Z", "sessionId": SESSION},
    line("user", "u0", "Caveat: the messages below were made by local commands", isMeta=True),
    line("user", "u1", "<command-name>/clear</command-name>\n  <command-message>clear</command-message>"),
    line("user", "u2", "<local-command-stdout></local-command-stdout>"),
    line("user", "u3", "Why does <command-name> fail?"),
    line("assistant", "u4", [{"type": "thinking", "thinking": "Run it.", "signature": "EqQ"}]),
    line("assistant", "u5", [{"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "pytest"}}]),
    line("assistant", "u5s", [{"type": "text", "text": "I look around."}], isSidechain=True),
    line("user", "u6", [RESULT], toolUseResult={"stdout": "3 passed"}),
    line("assistant", "u7", [{"type": "text", "text": "It passes now."}]),
    line("user", "u8", [{"type": "text", "text": "[Request interrupted by user]"}]),
    {"type": "ai-title", "aiTitle": "Flaky checkout test", "sessionId": SESSION},
    {"type": "system", "subtype": "turn_duration", "uuid": "s1", "sessionId": SESSION, "timestamp": "2026-02-03T10:00:01Z"},
    line("user", "u10", [{"type": "text", "text": "<system-reminder>x</system-reminder>"}, {"type": "text", "text": "Thanks"}]),
    line("assistant", "u11", [{"type": "text", "text": "API Error"}], isApiErrorMessage=True),
    line("user", "u12", "This session is being continued…", isCompactSummary=True, isVisibleInTranscriptOnly=True),
    {
        **line("attachment", "u13", None),
        "attachment": {"type": "queued_command", "prompt": "Also lint it", "commandMode": "prompt"},
    },
    line("user", "u14", [RESULT, {"type": "text", "text": "Stop there"}]),
]


def write_session(folder: Path) -> Path:
    return write_lines(folder / "-home-ada-shop" / f"{SESSION}.jsonl", LINES)


def test_a_tool_loop_is_one_answer(tmp_path: Path) -> None:
    found = check(CLAUDE_CODE, write_session(tmp_path))
    assert [(item.message.external_id, item.message.role, item.continues) for item in said(found)] == [
        ("u3", "user", False),
        ("u4", "assistant", False),
        ("u5", "assistant", True),
        ("u6", "assistant", True),
        ("u7", "assistant", True),
        ("u10", "user", False),
        ("u13", "user", False),
        ("u14", "assistant", False),
        ("u14:user", "user", False),
    ]
    blocks = [item.message.blocks for item in said(found)]
    assert blocks[1] == (Reasoning("EqQ", "Run it."),)
    assert blocks[2] == (ToolUse("toolu_1", "Bash", {"command": "pytest"}),)
    assert blocks[3] == (ToolResult("toolu_1", (Text("3 passed"),)),)
    assert texts(found)[-4:] == [("user", "Thanks"), ("user", "Also lint it"), ("assistant", ""), ("user", "Stop there")]


def test_the_conversation_is_the_session(tmp_path: Path) -> None:
    found = check(CLAUDE_CODE, write_session(tmp_path))
    known = last_known(found)
    assert (known.key, known.title, known.agent) == (SESSION, "Flaky checkout test", "claude-code")
    assert known.created_at == "2026-02-03T09:59:59.000Z"
    assert {item.conversation for item in said(found)} == {SESSION}


def test_what_the_program_put_in_is_left_out(tmp_path: Path) -> None:
    found = items(CLAUDE_CODE, write_session(tmp_path))
    whys = {item.where: item.why for item in skipped(found)}
    assert whys["line 10"] == "a subagent's conversation"
    assert whys["line 17"] == "a failed request"
    assert whys["line 18"] == "a summary of what was said before"
    assert whys["line 5"] == whys["line 13"] == "put in by the program"
    assert len(skipped(found)) + len({item.message.external_id for item in said(found)}) == len(LINES) + 1


def test_a_session_resumes_where_it_was_left(tmp_path: Path) -> None:
    check_resuming(CLAUDE_CODE, write_session(tmp_path))


def test_lines_without_ids_are_named_by_what_they_say(tmp_path: Path) -> None:
    bare = {"type": "user", "message": {"role": "user", "content": "hi"}}
    found = check(CLAUDE_CODE, write_lines(tmp_path / "s.jsonl", [bare, bare]))
    assert len({item.message.external_id for item in said(found)}) == 2
    assert said(found)[0].conversation == "s"


def test_files_and_detection(tmp_path: Path) -> None:
    path = write_session(tmp_path / "projects")
    agent = write_lines(path.with_name("agent-1a2b.jsonl"), LINES)
    write_lines(tmp_path / "history.jsonl", [{"display": "hi"}])
    for folder in (tmp_path, tmp_path / "projects", path.parent):
        assert CLAUDE_CODE.files(folder) == [path]
        assert detect(folder) == "claude_code"
    assert CLAUDE_CODE.files(agent) == [agent]
    path.unlink()
    with pytest.raises(ValueError, match="give "):
        CLAUDE_CODE.files(path.parent)
