"""One client: its requests run concurrently and start in arrival order, its answers and events share one ordered writer.

Knows frames, not sockets; `unix.py` and `websocket.py` bring the transport.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec
import trio

from contextinfinity.daemon.rpc.dispatch import Dispatcher
from contextinfinity.daemon.rpc.subscription import EventPump
from contextinfinity.protocol import jsonrpc
from contextinfinity.protocol.codec import Oversized
from contextinfinity.protocol.errors import Cancelled, InvalidRequest, Unavailable

log = logging.getLogger(__name__)

MOST_REQUESTS = 1000
MOST_CLIENTS = 1000
MOST_SUBSCRIPTIONS = 100
SETTLE_SECONDS = 5.0
LAST_WORD_SECONDS = 1.0
CANCEL = "$/cancelRequest"


class Connection:
    """`send` writes one framed document; it may be called by many tasks and never tears a frame."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        send: Callable[[list[bytes]], Awaitable[None]],
        requests: trio.Nursery,
        pumps: trio.Nursery,
        kind: Literal["unix", "websocket"],
    ) -> None:
        self.kind = kind
        self.subscriptions: dict[str, EventPump] = {}
        self._dispatcher = dispatcher
        self._write = send
        self._lock = trio.Lock()
        self._requests = requests
        self._pumps = pumps
        self._running: dict[bytes, trio.CancelScope] = {}
        self.outstanding = 0
        self._idle = trio.Event()
        self._begun = trio.Event()
        self._begun.set()
        self._writing = trio.CancelScope()
        self._patience = math.inf
        pumps.start_soon(self._await_the_end)

    async def received(self, frame: bytes | Oversized) -> bytes | None:
        """Begin what a frame asks for; the answer if it could be given at once."""
        if isinstance(frame, Oversized):
            fault = InvalidRequest(f"the frame is larger than max_frame_bytes ({frame.limit})", limit=frame.limit)
            return jsonrpc.failure(jsonrpc.NULL, fault.to_error())
        incoming = jsonrpc.decode(frame)
        if incoming.batch:
            return self._begin_batch(incoming.items)
        item = incoming.items[0]
        if isinstance(item, jsonrpc.Request) and self._dispatcher.is_inline(item.method):
            return await self._dispatcher.start(self, item)
        begun = self._begin(item)
        if isinstance(begun, _Begun):
            self._requests.start_soon(self._serve, begun)
            return None
        return begun

    def _begin_batch(self, items: Sequence[jsonrpc.Request | jsonrpc.BadRequest]) -> bytes | None:
        begun = [self._begin(item) for item in items]
        if any(isinstance(one, _Begun) for one in begun):
            self._requests.start_soon(self._serve_batch, begun)
            return None
        return _joined(one for one in begun if isinstance(one, bytes))

    def _begin(self, item: jsonrpc.Request | jsonrpc.BadRequest) -> "bytes | _Begun | None":
        """Give a request its turn; its scope is known at once, because a cancel may be in the very next frame."""
        if isinstance(item, jsonrpc.BadRequest):
            return jsonrpc.failure(item.id, item.fault.to_error())
        if item.method == CANCEL:
            return self._cancel(item)
        if self.outstanding >= MOST_REQUESTS:
            fault = Unavailable(f"{MOST_REQUESTS} requests are in flight on this connection already", retry_after=1)
            return None if item.is_notification else jsonrpc.failure(item.id, fault.to_error())
        before, self._begun = self._begun, trio.Event()
        at_once = before.is_set() and self._dispatcher.is_eager(item.method)
        begun = _Begun(item, trio.CancelScope(), before, self._begun, self._dispatcher.start(self, item) if at_once else None)
        if not item.is_notification:
            self._running[item.id] = begun.scope
        self.outstanding += 1
        return begun

    async def send(self, documents: list[bytes]) -> None:
        """In order and whole: shielded, because half a frame would make every later one unreadable."""
        try:
            self._lock.acquire_nowait()  # the usual case, without a trip through the scheduler
        except trio.WouldBlock:
            await self._lock.acquire()
        try:
            with trio.CancelScope(shield=True, deadline=self._patience) as self._writing:
                await self._write(documents)
        finally:
            self._lock.release()

    async def _await_the_end(self) -> None:
        """When the connection ends, a client that does not read must not hold it up."""
        try:
            await trio.sleep_forever()
        finally:
            self._patience = self._writing.deadline = trio.current_time() + LAST_WORD_SECONDS

    async def idle(self) -> None:
        """Wait until no request is under way."""
        if self.outstanding:
            await self._idle.wait()

    def start_pump(self, pump: EventPump) -> None:
        self.subscriptions[pump.id] = pump
        self._pumps.start_soon(pump.run)

    async def settled(self) -> None:
        """Wait until the events published so far have been sent to this client, so that an answer comes after them."""
        for pump in list(self.subscriptions.values()):
            with trio.move_on_after(SETTLE_SECONDS):
                await pump.settled()

    async def _serve(self, begun: "_Begun") -> None:
        try:
            answer = await self._finish(begun)
            if answer is not None:
                await self.send([answer])
        finally:
            self._count_off(1)

    async def _serve_batch(self, begun: "list[bytes | _Begun | None]") -> None:
        answers: list[bytes | None] = [one if isinstance(one, bytes) else None for one in begun]

        async def finish(i: int, one: _Begun) -> None:
            answers[i] = await self._finish(one)

        try:
            async with trio.open_nursery() as nursery:
                for i, one in enumerate(begun):
                    if isinstance(one, _Begun):
                        nursery.start_soon(finish, i, one)
            answer = _joined(given for given in answers if given is not None)
            if answer is not None:
                await self.send([answer])
        finally:
            self._count_off(sum(isinstance(one, _Begun) for one in begun))

    def _count_off(self, done: int) -> None:
        """After the answer is sent: a client that asks and does not read runs into its limit."""
        self.outstanding -= done
        if self.outstanding == 0:
            self._idle.set()
            self._idle = trio.Event()

    async def _finish(self, begun: "_Begun") -> bytes | None:
        try:
            with begun.scope:
                if begun.answer is not None:
                    begun.now.set()
                    return await begun.answer
                if not begun.before.is_set():
                    with trio.CancelScope(shield=True):
                        await begun.before.wait()
                begun.now.set()  # whoever is next wakes up when this one first waits
                if not begun.scope.cancel_called:
                    return await self._dispatcher.start(self, begun.request)
        finally:
            if self._running.get(begun.request.id) is begun.scope:
                del self._running[begun.request.id]
        return jsonrpc.failure(begun.request.id, Cancelled(f"the request was cancelled by {CANCEL}").to_error())

    def _cancel(self, item: jsonrpc.Request) -> bytes | None:
        if not item.is_notification:
            fault = InvalidRequest(f"{CANCEL} is a notification; leave its own id out")
            return jsonrpc.failure(item.id, fault.to_error())
        try:
            wanted = msgspec.json.decode(item.params, type=_CancelParams).id
        except jsonrpc.UNDECODABLE:
            return None  # a notification has no answer to complain in
        running = self._running.get(bytes(wanted))
        if running is not None:
            running.cancel()
        return None


def _joined(answers: Iterable[bytes]) -> bytes | None:
    """The answer to a batch; none at all if it was notifications only."""
    given = list(answers)
    return jsonrpc.join_batch(given) if given else None


class _Begun(NamedTuple):
    """A request in the order of arrival: it starts after `before` is set, and sets `now`; `answer` if it began at once."""

    request: jsonrpc.Request
    scope: trio.CancelScope
    before: trio.Event
    now: trio.Event
    answer: Coroutine[None, None, bytes | None] | None


class _CancelParams(msgspec.Struct):
    id: msgspec.Raw
