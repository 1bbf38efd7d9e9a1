"""A thread with a bounded queue of jobs: the event loop hands it work without blocking and gets typed answers back.

Jobs that wait together are performed together, which is what makes group commit possible.
"""

import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import trio

from contextinfinity.daemon.runtime.actor import ActorGone, MailboxFull

log = logging.getLogger(__name__)

J = TypeVar("J")

Outcome = tuple[Any, BaseException | None]


class _Pending(Generic[J]):
    __slots__ = ("done", "error", "job", "value")

    def __init__(self, job: J) -> None:
        self.job = job
        self.done = trio.Event()
        self.value: Any = None
        self.error: BaseException | None = None


class Lane(Generic[J]):
    """`perform` runs in the thread and returns one outcome per job; if it raises, the lane is broken for good."""

    def __init__(
        self,
        name: str,
        perform: Callable[[Sequence[J]], list[Outcome]],
        *,
        settled: Callable[[list[Outcome]], list[Outcome]] | None = None,
        capacity: int = 1000,
        most_at_once: int = 100,
    ) -> None:
        self.name = name
        self._perform = perform
        self._settled = settled  # runs on the loop, in order, before anybody sees the outcomes
        self._capacity = capacity
        self._most = most_at_once
        self._queue: queue.SimpleQueue[_Pending[J] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._token = trio.lowlevel.current_trio_token()
        self._broken: BaseException | None = None
        self._closed = False
        self.failed = trio.Event()
        self._ended = trio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: J) -> Awaitable[Any]:
        """Queue a job now, in order; await the result for its answer. Cancelling the wait does not cancel the job."""
        if self._broken is not None or self._closed:
            raise ActorGone(f"{self.name} has stopped")
        if self._waiting >= self._capacity:
            raise MailboxFull(self.name)
        pending = _Pending(job)
        self._waiting += 1
        self._queue.put(pending)
        return self._answer(pending)

    @staticmethod
    async def _answer(pending: _Pending[J]) -> Any:
        await pending.done.wait()
        if pending.error is not None:
            raise pending.error
        return pending.value

    def __len__(self) -> int:
        return self._waiting

    @property
    def cause(self) -> BaseException | None:
        """What broke the lane, once `failed` is set."""
        return self._broken

    async def close(self) -> None:
        """Perform what is queued, then end the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        await self._ended.wait()

    def _run(self) -> None:
        last = False
        while not last:
            first = self._queue.get()
            batch: list[_Pending[J]] = []
            last = first is None
            if first is not None:
                batch.append(first)
                while len(batch) < self._most:
                    try:
                        following = self._queue.get_nowait()
                    except queue.Empty:
                        break
                    if following is None:
                        last = True
                        break
                    batch.append(following)
            if batch:
                try:
                    outcomes = self._perform([p.job for p in batch])
                except BaseException as error:  # noqa: BLE001 - told to everybody who waits, then to the owner
                    self._soon(self._break, batch, error)
                    break
                self._soon(self._settle, batch, outcomes)
        self._soon(self._ended.set)

    def _soon(self, fn: Callable[..., object], *args: object) -> None:
        try:
            self._token.run_sync_soon(fn, *args)
        except trio.RunFinishedError:
            log.debug("%s: the loop ended before its last answer", self.name)

    def _settle(self, batch: list[_Pending[J]], outcomes: list[Outcome]) -> None:
        if self._broken is not None:
            self._break(batch, self._broken)
            return
        try:
            answers = outcomes if self._settled is None else self._settled(outcomes)
            settled = list(zip(batch, answers, strict=True))
        except Exception as error:  # noqa: BLE001 - raised out here it would end the whole loop, not just the owner
            self._break(batch, error)
            return
        self._waiting -= len(batch)
        for pending, answer in settled:
            pending.value, pending.error = answer
            pending.done.set()

    def _break(self, batch: list[_Pending[J]], error: BaseException) -> None:
        self._broken = error
        while True:
            try:
                pending = self._queue.get_nowait()
            except queue.Empty:
                break
            if pending is not None:
                batch.append(pending)
        for pending in batch:
            pending.error = ActorGone(f"{self.name} broke: {error}")
            pending.done.set()
        self._waiting = 0
        self._queue.put(None)  # the thread ends too, if it was not the one that broke
        self.failed.set()
