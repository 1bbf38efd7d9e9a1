"""The actor that stands between journal and branches and lets nobody pass before unfinished turns have their outcome."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import trio

from contextinfinity.daemon.actors.recovery import reconcile
from contextinfinity.daemon.runtime.actor import Actor
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage.storage import Storage
from contextinfinity.daemon.storage.turns import Unfinished
from contextinfinity.protocol.errors import StorageFull

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
Undone = Callable[[Storage], Awaitable[None]]
"""Enqueues what it finds undone of one milestone; each later stage of a turn's life brings its own."""


class Recoverer(Actor):
    def __init__(
        self, storage: Storage, streams: Path, undone: Sequence[Undone] = (), *, can_write: Callable[[], bool]
    ) -> None:
        self._storage = storage
        self._streams = streams
        self._undone = undone
        self._can_write = can_write

    async def start(self) -> None:
        if not self._can_write():
            return
        found = await self._storage.unfinished_turns()  # now, before any turn of this process exists
        try:
            await self._recover(found)
        except StorageFull:
            log.error("the disk is full: unfinished turns are recovered when there is space again")
            self.nursery.start_soon(self._later, found)

    async def _later(self, found: list[Unfinished]) -> None:
        while True:
            await trio.sleep(RETRY_SECONDS)
            try:
                await self._recover(found)
            except StorageFull:
                continue
            return

    async def _recover(self, found: list[Unfinished]) -> None:
        await self._storage.release_jobs(now())
        await reconcile(self._storage, self._streams, found)
        for enqueue_undone in self._undone:
            await enqueue_undone(self._storage)
