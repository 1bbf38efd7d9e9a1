"""OpenCode's three places: the database, the older folder and the export say the same of one session."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from contextinfinity.daemon.imports.base import Item
from contextinfinity.daemon.imports.formats import FORMATS, detect
from contextinfinity.protocol.blocks import Image, Reasoning, Text, ToolResult, ToolUse, Unknown
from tests.imports.harness import check, damaged, items, last_known, said, skipped, write

OPENCODE = FORMATS["opencode"]
SESSION: dict[str, Any] = {
    "id": "ses_1",
    "projectID": "p1",
    "directory": "/work/shop",
    "title": "Apples",
    "version": "1.1.0",
    "time": {"created": 1760000000123, "updated": 1760000009000},
}
CALLED = {"status": "completed", "input": {"command": "ls"}, "output": "apples", "title": "ls", "metadata": {}}
FAILED = {"status": "error", "input": {"path": "x"}, "error": "not found"}
PICTURE = {"type": "file", "mime": "image/png", "filename": "a.png", "url": "data:image/png;base64,aGk="}
MESSAGES: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    (
        {"id": "msg_1", "sessionID": "ses_1", "role": "user", "time": {"created": 1760000001000}, "agent": "build"},
        [
            {"id": "prt_1", "type": "text", "text": "What is here?"},
            {"id": "prt_2", "type": "text", "text": "Called the Read tool", "synthetic": True},
            {"id": "prt_3", **PICTURE},
        ],
    ),
    (
        {"id": "msg_2", "sessionID": "ses_1", "role": "assistant", "parentID": "msg_1", "time": {"created": 1760000002000}},
        [
            {"id": "prt_4", "type": "step-start"},
            {"id": "prt_5", "type": "reasoning", "text": "Look.", "time": {"start": 1}},
            {"id": "prt_6", "type": "tool", "callID": "call_1", "tool": "bash", "state": CALLED},
            {"id": "prt_7", "type": "tool", "callID": "call_2", "tool": "read", "state": FAILED},
            {"id": "prt_8", "type": "tool", "callID": "call_3", "tool": "read", "state": {"status": "running", "input": {}}},
            {"id": "prt_9", "type": "step-finish", "reason": "tool-calls"},
        ],
    ),
    (
        {"id": "msg_3", "sessionID": "ses_1", "role": "assistant", "parentID": "msg_1", "time": {"created": 1760000003000}},
        [{"id": "prt_a", "type": "text", "text": "Apples."}, {"id": "prt_b", "type": "hologram"}],
    ),
    (
        {"id": "msg_4", "sessionID": "ses_1", "role": "assistant", "summary": True, "time": {"created": 1760000004000}},
        [{"id": "prt_c", "type": "text", "text": "They asked for apples."}],
    ),
]


def write_storage(folder: Path) -> Path:
    storage = folder / "storage"
    write(storage / "session" / "p1" / "ses_2.json", {**SESSION, "id": "ses_2", "parentID": "ses_1"})
    for info, parts in MESSAGES:
        write(storage / "message" / "ses_1" / f"{info['id']}.json", info)
        for part in parts:
            write(storage / "part" / info["id"] / f"{part['id']}.json", {**part, "messageID": info["id"]})
    return write(storage / "session" / "p1" / "ses_1.json", SESSION)


def write_export(path: Path) -> Path:
    return write(path, {"info": SESSION, "messages": [{"info": info, "parts": parts} for info, parts in MESSAGES]})


def without(value: dict[str, Any], *names: str) -> str:
    return json.dumps({key: inner for key, inner in value.items() if key not in names})


def write_database(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(
            """CREATE TABLE session (id text PRIMARY KEY, project_id text NOT NULL, parent_id text, slug text NOT NULL,
                directory text NOT NULL, title text NOT NULL, version text NOT NULL, revert text,
                time_created integer NOT NULL, time_updated integer NOT NULL);
            CREATE TABLE message (id text PRIMARY KEY, session_id text NOT NULL, time_created integer NOT NULL,
                time_updated integer NOT NULL, data text NOT NULL);
            CREATE TABLE part (id text PRIMARY KEY, message_id text NOT NULL, session_id text NOT NULL,
                time_created integer NOT NULL, time_updated integer NOT NULL, data text NOT NULL);"""
        )
        for key, parent in (("ses_1", None), ("ses_2", "ses_1")):
            row = (key, "p1", parent, "s", SESSION["directory"], SESSION["title"], "1", None, 1760000000123, 1)
            db.execute(f"INSERT INTO session VALUES ({', '.join('?' * len(row))})", row)
        for info, parts in MESSAGES:
            created = info["time"]["created"]
            message = (info["id"], "ses_1", created, created, without(info, "id", "sessionID"))
            db.execute("INSERT INTO message VALUES (?, ?, ?, ?, ?)", message)
            for part in parts:
                named = (part["id"], info["id"], "ses_1", created, created, without(part, "id"))
                db.execute("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)", named)
    return path


def assert_apples(found: list[Item]) -> None:
    assert damaged(found) == []
    assert [(item.message.external_id, item.continues) for item in said(found)] == [
        ("msg_1", False),
        ("msg_2", False),
        ("msg_3", True),
    ]
    asked, worked, answered = (item.message.blocks for item in said(found))
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    assert asked == (Text("What is here?"), Image("image/png", source))
    assert worked == (
        Reasoning(summary="Look."),
        ToolUse("call_1", "bash", {"command": "ls"}),
        ToolResult("call_1", (Text("apples"),)),
        ToolUse("call_2", "read", {"path": "x"}),
        ToolResult("call_2", (Text("not found"),), True),
        ToolUse("call_3", "read", {}),
    )
    assert answered[0] == Text("Apples.")
    assert isinstance(answered[1], Unknown)
    known = last_known(found)
    assert (known.key, known.title, known.cwd) == ("ses_1", "Apples", "/work/shop")
    assert known.created_at == "2025-10-09T08:53:20.123Z"
    assert said(found)[0].message.created_at == "2025-10-09T08:53:21.000Z"


def test_the_folder_the_export_and_the_database_say_the_same(tmp_path: Path) -> None:
    assert_apples(check(OPENCODE, write_storage(tmp_path)))
    assert_apples(check(OPENCODE, write_export(tmp_path / "export.json")))
    assert_apples(check(OPENCODE, write_database(tmp_path / "opencode.db")))


def test_subagents_and_summaries_are_left_out(tmp_path: Path) -> None:
    found = check(OPENCODE, write_database(tmp_path / "opencode.db"))
    assert {item.where: item.why for item in skipped(found)} == {
        "message msg_1, part 2": "put in by the program",
        "message msg_4": "a summary",
        "session ses_2": "a subagent's conversation",
    }


def test_what_was_undone_is_left_out(tmp_path: Path) -> None:
    path = write_storage(tmp_path)
    write(path, {**SESSION, "revert": {"messageID": "msg_2", "snapshot": "x"}})
    assert [item.message.external_id for item in said(items(OPENCODE, path))] == ["msg_1"]


def test_damaged_files_are_named_and_the_others_kept(tmp_path: Path) -> None:
    path = write_storage(tmp_path)
    storage = tmp_path / "storage"
    (storage / "message" / "ses_1" / "msg_2.json").write_text("{")
    (storage / "part" / "msg_1" / "prt_2.json").write_text("[]")
    (storage / "part" / "msg_3" / "prt_b.json").write_bytes(b'{"type": "\xff"}')
    found = check(OPENCODE, path)
    assert [item.message.external_id for item in said(found)] == ["msg_1", "msg_3"]
    assert [item.where for item in damaged(found)] == [
        "part/msg_1/prt_2.json",
        "message/ses_1/msg_2.json",
        "part/msg_3/prt_b.json",
    ]
    path.write_text("7")
    assert [item.where for item in damaged(check(OPENCODE, path))] == ["the document"]


def test_damaged_rows_are_named_and_the_others_kept(tmp_path: Path) -> None:
    path = write_database(tmp_path / "opencode.db")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE message SET data = '[' WHERE id = 'msg_2'")
        db.execute("UPDATE part SET data = x'ff00' WHERE id = 'prt_3'")
    found = check(OPENCODE, path)
    assert [item.message.external_id for item in said(found)] == ["msg_1", "msg_3"]
    assert [item.where for item in damaged(found)] == ["part prt_3", "message msg_2"]


def test_wrong_types_are_no_reason_to_stop(tmp_path: Path) -> None:
    odd: list[object] = [None, 1, "text", [], [1], {}, {"created": "x"}, [{"type": "tool"}], [{"type": ["tool"]}]]
    info, parts = MESSAGES[1]
    for one in odd:
        for name in ("id", "role", "time", "summary"):
            value = {"info": SESSION, "messages": [{"info": {**info, name: one}, "parts": parts}, {"info": one}, one]}
            check(OPENCODE, write(tmp_path / "a.json", value))
        for name in ("type", "callID", "tool", "state", "text", "mime", "url"):
            tried = [{**part, name: one} for part in (*parts, *MESSAGES[0][1])]
            check(OPENCODE, write(tmp_path / "a.json", {"info": one, "messages": [{"info": info, "parts": tried}]}))


def test_files_and_detection(tmp_path: Path) -> None:
    path = write_storage(tmp_path)
    sessions = [path, path.with_name("ses_2.json")]
    assert OPENCODE.files(tmp_path) == OPENCODE.files(tmp_path / "storage") == sessions
    assert detect(tmp_path) == detect(tmp_path / "storage") == "opencode"
    database = write_database(tmp_path / "opencode.db")
    assert OPENCODE.files(tmp_path) == [database]
    assert detect(database) == detect(tmp_path) == "opencode"
    assert detect(write_export(tmp_path / "other" / "export.json")) == "opencode"
