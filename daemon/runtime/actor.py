"""An actor is a bounded mailbox and a loop that answers it, one message at a time.

Expected errors (`Actor.answers`) are answers; anything else answers `ActorGone` and crashes the actor into its supervisor.
"""

import logging
from collections.abc import Coroutine
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
import trio

log = logging.getLogger(__name__)

R = TypeVar("R")

ASK_DEADLINE = 60.0
STOP_DEADLINE = 5.0


class ActorGone(Exception):
    """The actor died, or was stopped, before it could answer; whether it acted is not known."""


class MailboxFull(Exception):
    """The actor is behind; the message was not taken."""


class AskTimeout(Exception):
    """No answer within the deadline; the actor may still act on the message."""


class Request(msgspec.Struct, Generic[R], frozen=True):
    """A message that is answered with an R."""


class Envelope:
    """A message on its way, with the one-shot answer of whoever asked."""

    __slots__ = ("_done", "_error", "_value", "message")

    def __init__(self, message: object) -> None:
        self.message = message
        self._done = trio.Event()
        self._value: object = None
        self._error: BaseException | None = None

    def succeed(self, value: object) -> None:
        if not self._done.is_set():
            self._value = value
            self._done.set()

    def fail(self, error: BaseException) -> None:
        if not self._done.is_set():
            self._error = error
            self._done.set()

    async def answer(self) -> Any:
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value


class Mailbox:
    """A bounded queue of envelopes that belongs to the supervisor's child, so that it outlives a crash."""

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.closed = True
        self._capacity = capacity
        self.open()

    def open(self) -> None:
        """Take messages, also again after `close`; whoever waited then has been answered."""
        if self.closed:
            self.closed = False
            self._send, self._receive = trio.open_memory_channel[Envelope](self._capacity)

    def put(self, envelope: Envelope) -> None:
        try:
            self._send.send_nowait(envelope)
        except trio.WouldBlock:
            raise MailboxFull(self.name) from None
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise ActorGone(f"{self.name} has stopped") from None

    async def get(self) -> Envelope:
        """The next envelope; `trio.EndOfChannel` when the mailbox is closed and empty."""
        return await self._receive.receive()

    def close(self) -> None:
        """Take no more; what is queued is still served."""
        self.closed = True
        self._send.close()

    def discard(self, why: str) -> None:
        """Answer everybody who still waits: nobody will come to serve them."""
        self.close()
        while True:
            try:
                self._receive.receive_nowait().fail(ActorGone(why))
            except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
                return

    def __len__(self) -> int:
        return self._receive.statistics().current_buffer_used


class Ref:
    """How others reach an actor; it stays valid across restarts."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    @property
    def name(self) -> str:
        return self._mailbox.name

    @property
    def closed(self) -> bool:
        """Nobody serves this mailbox any more; a crashed actor that restarts keeps its own open."""
        return self._mailbox.closed

    def put(self, envelope: Envelope) -> None:
        self._mailbox.put(envelope)

    def post(self, envelope: Envelope, deadline: float = ASK_DEADLINE) -> Coroutine[None, None, Any]:
        """Queue a request now, in order; await the result for its answer."""
        self._mailbox.put(envelope)
        return self.answer(self.name, envelope, deadline)

    @staticmethod
    async def answer(name: str, envelope: Envelope, deadline: float = ASK_DEADLINE) -> Any:
        with trio.move_on_after(deadline):
            return await envelope.answer()
        raise AskTimeout(f"{name} did not answer {type(envelope.message).__name__} in {deadline:g} s")

    async def ask(self, request: Request[R], deadline: float = ASK_DEADLINE) -> R:
        answer: R = await self.post(Envelope(request), deadline)
        return answer

    def tell(self, message: object) -> None:
        """Never waits; `MailboxFull` if the actor is behind."""
        self._mailbox.put(Envelope(message))


def nudge(worker: Ref, message: object = None) -> None:
    """Tell a worker that there is something to do; one that is not there, or is behind, finds it by itself."""
    try:
        worker.tell(message)
    except (MailboxFull, ActorGone) as error:
        log.info("%s is not at work: %s", worker.name, error)


class Actor:
    """Subclasses rebuild their state in `start`, answer in `handle`, and let go in `stop`."""

    answers: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions that are answers to the caller rather than bugs."""

    nursery: trio.Nursery
    """For the actor's own background tasks; they end with it, and if one crashes, so does the actor."""

    async def start(self) -> None:
        """Rebuild state from local disk; nothing remote."""

    async def handle(self, message: Any) -> object:
        raise NotImplementedError

    async def stop(self) -> None:
        """Let go of resources; shielded, with a deadline."""


async def run_actor(actor: Actor, mailbox: Mailbox, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """One incarnation: start, serve until the mailbox is closed and drained, stop."""
    async with trio.open_nursery() as nursery:
        actor.nursery = nursery
        try:
            await actor.start()
            task_status.started()
            await _serve(actor, mailbox)
        finally:
            with trio.move_on_after(STOP_DEADLINE, shield=True):
                await actor.stop()
            nursery.cancel_scope.cancel()


async def _serve(actor: Actor, mailbox: Mailbox) -> None:
    while True:
        try:
            envelope = await mailbox.get()
        except trio.EndOfChannel:
            return
        try:
            envelope.succeed(await actor.handle(envelope.message))
        except actor.answers as error:
            envelope.fail(error)
        except BaseException:
            envelope.fail(ActorGone(f"{mailbox.name} crashed on {type(envelope.message).__name__}"))
            raise
