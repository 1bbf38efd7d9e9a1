"""Small JSON-RPC peers that hide nothing: they send exactly the bytes they are told to and keep what comes back.

`Wire` blocks, for tests that drive a daemon process; `TrioWire` runs beside an in-process server.
"""

import json
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import trio

from contextinfinity.protocol import jsonrpc
from contextinfinity.protocol.codec import FrameReader, Framing, Oversized, frame
from contextinfinity.protocol.errors import ErrorObject, Fault

DEADLINE = 30.0
READ_BYTES = 64 * 1024
ANSWER_LIMIT = 256 * 1024 * 1024

Document = Any


def _payload(document: bytes | bytearray | str | Document) -> bytes:
    if isinstance(document, bytes | bytearray):
        return bytes(document)
    return (document if isinstance(document, str) else json.dumps(document)).encode()


def _result(answer: Document) -> Any:
    """The result of an answer, or its error raised as the class that the daemon raised."""
    if "error" in answer:
        error = answer["error"]
        raise Fault.from_error(ErrorObject(error["code"], error["message"], error.get("data")))
    return answer["result"]


class _Inbox:
    """Documents in the order they came; `events` are the params of the `event` notifications among them."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._documents: deque[Document] = deque()
        self._reader = FrameReader(ANSWER_LIMIT)
        self._next_id = 0

    def _take_in(self, chunk: bytes | bytearray) -> None:
        for found in self._reader.feed(chunk):
            assert not isinstance(found, Oversized)
            self._documents.append(json.loads(found))

    def _next(self) -> Document:
        document = self._documents.popleft()
        if isinstance(document, dict) and document.get("method") == "event":
            self.events.append(document["params"])
        return document

    def _request(self, method: str, params: dict[str, Any]) -> tuple[int, bytes]:
        self._next_id += 1
        return self._next_id, jsonrpc.request(self._next_id, method, params)


class Wire(_Inbox):
    """A blocking connection to a Unix socket; every read has a deadline."""

    def __init__(self, path: Path | str, *, framing: Framing = Framing.LINES, timeout: float = DEADLINE) -> None:
        super().__init__()
        self.framing = framing
        self._answers: dict[int, Document] = {}
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise

    def raw(self, data: bytes) -> None:
        """Send these bytes, unframed."""
        self.socket.sendall(data)

    def send(self, document: bytes | str | Document) -> None:
        """Send one document in this connection's framing."""
        self.raw(frame(self.framing, _payload(document)))

    def receive(self) -> Document | None:
        """The next document, events included; None at end of input."""
        while not self._documents:
            chunk = self.socket.recv(READ_BYTES)
            if not chunk:
                return None
            self._take_in(chunk)
        return self._next()

    def post(self, method: str, **params: Any) -> int:
        """Send a request and do not wait; `answer` takes the id that this returns."""
        ident, document = self._request(method, params)
        self.send(document)
        return ident

    def answer(self, ident: int) -> Any:
        """The result of a request that was posted; a fault is raised as its class. Events go to `events` meanwhile."""
        while ident not in self._answers:
            document = self.receive()
            if document is None:
                raise ConnectionResetError("the daemon closed the connection before it answered")
            if isinstance(document, dict) and document.get("id") is not None:
                self._answers[document["id"]] = document
        return _result(self._answers.pop(ident))

    def call(self, method: str, **params: Any) -> Any:
        return self.answer(self.post(method, **params))

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first event, of those that came and those that will, for which `wanted` holds."""
        seen = 0
        while True:
            for event in self.events[seen:]:
                if wanted(event):
                    return event
            seen = len(self.events)
            document = self.receive()
            if document is None:
                raise ConnectionResetError("the daemon closed the connection")
            if isinstance(document, dict) and document.get("id") is not None:
                self._answers[document["id"]] = document

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TrioWire(_Inbox):
    """The same on trio, over any stream; one task at a time reads it."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, *, framing: Framing = Framing.LINES) -> None:
        super().__init__()
        self.framing = framing
        self.stream = stream

    async def raw(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def send(self, document: bytes | str | Document) -> None:
        await self.raw(frame(self.framing, _payload(document)))

    async def receive(self) -> Document | None:
        """The next document, events included; None at end of input."""
        while not self._documents:
            chunk = await self.stream.receive_some(READ_BYTES)
            if not chunk:
                return None
            self._take_in(chunk)
        return self._next()

    async def call(self, method: str, **params: Any) -> Any:
        """Ask and wait for the answer to this; only events may come before it."""
        ident, document = self._request(method, params)
        await self.send(document)
        while True:
            answer = await self.receive()
            if answer is None:
                raise ConnectionResetError("the daemon closed the connection before it answered")
            if isinstance(answer, dict) and answer.get("id") == ident:
                return _result(answer)

    async def half_close(self) -> None:
        await self.stream.send_eof()

    async def aclose(self) -> None:
        await self.stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
