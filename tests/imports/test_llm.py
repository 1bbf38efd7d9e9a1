"""The logs of llm, as responses and as chains, read beside a program that is writing them."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from contextinfinity.daemon.imports.formats import FORMATS, detect
from contextinfinity.protocol.blocks import Reasoning, Text, ToolResult, ToolUse
from tests.imports.harness import check, damaged, items, last_known, said, skipped, texts

LLM = FORMATS["llm"]
RESPONSES = """
CREATE TABLE conversations (id TEXT PRIMARY KEY, name TEXT, model TEXT);
CREATE TABLE responses (id TEXT PRIMARY KEY, model TEXT, prompt TEXT, system TEXT, prompt_json TEXT, options_json TEXT,
    response TEXT, response_json TEXT, conversation_id TEXT, duration_ms INTEGER, datetime_utc TEXT);
INSERT INTO conversations VALUES ('c1', 'Pelicans', 'gpt-4o');
INSERT INTO responses VALUES ('r2', 'm', '', NULL, NULL, NULL, 'Two pelicans.', NULL, 'c1', 5, '2026-01-01T00:00:02+00:00');
INSERT INTO responses VALUES ('r1', 'm', 'How many?', 'Be brief.', NULL, NULL, '', NULL, 'c1', 5, '2026-01-01T00:00:01');
INSERT INTO responses VALUES ('r3', 'm', 'Alone', NULL, NULL, NULL, 'Yes.', NULL, NULL, 5, 'then');
"""
TOOLS = """
ALTER TABLE responses ADD COLUMN reasoning TEXT;
UPDATE responses SET reasoning = 'Counting.' WHERE id = 'r1';
CREATE TABLE fragments (id INTEGER PRIMARY KEY, hash TEXT, content TEXT, datetime_utc TEXT, source TEXT);
CREATE TABLE prompt_fragments (response_id TEXT, fragment_id INTEGER, "order" INTEGER);
CREATE TABLE tool_calls (id INTEGER PRIMARY KEY, response_id TEXT, tool_id INTEGER, name TEXT, arguments TEXT,
    tool_call_id TEXT);
CREATE TABLE tool_results (id INTEGER PRIMARY KEY, response_id TEXT, tool_id INTEGER, name TEXT, output TEXT,
    tool_call_id TEXT, instance_id INTEGER, exception TEXT);
INSERT INTO fragments VALUES (1, 'h', 'A pond.', NULL, NULL);
INSERT INTO prompt_fragments VALUES ('r1', 1, 0);
INSERT INTO tool_calls VALUES (1, 'r1', 1, 'count', '{"bird": "pelican"}', 'call_1');
INSERT INTO tool_results VALUES (1, 'r2', 1, 'count', '2', 'call_1', NULL, NULL);
"""
CHAINS = """
CREATE TABLE messages (hash TEXT PRIMARY KEY, parent_hash TEXT, role TEXT, provider_metadata TEXT);
CREATE TABLE parts (id INTEGER PRIMARY KEY, message_hash TEXT, position INTEGER, type TEXT, tool_name TEXT, text TEXT,
    payload TEXT);
CREATE TABLE threads (id TEXT PRIMARY KEY, name TEXT, tip_message_hash TEXT, forked_from TEXT, datetime_utc TEXT);
CREATE TABLE turns (id TEXT PRIMARY KEY, thread_id TEXT, parent_message_hash TEXT, tip_message_hash TEXT, model TEXT,
    datetime_utc TEXT);
INSERT INTO messages VALUES ('h1', NULL, 'system', NULL), ('h2', 'h1', 'user', NULL), ('h3', 'h2', 'assistant', NULL),
    ('h4', 'h3', 'tool', NULL), ('h5', 'h4', 'assistant', NULL);
INSERT INTO threads VALUES ('t1', 'Herons', 'h5', NULL, '2026-05-01 10:00:00.5+00:00'), ('t2', NULL, NULL, NULL, NULL);
INSERT INTO turns VALUES ('r3', 't1', NULL, 'h3', 'm', '2026-05-01 10:00:01+00:00'),
    ('u2', 't1', 'h3', 'h5', 'm', '2026-05-01 10:00:02+00:00'), ('u3', NULL, NULL, 'h2', 'm', '2026-05-02 10:00:00+00:00');
"""
PARTS: list[tuple[str, int, str, str | None, object]] = [
    ("h1", 0, "text", "Be brief.", None),
    ("h2", 0, "text", None, {"text_ref": [{"literal": "Count in: "}, {"fragment": 1}]}),
    ("h3", 0, "reasoning", "Counting.", None),
    ("h3", 1, "tool_call", None, {"name": "count", "arguments": {"bird": "heron"}, "tool_call_id": "k1"}),
    ("h4", 0, "tool_result", None, {"name": "count", "output": "3", "tool_call_id": "k1"}),
    ("h5", 0, "text", "Three.", None),
]


def write_logs(path: Path, *scripts: str) -> Path:
    with closing(sqlite3.connect(path)) as db, db:
        for script in scripts:
            db.executescript(script)
        if CHAINS in scripts:
            for row in PARTS:
                given = (*row[:4], json.dumps(row[4]) if row[4] else None)
                db.execute("INSERT INTO parts (message_hash, position, type, text, payload) VALUES (?, ?, ?, ?, ?)", given)
    return path


def test_responses_become_questions_and_answers(tmp_path: Path) -> None:
    found = check(LLM, write_logs(tmp_path / "logs.db", RESPONSES))
    assert texts(found) == [("user", "How many?"), ("assistant", "Two pelicans."), ("user", "Alone"), ("assistant", "Yes.")]
    assert [item.conversation for item in said(found)] == ["c1", "c1", "r3", "r3"]
    assert [item.message.external_id for item in said(found)][:2] == ["r1:prompt", "r2:response"]
    assert [item.message.created_at for item in said(found)][1:3] == ["2026-01-01T00:00:02.000Z", None]
    assert [item.why for item in skipped(found)] == ["the system prompt"]


def test_tool_calls_and_fragments_are_kept(tmp_path: Path) -> None:
    found = check(LLM, write_logs(tmp_path / "logs.db", RESPONSES, TOOLS))
    assert [(item.message.blocks, item.continues) for item in said(found)][:4] == [
        ((Text("A pond."), Text("How many?")), False),
        ((Reasoning(summary="Counting."), ToolUse("call_1", "count", {"bird": "pelican"})), False),
        ((ToolResult("call_1", (Text("2"),)),), True),
        ((Text("Two pelicans."),), True),
    ]


def test_chains_are_read_instead_of_the_responses_they_hold(tmp_path: Path) -> None:
    found = check(LLM, write_logs(tmp_path / "logs.db", RESPONSES, TOOLS, CHAINS))
    chained = [item for item in said(found) if item.conversation == "t1"]
    assert [(item.message.external_id, item.message.blocks, item.continues) for item in chained] == [
        ("h2", (Text("Count in: A pond."),), False),
        ("h3", (Reasoning(summary="Counting."), ToolUse("k1", "count", {"bird": "heron"})), False),
        ("h4", (ToolResult("k1", (Text("3"),)),), True),
        ("h5", (Text("Three."),), True),
    ]
    assert [item.message.created_at for item in chained] == [
        "2026-05-01T10:00:01.000Z",
        "2026-05-01T10:00:01.000Z",
        "2026-05-01T10:00:02.000Z",
        "2026-05-01T10:00:02.000Z",
    ]
    assert [item.conversation for item in said(found)][-1] == last_known(found).key == "u3"
    assert "r3" not in {item.conversation for item in said(found)}


def test_a_log_that_is_being_written_is_read_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.executescript(RESPONSES)
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO responses (id, prompt) VALUES ('r9', 'not yet')")
        before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.iterdir()}
        assert before.keys() == {"logs.db", "logs.db-wal", "logs.db-shm"}
        assert len(said(check(LLM, path))) == 4
        assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.iterdir()} == before
        db.rollback()


def test_nothing_appears_beside_a_closed_log(tmp_path: Path) -> None:
    path = write_logs(tmp_path / "logs.db", RESPONSES)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
    tmp_path.chmod(0o500)
    assert len(said(items(LLM, path))) == 4
    assert [file.name for file in tmp_path.iterdir()] == ["logs.db"]
    tmp_path.chmod(0o700)


def test_what_is_no_log_says_so(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"
    for data in (b"", b"not a database at all", b"SQLite format 3\0 and then nothing" * 40):
        path.write_bytes(data)
        assert [item.where for item in damaged(check(LLM, path))] == ["the database"]
    path.unlink()
    with pytest.raises(FileNotFoundError):
        items(LLM, path)


def test_damaged_texts_are_kept_readable(tmp_path: Path) -> None:
    path = write_logs(tmp_path / "logs.db", RESPONSES, TOOLS, CHAINS)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE responses SET prompt = CAST(x'41ff0042' AS TEXT) WHERE id = 'r1'")
        db.execute("UPDATE parts SET payload = '{' WHERE type = 'tool_call'")
    found = check(LLM, path)
    assert said(found)[0].message.rendered_text == "A pond.A\ufffd\ufffdB"
    assert [item.where for item in damaged(found)] == ["message h3, part 1"]


def test_files_and_detection(tmp_path: Path) -> None:
    path = write_logs(tmp_path / "logs.db", RESPONSES)
    assert LLM.files(tmp_path) == LLM.files(path) == [path]
    assert detect(path) == detect(tmp_path) == "llm"
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as db, db:
        db.execute("CREATE TABLE birds (name TEXT)")
    with pytest.raises(ValueError, match="no format known"):
        detect(other)
    assert [item.where for item in damaged(items(LLM, other))] == ["the database"]
