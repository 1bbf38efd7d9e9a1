"""The Unix socket: private by permission and peer uid, framed either way, half-close honoured.

A socket inherited from systemd is used as it is and never unlinked; our own is bound only by the holder of the home's lock.
"""

import logging
import os
import select
import socket
import stat
import struct
import sys
from pathlib import Path

import trio

from contextinfinity.daemon.rpc.connection import Connection
from contextinfinity.daemon.rpc.dispatch import Dispatcher
from contextinfinity.protocol.codec import BrokenFraming, FrameReader, Framing, Oversized, frame
from contextinfinity.protocol.errors import InvalidRequest
from contextinfinity.protocol.jsonrpc import NULL, failure

log = logging.getLogger(__name__)

READ_BYTES = 256 * 1024
BACKLOG = 1024
GONE_CHECK_SECONDS = 1.0
MAX_PATH = 103 if sys.platform == "darwin" else 107


class SocketError(Exception):
    """The socket cannot be had; the message names the fix."""


def bind(path: Path) -> socket.socket:
    """A fresh listening socket, mode 0600 in a folder of mode 0700; a stale one is replaced, a live one is left alone."""
    if len(os.fsencode(path)) > MAX_PATH:
        raise SocketError(f"{path} is longer than the {MAX_PATH} bytes a socket path may have; choose another with --socket")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _clear_stale(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
    except OSError as error:
        raise SocketError(f"cannot listen on {path}: {error.strerror or error}") from None
    return listener


def _clear_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketError(f"{path} exists and is no socket; remove it or choose another with --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise SocketError(f"another daemon answers on {path}; choose another with --socket")


def peer_uid(sock: trio.socket.SocketType) -> int:
    """Who is at the other end."""
    if sys.platform == "darwin":  # LOCAL_PEERCRED: struct xucred begins with version and uid
        _, uid = struct.unpack("II", sock.getsockopt(0, 1, 8))
        return int(uid)
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


async def serve_stream(stream: trio.SocketStream, dispatcher: Dispatcher, max_frame: int) -> None:
    """One client until it is gone; nothing it does reaches another client."""
    reader = FrameReader(max_frame)

    async def write(documents: list[bytes]) -> None:
        framing = reader.framing or Framing.LINES
        data = b"".join(frame(framing, document) for document in documents)
        try:
            sent = os.write(stream.socket.fileno(), data)  # the kernel mostly has room, and then nobody need wait
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            await stream.send_all(memoryview(data)[sent:])

    try:
        async with stream, trio.open_nursery() as pumps:
            async with trio.open_nursery() as requests:
                connection = Connection(dispatcher, write, requests, pumps, "unix")
                await _read(stream, reader, connection)
                requests.start_soon(_watch_for_hangup, stream, connection, requests.cancel_scope)
            pumps.cancel_scope.cancel()
    except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
        log.debug("a client went away")


async def _read(stream: trio.SocketStream, reader: FrameReader, connection: Connection) -> None:
    """Serve frames until end of input, or until the peer's framing is beyond repair."""
    ended = False
    while not ended:
        chunk = await stream.receive_some(READ_BYTES)
        frames: list[bytes | Oversized] = []
        answers: list[bytes] = []
        ended = not chunk
        try:
            if chunk:
                frames.extend(reader.feed(chunk))
            elif rest := reader.leftover():
                frames.append(rest)
        except BrokenFraming as broken:
            ended = True
            answers.append(failure(NULL, InvalidRequest(str(broken)).to_error()))
        for item in frames:
            answer = await connection.received(item)
            if answer is not None:
                answers.append(answer)
        if answers:
            await connection.send(answers)


async def _watch_for_hangup(stream: trio.SocketStream, connection: Connection, scope: trio.CancelScope) -> None:
    """After end of input: a client that only half-closed gets its answers, one that is gone is not waited for."""
    poller = select.poll()
    poller.register(stream.socket.fileno(), 0)
    while connection.outstanding:
        if poller.poll(0):
            scope.cancel()
            return
        with trio.move_on_after(GONE_CHECK_SECONDS):
            await connection.idle()
