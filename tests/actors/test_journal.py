"""The journal actor under both policies: what is shown when, what counts as durable, and one sync for many streams."""

import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from contextinfinity.daemon.actors.hub import Filter, Hub, Live
from contextinfinity.daemon.actors.journal import Journal, OpenStep, StepJournal
from contextinfinity.daemon.config import Stream
from contextinfinity.daemon.runtime.actor import Ref
from contextinfinity.daemon.runtime.supervisor import Supervisor
from contextinfinity.daemon.storage import journals
from contextinfinity.daemon.storage.journals import read_lines
from tests.support.waiting import until

NEVER = 3_600_000


class Disk:
    """Stands in for os.fsync: counts, and can hold a sync until the test lets it go."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.free = threading.Event()
        self.free.set()
        self.entered = threading.Event()

    def fsync(self, fd: int) -> None:
        self.entered.set()
        assert self.free.wait(20)
        self.synced.append(os.readlink(f"/proc/self/fd/{fd}"))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(journals.os, "fsync", disk.fsync)
    return disk


@asynccontextmanager
async def journal(folder: Path, settings: Stream) -> AsyncIterator[tuple[Ref, Hub]]:
    hub = Hub()
    supervisor = Supervisor("test")
    ref = supervisor.add("journal", lambda: Journal(folder, hub, settings))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(supervisor.run)
            yield ref, hub
            nursery.cancel_scope.cancel()


def displayed(hub: Hub, branch: str) -> int:
    stream = hub.stream_of(branch)
    return stream.displayed if stream is not None else 0


def durable(hub: Hub, branch: str) -> int:
    stream = hub.stream_of(branch)
    return stream.durable if stream is not None else 0


async def opened(ref: Ref, step_id: str = "s1") -> StepJournal:
    return await ref.ask(OpenStep(Live(step_id, "t" + step_id, "b" + step_id, "x"), "recall", "m"))


async def test_buffered_text_is_shown_at_once_and_durable_after_the_sync(tmp_path: Path, disk: Disk) -> None:
    async with journal(tmp_path, Stream(flush_ms=1, fsync_ms=NEVER)) as (ref, hub):
        step = await opened(ref)
        step.append("text", {"text": "größe"}, [(0, "größe")])
        assert displayed(hub, "bs1") == 7
        await until(lambda: step.file.path.exists() and len(read_lines(step.file.path)) == 2)
        assert durable(hub, "bs1") == 0
        assert disk.synced == []
        await step.seal()
        assert durable(hub, "bs1") == 7
        assert disk.synced == [str(step.file.path), str(tmp_path)], "the file, then the folder that names it"


async def test_write_ahead_shows_nothing_before_the_sync_that_covers_it(tmp_path: Path, disk: Disk) -> None:
    async with journal(tmp_path, Stream(policy="write_ahead")) as (ref, hub):
        heard = hub.subscribe(Filter())
        step = await opened(ref)
        await until(lambda: not step.unsynced and disk.synced)
        disk.free.clear()
        disk.entered.clear()
        step.append("text", {"text": "a"}, [(0, "a")])
        await until(disk.entered.is_set)
        step.append("text", {"text": "b"}, [(0, "b")])
        assert displayed(hub, "bs1") == 0
        disk.free.set()
        await until(lambda: durable(hub, "bs1") == 2)
        events = [e for e in await heard.receive() if e.type.startswith("stream.")]
        for event in events:
            if event.type == "stream.delta":
                assert event.data["displayed"] - len(event.data["text"]) <= event.data["durable"] + 1
        assert "".join(e.data.get("text", "") for e in events) == "ab"
        heard.close()


async def test_small_writes_wait_for_the_clock_and_large_ones_do_not(tmp_path: Path, disk: Disk) -> None:
    async with journal(tmp_path, Stream(flush_ms=NEVER, fsync_ms=NEVER, flush_bytes=500)) as (ref, _):
        step = await opened(ref)
        step.append("text", {"text": "x"}, [(0, "x")])
        await trio.testing.wait_all_tasks_blocked()
        assert not step.file.path.exists()
        step.append("text", {"text": "y" * 600}, [(0, "y" * 600)])
        await until(lambda: step.file.path.exists() and len(read_lines(step.file.path)) == 3)


async def test_the_clock_flushes_and_syncs_by_itself(tmp_path: Path, disk: Disk) -> None:
    async with journal(tmp_path, Stream(flush_ms=5, fsync_ms=20)) as (ref, hub):
        step = await opened(ref)
        for i in range(3):
            step.append("text", {"text": "x"}, [(0, "x")])
            await until(lambda i=i: durable(hub, "bs1") == i + 1)
        assert read_lines(step.file.path)[-1].seq == 3


async def test_one_round_syncs_every_live_stream_and_the_folder_once(tmp_path: Path, disk: Disk) -> None:
    async with journal(tmp_path, Stream(policy="write_ahead")) as (ref, hub):
        first = await opened(ref)
        await until(lambda: disk.synced)
        disk.synced.clear()
        disk.free.clear()
        disk.entered.clear()
        first.append("text", {"text": "a"}, [(0, "a")])
        await until(disk.entered.is_set)
        others = [await opened(ref, f"o{i}") for i in range(5)]
        for step in others:
            step.append("text", {"text": "b"}, [(0, "b")])
        disk.free.set()
        await until(lambda: all(durable(hub, f"bo{i}") == 1 for i in range(5)))
        assert disk.synced.count(str(tmp_path)) == 1
        assert len(disk.synced) == 1 + 5 + 1


async def test_a_disk_that_fails_to_sync_stops_the_journal_and_whoever_waits_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(journals.os, "fsync", broken)
    async with journal(tmp_path, Stream()) as (ref, hub):
        step = await opened(ref)
        step.append("text", {"text": "a"}, [(0, "a")])
        with pytest.raises(Exception, match="journal"):
            await step.seal()
        assert durable(hub, "bs1") == 0
