"""The store actor owns the write connection and a few readers, each in a thread; group commit happens in the writer.

After an I/O error the writer's connection is not trusted again: the lane breaks, this actor crashes and reopens.
"""

import contextlib
import logging
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Any

import trio

from contextinfinity.daemon.actors.hub import Hub
from contextinfinity.daemon.runtime.actor import Actor, ActorGone
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.runtime.lane import Lane, Outcome
from contextinfinity.daemon.storage import database, verify
from contextinfinity.daemon.storage.connection import Job
from contextinfinity.protocol.errors import Fault, ReadOnly

log = logging.getLogger(__name__)

READERS = 2


class StoreGate:
    """Where storage sends its work: to the store's lanes of the moment, which a restart replaces."""

    def __init__(self, *, read_only: bool) -> None:
        self.read_only = read_only
        self.damage: str | None = None
        self.writer: Lane[Job] | None = None
        self.readers: list[Lane[Job]] = []

    def can_write(self) -> bool:
        return not self.read_only and self.damage is None

    def write(self, job: Job) -> Awaitable[Any]:
        if self.read_only:
            raise ReadOnly("this daemon was started with --read-only; nothing can be changed through it")
        if self.damage is not None:
            raise ReadOnly(
                f"the database is damaged ({self.damage}), so nothing is written to it: "
                "run `ctx verify` to see how far, then `ctx restore` with a backup"
            )
        if self.writer is None:
            raise ActorGone("the store is not open")
        return self.writer.submit(job)

    def read(self, job: Job) -> Awaitable[Any]:
        if not self.readers:
            raise ActorGone("the store is not open")
        return min(self.readers, key=len).submit(job)


class Store(Actor):
    answers = (Fault,)

    def __init__(self, path: Path, streams: Path, backups: Path, gate: StoreGate, hub: Hub) -> None:
        self._path = path
        self._streams = streams
        self._suspicion = path.with_name(path.name + ".suspect")
        self._backups = backups
        self._gate = gate
        self._hub = hub
        self._database: database.Database | None = None

    async def start(self) -> None:
        gate = self._gate
        if self._suspicion.exists():
            await self._examine()
        opened = await trio.to_thread.run_sync(
            partial(database.open_database, self._path, self._backups, now(), readers=READERS, read_only=not gate.can_write())
        )
        self._database = opened
        self._hub.cursor = opened.last_cursor
        if opened.write is not None:
            gate.writer = Lane("store-writer", opened.write, settled=self._publish)
            self.nursery.start_soon(self._watch, gate.writer)
        gate.readers = [Lane(f"store-reader-{i}", read, most_at_once=1) for i, read in enumerate(opened.reads)]
        for lane in gate.readers:
            self.nursery.start_soon(self._watch, lane)

    async def _examine(self) -> None:
        """After a failed write nothing is trusted before it was verified from disk."""
        report = await trio.to_thread.run_sync(partial(verify.check, self._path, self._streams, index=False))
        if report.ok:
            self._suspicion.unlink(missing_ok=True)
        self._gate.damage = None if report.ok else report.problems[0]
        log.error("a write failed; the database %s", "verifies" if report.ok else f"is damaged: {report.problems[0]}")

    def _publish(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Events are told in commit order, before whoever caused them gets an answer."""
        answers: list[Outcome] = []
        for committed, error in outcomes:
            if error is None:
                self._hub.committed(committed.events)
                committed = committed.value
            answers.append((committed, error))
        return answers

    async def _watch(self, lane: Lane[Job]) -> None:
        await lane.failed.wait()
        if lane is self._gate.writer:
            with contextlib.suppress(OSError):
                self._suspicion.touch(mode=0o600)  # a file, because whoever comes next must know even after a crash
        assert lane.cause is not None
        raise lane.cause

    async def stop(self) -> None:
        lanes = [*self._gate.readers, *([self._gate.writer] if self._gate.writer else [])]
        self._gate.readers, self._gate.writer = [], None
        for lane in lanes:
            await lane.close()
        if self._database is not None:
            await trio.to_thread.run_sync(self._database.close)
