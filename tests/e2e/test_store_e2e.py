"""Verify, back up, restore and diagnose with a real `ctxd`: damage is named, nothing is lost, and loss can be proven."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contextinfinity.protocol.errors import InvalidParams
from tests.e2e.test_cli_e2e import Home, Terminal
from tests.support.daemon import Daemon
from tests.support.provider_server import ProviderServer, Reply
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CTX = Path(sys.executable).parent / "ctx"
HERON = "The build server is called heron-7."
DEADLINE = 60.0


class Site:
    """A home with a daemon of the test's own, and `ctx` for it; whichever daemon it has at the end is stopped."""

    def __init__(self, folder: Path, config: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.daemon = Daemon(folder, config)
        self.home = self.daemon.home
        self.database = self.home / "contextinfinity.db"
        self.daemon.env["CTX_RETRIEVAL_EMBEDDER"] = "none"
        self.env = self.daemon.env | {"CTX_HOME": str(self.home), "NO_COLOR": "1"}

    def ctx(self, *args: str) -> "subprocess.CompletedProcess[str]":
        result = subprocess.run(
            [CTX, *args],
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert "Traceback" not in result.stdout + result.stderr
        return result

    def json(self, *args: str, code: int = 0) -> Any:
        result = self.ctx(*args, "--json")
        assert result.returncode == code, result.stdout + result.stderr
        return json.loads(result.stdout)

    def turns(self, *target: str) -> list[dict[str, Any]]:
        return list(self.json("log", *target)["turns"])

    def levels(self, code: int) -> dict[str, str]:
        """What `ctx doctor` has to say that is not ok."""
        return {f["check"]: f["level"] for f in self.json("doctor", code=code)["checks"] if f["level"] != "ok"}

    def stop(self) -> None:
        assert self.ctx("daemon", "stop").returncode == 0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "site")
    yield made
    made.stop()


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Any]:
    """Copies of a site's folder at rest, each with a daemon of its own if one is started."""
    made: list[Site] = []

    def copy(original: Site) -> Site:
        folder = tmp_path / f"copy{len(made)}"
        shutil.copytree(original.folder, folder, symlinks=True)
        made.append(Site(folder))
        return made[-1]

    yield copy
    for one in made:
        one.stop()


def test_a_backup_while_a_turn_streams_holds_everything_that_was_said(tmp_path: Path) -> None:
    with ProviderServer(Reply(deltas=("half ", "whole."), pause_after=1)) as provider:
        base = provider.base_url("openai_chat")
        model = f'[models.local]\nprovider = "openai_chat"\nmodel_id = "local-1"\nbase_url = "{base}"\n'
        site = Site(tmp_path / "site", f'{model}[stream]\npolicy = "write_ahead"\n')
        other = Site(tmp_path / "other", model)
        try:
            with site.daemon, site.daemon.wire() as wire:
                branch = wire.call("session.create", cwd=str(site.folder))["branch"]["id"]
                done = wire.call("turn.submit", branch_id=branch, content=HERON, model="recall")["turn_id"]
                wire.call("turn.wait", turn_id=done)
                live = wire.call("turn.submit", branch_id=branch, content="And then?")["turn_id"]
                wait_until(provider.paused.is_set)
                wait_until(lambda: wire.call("branch.get", branch_id=branch)["stream"]["durable"] == len("half "))

                made = site.json("backup", str(tmp_path / "live.db"))
                assert made["anchors"][branch]
                assert stat.S_IMODE(Path(made["path"]).stat().st_mode) == 0o600
                assert wire.call("turn.get", turn_id=live)["phase"] == "responding", "nobody waited for the backup"
                provider.resume()
                turn = wire.call("turn.wait", turn_id=live)
                assert turn["final_assistant_message"]["rendered_text"] == "half whole."
                assert "No problems." in site.ctx("verify", "--against", made["path"]).stdout

                other.json("restore", made["path"], "--yes")
                first, second = other.json("log", branch)["turns"]
                assert first == wire.call("turn.get", turn_id=done), "byte for byte"
                assert (second["phase"], second["incomplete"], second["partial_text"]) == ("failed", True, "half ")
                assert other.json("verify", "--against", made["path"])["ok"] is True
        finally:
            other.stop()


def test_damage_is_named_by_verify_and_doctor_and_undone_by_restore(site: Site, copies: Any) -> None:
    site.json("ask", HERON)
    site.json("ask", "What is the build server called?")
    said = site.turns()
    backup = site.json("backup")["path"]
    site.stop()
    content = site.database.read_bytes()
    place = content.index(b'"text":"The build server is called heron-7."')

    quiet = copies(site)
    changed = bytearray(content)
    changed[place + 8] ^= 0x01  # one bit of one letter: SQLite itself does not notice
    quiet.database.write_bytes(changed)
    report = quiet.json("verify", code=1)
    assert any(said[0]["id"] in problem and "was changed" in problem for problem in report["problems"])
    assert quiet.levels(code=1) == {"integrity": "problem"}
    shown = quiet.ctx("verify")
    assert shown.returncode == 1
    assert said[0]["id"] in shown.stdout
    assert "ctx restore" in shown.stdout

    dead = copies(site)
    dead.database.write_bytes(b"\xff" * 4096 + content[4096:])
    shown = dead.ctx("verify")
    assert shown.returncode == 1, shown.stderr
    assert "is damaged" in shown.stdout
    assert "ctx restore" in shown.stdout
    assert "ctx doctor" in shown.stdout
    assert dead.json("verify", code=1)["ok"] is False
    report = dead.json("doctor", code=1)
    (found,) = [f for f in report["checks"] if f["level"] == "problem"]
    assert found["check"] == "database"
    newest = f"{dead.home}/backups/{Path(backup).name}"
    assert found["fix"] == f"ctx restore {newest}", "the fix can be typed as it is"

    for broken, damage in ((quiet, bytes(changed[place : place + 40])), (dead, b"\xff" * 4096)):
        restored = broken.json("restore", f"{broken.home}/backups/{Path(backup).name}", "--yes")
        assert broken.turns(said[0]["branch_id"]) == said
        assert broken.json("verify", "--against", backup)["ok"] is True
        kept = Path(restored["kept"])
        assert kept.parent == broken.home / "backups"
        assert damage in (kept / "contextinfinity.db").read_bytes(), "for whoever can still make use of it"
        broken.json("ask", "Life goes on.")


@pytest.mark.parametrize(
    "name", ["contextinfinity.db-journal", "contextinfinity.db-wal.old", "run/token", "streams/x.db", "y" * 300]
)
def test_a_backup_in_an_impossible_place_is_refused_and_disturbs_nothing(site: Site, name: str) -> None:
    site.json("ask", HERON)
    with site.daemon.wire() as wire:
        target = site.daemon.home / name
        with pytest.raises(InvalidParams):
            wire.call("store.backup", path=str(target))
        assert len(name) == 300 or not target.exists()
        actors = {a["name"]: a["restarts"] for a in wire.call("daemon.status")["actors"]}
        assert set(actors.values()) == {0}, actors
        assert wire.call("store.verify")["ok"]


def test_a_backup_that_is_damaged_is_not_restored_and_nothing_changes(site: Site) -> None:
    site.json("ask", HERON)
    backup = Path(site.json("backup", "b.db")["path"])
    content = backup.read_bytes()
    place = content.index(b'"text":"The build server is called heron-7."') + 8
    backup.write_bytes(content[:place] + b"t" + content[place + 1 :])
    said = site.turns()
    result = site.ctx("restore", str(backup), "--yes")
    assert result.returncode == 1
    assert "nothing was changed" in result.stderr
    assert "was changed" in result.stderr.replace("nothing was changed", ""), "and why"
    assert len(result.stderr.splitlines()) == 1
    assert list((site.home / "backups").glob("replaced-*")) == []
    assert site.turns() == said


def test_only_links_that_were_written_down_show_a_lost_tail(site: Site) -> None:
    site.json("ask", HERON)
    old = site.json("backup", "old.db")["path"]
    site.json("ask", "This will be lost.")
    links = site.ctx("verify", "--anchor")
    assert links.returncode == 0
    (site.folder / "links").write_text(links.stdout)
    assert site.ctx("verify", "--against", "links").returncode == 0
    new = site.json("backup", "new.db")["path"]

    site.json("restore", old, "--yes")
    assert len(site.turns()) == 1
    assert site.ctx("verify").returncode == 0, "what is left is whole in itself"
    assert site.ctx("verify", "--against", old).returncode == 0
    for written in ("links", new):
        result = site.ctx("verify", "--against", written)
        assert result.returncode == 1
        assert site.turns()[0]["branch_id"] in result.stdout
        assert "turns are missing" in result.stdout

    site.json("ask", "Something else instead.")
    assert site.ctx("verify", "--against", "links").returncode == 1, "another turn does not hide it"
    site.json("restore", new, "--yes")
    assert site.ctx("verify", "--against", "links").returncode == 0
    assert [turn["user_message"]["rendered_text"] for turn in site.turns()] == [HERON, "This will be lost."]


def test_restore_stops_a_running_daemon_and_leaves_the_next_to_start_by_itself(site: Site) -> None:
    with site.daemon:
        site.json("ask", HERON)
        backup = site.json("backup")["path"]
        pid = site.daemon.pid
        assert site.json("restore", backup, "--yes")["stopped"] == pid
        assert site.daemon.process is not None
        assert site.daemon.process.wait(DEADLINE) == 0
    assert site.ctx("daemon", "status").returncode == 3
    assert len(site.turns()) == 1
    assert site.json("daemon", "status")["pid"] != pid


def test_restore_asks_on_a_terminal_and_no_is_no(tmp_path: Path) -> None:
    home = Home(tmp_path)
    try:
        home.json("ask", HERON)
        backup = home.json("backup")["path"]
        home.json("ask", "later")
        for answer, turns in (("n", 2), ("y", 1)):
            terminal = Terminal(home, "restore", backup)
            try:
                terminal.see(r"made \d{4}-\d\d-\d\d")
                terminal.see(r"What was said after the backup will be missing")
                terminal.see(r"Go on\? \[y/N\]: ")
                terminal.type(f"{answer}\n")
                terminal.see(r"nothing was changed" if answer == "n" else r"is kept in .*replaced-")
            finally:
                code = terminal.close()
            assert code == (1 if answer == "n" else 0)
            assert len(home.json("log")["turns"]) == turns
    finally:
        home.stop()


def test_doctor_from_before_the_first_word_to_after_a_crash(site: Site) -> None:
    site.home.rmdir()
    assert site.levels(code=0) == {"home": "warning"}
    assert not site.home.exists(), "looking makes nothing"

    with site.daemon:
        site.json("ask", HERON)
        assert site.levels(code=0) == {"backup": "warning"}
        site.json("backup")
        well = site.ctx("doctor")
        assert (well.returncode, well.stdout.splitlines()[-1]) == (0, "All is well.")
        assert "1 turns" in well.stdout

        site.daemon.kill9()
        assert site.levels(code=0) == {"socket": "warning", "endpoint": "warning"}
        shown = site.ctx("doctor").stdout
        assert f"left by pid {site.daemon.pid}" in shown
        assert f"free; pid {site.daemon.pid}, which had it last, has ended" in shown
        assert len(site.turns()) == 1
        assert site.levels(code=0) == {}, "the next daemon put it right"


def test_doctor_finds_wrong_permissions_and_its_fixes_work(site: Site) -> None:
    site.json("ask", HERON)
    site.json("backup")
    site.home.chmod(0o755)
    site.database.chmod(0o644)
    (site.home / "run" / "ctxd.sock").chmod(0o666)
    report = site.json("doctor", code=1)
    problems = [f for f in report["checks"] if f["level"] == "problem"]
    assert {f["check"] for f in problems} == {"home", "database", "socket"}
    for problem in problems:
        assert problem["fix"].startswith("chmod ")
        subprocess.run(problem["fix"].split(), check=True)
    assert site.levels(code=0) == {}
    assert stat.S_IMODE(site.home.stat().st_mode) == 0o700


def test_a_support_file_has_no_key_no_token_and_nothing_that_was_said(tmp_path: Path) -> None:
    with ProviderServer(Reply(deltas=("The secret-answer-canary stands still.",))) as provider:
        base = provider.base_url("openai_chat").replace("http://", "http://canaryuser:canarypass@")
        site = Site(
            tmp_path / "site",
            f'[models.local]\nprovider = "openai_chat"\nmodel_id = "local-1"\nbase_url = "{base}"\n'
            'headers = { "X-Gateway-Key" = "canary-gateway-key" }\n[websocket]\nenabled = true\n'
            '[typo]\napi_key = "sk-canary-in-a-section-of-no-use"\n',
        )
        site.env["OPENAI_API_KEY"] = "canary-environment-key"
        try:
            turn = site.json("ask", "The secret-question-canary")
            title = site.json("show", turn["session_id"])["title"]
            assert "canary" in title
            log = site.home / "logs" / "ctxd.log"
            with log.open("a") as file:
                file.write(f"2025-11-18 12:00:00,000 ERROR x: canary-gateway-key refused, Bearer canary-bearer, {site.home}\n")
            token = (site.home / "run" / "token").read_text().strip()
            result = site.ctx("doctor", "--bundle", "support.tar.gz")
            assert result.returncode == 0, result.stdout
            with tarfile.open(site.folder / "support.tar.gz") as archive:
                members = {Path(m.name).name: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]
        finally:
            site.stop()
    everything = b"".join(members.values())
    assert set(members) == {"report.json", "versions.json", "status.json", "models.json", "config.toml", "ctxd.log"}
    assert b"canary" not in everything
    assert token.encode() not in everything
    assert os.fsencode(site.home) not in everything
    assert b"refused" in members["ctxd.log"]
    assert b"X-Gateway-Key" in members["config.toml"]
    assert json.loads(members["status.json"])["storage"]["turns"] == 1
    for name in members:
        assert name in result.stdout
