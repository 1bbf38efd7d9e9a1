"""The janitor: packs the journals of ended steps into the database, then removes their files.

A journal goes only after the store says that its bytes are kept; what is left over from a crash is packed at start.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec
import trio

from contextinfinity.daemon.runtime import failpoints
from contextinfinity.daemon.runtime.actor import Actor
from contextinfinity.daemon.storage import journals
from contextinfinity.daemon.storage.storage import Storage
from contextinfinity.protocol.errors import Fault, StorageFull

BATCH = 100
PAUSE = 0.2  # seconds in which ended steps gather, so that a busy daemon packs many in one commit


class PackJournal(msgspec.Struct, frozen=True):
    step_id: str


class Janitor(Actor):
    answers = (Fault,)

    def __init__(self, storage: Storage, folder: Path, *, can_write: Callable[[], bool]) -> None:
        self._storage = storage
        self._folder = folder
        self._can_write = can_write
        self._due: list[str] = []
        self._wakeup = trio.Event()

    async def start(self) -> None:
        if self._can_write():
            self.nursery.start_soon(self._run)

    async def handle(self, message: PackJournal) -> None:
        self._due.append(message.step_id)
        self._wakeup.set()

    async def _run(self) -> None:
        left_over = await trio.to_thread.run_sync(journals.list_steps, self._folder)
        await self._pack(left_over)
        while True:
            if not self._due:
                self._wakeup = trio.Event()
                await self._wakeup.wait()
            await trio.sleep(PAUSE)
            due, self._due = self._due, []
            await self._pack(due)

    async def _pack(self, step_ids: list[str]) -> None:
        """Keep the journals of those steps that have ended; a step under way is told to us when it ends."""
        for start in range(0, len(step_ids), BATCH):
            raw = await trio.to_thread.run_sync(self._read, step_ids[start : start + BATCH])
            failpoints.hit("pack.before")
            try:
                packed = await self._storage.pack_journals(raw)
            except StorageFull:
                continue  # the files stay; the next start packs them
            failpoints.hit("pack.stored")
            await trio.to_thread.run_sync(self._remove, packed)
            failpoints.hit("pack.removed")

    def _read(self, step_ids: list[str]) -> dict[str, bytes]:
        return {step_id: journals.read_raw(journals.path_of(self._folder, step_id)) for step_id in step_ids}

    def _remove(self, step_ids: list[str]) -> None:
        for step_id in step_ids:
            journals.remove(journals.path_of(self._folder, step_id))
