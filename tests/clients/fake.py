"""A daemon of a few lines on a Unix socket: it answers from a table, records what was asked, and can misbehave on demand.

It speaks the codec of `contextinfinity.protocol` and runs on whichever backend the test runs.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.abc import SocketStream
from anyio.from_thread import start_blocking_portal

from contextinfinity.protocol import jsonrpc
from contextinfinity.protocol.codec import FrameReader, Framing, frame
from contextinfinity.protocol.errors import Fault, MethodNotFound

NO_ANSWER = object()
Handler = Callable[["Peer", dict[str, Any]], Any]


class Peer:
    """One connected client, as a handler sees it."""

    def __init__(self, stream: SocketStream) -> None:
        self.stream = stream
        self._sending = anyio.Lock()

    async def send(self, document: bytes) -> None:
        async with self._sending:
            await self.stream.send(frame(Framing.LINES, document))

    async def event(self, subscription_id: str, cursor: int, kind: str, turn_id: str | None = None, **data: Any) -> None:
        params = {"subscription_id": subscription_id, "cursor": cursor, "type": kind, "branch_id": "B", "data": data}
        if turn_id is not None:
            params["turn_id"] = turn_id
        await self.send(jsonrpc.notification("event", params))


class FakeDaemon:
    def __init__(self, version: str = "0.1.0") -> None:
        self.handlers: dict[str, Handler] = {
            "daemon.ping": lambda peer, params: {"version": version, "protocol": 1, "capabilities": []}
        }
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.peers: list[Peer] = []

    def on(self, method: str, handler: Handler) -> None:
        self.handlers[method] = handler

    def answers(self, method: str, result: Any) -> None:
        self.handlers[method] = lambda peer, params: result

    def refuses(self, method: str, fault: Fault) -> None:
        def refuse(peer: Peer, params: dict[str, Any]) -> Any:
            raise fault

        self.handlers[method] = refuse

    async def was_asked(self, method: str, times: int = 1) -> None:
        with anyio.fail_after(10):
            while len(self.called(method)) < times:  # noqa: ASYNC110 - calls come from another loop as well
                await anyio.sleep(0.001)

    def called(self, method: str) -> list[dict[str, Any]]:
        return [params for name, params in self.calls if name == method]

    @asynccontextmanager
    async def serving(self, path: Path) -> AsyncIterator["FakeDaemon"]:
        async with await anyio.create_unix_listener(path) as listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, self._client)
            yield self
            tasks.cancel_scope.cancel()

    @contextmanager
    def in_thread(self, path: Path) -> Iterator["FakeDaemon"]:
        """For clients that run on the test's own thread."""
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(self.serving(path)):
            yield self

    async def _client(self, stream: SocketStream) -> None:
        peer, reader = Peer(stream), FrameReader()
        self.peers.append(peer)
        try:
            async with stream, anyio.create_task_group() as tasks:
                while True:
                    for document in reader.feed(await stream.receive()):
                        assert isinstance(document, bytes)
                        tasks.start_soon(self._answer, peer, document)
        except* (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass

    async def _answer(self, peer: Peer, document: bytes) -> None:
        (request,) = jsonrpc.decode(document).items
        assert isinstance(request, jsonrpc.Request), request
        params = msgspec.json.decode(request.params)
        self.calls.append((request.method, params))
        if request.is_notification:
            return
        try:
            if request.method not in self.handlers:
                raise MethodNotFound(f"no method {request.method}")
            result = self.handlers[request.method](peer, params)
            if inspect.isawaitable(result):
                result = await result
        except Fault as fault:
            await peer.send(jsonrpc.failure(request.id, fault.to_error()))
            return
        if result is not NO_ANSWER:
            await peer.send(jsonrpc.answer(request.id, result))
