"""Imports with a real `ctxd`: every format by its path, folders that are watched, and a process that dies in the middle."""

import hashlib
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from contextinfinity.daemon.core.when import posix
from contextinfinity.protocol.errors import Fault, InvalidParams, NotFound
from tests.e2e.test_memory_e2e import LEXICAL, Home, said
from tests.imports import test_chatgpt, test_claude, test_claude_code, test_codex, test_opencode
from tests.imports.harness import write, write_lines
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e
SECONDS_TO_FIND = 2.0
LINES = [
    said("user", "Where does heron-7 stand?", "2026-01-02T03:04:05Z"),
    said("assistant", "In rack 4.", "2026-01-02T03:04:06Z"),
]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with Daemon(tmp_path, LEXICAL) as daemon, daemon.wire() as wire:
        yield Home(daemon, wire)


FORMATS: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "jsonl": (lambda folder: write_lines(folder / "talk.jsonl", LINES), "heron-7", "Where does heron-7 stand?"),
    "chatgpt": (
        lambda folder: write(folder / "conversations.json", [test_chatgpt.CONVERSATION]),
        "2 and 2",
        "What is 2 and 2?",
    ),
    "claude": (lambda folder: write(folder / "conversations.json", [test_claude.CONVERSATION]), "sum up", "Sum these up"),
    "claude_code": (
        lambda folder: write_lines(folder / "s.jsonl", test_claude_code.LINES),
        "command fail",
        "Why does <command-name> fail?",
    ),
    "codex": (lambda folder: write_lines(folder / test_codex.NAME, test_codex.LINES), "", ""),
    "opencode": (lambda folder: test_opencode.write_export(folder / "export.json"), "apples", "Apples."),
    "llm": (lambda folder: llm_log(folder / "logs.db"), "", ""),
}


def llm_log(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(
            """CREATE TABLE conversations (id TEXT PRIMARY KEY, name TEXT, model TEXT);
            CREATE TABLE responses (id TEXT PRIMARY KEY, model TEXT, prompt TEXT, system TEXT, prompt_json TEXT,
                options_json TEXT, response TEXT, response_json TEXT, conversation_id TEXT, duration_ms INTEGER,
                datetime_utc TEXT);
            INSERT INTO conversations VALUES ('c1', 'Herons', 'm');
            INSERT INTO responses VALUES ('r1', 'm', 'Where is the heron?', NULL, NULL, NULL, 'In the reeds.', NULL, 'c1', 5,
                '2024-05-08T10:00:00');"""
        )
    return path


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_known_by_its_path(home: Home, tmp_path: Path, kind: str) -> None:
    make, query, expected = FORMATS[kind]
    folder = tmp_path / "theirs"
    folder.mkdir()
    path = make(folder)
    before = {p: (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns) for p in folder.rglob("*")}
    made = home.call("transcript.import", path=str(path))
    assert made["format"] == kind
    assert made["turns"] > 0
    assert made["messages"] > 0
    assert made.get("damaged", []) == []
    turns = home.call("turn.list", branch_id=made["branch_id"])["turns"]
    assert len(turns) == made["turns"] or len(made["sessions"]) > 1
    if query:
        assert any(expected in text for text in home.texts(query))
    again = home.call("transcript.import", path=str(path))
    assert (again["turns"], again.get("messages", 0)) == (0, 0)
    assert home.call("store.verify")["problems"] == []
    assert {p: (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns) for p in folder.rglob("*")} == before


def test_messages_without_a_session_of_their_own_make_one(home: Home) -> None:
    made = home.take(*LINES, title="Racks")
    assert (made["turns"], made["messages"], made["format"]) == (1, 2, "jsonl")
    assert home.call("session.get", session_id=made["session_id"])["title"] == "Racks"
    more = home.take(said("user", "And heron-8?"), session_id=made["session_id"])
    assert more["branch_id"] == made["branch_id"]
    keyed = home.take(said("user", "once"), idempotency_key="k")
    assert home.take(said("user", "once"), idempotency_key="k") == keyed
    assert home.call("store.verify")["problems"] == []


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("path", {}),
    ("path", {"path": "relative.jsonl"}),
    ("path", {"path": "/nowhere/at/all.jsonl"}),
    ("messages", {"path": "/x", "messages": []}),
    ("format", {"path": "/etc/hostname", "format": "telepathy"}),
    ("jsonl", {"messages": [], "format": "codex"}),
    ("messages[0]", {"messages": [{"role": "user"}]}),
    ("messages[0].created_at", {"messages": [said("user", "x", "when pigs fly")]}),
    ("messages[1].content", {"messages": [said("user", "x"), {"role": "user", "content": [{"type": "text"}]}]}),
]


def test_what_is_wrong_with_an_import_is_named(home: Home) -> None:
    for field, params in WRONG:
        error = home.fault("transcript.import", **params)
        assert isinstance(error, InvalidParams), params
        assert field in error.message


TIMES = ["2024-05-08", "2024-05-08T10:00:00", "2024-05-08 10:00", "2024-05-08T10:00:00+02:00", "yesterday", "8 May 2024"]


def test_a_time_that_is_taken_is_understood(home: Home) -> None:
    """Whatever is not refused by name has to work to the end."""
    for number, at in enumerate(TIMES):
        try:
            made = home.take(said("user", f"Heron {number} is grey.", at))
        except Fault as error:
            assert isinstance(error, InvalidParams), (at, error)
            assert "created_at" in error.message
            continue
        (turn,) = home.call("turn.list", branch_id=made["branch_id"])["turns"]
        (line,) = home.call("memory.timeline", session_id=made["session_id"])["entries"]
        assert posix(turn["created_at"]) is not None, at
        assert posix(line["created_at"]) == posix(turn["created_at"])
        assert home.texts(f"heron {number}")[0] == f"Heron {number} is grey."
    assert home.call("store.verify")["problems"] == []


def test_lines_that_are_appended_to_a_watched_folder_are_found_within_two_seconds(tmp_path: Path) -> None:
    folder = tmp_path / "talks"
    folder.mkdir()
    path = write_lines(folder / "talk.jsonl", LINES)
    config = f"{LEXICAL}[imports]\nwatch = [{json.dumps(str(folder))}]\n"
    with Daemon(tmp_path, config) as daemon, daemon.wire() as wire:
        home = Home(daemon, wire)
        wait_until(lambda: home.texts("heron-7"))
        assert home.call("daemon.status")["memory"]["watching"] == [str(folder)]
        for number in range(3):
            with path.open("a") as file:
                file.write(json.dumps(said("user", f"Egret {number} flew to lake-{number}.")) + "\n")
            begun = time.monotonic()
            wait_until(lambda n=number: home.texts(f"lake-{n}"), SECONDS_TO_FIND)
            assert time.monotonic() - begun < SECONDS_TO_FIND
        turns = home.call("session.list")["sessions"]
        assert len(turns) == 1
        assert home.call("store.verify")["problems"] == []


def test_a_watched_folder_is_taken_up_on_a_signal(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talk.jsonl", LINES)
    with Daemon(tmp_path, LEXICAL) as daemon, daemon.wire() as wire:
        home = Home(daemon, wire)
        (daemon.home / "config.toml").write_text(f"{LEXICAL}[imports]\nwatch = [{json.dumps(str(path))}]\n")
        daemon.process.send_signal(signal.SIGHUP)  # type: ignore[union-attr]
        wait_until(lambda: home.texts("heron-7"))


@pytest.mark.parametrize("place", ["import.prepared:3", "import.stored:2", "store.before_commit:8"])
def test_an_import_that_was_killed_is_completed_by_repeating_it(tmp_path: Path, place: str) -> None:
    count = 700
    lines = [said(role, f"{role} {n} about heron {n}") for n in range(count) for role in ("user", "assistant")]
    path = write_lines(tmp_path / "talk.jsonl", lines)
    daemon = Daemon(tmp_path, LEXICAL, {"CTX_FAILPOINT": place})
    with daemon:
        with daemon.wire() as wire, pytest.raises((ConnectionError, OSError)):
            wire.call("transcript.import", path=str(path))
        daemon.kill9()
        del daemon.env["CTX_FAILPOINT"]
        daemon.start()
        with daemon.wire() as wire:
            home = Home(daemon, wire)
            made = home.call("transcript.import", path=str(path))
            (session,) = home.call("session.list")["sessions"]
            branch = home.call("branch.get", branch_id=session["active_branch"])
            assert branch["turn_seq"] == count
            assert made["branch_id"] == branch["id"]
            first = home.call("turn.list", branch_id=branch["id"], limit=1)["turns"][0]
            assert first["final_assistant_message"]["rendered_text"] == "assistant 0 about heron 0"
            assert home.call("store.verify")["problems"] == []


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59.9999999Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"])
def test_a_date_beyond_the_calendar_is_named_and_stops_nobody(home: Home, at: str) -> None:
    for _ in range(8):
        with pytest.raises(InvalidParams, match=r"messages\[0\]\.created_at"):
            home.call("transcript.import", messages=[{"role": "user", "text": "x", "created_at": at}])
    assert home.call("transcript.import", messages=[{"role": "user", "text": "good"}])["turns"] == 1


def test_what_is_no_file_is_refused_at_once(home: Home, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InvalidParams, match="neither a file nor a folder"):
            home.call("transcript.import", path=str(path))
    assert home.call("transcript.import", messages=[{"role": "user", "text": "good"}])["turns"] == 1


def test_a_keyed_import_happens_once_however_often_it_is_called_at_once(home: Home) -> None:
    def one(_: int) -> object:
        with home.daemon.wire() as wire:
            return wire.call("transcript.import", messages=[{"role": "user", "text": "once"}], idempotency_key="K")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(8)))
    assert all(answer == answers[0] for answer in answers)
    assert len(home.call("session.list")["sessions"]) == 1


def test_a_file_that_was_replaced_is_read_anew(home: Home, tmp_path: Path) -> None:
    """Also if it begins as the old one did, and is longer."""
    head = [said("user", f"head {n}", "2026-01-02T03:04:05Z") for n in range(100)]
    path = write_lines(tmp_path / "r.jsonl", [*head, *(said("user", f"old {n}", "2026-01-02T03:04:05Z") for n in range(50))])
    assert home.call("transcript.import", path=str(path))["turns"] == 150
    other = write_lines(tmp_path / "n", [*head, *(said("user", f"brand new {n}", "2026-01-02T03:04:05Z") for n in range(80))])
    os.replace(other, path)
    home.call("transcript.import", path=str(path))
    texts = [t["user_message"]["rendered_text"] for s in home.call("session.list")["sessions"] for t in
             home.call("turn.list", branch_id=s["active_branch"], limit=10_000)["turns"]]  # fmt: skip
    assert all(texts.count(f"brand new {n}") == 1 for n in range(80))


def test_one_unreadable_file_does_not_keep_the_others_out(home: Home, tmp_path: Path) -> None:
    folder = tmp_path / "u"
    folder.mkdir()
    write_lines(folder / "a.jsonl", LINES)
    (folder / "b.jsonl").symlink_to("/proc/self/mem")
    made = home.call("transcript.import", path=str(folder), format="jsonl")
    assert made["turns"] == 1
    assert any("b.jsonl" in place for place in made["damaged"])


def test_unknown_places_are_not_found_rather_than_damage(home: Home) -> None:
    for method in ("memory.timeline", "memory.chunks"):
        for what in ("branch_id", "session_id"):
            with pytest.raises(NotFound):
                home.call(method, **{what: "x"})
