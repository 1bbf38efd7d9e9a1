"""The leanest client that speaks to the daemon: a trio stream and lines, so that a measurement is of the other end.

The bare echo server is asked through the same `exchange`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

CHUNK = 256 * 1024


class Wire:
    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._rest = b""
        self._ids = 0

    async def exchange(self, line: bytes) -> bytes:
        """Send a line and take the next one that comes."""
        await self.stream.send_all(line)
        return await self.line()

    async def line(self) -> bytes:
        while True:
            whole, end, rest = self._rest.partition(b"\n")
            if end:
                self._rest = rest
                return whole
            chunk = await self.stream.receive_some(CHUNK)
            if not chunk:
                raise ConnectionError("the other end closed the connection")
            self._rest += chunk

    def request(self, method: str, **params: Any) -> bytes:
        self._ids += 1
        return msgspec.json.encode({"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}) + b"\n"

    async def call(self, method: str, **params: Any) -> Any:
        """The result, on a connection without subscriptions."""
        return result(await self.exchange(self.request(method, **params)))


def result(line: bytes) -> Any:
    document = msgspec.json.decode(line)
    if "error" in document:
        raise RuntimeError(f"the daemon refused: {document['error']}")
    return document["result"]


@asynccontextmanager
async def connect(path: Path) -> AsyncIterator[Wire]:
    async with await trio.open_unix_socket(path) as stream:
        yield Wire(stream)
