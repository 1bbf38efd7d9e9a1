"""The worker that runs durable jobs as they come due; a job that fails is tried again later, then parked.

What a job does is up to its handler, which ends the job in the same transaction as its effect.
"""

import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping

import trio

from contextinfinity.daemon.runtime.actor import Actor
from contextinfinity.daemon.runtime.ids import IdMint, now
from contextinfinity.daemon.storage.jobs import Job
from contextinfinity.daemon.storage.storage import Storage
from contextinfinity.protocol.errors import Conflict, StorageFull

log = logging.getLogger(__name__)

Handler = Callable[[Job], Awaitable[None]]
LONGEST_NAP = 30.0


class JobRunner(Actor):
    """`tell` it anything to make it look at once."""

    def __init__(self, storage: Storage, handlers: Mapping[str, Handler], *, can_write: Callable[[], bool]) -> None:
        self._storage = storage
        self._handlers = handlers
        self._can_write = can_write
        self._mint = IdMint()
        self._nudged = trio.Event()

    async def start(self) -> None:
        if self._can_write() and self._handlers:
            self.nursery.start_soon(self._run)

    async def handle(self, message: object) -> None:
        self._nudged.set()

    async def _run(self) -> None:
        while True:
            self._nudged = trio.Event()
            try:
                job = await self._storage.claim_job(tuple(self._handlers), self._mint(), time.time(), now())
            except StorageFull:
                job = None
            if job is None:
                with trio.move_on_after(await self._nap()):
                    await self._nudged.wait()
            else:
                await self._perform(job)

    async def _perform(self, job: Job) -> None:
        try:
            await self._handlers[job.type](job)
        except Conflict as lost:
            log.warning("%s", lost.message)  # somebody else has the job now, and its effect with it
        except Exception as error:
            log.exception("job %d (%s) failed at attempt %d", job.id, job.type, job.attempts)
            try:
                await self._storage.fail_job(job, repr(error), time.time(), random.random(), now())
            except (Conflict, StorageFull):
                log.warning("job %d is tried again when its lease runs out", job.id)

    async def _nap(self) -> float:
        due = await self._storage.next_job_at(tuple(self._handlers))
        return LONGEST_NAP if due is None else min(LONGEST_NAP, max(0.05, due - time.time()))
