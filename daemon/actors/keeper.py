"""The keeper of memory: sees to it that what could not be embedded is tried again, and that idle arrays and models go.

It is a worker: if it crashes, searches and conversations go on.
"""

from collections.abc import Callable

import trio

from contextinfinity.daemon.actors.embedding import RETRY_SECONDS, Embedding
from contextinfinity.daemon.actors.memory import Memory
from contextinfinity.daemon.runtime.actor import Actor, Ref, nudge
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.runtime.memory import give_back
from contextinfinity.daemon.storage.storage import Storage
from contextinfinity.protocol.errors import Fault


class Keeper(Actor):
    """`tell` it anything after the configuration has changed."""

    def __init__(self, storage: Storage, memory: Memory, embedding: Embedding, embedder: Ref, idle_seconds: Callable[[], float],
                 *, can_write: Callable[[], bool]) -> None:  # fmt: skip
        self._storage = storage
        self._memory = memory
        self._embedding = embedding
        self._embedder = embedder
        self._idle_seconds = idle_seconds
        self._can_write = can_write

    async def start(self) -> None:
        await self._embedding.refresh()
        self.nursery.start_soon(self._retry)
        self.nursery.start_soon(self._let_go)

    async def handle(self, message: object) -> None:
        await self._catch_up()

    async def _retry(self) -> None:
        while True:
            await self._catch_up()
            await trio.sleep(RETRY_SECONDS)

    async def _catch_up(self) -> None:
        """Embed what has no vector yet, if there is something to embed with by now."""
        if await self._embedding.refresh() and self._can_write() and await self._embedding.left():
            try:
                await self._storage.enqueue_job("embed", "", None, now())
            except Fault:
                return  # a full disk, for example: next time
            nudge(self._embedder)

    async def _let_go(self) -> None:
        while True:
            idle = self._idle_seconds()
            await trio.sleep(idle / 4)
            limit = trio.current_time() - idle
            if self._memory.used < limit and await self._memory.rest():
                await trio.to_thread.run_sync(give_back)
            if max(self._memory.used, self._embedding.used) < limit:
                await self._embedding.rest()
