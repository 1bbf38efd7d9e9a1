"""Sans-io framing: bytes in, frames out, for newline-delimited JSON and `Content-Length` headers alike.

The first byte a peer sends chooses its framing, and `frame` answers in kind; no sockets here.
"""

from collections.abc import Iterator
from enum import Enum

MAX_FRAME = 16 * 1024 * 1024
MAX_HEADER = 4096


class Framing(Enum):
    LINES = "lines"
    HEADERS = "headers"


class Oversized:
    """Stands for a frame over the limit whose bytes were thrown away."""

    def __init__(self, limit: int) -> None:
        self.limit = limit


class BrokenFraming(Exception):
    """The peer's framing cannot be followed any further; the connection has to end."""


class FrameReader:
    """Feed it chunks, iterate the frames; memory stays under the limit whatever the peer sends."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.framing: Framing | None = None
        self._limit = max_frame
        self._buffer = bytearray()
        self._scanned = 0
        self._skip = 0  # bytes of an oversized Content-Length body still to throw away
        self._skip_line = False

    def feed(self, chunk: bytes | bytearray) -> Iterator[bytes | Oversized]:
        self._buffer += chunk
        if self.framing is None:
            self._buffer = self._buffer.lstrip(b" \t\r\n")
            if not self._buffer:
                return
            self.framing = Framing.HEADERS if self._buffer[:1] in b"Cc" else Framing.LINES
        yield from self._lines() if self.framing is Framing.LINES else self._headers()

    def _lines(self) -> Iterator[bytes | Oversized]:
        start = 0
        while True:
            end = self._buffer.find(b"\n", max(start, self._scanned))
            if end < 0:
                break
            begin, start = start, end + 1
            if self._skip_line or end - begin > self._limit:
                self._skip_line = False
                yield Oversized(self._limit)
            elif line := bytes(self._buffer[begin:end]).strip():
                yield line
        del self._buffer[:start]
        if len(self._buffer) > self._limit:
            self._skip_line = True
        if self._skip_line:
            self._buffer.clear()
        self._scanned = len(self._buffer)

    def _headers(self) -> Iterator[bytes | Oversized]:
        while True:
            if self._skip:
                dropped = min(self._skip, len(self._buffer))
                del self._buffer[:dropped]
                self._skip -= dropped
                if self._skip:
                    return
            end = self._buffer.find(b"\r\n\r\n", 0, MAX_HEADER)
            if end < 0:
                if len(self._buffer) >= MAX_HEADER:
                    raise BrokenFraming(f"no end of the Content-Length header in {MAX_HEADER} bytes")
                return
            length = _content_length(bytes(self._buffer[:end]))
            begin = end + 4
            if length > self._limit:
                del self._buffer[:begin]
                self._skip = length
                yield Oversized(self._limit)
                continue
            if len(self._buffer) < begin + length:
                return
            body = bytes(self._buffer[begin : begin + length])
            del self._buffer[: begin + length]
            yield body

    def leftover(self) -> bytes | Oversized:
        """At end of input: a last line without its newline still counts as a frame."""
        if self._skip_line:
            return Oversized(self._limit)
        rest = b"" if self.framing is Framing.HEADERS else bytes(self._buffer).strip()
        self._buffer.clear()
        return rest


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            digits = value.strip()
            if digits.isdigit() and len(digits) < 16:
                return int(digits)
    raise BrokenFraming("a Content-Length header with a number is needed")


def frame(framing: Framing, document: bytes) -> bytes:
    if framing is Framing.HEADERS:
        return b"Content-Length: %d\r\n\r\n%b" % (len(document), document)
    return document + b"\n"
