"""The websocket: loopback only, off by default, for whoever knows the token; browsers are refused unless configured.

One JSON-RPC document per text message.
"""

import hmac
import logging
from collections.abc import Sequence

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, WebSocketServer

from contextinfinity.daemon.rpc.connection import MOST_CLIENTS, Connection
from contextinfinity.daemon.rpc.dispatch import Dispatcher

log = logging.getLogger(__name__)

PATH = "/rpc"
PROTOCOL = "contextinfinity.v1"
TOKEN_PROTOCOL = "token."
RECEIVE_BUFFER = 64 * 1024
HANDSHAKE_SECONDS = 10.0


class WebsocketGate:
    """Decides who may connect, before a single document is read."""

    def __init__(self, token: str, allowed_origins: Sequence[str]) -> None:
        self._token = token.encode()
        self._origins = frozenset(allowed_origins)

    def refusal(self, path: str, host: str, headers: dict[str, str], protocols: Sequence[str]) -> tuple[int, str] | None:
        if path.split("?", 1)[0] != PATH:
            return 404, f"the endpoint is {PATH}"
        if _hostname(host) not in ("127.0.0.1", "localhost", "[::1]"):
            return 403, "this Host is not allowed"
        if "origin" in headers and headers["origin"] not in self._origins:
            return 403, "this Origin is not allowed; configure [websocket] allowed_origins"
        if not self._knows_token(headers, protocols):
            return 401, "a bearer token is needed; it is in run/token of the daemon's home"
        return None

    def _knows_token(self, headers: dict[str, str], protocols: Sequence[str]) -> bool:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        offered = [bearer.strip()] if scheme.lower() == "bearer" else []
        offered += [p[len(TOKEN_PROTOCOL) :] for p in protocols if p.startswith(TOKEN_PROTOCOL)]
        return any(hmac.compare_digest(o.encode("utf-8", "surrogateescape"), self._token) for o in offered)


def _hostname(host: str) -> str:
    return host.rsplit(":", 1)[0] if not host.endswith("]") else host


class _Server(WebSocketServer):
    """One client's failure, even in the handshake, must not reach the others: uncaught, it would stop the server."""

    async def _handle_connection(self, stream: trio.abc.Stream) -> None:
        try:
            await super()._handle_connection(stream)
        except* (ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("a websocket client went away")
        except* UnicodeError:
            log.warning("refused a websocket handshake that is not ASCII")
        except* Exception:
            log.exception("a websocket client failed")


async def serve_websocket(
    listeners: Sequence[trio.SocketListener], gate: WebsocketGate, dispatcher: Dispatcher, max_frame: int, clients: set[object]
) -> None:
    async with trio.open_nursery() as nursery:
        server = _Server(
            lambda request: _handle(request, gate, dispatcher, clients),
            list(listeners),
            handler_nursery=nursery,
            max_message_size=max_frame,
            connect_timeout=HANDSHAKE_SECONDS,
            receive_buffer_size=RECEIVE_BUFFER,
        )
        await server.run()


async def _handle(request: WebSocketRequest, gate: WebsocketGate, dispatcher: Dispatcher, clients: set[object]) -> None:
    headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in request.headers}
    protocols = list(request.proposed_subprotocols)
    refused = gate.refusal(request.path, request._event.host, headers, protocols)
    if refused is None and len(clients) >= MOST_CLIENTS:
        refused = 503, f"{MOST_CLIENTS} clients are connected already; try again later"
    if refused is not None:
        status, why = refused
        await request.reject(status, extra_headers=[(b"content-type", b"text/plain")], body=(why + "\n").encode())
        return
    websocket = await request.accept(subprotocol=PROTOCOL if PROTOCOL in protocols else None)
    clients.add(websocket)
    try:
        await _serve(websocket, dispatcher)
    finally:
        clients.discard(websocket)


async def _serve(websocket: WebSocketConnection, dispatcher: Dispatcher) -> None:
    async def write(documents: list[bytes]) -> None:
        for document in documents:
            await websocket.send_message(document.decode())

    async with websocket, trio.open_nursery() as pumps:
        async with trio.open_nursery() as requests:
            connection = Connection(dispatcher, write, requests, pumps, "websocket")
            try:
                while True:
                    message = await websocket.get_message()
                    answer = await connection.received(message.encode() if isinstance(message, str) else message)
                    if answer is not None:
                        await connection.send([answer])
            except ConnectionClosed:
                requests.cancel_scope.cancel()
        pumps.cancel_scope.cancel()
