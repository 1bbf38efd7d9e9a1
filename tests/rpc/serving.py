"""The real rpc actor on real sockets, in the test's own loop, with methods that the test controls.

`Playground` records what starts, ends and is cancelled, and holds requests until the test lets them go.
"""

import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, cast

import trio
from trio.testing import wait_all_tasks_blocked
from trio_websocket import WebSocketConnection, open_websocket

from contextinfinity.daemon.rpc import unix
from contextinfinity.daemon.rpc.connection import Connection
from contextinfinity.daemon.rpc.dispatch import Dispatcher
from contextinfinity.daemon.rpc.server import RpcServer
from contextinfinity.daemon.rpc.websocket import WebsocketGate
from contextinfinity.daemon.runtime.actor import Mailbox, run_actor
from contextinfinity.daemon.runtime.ids import IdMint
from contextinfinity.protocol.codec import MAX_FRAME, Framing
from contextinfinity.protocol.methods import Method, Params
from tests.support.wire import TrioWire

TOKEN = "a-token-that-only-this-test-knows-0123456789"
GUARD = 30.0
"""Real seconds after which a test that hangs fails by itself."""

Transport = Literal["lines", "headers", "websocket"]
UNIX: tuple[Transport, ...] = ("lines", "headers")
TRANSPORTS: tuple[Transport, ...] = ("lines", "headers", "websocket")
Table = Mapping[type[Params[Any]], tuple[str, Callable[[Any, Any], Awaitable[Any]]]]


class Echo(Params[Any], frozen=True, kw_only=True):
    value: Any = None


class Typed(Params[Any], frozen=True, kw_only=True):
    number: int
    text: str = ""


class Hold(Params[str], frozen=True, kw_only=True):
    """Wait until the test releases this name."""

    name: str


class HoldPlain(Params[str], frozen=True, kw_only=True):
    """The same, by a handler that is a plain function."""

    name: str


class Raise(Params[Any], frozen=True, kw_only=True):
    pass


class Unspeakable(Params[Any], frozen=True, kw_only=True):
    """The result is nothing that JSON could say."""


class Ping(Params[str], frozen=True, kw_only=True):
    pass


class Playground:
    def __init__(self) -> None:
        self.started: list[str] = []
        self.finished: list[str] = []
        self.cancelled: list[str] = []
        self.error: Exception = RuntimeError("no error was chosen")
        self.connections: set[Connection] = set()
        self._gates: dict[str, trio.Event] = {}

    def release(self, *names: str) -> None:
        for name in names:
            self._gates[name].set()

    async def _held(self, name: str) -> str:
        gate = self._gates[name] = trio.Event()
        try:
            await gate.wait()
        except trio.Cancelled:
            self.cancelled.append(name)
            raise
        self.finished.append(name)
        return name

    async def hold(self, _: object, p: Hold) -> str:
        self.started.append(p.name)
        return await self._held(p.name)

    def hold_plain(self, _: object, p: HoldPlain) -> Awaitable[str]:
        self.started.append(p.name)
        return self._held(p.name)

    async def echo(self, connection: Connection, p: Echo) -> Any:
        self.connections.add(connection)
        return p.value

    async def typed(self, _: object, p: Typed) -> Any:
        return [p.number, p.text]

    async def fail(self, _: object, __: Raise) -> None:
        raise self.error

    async def unspeakable(self, _: object, __: Unspeakable) -> object:
        return object()

    async def ping(self, _: object, __: Ping) -> str:
        return "pong"

    def table(self) -> Table:
        return {
            Echo: ("echo", self.echo),
            Typed: ("typed", self.typed),
            Hold: ("hold", self.hold),
            HoldPlain: ("hold_plain", self.hold_plain),
            Raise: ("fail", self.fail),
            Unspeakable: ("unspeakable", self.unspeakable),
        }


class WebsocketWire:
    """The face of a `TrioWire`, over websocket messages."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self.connection = connection

    async def send(self, document: bytes | str | object) -> None:
        text = document.decode() if isinstance(document, bytes) else document
        await self.connection.send_message(text if isinstance(text, str) else json.dumps(text))

    async def receive(self) -> Any:
        return json.loads(await self.connection.get_message())


Peer = TrioWire | WebsocketWire


class Served:
    def __init__(self, path: Path, port: int, clients: set[object]) -> None:
        self.path = path
        self.port = port
        self.clients = clients

    async def unix(self, framing: Framing = Framing.LINES) -> TrioWire:
        return TrioWire(await trio.open_unix_socket(str(self.path)), framing=framing)

    @asynccontextmanager
    async def websocket(
        self,
        *,
        headers: Sequence[tuple[bytes, bytes]] = ((b"Authorization", f"Bearer {TOKEN}".encode()),),
        subprotocols: Sequence[str] = (),
        path: str = "/rpc",
    ) -> AsyncIterator[WebsocketWire]:
        async with open_websocket(
            "127.0.0.1", self.port, path, use_ssl=False, extra_headers=list(headers), subprotocols=list(subprotocols)
        ) as connection:
            try:
                yield WebsocketWire(connection)
            finally:
                await connection.aclose()
                await trio.aclose_forcefully(connection._stream)  # the library leaves it open if the server ended first

    @asynccontextmanager
    async def peer(self, transport: Transport) -> AsyncIterator[Peer]:
        if transport == "websocket":
            async with self.websocket() as connection:
                yield connection
        else:
            async with await self.unix(Framing(transport)) as wire:
                yield wire

    async def handshake(
        self,
        *lines: bytes,
        host: bytes = b"127.0.0.1",
        token: bytes | None = TOKEN.encode(),
        path: bytes = b"/rpc",
    ) -> tuple[trio.SocketStream, bytes]:
        """Ask for a websocket byte by byte as told: the stream, and the head of the answer (empty if there was none)."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        head = [b"GET " + path + b" HTTP/1.1", b"Upgrade: websocket", b"Connection: Upgrade"]
        head += [b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", b"Host: " + host]
        if token is not None:
            head.append(b"Authorization: Bearer " + token)
        await stream.send_all(b"\r\n".join([*head, *lines, b"", b""]))
        answer = b""
        while b"\r\n\r\n" not in answer:
            chunk = await stream.receive_some(1)
            if not chunk:
                break
            answer += chunk
        return stream, answer

    async def only(self, clients: int) -> None:
        """Wait until the server has noticed that all clients but so many are gone."""
        for _ in range(1000):
            if len(self.clients) == clients:
                return
            await wait_all_tasks_blocked(0.001)
        raise AssertionError(f"{len(self.clients)} clients are still there")


def text_message(payload: bytes) -> bytes:
    """A websocket message as a client sends it; a mask of zeros leaves the text as it is."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2) if size < 65536 else b"\xff" + size.to_bytes(8)
    return b"\x81" + length + bytes(4) + payload


@asynccontextmanager
async def serving(
    folder: Path, table: Table, *, max_frame: int = MAX_FRAME, origins: Sequence[str] = ()
) -> AsyncIterator[Served]:
    """An rpc actor for this table of methods, and `ping`, which is inline."""
    methods = {name: Method(name, kind, Any, "", inline=False) for kind, (name, _) in table.items()}
    methods["ping"] = Method("ping", Ping, str, "", inline=True)
    found = {kind: handler for kind, (_, handler) in table.items()} | {Ping: Playground().ping}
    listener, tcp, clients = unix.bind(folder / "s"), socket.create_server(("127.0.0.1", 0)), cast("set[object]", set())
    gate = WebsocketGate(TOKEN, origins)
    server = RpcServer(Dispatcher(methods, found, IdMint()), [listener], ([tcp], lambda: gate), max_frame, clients)
    with listener, tcp, trio.fail_after(GUARD):
        async with trio.open_nursery() as nursery:
            await nursery.start(run_actor, server, Mailbox("rpc", 1))
            yield Served(folder / "s", tcp.getsockname()[1], clients)
            nursery.cancel_scope.cancel()


def request(ident: object, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": ident, "method": method, "params": params}


def notification(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def cancel(ident: object) -> dict[str, Any]:
    return notification("$/cancelRequest", id=ident)


class Answers:
    """What a peer is sent, by id, whatever the order."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.order: list[Any] = []
        self._by_id: dict[Any, Any] = {}

    async def of(self, ident: object) -> Any:
        while ident not in self._by_id:
            document = await self._peer.receive()
            assert document is not None, "the connection ended"
            self.order.append(document["id"])
            self._by_id[document["id"]] = document
        return self._by_id.pop(ident)

    async def result(self, ident: object) -> Any:
        return (await self.of(ident))["result"]

    async def code(self, ident: object) -> int:
        code: int = (await self.of(ident))["error"]["code"]
        return code


async def everything(peer: Peer) -> list[Any]:
    """All that came, once the server has nothing more to do."""
    await wait_all_tasks_blocked(0.002)
    await peer.send(request("the last word", "ping"))
    found: list[Any] = []
    while True:
        document = await peer.receive()
        if isinstance(document, dict) and document.get("id") == "the last word":
            return found
        found.append(document)
