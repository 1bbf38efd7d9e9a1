"""`ctx embedder`, and what `ctx doctor` says of embedders: against a scripted daemon and a `ctxd` of a few lines."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contextinfinity.clients.cli import configfile, embedder
from contextinfinity.clients.cli.processes import alive
from contextinfinity.protocol.errors import InvalidParams
from tests.clients.fake import FakeDaemon
from tests.clients.shell import Ctx
from tests.clients.test_store_commands import CLEAN, make_backup, make_database, model, status
from tests.clients.test_store_commands import embedder as described
from tests.support.waiting import wait_until

OPENAI = {"name": "openai", "kind": "openai", "model": "text-embedding-3-small"}
MODEL = "snowflake-arctic-embed-s"


class Ctxd:
    """A program in the daemon's place: it writes down how it was called, and ends as a test wants."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ctxd"
        self._calls = folder / "calls"
        self.ends()

    def ends(self, code: int = 0, words: str = "") -> None:
        script = (
            f"#!{sys.executable}\nimport json, os, sys\n"
            f"calls = open({str(self._calls)!r}, 'a')\n"
            "config = sys.argv[sys.argv.index('--config') + 1] if '--config' in sys.argv else None\n"
            "text = open(config).read() if config else None\n"
            "seen = [name for name in ('CTX_RETRIEVAL_EMBEDDER', 'NOTIFY_SOCKET') if name in os.environ]\n"
            "print(json.dumps([sys.argv[1:], text, seen]), file=calls)\n"
            f"sys.stderr.write({words!r}.replace('CONFIG', config or ''))\nprint('not for us')\nraise SystemExit({code})\n"
        )
        self.path.write_text(script)
        self.path.chmod(0o755)

    @property
    def calls(self) -> list[Any]:
        return [json.loads(row) for row in self._calls.read_text().splitlines()] if self._calls.exists() else []


@pytest.fixture
def ctxd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ctxd:
    made = Ctxd(tmp_path)
    monkeypatch.setattr(embedder, "find_ctxd", lambda: str(made.path))
    monkeypatch.setattr(configfile, "find_ctxd", lambda: str(made.path))
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    return made


@pytest.fixture
def home(tmp_path: Path, ctx: Ctx) -> Path:
    made = tmp_path / "home"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def told(daemon: FakeDaemon, home: Path) -> FakeDaemon:
    """A daemon of this home that takes up what the file says."""

    def chosen(peer: Any, params: Any) -> Any:
        text = (home / "config.toml").read_text() if (home / "config.toml").exists() else ""
        name = text.partition('embedder = "')[2].partition('"')[0] or "local"
        return {"embedders": [described(chosen=name == "local"), {**OPENAI, "chosen": name == "openai"}]}

    daemon.answers("daemon.status", status(home))
    daemon.answers("config.reload", {"applied": ["retrieval.embedder"], "needs_restart": []})
    daemon.on("embedder.list", chosen)
    return daemon


# list


def test_embedders_are_listed_with_what_is_missing(ctx: Ctx, daemon: FakeDaemon) -> None:
    listed = [
        described(installed=False, active=False),
        {**OPENAI, "active": True},
        described(name="spare", chosen=False, active=False),
        {"name": "http", "kind": "http", "model": "nomic"},
    ]
    daemon.answers("embedder.list", {"embedders": listed})
    result = ctx("embedder", "list")
    assert [row.split(maxsplit=4) for row in result.out.splitlines()] == [
        ["*", "local", "local", MODEL, f"not installed: ctx embedder install {MODEL}"],
        ["openai", "openai", "text-embedding-3-small", "answers", "until the chosen one is ready"],
        ["spare", "local", MODEL, "installed"],
        ["http", "http", "nomic"],
    ]
    assert result.err == ""
    assert [e["name"] for e in ctx("embedder", "list", "--json").json()["embedders"]] == ["local", "openai", "spare", "http"]
    daemon.answers("embedder.list", {"embedders": [described(), {**OPENAI, "chosen": True}]})
    assert "answers\n" in ctx("embedder", "list").out
    assert "not ready yet: ctx status" in ctx("embedder", "list").out
    daemon.answers("embedder.list", {"embedders": [{**OPENAI}]})
    assert "ctx embedder use NAME" in ctx("embedder", "list").err


# install


def test_install_runs_ctxd_and_tells_a_daemon_that_runs(ctx: Ctx, told: FakeDaemon, ctxd: Ctxd, home: Path) -> None:
    assert embedder.DEFAULT_MODEL == MODEL
    result = ctx("embedder", "install", "--json")
    assert result.code == 0
    assert ctxd.calls == [[["--home", str(home), "--install-model", MODEL], None, []]]
    assert told.called("config.reload") == [{}]
    Path("m.whl").write_bytes(b"")
    ctx("embedder", "install", "other", "--from", "m.whl")
    assert ctxd.calls[1][0] == ["--home", str(home), "--install-model", "other", "--from", str(Path.cwd() / "m.whl")]


def test_install_prints_one_document_and_lets_progress_through(tmp_path: Path, ctxd: Ctxd) -> None:
    ctxd.ends(0, "12 % of 34 MB\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ctx").write_text(
        f"from contextinfinity.clients.cli import embedder\nembedder.find_ctxd = lambda: {str(ctxd.path)!r}\n"
        "from contextinfinity.clients.cli.main import main\nraise SystemExit(main())\n"
    )
    command = [sys.executable, str(tmp_path / "bin" / "ctx"), "--home", str(tmp_path / "h"), "--socket", str(tmp_path / "none")]
    done = subprocess.run([*command, "embedder", "install", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"installed": MODEL}
    assert done.stderr == "12 % of 34 MB\n"
    plain = subprocess.run([*command, "embedder", "install"], capture_output=True, text=True, check=True)
    assert plain.stdout == f"{MODEL} is installed.\n"
    assert not (tmp_path / "h").exists(), "no daemon was started"


def test_an_install_can_be_interrupted(ctx: Ctx, ctxd: Ctxd, tmp_path: Path) -> None:
    helper = tmp_path / "helper"
    ctxd.path.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {helper}.new\nmv {helper}.new {helper}\nwait\n")

    def interrupt() -> None:
        wait_until(helper.exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = ctx("embedder", "install")
    thread.join()
    assert (result.code, result.out) == (130, "")
    wait_until(lambda: not alive(int(helper.read_text())))


@pytest.mark.parametrize("code", [1, 75, 78])
def test_an_install_that_fails_ends_as_ctxd_did(ctx: Ctx, told: FakeDaemon, ctxd: Ctxd, code: int) -> None:
    ctxd.ends(code)
    result = ctx("embedder", "install", "--json")
    assert (result.code, result.out) == (code, "")
    assert told.called("config.reload") == []
    assert ctx("embedder", "install", "--from", "missing").code == 2


def test_an_install_is_a_success_even_if_the_daemon_has_other_worries(ctx: Ctx, told: FakeDaemon, ctxd: Ctxd) -> None:
    told.refuses("config.reload", InvalidParams("config.toml: not valid TOML"))
    result = ctx("embedder", "install")
    assert (result.code, result.out) == (0, f"{MODEL} is installed.\n")
    assert result.err == "ctx: the running daemon did not take it up: config.toml: not valid TOML\n"


def test_a_ctrl_c_while_ctxd_is_being_started_leaves_nothing_running(
    ctx: Ctx, ctxd: Ctxd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    ctxd.path.write_text("#!/bin/sh\nexec sleep 600\n")

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self.pid)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(embedder.subprocess, "Popen", Interrupted)  # type: ignore[attr-defined]
    before = signal.getsignal(signal.SIGINT)
    result = ctx("embedder", "install")
    assert (result.code, result.out) == (130, "")
    assert not alive(started[0])
    assert signal.getsignal(signal.SIGINT) is before


def test_a_daemon_that_is_not_understood_does_not_undo_an_install(ctx: Ctx, told: FakeDaemon, ctxd: Ctxd, home: Path) -> None:
    told.answers("daemon.status", {"of": "another version"})
    result = ctx("embedder", "install")
    assert (result.code, result.out) == (0, f"{MODEL} is installed.\n")
    assert "did not take it up" in result.err
    assert ctx("embedder", "use", "openai").code == 0


# use


def test_use_changes_the_setting_alone_and_tells_the_daemon(ctx: Ctx, told: FakeDaemon, ctxd: Ctxd, home: Path) -> None:
    path = home / "config.toml"
    path.write_bytes(b"# mine\r\n[retrieval] # search\r\nembedder = \"local\" # for now\r\nscope = 'session'\r\n")
    path.chmod(0o640)
    result = ctx("embedder", "use", "openai")
    assert result.code == 0, result.err
    after = b"# mine\r\n[retrieval] # search\r\nembedder = \"openai\" # for now\r\nscope = 'session'\r\n"
    assert path.read_bytes() == after
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(home) == ["config.toml"], "nothing is left beside it"
    assert result.out.splitlines() == [
        f'{path} now says: embedder = "openai"',
        "The daemon knows: search goes on with the old vectors until the new ones are ready; ctx status shows what is left.",
    ]
    assert result.err == ""
    ((arguments, text, seen),) = ctxd.calls
    assert (arguments[:2], arguments[2], arguments[4]) == (["--home", str(home)], "--config", "--check-config")
    assert (text.encode(), seen) == (after.replace(b"\r\n", b"\n"), []), "judged before it was put in place"
    assert told.called("config.reload") == [{}]


def test_use_again_writes_nothing_and_tells_the_daemon_all_the_same(
    ctx: Ctx, told: FakeDaemon, ctxd: Ctxd, home: Path
) -> None:  # fmt: skip
    assert ctx("embedder", "use", "openai", "--json").json() == {
        "embedder": "openai",
        "config": str(home / "config.toml"),
        "changed": True,
        "reloaded": True,
    }
    before = (home / "config.toml").stat()
    assert stat.S_IMODE(before.st_mode) == 0o600
    result = ctx("embedder", "use", "openai")
    assert "says already" in result.out
    assert (home / "config.toml").stat() == before
    assert len(ctxd.calls) == 1
    assert len(told.called("config.reload")) == 2


def test_use_none_is_search_by_words(ctx: Ctx, told: FakeDaemon, ctxd: Ctxd, home: Path) -> None:
    result = ctx("embedder", "use", "none")
    assert "by words alone" in result.out
    assert result.err == ""
    assert (home / "config.toml").read_text() == '[retrieval]\nembedder = "none"\n'


def test_use_without_a_daemon_makes_home_and_file_and_starts_nothing(ctx: Ctx, ctxd: Ctxd, tmp_path: Path) -> None:
    result = ctx("embedder", "use", "openai")
    assert result.code == 0
    assert "the next one to start takes it up" in result.out
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "home" / "config.toml").stat().st_mode) == 0o600


def test_a_setting_that_the_daemon_refuses_changes_nothing(ctx: Ctx, told: FakeDaemon, ctxd: Ctxd, home: Path) -> None:
    ctxd.ends(78, "2025-11-18 12:00:00,000 ERROR ctxd: CONFIG: retrieval.embedder 'nope' is not configured\n")
    result = ctx("embedder", "use", "nope")
    assert result.code == 1
    assert f"the daemon refuses it: {home / 'config.toml'}: retrieval.embedder 'nope' is not configured" in result.err
    assert result.err.endswith("; nothing was changed\n")
    assert len(result.err.splitlines()) == 1
    assert os.listdir(home) == []
    (home / "config.toml").write_text("[retrieval]\n")
    assert ctx("embedder", "use", "nope").code == 1
    assert (home / "config.toml").read_text() == "[retrieval]\n"
    assert told.called("config.reload") == []


def test_the_real_daemon_judges_the_name(ctx: Ctx, home: Path) -> None:
    assert ctx("embedder", "use", "http").code == 0
    result = ctx("embedder", "use", "nope")
    assert result.code == 1
    assert "'nope' is not configured" in result.err
    assert f".{configfile.NAME}" not in result.err
    assert (home / "config.toml").read_text() == '[retrieval]\nembedder = "http"\n'


def loop(path: Path) -> None:
    path.symlink_to(path)


def unreadable(path: Path) -> None:
    path.write_text("")
    path.chmod(0)


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a loop of links": (loop, "symbolic links"),
    "a link to nothing": (lambda p: p.symlink_to(p.with_name("gone")), "does not exist"),
    "a folder": (lambda p: p.mkdir(), "irectory"),
    "a pipe": (os.mkfifo, "is no file"),
    "not TOML": (lambda p: p.write_text("[retrieval"), "is not valid TOML"),
    "not text": (lambda p: p.write_bytes(b"\xff"), "is not valid TOML"),
    "no place for it": (lambda p: p.write_text("retrieval = 1\n"), "cannot be edited"),
    "unreadable": (unreadable, "Permission denied"),
}


@pytest.mark.parametrize(("spoil", "words"), BAD.values(), ids=BAD.keys())
def test_a_file_that_cannot_be_edited_is_left_and_the_way_by_hand_is_named(
    ctx: Ctx, ctxd: Ctxd, home: Path, spoil: Callable[[Path], Any], words: str
) -> None:
    if spoil is unreadable and os.geteuid() == 0:
        pytest.skip("root may read everything")
    spoil(home / "config.toml")
    before = os.lstat(home / "config.toml")
    result = ctx("embedder", "use", "openai")
    assert result.code == 1
    assert words in result.err
    assert 'by hand: embedder = "openai" under [retrieval] in ' in result.err
    assert len(result.err.splitlines()) == 1
    after = os.lstat(home / "config.toml")
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert os.listdir(home) == ["config.toml"]


def test_a_link_stays_a_link_and_what_it_leads_to_is_changed(ctx: Ctx, ctxd: Ctxd, home: Path, tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    real = tmp_path / "dotfiles" / "ctx.toml"
    real.write_text("[retrieval]\nembedder = 'a'\n")
    (home / "config.toml").symlink_to(real)
    assert ctx("embedder", "use", "openai").code == 0
    assert (home / "config.toml").is_symlink()
    assert real.read_text() == '[retrieval]\nembedder = "openai"\n'
    assert os.listdir(real.parent) == ["ctx.toml"]


def test_a_change_by_somebody_else_meanwhile_is_not_lost(
    ctx: Ctx, ctxd: Ctxd, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / "config.toml"

    def meanwhile(*args: Any, **options: Any) -> None:
        path.write_text("# by somebody else\n")

    monkeypatch.setattr(configfile, "refusal", meanwhile)
    for _ in ("made", "changed"):
        result = ctx("embedder", "use", "openai")
        assert result.code == 1
        assert "changed by somebody else meanwhile" in result.err
        assert path.read_text() == "# by somebody else\n"
        path.write_text("# as it was before this test changes it again\n")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda d, h: d.answers("daemon.status", status(h.parent)), "so it was not told"),
        (lambda d, h: d.answers("config.reload", {"applied": [], "needs_restart": ["retrieval.embedder"]}), "ctx daemon stop"),
        (lambda d, h: d.answers("embedder.list", {"embedders": [described()]}), "has another one all the same"),
        (lambda d, h: d.refuses("config.reload", InvalidParams("broken")), "did not take it up: broken"),
    ],
)
def test_a_daemon_that_does_not_take_it_up_is_named(
    ctx: Ctx, told: FakeDaemon, ctxd: Ctxd, home: Path, spoil: Callable[[FakeDaemon, Path], Any], words: str
) -> None:
    spoil(told, home)
    result = ctx("embedder", "use", "openai")
    assert result.code == 0
    assert words in result.err


def test_an_environment_that_says_otherwise_is_mentioned(
    ctx: Ctx, ctxd: Ctxd, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("CTX_RETRIEVAL_EMBEDDER", "http")
    result = ctx("embedder", "use", "openai")
    assert result.code == 0
    assert "CTX_RETRIEVAL_EMBEDDER is set here" in result.err
    assert ctxd.calls[0][2] == [], "the file is judged, not what overrules it"


# doctor


@pytest.fixture
def well(told: FakeDaemon, home: Path, tmp_path: Path) -> FakeDaemon:
    (home / "backups").mkdir(mode=0o700)
    (home / "run").mkdir(mode=0o700)
    make_database(home / "contextinfinity.db")
    make_backup(home / "backups" / "backup-2025.db")
    (tmp_path / "s.sock").chmod(0o600)
    (home / "run" / "endpoint.json").write_text(json.dumps({"unix": str(tmp_path / "s.sock"), "pid": os.getpid()}))
    told.answers("model.list", {"models": [model()]})
    told.answers("store.verify", CLEAN)
    return told


@pytest.mark.parametrize(
    ("embedders", "memory", "check", "level", "message", "fix"),
    [
        ([described()], {}, "embedder", "ok", f"local ({MODEL})", None),
        (
            [described()],
            {"unembedded": 3},
            "memory",
            "ok",
            "7 passages; 0 turns to be indexed, 3 passages to be embedded",
            None,
        ),
        ([{**OPENAI}], {}, "embedder", "ok", "none is chosen", None),
        ([described(installed=False)], {"degraded": "x"}, "embedder", "warning", "is not installed", "ctx embedder install"),
        (
            [described(installed=False, model="other")],
            {"degraded": "x"},
            "embedder",
            "warning",
            "other is not installed, so search goes by words alone",
            "ctx embedder install other",
        ),
        ([{**OPENAI, "chosen": True}], {"degraded": "no key"}, "memory", "warning", "no key", "ctx daemon logs"),
    ],
)
def test_doctor_says_how_search_is(
    ctx: Ctx,
    well: FakeDaemon,
    home: Path,
    embedders: list[dict[str, Any]],
    memory: dict[str, Any],
    check: str,
    level: str,
    message: str,
    fix: str | None,
) -> None:
    well.answers("embedder.list", {"embedders": embedders})
    well.answers("daemon.status", status(home, memory={"unindexed_turns": 0, "passages": 7, "unembedded": 0, **memory}))
    result = ctx("doctor", "--json")
    assert result.code == 0, result.out
    checks = result.json()["checks"]
    (found,) = [f for f in checks if f["check"] == check]
    assert (found["level"], fix is None) == (level, "fix" not in found)
    assert message in found["message"]
    assert fix is None or fix in found["fix"]
    assert [f["check"] for f in checks if f["level"] != "ok"] == ([check] if level != "ok" else [])
