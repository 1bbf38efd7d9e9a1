"""The journal actor: every provider event of every live step, on disk in rounds, one fsync round for all of them.

`buffered` shows text at once and syncs every two seconds; `write_ahead` shows it only after the sync that covers it.
"""

import errno
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from contextinfinity.daemon.actors.hub import Hub, Live
from contextinfinity.daemon.config import Stream
from contextinfinity.daemon.runtime.actor import Actor, ActorGone, Request
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.runtime.lane import Lane, Outcome
from contextinfinity.daemon.storage.connection import full
from contextinfinity.daemon.storage.journals import START, JournalFile, Line, encode_line, path_of
from contextinfinity.protocol.errors import Fault

MOST_BUFFERED = 1024 * 1024
NEVER = float("inf")


class StepJournal:
    """The journal of one live step: appending is synchronous, writing and syncing happen in the actor's rounds."""

    def __init__(self, home: "Journal", live: Live, provider: str, path: Path) -> None:
        self.live = live
        self.file = JournalFile(path)
        self.buffer: list[bytes] = []
        self.buffered = 0
        self.unseen: list[tuple[int, str]] = []  # write_ahead: text that waits for its sync
        self.visible = 0  # bytes of text appended so far
        self.unsynced = False
        self.sealing = False
        self.sealed = trio.Event()
        self.full = False  # the disk has no room for more of it
        self._home = home
        self._provider = provider
        self._seq = 0

    def append(self, event_type: str, payload: dict[str, Any], texts: Sequence[tuple[int, str]] = ()) -> None:
        line = encode_line(Line(now(), self._provider, event_type, self._seq, payload)) + b"\n"
        self._seq += 1
        self.buffer.append(line)
        self.buffered += len(line)
        for block, text in texts:
            self.visible += len(text.encode())
            if self._home.write_ahead:
                self.unseen.append((block, text))
            else:
                self._home.hub.shown(self.live, block, text)
        self._home.appended(self)

    async def room(self) -> None:
        """Wait while too much is buffered, so that a fast provider cannot outrun the disk."""
        if self.full:
            raise full()
        while self.buffered > MOST_BUFFERED:
            await self._home.round_done.wait()

    async def seal(self) -> None:
        """Everything appended is on disk when this returns, and so is the file's name."""
        self.sealing = True
        self._home.wakeup.set()
        await self.sealed.wait()
        if self._home.broken:
            raise ActorGone("the journal stopped")
        if self.full:
            raise full()


class OpenStep(Request[StepJournal], frozen=True):
    """Begin the journal of a step; its first line names the model and the turn."""

    live: Live
    provider: str
    model_id: str


class _Write(msgspec.Struct):
    step: StepJournal
    data: bytes
    visible: int
    unseen: list[tuple[int, str]]
    sync: bool
    last: bool
    full: bool = False


class Journal(Actor):
    answers = (Fault,)

    def __init__(self, folder: Path, hub: Hub, settings: Stream) -> None:
        self.hub = hub
        self.write_ahead = settings.policy == "write_ahead"
        self.broken = False
        self.wakeup = trio.Event()
        self.round_done = trio.Event()
        self._folder = folder
        self._settings = settings
        self._steps: dict[str, StepJournal] = {}
        self._unflushed_since = NEVER
        self._unsynced_since = NEVER
        self._lane: Lane[partial[None]] | None = None

    async def start(self) -> None:
        self._lane = Lane("journal", _perform)
        self.nursery.start_soon(self._rounds, self._lane)

    async def handle(self, message: OpenStep) -> StepJournal:
        live = message.live
        step = StepJournal(self, live, message.provider, path_of(self._folder, live.step_id))
        self._steps[live.step_id] = step
        self.hub.opened(live)
        step.append(START, {"model_id": message.model_id, "turn_id": live.turn_id})
        return step

    async def stop(self) -> None:
        self.broken = True
        for step in self._steps.values():
            self.hub.closed(step.live)
            step.sealed.set()
        self.round_done.set()
        if self._lane is not None:
            if self._lane.cause is None:
                await self._lane.submit(partial(_close, [step.file for step in self._steps.values()]))
            await self._lane.close()

    def appended(self, step: StepJournal) -> None:
        first = self._unflushed_since == NEVER
        if first:
            self._unflushed_since = trio.current_time()
            self._unsynced_since = min(self._unsynced_since, self._unflushed_since)
        if first or self._is_due(step):
            self.wakeup.set()

    def _is_due(self, step: StepJournal) -> bool:
        limit = 1 if self.write_ahead else self._settings.flush_bytes
        return step.sealing or step.buffered >= limit

    async def _rounds(self, lane: Lane[partial[None]]) -> None:
        flush_after, sync_after = self._settings.flush_ms / 1000, self._settings.fsync_ms / 1000
        while True:
            flush_at, sync_at = self._unflushed_since + flush_after, self._unsynced_since + sync_after
            if not any(self._is_due(step) for step in self._steps.values()):
                self.wakeup = trio.Event()
                with trio.move_on_at(min(flush_at, sync_at)):
                    await self.wakeup.wait()
                    continue  # something came: look again at what is due, and when
            await self._round(lane, sync_all=self.write_ahead or trio.current_time() >= sync_at)

    async def _round(self, lane: Lane[partial[None]], *, sync_all: bool) -> None:
        work: list[_Write] = []
        for step in self._steps.values():
            sync = step.sealing or (sync_all and (step.buffered > 0 or step.unsynced))
            if step.buffered or sync:
                work.append(_Write(step, b"".join(step.buffer), step.visible, step.unseen, sync, step.sealing))
                step.buffer, step.buffered, step.unseen = [], 0, []
        self._unflushed_since = NEVER
        if sync_all:
            self._unsynced_since = NEVER
        await lane.submit(partial(_write_round, work))
        for item in work:
            self._tell(item)
        self.round_done.set()
        self.round_done = trio.Event()

    def _tell(self, item: _Write) -> None:
        step = item.step
        step.full = step.full or item.full
        step.unsynced = not item.sync
        if not step.full:
            for block, text in item.unseen:
                self.hub.shown(step.live, block, text)
            if item.sync:
                self.hub.durable(step.live, item.visible)
        if item.last:
            del self._steps[step.live.step_id]
            step.sealed.set()


def _perform(jobs: Sequence[partial[None]]) -> list[Outcome]:
    for job in jobs:
        job()
    return [(None, None)] * len(jobs)


def _write_round(work: list[_Write]) -> None:
    for item in work:
        if item.step.full:
            continue
        try:
            item.step.file.write(item.data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            item.full = True
    JournalFile.sync(item.step.file for item in work if item.sync and not item.full)
    _close([item.step.file for item in work if item.last])


def _close(files: list[JournalFile]) -> None:
    for file in files:
        file.close()
