"""The rpc actor: accepts clients on the sockets it was given and serves each in a task of its own.

The sockets outlive it, so that a restart loses nobody who is still connecting.
"""

import errno
import logging
import os
import socket
from collections.abc import Callable

import trio

from contextinfinity.daemon.rpc.connection import MOST_CLIENTS
from contextinfinity.daemon.rpc.dispatch import Dispatcher
from contextinfinity.daemon.rpc.unix import peer_uid, serve_stream
from contextinfinity.daemon.rpc.websocket import WebsocketGate, serve_websocket
from contextinfinity.daemon.runtime.actor import Actor

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
_BUSY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_CLIENTS_OWN = frozenset({errno.ECONNABORTED, errno.EPERM, errno.EPROTO, errno.EINTR})
"""Errors of one connection that was given up before it was accepted."""


class RpcServer(Actor):
    def __init__(
        self,
        dispatcher: Dispatcher,
        unix: list[socket.socket],
        websocket: tuple[list[socket.socket], Callable[[], WebsocketGate]] | None,
        max_frame: int,
        clients: set[object],
    ) -> None:
        self._dispatcher = dispatcher
        self._unix = unix
        self._websocket = websocket
        self._max_frame = max_frame
        self._clients = clients

    async def start(self) -> None:
        self._clients.clear()
        for listener in self._unix:
            self.nursery.start_soon(self._accept, trio.socket.from_stdlib_socket(listener.dup()))
        if self._websocket is not None:
            sockets, gate = self._websocket
            listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(s.dup())) for s in sockets]
            self.nursery.start_soon(
                serve_websocket, listeners, gate(), self._dispatcher, self._max_frame, self._clients
            )  # fmt: skip

    async def _accept(self, listener: trio.socket.SocketType) -> None:
        with listener:
            while True:
                try:
                    client, _ = await listener.accept()
                except OSError as error:
                    if error.errno in _CLIENTS_OWN:
                        continue
                    if error.errno not in _BUSY:
                        raise
                    log.warning("cannot accept a client: %s", error.strerror)
                    await trio.sleep(RETRY_SECONDS)
                    continue
                self.nursery.start_soon(self._serve, client)

    async def _serve(self, client: trio.socket.SocketType) -> None:
        with client:
            try:
                uid = peer_uid(client)
                if len(self._clients) >= MOST_CLIENTS or uid not in (os.getuid(), 0):
                    log.warning("refused a client: %d are connected, its uid is %d", len(self._clients), uid)
                    return
                self._clients.add(client)
                await serve_stream(trio.SocketStream(client), self._dispatcher, self._max_frame)
            except Exception:
                log.exception("a client's connection failed")  # one client's bug is nobody else's
            finally:
                self._clients.discard(client)
