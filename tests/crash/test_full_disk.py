"""A disk that is full: nothing new is taken, nothing is lost, reading goes on, and writing resumes when there is space again.

The home is a small filesystem of its own where one may be mounted; where not, the database is kept from growing instead.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contextinfinity.protocol.errors import Fault, StorageFull
from tests.crash.mutant import PAGES
from tests.crash.promises import Ledger, check, rest
from tests.crash.provider import SlowProvider
from tests.crash.test_mutants import Mutant
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.support.wire import Wire

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
DISK = 6 * 1024 * 1024
RESERVE = 1024 * 1024
CHUNK = 64 * 1024
SLACK = 48 * 1024
NO_LIMIT = 1 << 30


class Disk:
    """A home that can be filled and freed."""

    daemon: Daemon

    def fill(self) -> None:
        raise NotImplementedError

    def shrink(self) -> None:
        """Room for some turns and no more."""
        raise NotImplementedError

    def leave(self, size: int) -> None:
        """After `fill`: room for a few small files, not for a turn."""

    def free(self) -> None:
        raise NotImplementedError


class SmallDisk(Disk):
    def __init__(self, folder: Path, config: str) -> None:
        self.daemon = Daemon(folder, config)
        self._ballast = self.daemon.home / "ballast"

    def fill(self) -> None:
        """To the last byte."""
        with self._ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            for size in (CHUNK, 4096, 512, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"\0" * size):
                        pass

    def shrink(self) -> None:
        self._ballast.write_bytes(b"\0" * RESERVE)

    def leave(self, size: int) -> None:
        os.truncate(self._ballast, self._ballast.stat().st_size - size)

    def free(self) -> None:
        self._ballast.unlink()


class SmallDatabase(Disk):
    def __init__(self, folder: Path, config: str) -> None:
        self._limit = folder / "pages"
        self._allow(NO_LIMIT)
        self.daemon = Mutant(folder, "small", config, **{PAGES: str(self._limit)})

    def _allow(self, pages: int) -> None:
        """In one step: the daemon may read the file at any instant, and half a number is not a full disk."""
        draft = self._limit.with_suffix(".new")
        draft.write_text(str(pages))
        draft.replace(self._limit)

    def shrink(self) -> None:
        self._allow(400)

    def fill(self) -> None:
        self._allow(1)  # as many as there are: it cannot shrink

    def free(self) -> None:
        self._allow(NO_LIMIT)


def mount(folder: Path) -> bool:
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=0700", "tmpfs", folder]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def provider() -> Iterator[SlowProvider]:
    with SlowProvider(words=200, gap=0.01) as running:
        yield running


@pytest.fixture(params=["filesystem", "database"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, provider: SlowProvider) -> Iterator[Disk]:
    home = tmp_path / "h"
    home.mkdir(mode=0o700)
    mounted = request.param == "filesystem" and mount(home)
    kind = SmallDisk if mounted else SmallDatabase
    made = kind(tmp_path, provider.config("write_ahead"))
    try:
        yield made
    finally:
        if made.daemon.alive:
            made.daemon.kill9()
        if mounted:
            subprocess.run(["umount", home], check=True)


def test_a_full_disk_refuses_words_and_nothing_else(disk: Disk, provider: SlowProvider) -> None:
    ledger = Ledger(provider.answer, write_ahead=True)
    daemon = disk.daemon.start()
    with daemon.wire() as wire, ledger.listening(wire):
        branch = ledger.session(wire, model="recall")
        for number in range(5):
            ledger.wait(wire, ledger.submit(wire, branch, f"before {number}"))
        rest(daemon)
        disk.fill()
        refused = _refusals(wire, ledger, branch)
        assert refused >= 3
        assert wire.call("daemon.ping")
        assert len(wire.call("turn.list", branch_id=branch)["turns"]) == len(ledger.said)
        assert wire.call("branch.get", branch_id=branch)["id"] == branch
        assert wire.call("store.verify")["ok"]
        large = os.urandom(20_000).hex()  # a small thing may still find room
        with pytest.raises(StorageFull):
            wire.call("session.rename", session_id=wire.call("branch.get", branch_id=branch)["session_id"], title=large)
        with pytest.raises(StorageFull):
            wire.call("session.create", system=large)
        pid = wire.call("daemon.status")["pid"]
        disk.free()
        for number in range(3):
            ledger.wait(wire, ledger.submit(wire, branch, f"after {number}"))
        assert wire.call("daemon.status")["pid"] == pid, "without a restart"
    check(daemon, ledger, indexed=False)
    daemon.kill9()
    daemon.start()
    check(daemon, ledger)
    assert daemon.stop() == 0


def _refusals(wire: Wire, ledger: Ledger, branch: str) -> int:
    """Submit until it is refused, and go on a little: a small message may still find room."""
    refused = 0
    for number in range(40):
        text = f"too much {number} " + os.urandom(4000).hex()
        try:
            ledger.wait(wire, ledger.submit(wire, branch, text), timeout=5)
        except StorageFull as error:
            assert error.code == -32006
            assert "full" in error.message
            ledger.sent.remove(text)
            refused += 1
            if refused == 3:
                break
    return refused


def test_words_that_fill_the_disk_by_themselves(disk: Disk, provider: SlowProvider) -> None:
    """The conversation grows until there is no room for it, wherever in a turn that is."""
    disk.shrink()
    daemon, ledger = disk.daemon.start(), Ledger(provider.answer)
    with daemon.wire() as wire, ledger.listening(wire):
        branch = ledger.session(wire, model="recall")
        refused = 0
        while refused < 5 and len(ledger.sent) < 500:
            try:
                ledger.wait(wire, ledger.submit(wire, branch, os.urandom(40_000).hex()), timeout=2)
            except Fault:
                refused += 1
        assert refused, "it never filled up"
        assert wire.call("store.verify")["ok"]
        disk.free()
        wait_until(lambda: _accepts(wire, ledger, branch))
    wait_until(lambda: _all_over(daemon, branch))
    check(daemon, ledger, indexed=False)
    assert daemon.stop() == 0
    daemon.start()  # an indexing that found no room may wait for its lease; not beyond this
    check(daemon, ledger)
    assert daemon.stop() == 0


def _accepts(wire: Wire, ledger: Ledger, branch: str) -> bool:
    try:
        ledger.submit(wire, branch, f"is there room again at {time.monotonic()}?")
    except Fault:
        return False
    return True


def _all_over(daemon: Daemon, branch: str) -> bool:
    with daemon.wire() as wire:
        turns = wire.call("turn.list", branch_id=branch, limit=1000)["turns"]
    return all(turn["phase"] in ("failed", "response_finalized") for turn in turns)


@pytest.mark.parametrize("policy", ["buffered", "write_ahead"])
def test_a_stream_that_runs_out_of_space_ends_when_there_is_some(disk: Disk, provider: SlowProvider, policy: str) -> None:
    ledger = Ledger(provider.answer, write_ahead=policy == "write_ahead")
    (disk.daemon.home / "config.toml").write_text(provider.config(policy))
    daemon = disk.daemon.start()
    with daemon.wire() as wire, ledger.listening(wire):
        branch = ledger.session(wire)
        turn = ledger.submit(wire, branch, "talk for a while")
        wire.until(lambda e: e["type"] == "stream.durable" and e["data"]["durable"] > 100)
        disk.fill()
        freed = threading.Timer(3.5, disk.free)
        freed.start()
        with daemon.wire() as other:
            assert other.call("daemon.ping")
        ended = ledger.wait(wire, turn, timeout=30)
        freed.join()
        assert ended["phase"] in ("failed", "response_finalized")
        if ended["phase"] == "failed":
            assert ended["error"]["code"] in (-32006, -32005)
        ledger.wait(wire, ledger.submit(wire, branch, "how is the weather now?"))
    check(daemon, ledger, indexed=False)
    daemon.kill9()
    daemon.start()
    check(daemon, ledger)
    assert daemon.stop() == 0


def test_a_daemon_that_starts_on_a_full_disk_recovers_when_there_is_space(disk: Disk, provider: SlowProvider) -> None:
    ledger = Ledger(provider.answer, write_ahead=True)
    daemon = disk.daemon.start()
    with daemon.wire() as wire, ledger.listening(wire):
        branch = ledger.session(wire)
        turn = ledger.submit(wire, branch, "talk for a while")
        wire.until(lambda e: e["type"] == "stream.durable" and e["data"]["durable"] > 100)
        daemon.kill9()
    disk.fill()
    disk.leave(SLACK)
    daemon.start()
    with daemon.wire() as wire:
        assert wire.call("daemon.ping")
        assert wire.call("turn.get", turn_id=turn)["user_message"]["rendered_text"] == "talk for a while"
        disk.free()
        assert ledger.wait(wire, turn, timeout=30)["phase"] == "failed"
    wait_until(lambda: _all_over(daemon, branch))
    check(daemon, ledger, indexed=False)
    assert daemon.stop() == 0
    daemon.start()  # an indexing that found no room may wait for its lease; not beyond this
    check(daemon, ledger)
    assert daemon.stop() == 0
