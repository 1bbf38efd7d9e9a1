"""`ctx verify`, `backup`, `restore` and `doctor` against a scripted daemon and homes that are wrong in one way each."""

import contextlib
import fcntl
import io
import json
import os
import socket
import sqlite3
import stat
import string
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from contextinfinity.clients import api
from contextinfinity.clients.cli import backups, checkup, connection, dbfile, output, progress, redaction, vitals
from contextinfinity.clients.cli.main import cli, main
from contextinfinity.clients.cli.redaction import GONE, Redactor, as_toml
from contextinfinity.clients.errors import DaemonUnreachable
from contextinfinity.protocol.errors import InvalidState, StorageFull
from tests.clients.fake import NO_ANSWER, FakeDaemon

ONE, TWO, OLD = "a1" * 32, "b2" * 32, "c3" * 32
CLEAN = {"ok": True, "checked": {"turns": 1234, "links": 2}, "problems": [], "anchors": {"B2": TWO, "B1": ONE}}
BROKEN = {**CLEAN, "ok": False, "problems": ["links: link 2 was changed", "pages: torn", "pages: torn"]}


class Result(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def finding(self, check: str) -> dict[str, Any]:
        (found,) = [f for f in self.json()["checks"] if f["check"] == check]
        return found  # type: ignore[no-any-return]


Ctx = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """As a daemon leaves it that was stopped in order, with a backup."""
    made = tmp_path / "home"
    for folder in (made, made / "run", made / "backups", made / "logs"):
        folder.mkdir(mode=0o700)
    make_database(made / checkup.DATABASE)
    make_backup(made / "backups" / "backup-2025.db")
    return made


@pytest.fixture
def daemon(tmp_path: Path, home: Path) -> Iterator[FakeDaemon]:
    """One that is well; its process is this one."""
    path = tmp_path / "s.sock"
    with FakeDaemon().in_thread(path) as fake:
        path.chmod(0o600)
        (home / "run" / "endpoint.json").write_text(json.dumps({"unix": str(path), "pid": os.getpid(), "version": "0.1.0"}))
        fake.answers("daemon.status", status(home))
        fake.answers("model.list", {"models": [model()]})
        fake.answers("embedder.list", {"embedders": [embedder()]})
        fake.answers("store.verify", CLEAN)
        fake.answers("daemon.shutdown", {})
        yield fake


@pytest.fixture
def ctx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ctx:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("CTX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CTX_SOCKET", str(tmp_path / "s.sock"))
    monkeypatch.setenv("HOME", str(tmp_path))

    async def never(*args: Any, **options: Any) -> None:
        raise DaemonUnreachable("a real daemon would have been started")

    monkeypatch.setattr("contextinfinity.clients.autostart.start", never)

    def run(*args: str) -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
        capsys.readouterr()
        code = main(list(args))
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


def status(place: Path, **changes: Any) -> dict[str, Any]:
    return {
        "version": "0.1.0",
        "pid": os.getpid(),
        "uptime_s": 65.0,
        "home": str(place),
        "ready": True,
        "read_only": False,
        "locked": False,
        "actors": [{"name": "store", "state": "running", "restarts": 0, "mailbox": 0}],
        "jobs": {"pending": 0, "running": 0, "failed": 0},
        "clients": 1,
        "storage": {"bytes": 1, "turns": 1, "chunks": 0},
        "librarian": {"tokens_today": 0, "tokens_limit": 0},
        "memory": {"unindexed_turns": 0, "passages": 7, "unembedded": 0},
        "default_model": "recall",
        "warnings": [],
        **changes,
    }


def model(**changes: Any) -> dict[str, Any]:
    sizes = {"context_limit": 8192, "max_output_tokens": 4000, "limit_source": "default"}
    return {"name": "recall", "provider": "recall", "model_id": "recall", "default": True, **sizes, **changes}


def embedder(**changes: Any) -> dict[str, Any]:
    made = {"name": "local", "kind": "local", "model": "snowflake-arctic-embed-s"}
    return {**made, "installed": True, "chosen": True, "active": True, **changes}


def make_database(path: Path, rows: int = 400) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE turns (n INTEGER PRIMARY KEY, text TEXT NOT NULL)")
        db.executemany("INSERT INTO turns(text) VALUES (?)", [(f"turn {n} " * 20,) for n in range(rows)])
        db.commit()
    path.chmod(0o600)


def make_backup(path: Path, anchors: Any = None) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
        document = {"made_at": "2025-11-18T12:00:00Z", "anchors": {"B1": ONE} if anchors is None else anchors}
        db.execute("INSERT INTO meta VALUES ('backup', ?)", (json.dumps(document).encode(),))
        db.commit()


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


# verify


def test_verify_says_what_was_checked_and_that_it_holds(ctx: Ctx, daemon: FakeDaemon) -> None:
    result = ctx("verify")
    assert result == Result(0, "Checked: turns 1,234, links 2.\nNo problems.\n", "")
    assert daemon.called("store.verify") == [{}]
    assert ctx("verify", "--json").json() == CLEAN


def test_verify_names_every_problem_once_and_exits_with_1(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.answers("store.verify", BROKEN)
    result = ctx("verify")
    assert result.code == 1
    assert "3 problems:\n  links: link 2 was changed\n  pages: torn (2 times)\n" in result.out
    assert "ctx restore FILE" in result.out
    machine = ctx("verify", "--json")
    assert (machine.code, machine.json(), machine.err) == (1, BROKEN, "")


def test_verify_shows_no_control_characters(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.answers("store.verify", {**BROKEN, "problems": ["pages: \x1b]0;owned\x07"]})
    result = ctx("verify")
    assert result.code == 1
    assert "owned" in result.out
    assert "\x1b" not in result.out


def test_the_links_that_anchor_prints_are_demanded_by_against(ctx: Ctx, daemon: FakeDaemon) -> None:
    printed = ctx("verify", "--anchor")
    assert printed.out == f"B1 {ONE}\nB2 {TWO}\n", "nothing else: it goes into a file"
    assert "No problems." in printed.err
    Path("links").write_text(printed.out)
    again = ctx("verify", "--against", "links")
    assert daemon.called("store.verify")[-1] == {"anchor": {"B1": ONE, "B2": TWO}}
    assert again.code == 0
    assert "Every link in links is still in its chain (2)." in again.out


def test_anchor_prints_problems_beside_the_links(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.answers("store.verify", BROKEN)
    result = ctx("verify", "--anchor")
    assert result.code == 1
    assert result.out == f"B1 {ONE}\nB2 {TWO}\n"
    assert "link 2 was changed" in result.err
    assert ctx("verify", "--anchor", "--json").json() == BROKEN


@pytest.mark.parametrize(
    "content",
    [
        f"# written down on Monday\n\nB1 {ONE.upper()}\n",
        f"\ufeffB1\t{ONE}\r\n",
        json.dumps({"B1": ONE}),
        json.dumps({**CLEAN, "anchors": {"B1": ONE}}),
        json.dumps({"path": "/b.db", "bytes": 1, "anchors": {"B1": ONE}}),
    ],
    ids=["commented", "from Windows", "object", "report", "made by backup --json"],
)
def test_against_takes_links_in_every_form_they_are_given_in(ctx: Ctx, daemon: FakeDaemon, content: str) -> None:
    Path("links").write_bytes(content.encode())
    assert ctx("verify", "--against", "links").code == 0
    assert daemon.called("store.verify") == [{"anchor": {"B1": ONE}}]


def test_against_takes_a_backup(ctx: Ctx, daemon: FakeDaemon) -> None:
    make_backup(Path("monday.db"), {"B1": ONE, "B9": TWO})
    assert ctx("verify", "--against", "monday.db").code == 0
    assert daemon.called("store.verify") == [{"anchor": {"B1": ONE, "B9": TWO}}]
    assert sorted(os.listdir()) == ["monday.db"], "reading it leaves nothing beside it"


def test_against_demands_every_link_of_a_file_that_was_appended_to(ctx: Ctx, daemon: FakeDaemon) -> None:
    lost = f"branch B1 no longer has {OLD}"

    def verified(peer: Any, params: dict[str, Any]) -> Any:
        gone = OLD in params["anchor"].values()
        return {**CLEAN, "ok": not gone, "problems": [lost] if gone else []}

    daemon.on("store.verify", verified)
    Path("links").write_text(f"B1 {ONE}\nB2 {TWO}\nB1 {OLD}\nB2 {TWO}\n")
    result = ctx("verify", "--against", "links", "--json")
    assert daemon.called("store.verify") == [{"anchor": {"B1": ONE, "B2": TWO}}, {"anchor": {"B1": OLD}}]
    assert result.code == 1
    assert result.json()["problems"] == [lost]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no links"),
        (b"# nothing\n", "holds no links"),
        (b"{}", "holds no links"),
        (b"B1\n", "line 1"),
        (f"B1 {ONE}\nB2 {TWO[:-1]}\n".encode(), "line 2"),
        (b'{"B1": 7}', "'B1'"),
        (b'{"anchors": [1]}', "hexadecimal"),
        (b'{"B1"', "not JSON"),
        (b"\xff\xfe\x00", "neither text nor a backup"),
    ],
)
def test_a_file_without_links_is_refused_before_anything_is_asked(
    ctx: Ctx, daemon: FakeDaemon, content: bytes, words: str
) -> None:
    Path("links").write_bytes(content)
    result = ctx("verify", "--against", "links")
    assert result.code == 2, result.err
    assert words in result.err
    assert daemon.called("store.verify") == []


def test_a_database_that_recorded_no_links_is_refused(ctx: Ctx, daemon: FakeDaemon) -> None:
    make_database(Path("other.db"))
    result = ctx("verify", "--against", "other.db")
    assert result.code == 2
    assert "no backup" in result.err


def test_damage_that_keeps_the_daemon_from_starting_is_an_answer(ctx: Ctx, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (
        "the daemon ended with code 1: 2025-11-18 12:00:00,000 INFO app: listening on /h/run/ctxd.sock | "
        "2025-11-18 12:00:00,002 ERROR ctxd: /h/contextinfinity.db is damaged or no database (file is not a database): x"
    )

    async def start(*args: Any, **options: Any) -> None:
        raise DaemonUnreachable(words)

    monkeypatch.setattr("contextinfinity.clients.autostart.start", start)
    result = ctx("verify")
    assert result.code == 1
    assert "the daemon cannot start: /h/contextinfinity.db is damaged or no database" in result.out
    assert "ctx restore" in result.out
    assert "ctx doctor" in result.out
    assert "INFO" not in result.out
    machine = ctx("verify", "--json")
    assert machine.code == 1
    assert machine.json()["ok"] is False
    words = "the daemon ended with code 78: config.toml is not valid TOML"
    assert ctx("verify").code == 3, "any other failure is what it was"


def slowly(monkeypatch: pytest.MonkeyPatch, daemon: FakeDaemon, method: str, answer: Any) -> None:
    """Answer only after the time that calls usually have."""

    async def late(peer: Any, params: dict[str, Any]) -> Any:
        await anyio.sleep(0.3)
        return answer

    daemon.on(method, late)
    monkeypatch.setattr(connection, "connect", partial(api.connect, call_timeout=0.1))


def test_verify_and_backup_have_all_the_time_they_need(ctx: Ctx, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    slowly(monkeypatch, daemon, "store.verify", CLEAN)
    slowly(monkeypatch, daemon, "store.backup", {"path": "/b.db", "bytes": 5, "anchors": {}})
    assert ctx("verify").code == 0
    assert ctx("backup").code == 0


@pytest.mark.parametrize(("terminal", "shown"), [(True, True), (False, False)])
def test_a_long_verification_shows_a_sign_of_life_on_a_terminal_only(
    ctx: Ctx, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, terminal: bool, shown: bool
) -> None:
    slowly(monkeypatch, daemon, "store.verify", CLEAN)
    monkeypatch.setattr(progress, "DELAY", 0.01)
    monkeypatch.setattr(progress, "can_draw", lambda stream: terminal)
    result = ctx("verify")
    assert result.code == 0
    assert ("verifying …" in result.err) is shown


# backup


def test_backup_sends_an_absolute_path_and_says_what_was_made(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.on("store.backup", lambda peer, params: {"path": params["path"], "bytes": 2048, "anchors": {"B1": ONE}})
    result = ctx("backup", "monday.db")
    target = str(Path.cwd() / "monday.db")
    assert daemon.called("store.backup") == [{"path": target}]
    assert result.code == 0
    assert result.out.splitlines()[0] == f"Wrote {target}, 2.0 KiB; the copy was verified."
    assert f"ctx restore {target}" in result.out
    assert ctx("backup", "~/b.db", "--json").json() == {
        "path": str(Path.home() / "b.db"),
        "bytes": 2048,
        "anchors": {"B1": ONE},
    }


def test_backup_without_a_file_leaves_the_place_to_the_daemon(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.answers("store.backup", {"path": "/h/backups/b.db", "bytes": 5, "anchors": {}})
    assert "/h/backups/b.db" in ctx("backup").out
    assert daemon.called("store.backup") == [{}]


def test_backup_never_overwrites(ctx: Ctx, daemon: FakeDaemon) -> None:
    Path("there.db").write_text("precious")
    Path("link.db").symlink_to("nowhere")
    Path("folder").mkdir()
    for name, words in (("there.db", "exists already"), ("link.db", "exists already"), ("folder", "is a folder")):
        result = ctx("backup", name)
        assert result.code == 2
        assert words in result.err
    assert daemon.called("store.backup") == []
    assert Path("there.db").read_text() == "precious"


def test_a_backup_that_fails_is_one_line(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.refuses("store.backup", StorageFull("there is no room for a backup at /b.db; choose another place"))
    assert ctx("backup") == Result(1, "", "ctx: there is no room for a backup at /b.db; choose another place\n")


# restore


@pytest.fixture
def ctxd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A `ctxd` made of a few lines of shell, which writes down how it was called."""
    record = tmp_path / "called"

    def write(script: str) -> Path:
        program = tmp_path / "ctxd"
        program.write_text(f'#!/bin/sh\necho "$@" >> {record}\n{script}\n')
        program.chmod(0o700)
        monkeypatch.setattr(backups, "find_ctxd", lambda: str(program))
        return record

    return write


KEEPS = 'mkdir -p "$2/backups/replaced-9"; cp "$4" "$2/new"; mv "$2/new" "$2/contextinfinity.db"'
FAILS = "echo '2025-11-18 12:00:00,000 ERROR ctxd: /b.db does not verify, so it was not restored: pages' >&2; exit 1"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "monday.db"
    make_backup(path)
    return path


def test_restore_stops_the_daemon_runs_ctxd_and_says_where_the_old_data_is(
    ctx: Ctx, daemon: FakeDaemon, ctxd: Callable[[str], Path], home: Path, source: Path
) -> None:
    daemon.answers("daemon.status", status(home, pid=(pid := dead_pid())))
    called = ctxd(KEEPS)
    result = ctx("restore", str(source), "--yes")
    assert result.code == 0, result.err
    assert called.read_text() == f"--home {home} --restore {source}\n"
    assert len(daemon.called("daemon.shutdown")) == 1
    assert f"Restored {source}." in result.out
    assert f"kept in {home}/backups/replaced-9" in result.out
    (home / "backups" / "replaced-9").rmdir()
    assert ctx("restore", str(source), "-y", "--json").json() == {
        "restored": str(source),
        "home": str(home),
        "kept": f"{home}/backups/replaced-9",
        "stopped": pid,
    }


def test_restore_works_where_no_daemon_and_no_database_is(
    ctx: Ctx, ctxd: Callable[[str], Path], tmp_path: Path, source: Path
) -> None:
    ctxd('mkdir "$2"; cp "$4" "$2/contextinfinity.db"')
    result = ctx("restore", str(source), "--yes")
    assert result.code == 0, result.err
    assert "There was nothing here before." in result.out
    assert (tmp_path / "home" / "contextinfinity.db").read_bytes() == source.read_bytes()


def test_restore_asks_nobody_without_a_terminal(
    ctx: Ctx, daemon: FakeDaemon, ctxd: Callable[[str], Path], source: Path
) -> None:
    called = ctxd(KEEPS)
    result = ctx("restore", str(source))
    assert result.code == 2
    assert "--yes" in result.err
    assert daemon.called("daemon.shutdown") == []
    assert not called.exists()


def test_restore_refuses_what_is_no_backup_while_the_daemon_still_runs(
    ctx: Ctx, daemon: FakeDaemon, ctxd: Callable[[str], Path], home: Path
) -> None:
    called = ctxd(KEEPS)
    Path("notes.txt").write_text("not a database, though long enough to be one")
    make_database(Path("contextinfinity.db"))
    Path("contextinfinity.db-wal").write_bytes(b"newest turns")
    for file, words in (
        ("notes.txt", "is no backup"),
        (str(home / "contextinfinity.db"), "is the database itself"),
        ("contextinfinity.db", f"ctx --home {Path.cwd()} backup NEW.db"),
    ):
        result = ctx("restore", file, "--yes")
        assert result.code == 1
        assert words in result.err
        assert "nothing was changed" in result.err
        assert len(result.err.splitlines()) == 1
    assert ctx("restore", "no-such-file", "--yes").code == 2
    assert daemon.called("daemon.shutdown") == []
    assert not called.exists()


def test_restore_does_not_stop_the_daemon_of_another_home(
    ctx: Ctx, daemon: FakeDaemon, ctxd: Callable[[str], Path], tmp_path: Path, source: Path
) -> None:
    daemon.answers("daemon.status", status(tmp_path / "elsewhere"))
    called = ctxd(KEEPS)
    result = ctx("restore", str(source), "--yes")
    assert result.code == 2
    assert "--home" in result.err
    assert daemon.called("daemon.shutdown") == []
    assert not called.exists()


def test_a_restore_that_is_refused_says_why_and_that_nothing_was_changed(
    ctx: Ctx, ctxd: Callable[[str], Path], home: Path, source: Path
) -> None:
    ctxd(FAILS)
    result = ctx("restore", str(source), "--yes")
    assert result.code == 1
    assert "nothing was changed: /b.db does not verify, so it was not restored: pages" in result.err
    assert "ERROR" not in result.err
    assert result.out == ""


def test_a_restore_that_broke_half_way_does_not_claim_that_nothing_changed(
    ctx: Ctx, ctxd: Callable[[str], Path], home: Path, source: Path
) -> None:
    trace = "printf '2025-11-18 12:00:00,000 CRITICAL ctxd: the daemon failed\\nTraceback (most):\\n  x\\nOSError: no space\\n'"
    ctxd(f'mkdir "$2/backups/replaced-9"; {trace} >&2; exit 1')
    result = ctx("restore", str(source), "--yes")
    assert result.code == 1
    assert "nothing was changed" not in result.err
    assert f"what was there is in {home}/backups/replaced-9" in result.err
    assert "the daemon failed: OSError: no space" in result.err
    assert "Traceback" not in result.err


def test_a_home_that_is_taken_again_points_at_whoever_restarts_the_daemon(
    ctx: Ctx, ctxd: Callable[[str], Path], home: Path, source: Path
) -> None:
    ctxd("echo '2025-11-18 12:00:00,000 ERROR ctxd: another daemon (pid 7) already serves this' >&2; exit 75")
    result = ctx("restore", str(source), "--yes")
    assert result.code == 1
    for words in ("service manager", "pid 7", "nothing was changed"):
        assert words in result.err


@pytest.mark.parametrize("script", [KEEPS, FAILS], ids=["restored", "refused"])
def test_a_service_is_kept_away_and_may_come_back_afterwards(
    ctx: Ctx,
    ctxd: Callable[[str], Path],
    home: Path,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
) -> None:
    called = ctxd(script)
    monkeypatch.setattr("contextinfinity.clients.services.is_macos", lambda: False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    unit = tmp_path / "config" / "systemd" / "user" / "ctxd.service"
    unit.parent.mkdir(parents=True)
    unit.write_text(f"[Service]\nExecStart=/usr/bin/ctxd --home {home}\n")
    manager = tmp_path / "bin" / "systemctl"
    manager.parent.mkdir()
    manager.write_text(f'#!/bin/sh\necho systemctl "$@" >> {called}\n')
    manager.chmod(0o700)
    monkeypatch.setenv("PATH", f"{manager.parent}:{os.environ['PATH']}")
    result = ctx("restore", str(source), "--yes")
    assert result.code == (0 if script == KEEPS else 1)
    assert called.read_text().splitlines() == [
        "systemctl --user stop ctxd.socket ctxd.service",
        f"--home {home} --restore {source}",
        "systemctl --user start ctxd.socket",
    ]
    assert "stopping the service ctxd.service" in result.err


def test_a_daemon_that_cannot_give_its_status_is_stopped_all_the_same(
    ctx: Ctx, daemon: FakeDaemon, ctxd: Callable[[str], Path], home: Path, source: Path
) -> None:
    ctxd(KEEPS)
    daemon.refuses("daemon.status", InvalidState("the database is damaged"))
    (home / "run" / "endpoint.json").write_text(json.dumps({"unix": "/s", "pid": dead_pid()}))
    assert ctx("restore", str(source), "--yes").code == 0
    assert len(daemon.called("daemon.shutdown")) == 1


def test_ctrl_c_does_not_leave_a_restore_half_done(ctx: Ctx, ctxd: Callable[[str], Path], home: Path, source: Path) -> None:
    ctxd(f"kill -INT $PPID; sleep 0.2; {KEEPS}")
    result = ctx("restore", str(source), "--yes")
    assert result.code == 0
    assert "one moment" in result.err
    assert f"kept in {home}/backups/replaced-9" in result.out


# doctor


def test_doctor_finds_a_healthy_daemon_well(ctx: Ctx, daemon: FakeDaemon, home: Path) -> None:
    result = ctx("doctor")
    assert result.code == 0, result.out
    assert result.out.endswith("All is well.\n")
    machine = ctx("doctor", "--json")
    assert machine.code == 0
    assert machine.json()["ok"] is True
    assert machine.json()["home"] == str(home)
    assert {f["level"] for f in machine.json()["checks"]} == {"ok"}
    wanted = {"home", "disk", "config", "socket", "endpoint", "database", "backup", "daemon", "version", "actors", "jobs"}
    assert wanted | {"integrity", "model", "key store"} <= {f["check"] for f in machine.json()["checks"]}


def test_doctor_works_without_a_daemon_and_starts_none(ctx: Ctx, home: Path) -> None:
    result = ctx("doctor", "--json")
    assert result.code == 0, result.out
    assert result.finding("daemon")["message"] == "none runs; the next command starts one"
    assert result.finding("database")["level"] == "ok"
    assert "integrity" not in {f["check"] for f in result.json()["checks"]}


def test_doctor_before_there_is_a_home(ctx: Ctx, tmp_path: Path) -> None:
    result = ctx("doctor", "--json")
    assert result.code == 0
    assert result.finding("home")["level"] == "warning"
    assert "ctx ask" in result.finding("home")["fix"]
    assert not (tmp_path / "home").exists(), "looking makes nothing"


class Wrong(NamedTuple):
    """A home made wrong in one way, and what has to be said about it."""

    spoil: Callable[[Path], Any]
    check: str
    level: str
    message: str
    fix: str


def hold_lock(home: Path, holder: int) -> None:
    fd = os.open(home / "run" / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(fd, str(holder).encode(), 0)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def spoil_bytes(path: Path, start: int, end: int | None) -> None:
    content = bytearray(path.read_bytes())
    content[start:end] = bytes(byte ^ 0xFF for byte in content[start:end])
    path.write_bytes(content)


def truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def announce(home: Path, text: str) -> None:
    (home / "run" / "endpoint.json").write_text(text)


def age(path: Path, days: int) -> None:
    os.utime(path, (time.time() - days * 86400,) * 2)


def left_over_socket(home: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home.parent / "s.sock"))
    (home.parent / "s.sock").chmod(0o600)


DB = checkup.DATABASE
WRONG = {
    "home others can read": Wrong(lambda h: h.chmod(0o755), "home", "problem", "mode 0755", "chmod 700 "),
    "database others can read": Wrong(lambda h: (h / DB).chmod(0o640), "database", "problem", "mode 0640", "chmod 600 "),
    "database without its head": Wrong(
        lambda h: spoil_bytes(h / DB, 0, 100), "database", "problem", "is damaged", "backup-2025.db"
    ),
    "database cut short": Wrong(lambda h: truncate(h / DB, 20_000), "database", "problem", "cut short", "ctx restore "),
    "database with damaged pages": Wrong(
        lambda h: spoil_bytes(h / DB, 8192, None), "database", "problem", "is damaged", "ctx restore "
    ),
    "database without its tables": Wrong(
        lambda h: spoil_bytes(h / DB, 100, 4096), "database", "problem", "malformed", "ctx restore "
    ),
    "old backup": Wrong(lambda h: age(h / "backups/backup-2025.db", 40), "backup", "warning", "40 d", "ctx backup"),
    "no backup": Wrong(lambda h: (h / "backups/backup-2025.db").unlink(), "backup", "warning", "none", "ctx backup"),
    "config that is no TOML": Wrong(
        lambda h: (h / "config.toml").write_text("[general\n"), "config", "problem", "not valid TOML", "config.toml"
    ),
    "config that the daemon refuses": Wrong(
        lambda h: (h / "config.toml").write_text('[general]\ndefault_model = "nope"\n'),
        "config",
        "problem",
        "nope",
        "config.toml",
    ),
    "config that is no text": Wrong(
        lambda h: (h / "config.toml").write_bytes(b"\xff"), "config", "problem", "not valid TOML", "config.toml"
    ),
    "stale endpoint": Wrong(
        lambda h: announce(h, json.dumps({"unix": "/s", "pid": dead_pid()})), "endpoint", "warning", "ended", "replaces it"
    ),
    "endpoint that is no JSON": Wrong(lambda h: announce(h, "{"), "endpoint", "warning", "cannot be read", "replaces it"),
    "lock of a live process": Wrong(
        lambda h: hold_lock(h, os.getpid()), "lock", "problem", "does not answer", f"kill {os.getpid()}"
    ),
    "lock inherited from a dead process": Wrong(
        lambda h: hold_lock(h, dead_pid()), "lock", "problem", "which has ended", "fuser"
    ),
    "left-over socket": Wrong(left_over_socket, "socket", "warning", "nobody answers", "replaces it"),
    "file in the socket's place": Wrong(
        lambda h: (h.parent / "s.sock").write_text(""), "socket", "problem", "is no socket", "--socket"
    ),
    "last start failed": Wrong(
        lambda h: (h / "logs/ctxd.log").write_text("T x INFO app: ready\nT x INFO app: stopping\nT x ERROR ctxd: no luck\n"),
        "log",
        "warning",
        "no luck",
        "ctx daemon start",
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_doctor_names_what_is_wrong_with_a_home_and_the_fix(ctx: Ctx, home: Path, wrong: Wrong) -> None:
    wrong.spoil(home)
    result = ctx("doctor", "--json")
    findings = [f for f in result.json()["checks"] if f["level"] != "ok"]
    assert [(f["check"], f["level"]) for f in findings] == [(wrong.check, wrong.level)], findings
    assert wrong.message in findings[0]["message"]
    assert wrong.fix in findings[0]["fix"]
    assert result.code == (1 if wrong.level == "problem" else 0)
    shown = ctx("doctor")
    assert f"\n{wrong.level:<8} {wrong.check}" in f"\n{shown.out}"
    assert "fix: " in shown.out
    assert "Traceback" not in shown.out + shown.err


def test_a_lock_that_nobody_holds_is_no_trouble(ctx: Ctx, home: Path) -> None:
    (home / "run" / "lock").write_text(str(pid := dead_pid()))
    found = ctx("doctor", "--json").finding("lock")
    assert found["level"] == "ok"
    assert f"pid {pid}" in found["message"]
    assert "has ended" in found["message"]


def test_a_daemon_that_made_way_for_another_is_no_complaint(ctx: Ctx, home: Path) -> None:
    (home / "logs" / "ctxd.log").write_text(
        "T x ERROR ctxd: broken\nT x INFO app: ready\nT x ERROR ctxd: another daemon has it\n"
    )
    assert ctx("doctor").out.endswith("All is well.\n")


@pytest.mark.parametrize("spoil", [lambda h: h.write_text(""), lambda h: h.symlink_to(h)], ids=["file", "loop"])
def test_a_home_that_is_no_folder_is_the_only_problem(ctx: Ctx, tmp_path: Path, spoil: Callable[[Path], Any]) -> None:
    spoil(tmp_path / "home")
    result = ctx("doctor", "--json")
    assert [f["check"] for f in result.json()["checks"] if f["level"] != "ok"] == ["home"]
    assert result.code == 1


def test_a_socket_path_that_is_too_long_is_a_problem(ctx: Ctx, home: Path) -> None:
    result = ctx("doctor", "--json", "--socket", "/tmp/" + "x" * 120)
    assert result.finding("socket")["level"] == "problem"
    assert "--socket" in result.finding("socket")["fix"]
    assert result.code == 1


def test_a_socket_that_others_may_use_is_a_problem(ctx: Ctx, daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "s.sock").chmod(0o666)
    result = ctx("doctor", "--json")
    assert result.finding("socket")["fix"] == f"chmod 600 {tmp_path / 's.sock'}"
    assert result.code == 1


@pytest.mark.parametrize(("free", "level"), [(5 * 10**9, "ok"), (5 * 10**8, "warning"), (5 * 10**7, "problem")])
def test_little_space_is_a_warning_and_none_a_problem(
    ctx: Ctx, home: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(free))
    result = ctx("doctor", "--json")
    assert result.finding("disk")["level"] == level
    assert result.code == (level == "problem")


def test_a_network_filesystem_is_a_problem(ctx: Ctx, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "filesystem_of", lambda folder: "nfs4")
    result = ctx("doctor", "--json")
    assert "nfs4" in result.finding("filesystem")["message"]
    assert result.code == 1


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="only Linux tells")
def test_the_filesystem_is_the_one_that_is_mounted_nearest() -> None:
    assert checkup.filesystem_of(Path("/proc/self")) == "proc"
    assert checkup.filesystem_of(Path("/")) not in ("", "proc")


ACTOR = {"name": "janitor", "state": "running", "restarts": 0, "mailbox": 4}


@pytest.mark.parametrize(
    ("changes", "check", "level", "words"),
    [
        ({"actors": [{**ACTOR, "state": "parked", "restarts": 6}]}, "actors", "problem", "janitor is parked"),
        ({"actors": [{**ACTOR, "restarts": 2}]}, "actors", "warning", "restarted 2 times"),
        ({"actors": [{**ACTOR, "state": "restarting"}]}, "actors", "warning", "restarting"),
        ({"jobs": {"pending": 1, "running": 0, "failed": 3}}, "jobs", "problem", "3 parked"),
        ({"warnings": ["config.toml: [typo] is not used"]}, "warning", "warning", "[typo]"),
        ({"read_only": True}, "daemon", "warning", "read-only"),
        ({"home": "/elsewhere"}, "daemon", "warning", "/elsewhere"),
    ],
)
def test_doctor_judges_what_the_daemon_says(
    ctx: Ctx, daemon: FakeDaemon, home: Path, changes: dict[str, Any], check: str, level: str, words: str
) -> None:
    daemon.answers("daemon.status", status(home, **changes))
    result = ctx("doctor", "--json")
    (found,) = [f for f in result.json()["checks"] if f["level"] != "ok"]
    assert (found["check"], found["level"]) == (check, level)
    assert words in found["message"]
    assert found["fix"]
    assert result.code == (level == "problem")


def test_doctor_tells_of_another_version(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.answers("daemon.ping", {"version": "9.9.9", "protocol": 1, "capabilities": []})
    found = ctx("doctor", "--json").finding("version")
    assert found["level"] == "warning"
    assert "9.9.9" in found["message"]
    assert "ctx daemon stop" in found["fix"]


def test_doctor_tells_of_a_default_model_without_a_key(ctx: Ctx, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contextinfinity.clients.cli.auth._usable_store", lambda: None)
    missing = model(name="sonnet", provider="anthropic", api_key_env="ANTHROPIC_API_KEY", key_present=False)
    daemon.answers("model.list", {"models": [model(default=False), missing]})
    result = ctx("doctor", "--json")
    assert result.code == 1
    assert result.finding("model")["level"] == "problem"
    assert "ANTHROPIC_API_KEY" in result.finding("model")["fix"]
    assert result.finding("key store")["level"] == "warning"
    daemon.answers("model.list", {"models": [{**missing, "key_present": True}]})
    result = ctx("doctor", "--json")
    assert (result.code, result.finding("model")["level"], result.finding("key store")["level"]) == (0, "ok", "ok")


def test_a_key_in_the_place_of_its_variable_is_not_shown(ctx: Ctx, daemon: FakeDaemon) -> None:
    wrong = model(name="sonnet", provider="anthropic", api_key_env="hunter-2-secret", key_present=False)
    daemon.answers("model.list", {"models": [wrong]})
    result = ctx("doctor")
    assert result.code == 1
    assert "hunter" not in result.out


def test_doctor_reports_damage_that_the_daemon_finds(ctx: Ctx, daemon: FakeDaemon, home: Path) -> None:
    daemon.answers("store.verify", {**BROKEN, "problems": [f"links: link {n} was changed" for n in range(9)]})
    result = ctx("doctor", "--json")
    found = result.finding("integrity")
    assert (result.code, found["level"]) == (1, "problem")
    assert "link 0 was changed" in found["message"]
    assert "and 6 more, see ctx verify" in found["message"]
    assert found["fix"] == f"ctx restore {home}/backups/backup-2025.db"


def test_a_daemon_without_a_status_is_a_problem_and_the_rest_is_still_checked(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.refuses("daemon.status", InvalidState("the database is damaged (malformed)"))
    result = ctx("doctor", "--json")
    assert result.code == 1
    assert "malformed" in result.finding("daemon")["message"]
    assert result.finding("model")["level"] == "ok"


def test_a_daemon_that_does_not_answer_is_a_problem(ctx: Ctx, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vitals, "CALL_TIMEOUT", 0.1)
    daemon.answers("daemon.ping", NO_ANSWER)
    result = ctx("doctor", "--json")
    assert result.code == 1
    assert "did not answer" in result.finding("daemon")["message"]
    assert "kill" in result.finding("daemon")["fix"]


def test_a_large_database_is_not_verified_by_the_way(ctx: Ctx, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "QUICK_LIMIT", 1000)
    assert ctx("doctor").code == 0
    assert daemon.called("store.verify") == []


def test_looking_at_a_database_leaves_its_log_alone(tmp_path: Path) -> None:
    """A home whose daemon was killed: its newest turns are in the write-ahead log, and must be there for the next one."""
    path = tmp_path / "killed.db"
    with contextlib.closing(sqlite3.connect(tmp_path / "live.db")) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (x)")
        db.commit()
        for suffix in ("", "-wal"):
            path.with_name(f"killed.db{suffix}").write_bytes((tmp_path / f"live.db{suffix}").read_bytes())
    wal = (tmp_path / "killed.db-wal").read_bytes()
    assert wal
    assert dbfile.header_damage(path) is None
    assert dbfile.quick_damage(path) is None
    assert (tmp_path / "killed.db-wal").read_bytes() == wal


# the support file

CANARIES = {
    "header": "canary-header-value",
    "nested": "canary.nested.header",
    "password": "canarypass",
    "userinfo": "canaryuser",
    "query": "canaryquery",
    "comment": "canary-in-a-comment",
    "inline": "sk-ant-canary0123456789",
    "variable": "Canary-in-api-key-env",
    "log": "sk-canary-abcdef123456",
    "bearer": "canarybearertoken",
    "hex": "ca" * 20,
    "base64": "Q2FuYXJ5Q2FuYXJ5Q2FuYXJ5Q2FuYXJ5+/8=",
    "environment": "canary-of-the-environment",
    "token": "CanaryTokenCanaryTokenCanaryTokenCanaryToken0",
    "name": "canary.owner",
}
CONFIG = f"""
# api_key = "{CANARIES["comment"]}"
[general]
default_model = "claude"
[models.claude]
provider = "anthropic"
model_id = "claude-x"
max_output_tokens = 4096
api_key_env = "{CANARIES["variable"]}"
base_url = "https://{CANARIES["userinfo"]}:x@gateway.example/v1?signature={CANARIES["query"]}"
headers = {{ "X-Team" = "{CANARIES["header"]}" }}
[models.claude.extra.headers]
deep = ["{CANARIES["nested"]}"]
[storage]
password = "{CANARIES["password"]}"
note = "use {CANARIES["inline"]} here"
"""
LOG = f"""2025-11-18 12:00:00,000 INFO app: listening on @HOME@/run/ctxd.sock
2025-11-18 12:00:01,000 ERROR http: key {CANARIES["log"]} refused, Authorization: Bearer {CANARIES["bearer"]}
2025-11-18 12:00:02,000 ERROR http: {CANARIES["hex"]} and {CANARIES["base64"]} and {CANARIES["environment"]}
2025-11-18 12:00:03,000 INFO web: token {CANARIES["token"]} of {CANARIES["header"]}
2025-11-18 12:00:04,000 INFO app: turn 01JCZX5W8GQ0M3V6Y2R4T7B9KD is done
"""


def unpack(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            found[Path(member.name).name] = file.read().decode()
        return found


def test_the_support_file_holds_no_secret(
    ctx: Ctx, daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / CANARIES["name"] / "notes"
    for folder in (home, home / "run", home / "logs"):
        folder.mkdir(mode=0o700, parents=True)
    monkeypatch.setenv("HOME", str(home.parent))
    monkeypatch.setenv("CTX_HOME", str(home))
    monkeypatch.setenv("SOME_API_KEY", CANARIES["environment"])
    (home / "config.toml").write_text(CONFIG)
    (home / "run" / "token").write_text(CANARIES["token"] + "\n")
    (home / "logs" / "ctxd.log").write_text("old line\n" * 300 + LOG.replace("@HOME@", str(home)))
    daemon.answers("daemon.status", status(home, warnings=[f"{home}/config.toml: [storage] is not used"]))
    daemon.answers("model.list", {"models": [model(api_key_env=CANARIES["variable"], key_present=False)]})
    result = ctx("doctor", "--bundle", "support.tar.gz")
    assert result.code == 1, "the key is missing"
    files = unpack(Path("support.tar.gz"))
    assert set(files) == {"report.json", "versions.json", "status.json", "models.json", "config.toml", "ctxd.log"}
    for name, content in files.items():
        for what, canary in CANARIES.items():
            assert canary not in content, f"{what} in {name}"
        assert name in result.out
    assert stat.S_IMODE(Path("support.tar.gz").stat().st_mode) == 0o600
    assert "Look through it" in result.out

    kept = tomllib.loads(files["config.toml"])
    assert kept["general"] == {"default_model": "claude"}
    assert kept["models"]["claude"]["max_output_tokens"] == 4096, "what helps is kept"
    assert kept["models"]["claude"]["headers"] == {"X-Team": GONE}
    assert "gateway.example/v1" in kept["models"]["claude"]["base_url"]
    assert len(files["ctxd.log"].splitlines()) == 200
    assert "<home>/run/ctxd.sock" in files["ctxd.log"]
    assert "turn 01JCZX5W8GQ0M3V6Y2R4T7B9KD is done" in files["ctxd.log"]
    assert json.loads(files["status.json"])["actors"][0]["name"] == "store"
    assert json.loads(files["models.json"])["models"][0]["max_output_tokens"] == 4000
    assert {f["check"] for f in json.loads(files["report.json"])} >= {"home", "daemon", "model"}


def test_the_support_file_of_a_home_without_a_daemon_or_a_readable_config(ctx: Ctx, home: Path) -> None:
    (home / "config.toml").write_text('api_key = "canary-unparsed')
    result = ctx("doctor", "--bundle", "support.tar.gz", "--json")
    assert result.code == 1
    files = unpack(Path("support.tar.gz"))
    assert set(files) == {"report.json", "versions.json", "config.txt"}
    assert "not valid TOML" in files["config.txt"]
    assert "canary" not in "".join(files.values())
    assert json.loads(files["versions.json"])["daemon"] is None
    bundle = result.json()["bundle"]
    assert bundle["path"] == str(Path("support.tar.gz").absolute())
    assert {f["name"] for f in bundle["files"]} == set(files)


def test_a_support_file_is_never_overwritten(ctx: Ctx, home: Path) -> None:
    Path("there").write_text("precious")
    assert ctx("doctor", "--bundle", "there").code == 2
    assert Path("there").read_text() == "precious"
    missing = ctx("doctor", "--bundle", "no/such/folder.tar.gz")
    assert missing.code == 1
    assert len(missing.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("key sk-ant-api03-abcdef", "key [redacted]"),
        ("Authorization: Bearer abc.def", "Authorization: [redacted]"),
        ("sent 'bearer abcdef', twice", "sent 'bearer [redacted]', twice"),
        ("proxy http://me:pw@host:1/x", "proxy http://[redacted]@host:1/x"),
        ("GET /v1?key=abc&limit=3", "GET /v1?key=[redacted]&limit=[redacted]"),
        ('{"api_key": "abc"}', '{"api_key": "[redacted]"}'),
        ("x-api-key: abc, next", "x-api-key: [redacted], next"),
        (f"hash {'0f' * 32}.", "hash [redacted]."),
        ("AKIAIOSFODNN7EXAMPLE", "[redacted]"),
        ("/home/anna/.contextinfinity/run", "<home>/run"),
        ("/home/anna/x and /home/annabel/x", "~/x and /home/annabel/x"),
        ("branch-01JCZX5W8GQ0M3V6Y2R4T7B9KD crashed", "branch-01JCZX5W8GQ0M3V6Y2R4T7B9KD crashed"),
        ("<home>/backups/replaced-2025-11-18T120000.000Z", "<home>/backups/replaced-2025-11-18T120000.000Z"),
        (
            'File "/usr/lib/python3.11/site-packages/contextinfinity/daemon/app.py", line 7, in a_function_with_a_long_name',
            'File "/usr/lib/python3.11/site-packages/contextinfinity/daemon/app.py", line 7, in a_function_with_a_long_name',
        ),
    ],
)
def test_what_is_redacted_and_what_is_kept(monkeypatch: pytest.MonkeyPatch, text: str, kept: str) -> None:
    monkeypatch.setenv("HOME", "/home/anna")
    assert Redactor(Path("/home/anna/.contextinfinity")).text(text) == kept


names = st.text(string.ascii_letters + "_- .é", min_size=1, max_size=8)
plain = st.recursive(
    st.text(max_size=20) | st.integers() | st.booleans() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(names, plain, max_size=4))
def test_settings_survive_being_written_again(tree: dict[str, Any]) -> None:
    assert tomllib.loads(as_toml(tree)) == tree


@settings(deadline=None)
@given(
    st.dictionaries(names, plain, max_size=3),
    st.sampled_from(["api_key", "Token", "client_secret", "password", "authorization", "headers", "proxyAuth"]),
    st.sampled_from([lambda c: c, lambda c: [c], lambda c: {"inner": c}, lambda c: {"inner": [{"x": c}]}]),
)
def test_nothing_under_a_secret_name_survives(tree: dict[str, Any], name: str, wrap: Callable[[str], Any]) -> None:
    canary = "canary-42"
    document = {"outer": {**tree, name: wrap(canary)}}
    known = list(redaction.secrets_in(document))
    assert canary in known, "so that it goes wherever else it turns up"
    assert canary not in as_toml(Redactor(Path("/nowhere")).value(document))


# help


@pytest.mark.parametrize("name", ["verify", "backup", "restore", "doctor"])
def test_the_commands_are_listed_and_explained(name: str) -> None:
    listed = CliRunner().invoke(cli, ["--help"]).output
    assert f"\n  {name} " in listed
    shown = CliRunner().invoke(cli, [name, "--help"]).output
    assert f"ctx {name}" in shown.split("Examples:")[1]


def test_styles_reach_only_terminals(ctx: Ctx, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in ctx("doctor").out
    monkeypatch.setattr(output, "in_colour", lambda stream: True)
    assert "\x1b[32mok" in ctx("doctor").out
