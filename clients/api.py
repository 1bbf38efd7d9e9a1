"""The typed client: `connect`, `call` a method's parameters and get its result, `subscribe` to events.

Built on anyio, so it runs on trio and asyncio alike; `protocol.methods` says what can be called.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import msgspec
from anyio.abc import ByteStream

from contextinfinity.clients.errors import BadAnswer, DaemonSilent, DaemonUnreachable, NobodyListens
from contextinfinity.clients.groups import background
from contextinfinity.clients.subscription import BUFFER, Subscription
from contextinfinity.protocol import jsonrpc
from contextinfinity.protocol.codec import FrameReader, Framing, Oversized, frame
from contextinfinity.protocol.errors import ErrorObject, Fault
from contextinfinity.protocol.events import Notification
from contextinfinity.protocol.methods import METHODS, NAMES, EventsSubscribe, Params, Subscribed

R = TypeVar("R")
CONNECT_TIMEOUT = 5.0
CALL_TIMEOUT = 60.0
SEND_TIMEOUT = 10.0
MAX_ANSWER = 256 * 1024 * 1024
CHUNK = 256 * 1024
UNSET: Final[Any] = object()

_notification = msgspec.json.Decoder(Notification).decode


@cache
def _decoder(method: str) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(METHODS[method].result)


@asynccontextmanager
async def connect(
    path: str | os.PathLike[str],
    *,
    connect_timeout: float = CONNECT_TIMEOUT,
    call_timeout: float | None = CALL_TIMEOUT,
) -> AsyncIterator["Client"]:
    """A connection to the daemon that listens on this Unix socket, closed at the end of the block.

    Raises `DaemonUnreachable` when nobody answers.
    """
    where = Path(path)
    stream = await _open(where, connect_timeout)
    client = Client(stream, where, call_timeout)
    try:
        async with background() as tasks:
            tasks.start_soon(client._read)
            yield client
    finally:
        client._lose("the client was closed")
        await anyio.aclose_forcefully(stream)


async def _open(where: Path, timeout: float) -> ByteStream:
    try:
        with anyio.fail_after(timeout):
            return await anyio.connect_unix(where)
    except TimeoutError:
        raise DaemonSilent(f"the daemon at {where} does not accept connections (waited {timeout:g} s)") from None
    except FileNotFoundError:
        raise NobodyListens(f"no daemon is listening: there is no socket at {where}") from None
    except ConnectionRefusedError:
        raise NobodyListens(f"no daemon is listening: the socket at {where} is left over") from None
    except PermissionError:
        raise DaemonUnreachable(f"not allowed to use the socket at {where}: it belongs to another user") from None
    except OSError as error:
        raise DaemonUnreachable(f"cannot connect to {where}: {error.strerror or error}") from None


class _Call:
    """One request under way: the reader fills in the reply, then sets the event."""

    __slots__ = ("done", "reply", "subscription")

    def __init__(self, subscription: Subscription | None) -> None:
        self.done = anyio.Event()
        self.reply: jsonrpc.Reply | None = None
        self.subscription = subscription


class Client:
    """One connection. Calls may run concurrently; a slow consumer of events never delays an answer."""

    def __init__(self, stream: ByteStream, path: Path, call_timeout: float | None) -> None:
        self.path = path
        self._stream = stream
        self._timeout = call_timeout
        self._ids = count(1)
        self._calls: dict[int, _Call] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._early: list[Notification] = []
        self._sending = anyio.Lock(fast_acquire=True)
        self._lost: str | None = None

    async def call(self, params: Params[R], *, timeout: float | None = UNSET) -> R:
        """Call the method that these parameters belong to; its fault is raised, its result comes back typed."""
        method = NAMES[type(params)]
        if timeout is UNSET:
            timeout = self._default_timeout(method, getattr(params, "timeout_s", None))
        raw = await self._request(method, params, timeout)
        try:
            result: R = _decoder(method).decode(raw)
        except msgspec.MsgspecError as error:
            raise BadAnswer(f"the daemon's answer to {method} is not understood: {error}") from None
        return result

    async def call_raw(self, method: str, params: dict[str, Any] | None = None, *, timeout: float | None = UNSET) -> Any:
        """Call any method by name, with plain JSON values in and out."""
        params = params or {}
        if timeout is UNSET:
            timeout = self._default_timeout(method, params.get("timeout_s"))
        return msgspec.json.decode(await self._request(method, params, timeout))

    @asynccontextmanager
    async def subscribe(
        self,
        *,
        branch_id: str | None = None,
        session_id: str | None = None,
        since: int | None = None,
        buffer: int = BUFFER,
    ) -> AsyncIterator[Subscription]:
        """Events of one branch, one session or all; `since` replays the durable ones after that cursor."""
        ask = EventsSubscribe(branch_id=branch_id, session_id=session_id, since=since)
        subscription = Subscription(self, ask, buffer)
        await subscription.open()
        try:
            yield subscription
        finally:
            with anyio.move_on_after(1, shield=True):
                await subscription.close()

    def _default_timeout(self, method: str, own: object) -> float | None:
        """A call that waits on purpose says how long; the daemon gets that time and then the usual one to answer."""
        if method != "turn.wait" or self._timeout is None:
            return self._timeout
        return self._timeout + (own if isinstance(own, int | float) else 300.0)

    async def _open_subscription(self, params: EventsSubscribe, subscription: Subscription) -> Subscribed:
        raw = await self._request("events.subscribe", params, self._timeout, subscription)
        return msgspec.json.decode(raw, type=Subscribed)

    def _forget(self, subscription_id: str) -> None:
        self._subscriptions.pop(subscription_id, None)

    async def _request(
        self, method: str, params: object, timeout: float | None, subscription: Subscription | None = None
    ) -> msgspec.Raw:
        ident = next(self._ids)
        document = jsonrpc.request(ident, method, params)
        call = self._calls[ident] = _Call(subscription)
        try:
            with anyio.fail_after(timeout):
                await self._send(document)
                await call.done.wait()
        except TimeoutError:
            await self._give_up(ident)
            raise DaemonSilent(f"the daemon did not answer {method} within {timeout:g} s") from None
        except anyio.get_cancelled_exc_class():
            await self._give_up(ident)
            raise
        finally:
            self._calls.pop(ident, None)
        if call.reply is None:
            raise DaemonUnreachable(f"the connection to the daemon was lost: {self._lost}")
        if call.reply.error is not None:
            raise Fault.from_error(call.reply.error)
        return call.reply.result

    async def _give_up(self, ident: int) -> None:
        """Tell the daemon that nobody waits for this answer any more; it may be too late, and that is fine."""
        with anyio.move_on_after(1, shield=True):
            try:
                await self._send(jsonrpc.notification("$/cancelRequest", {"id": ident}))
            except DaemonUnreachable:
                return

    async def _send(self, document: bytes) -> None:
        async with self._sending:
            if self._lost is not None:
                raise DaemonUnreachable(f"the connection to the daemon was lost: {self._lost}")
            # Shielded, because a frame that was sent in part would garble every later one.
            with anyio.CancelScope(shield=True), anyio.move_on_after(SEND_TIMEOUT) as deadline:
                try:
                    await self._stream.send(frame(Framing.LINES, document))
                except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                    self._lose("the daemon closed it")
            if deadline.cancelled_caught:
                self._lose(f"the daemon read nothing for {SEND_TIMEOUT:g} s")
            if self._lost is not None:
                raise DaemonUnreachable(f"the connection to the daemon was lost: {self._lost}")

    async def _read(self) -> None:
        reader = FrameReader(MAX_ANSWER)
        try:
            while True:
                for document in reader.feed(await self._stream.receive(CHUNK)):
                    if isinstance(document, Oversized):
                        raise BadAnswer(f"an answer was larger than {MAX_ANSWER >> 20} MiB")
                    self._receive(document)
        except anyio.EndOfStream:
            self._lose("the daemon closed it")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            self._lose(str(error) or "the daemon is gone")
        except (BadAnswer, msgspec.MsgspecError) as error:
            self._lose(f"the daemon sent something that is not understood ({error})")

    def _receive(self, document: bytes) -> None:
        if document.startswith(b"["):
            raise BadAnswer("a batch was answered that nobody sent")
        reply = jsonrpc.decode_reply(document)
        if reply.method is not None:
            if reply.method == "event":
                self._deliver(_notification(reply.params))
            return
        if reply.id is None and reply.error is not None:
            # The daemon could not tell whose request it was (one over the size limit, say): nobody may wait for ever.
            for waiting in self._calls.values():
                waiting.reply = reply
                waiting.done.set()
        call = self._calls.get(reply.id) if isinstance(reply.id, int) else None
        if call is None:
            return
        if call.subscription is not None and reply.error is None:
            self._enter(call.subscription, msgspec.json.decode(reply.result, type=Subscribed))
        call.reply = reply if reply.error is not None or reply.result != _ABSENT else _NO_RESULT
        call.done.set()

    def _enter(self, subscription: Subscription, subscribed: Subscribed) -> None:
        """Done by the reader, at the answer: the very next frame may be the first event."""
        self._subscriptions[subscribed.subscription_id] = subscription
        early, self._early = self._early, []
        subscription._begin(subscribed)
        for event in early:
            self._deliver(event)

    def _deliver(self, event: Notification) -> None:
        subscription = self._subscriptions.get(event.subscription_id)
        if subscription is not None:
            subscription._put(event)
        elif any(call.subscription for call in self._calls.values()) and len(self._early) < BUFFER:
            self._early.append(event)  # a subscription whose answer is still on its way

    def _lose(self, why: str) -> None:
        if self._lost is None:
            self._lost = why
        for call in self._calls.values():
            call.done.set()
        for subscription in self._subscriptions.values():
            subscription._wake()


_ABSENT = msgspec.Raw(b"")
_NO_RESULT = jsonrpc.Reply(error=ErrorObject(-32603, "the daemon's answer has neither result nor error"))
