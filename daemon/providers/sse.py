"""Sans-io server-sent events: bytes in, (event name, data) out, and the JSON objects inside; `sdk` does the reading.

An event that the connection's end cuts short is dropped, as the format demands.
"""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

MAX_EVENT = 16 * 1024 * 1024
BOM = b"\xef\xbb\xbf"

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class BrokenStream(ValueError):
    """What arrived is not an event stream of JSON objects."""


class SseReader:
    """Feed it chunks, iterate the events that they complete."""

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self._limit = max_event
        self._rest = b""
        self._name: str | None = None
        self._data: list[bytes] = []
        self._size = 0
        self._started = False

    def feed(self, chunk: bytes) -> Iterator[tuple[str | None, bytes]]:
        buffer = self._rest + chunk
        if not self._started:
            if len(buffer) < len(BOM) and BOM.startswith(buffer):
                self._rest = buffer
                return
            self._started = True
            buffer = buffer.removeprefix(BOM)
        lines = buffer.splitlines(keepends=True)
        # A last line that ends in \r alone may be half of \r\n: it waits too.
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        for line in lines:
            line = line.rstrip(b"\r\n")
            if line.startswith(b"data:"):
                data = line[6:] if line[5:6] == b" " else line[5:]
                self._data.append(data)
                self._size += len(data)
            elif not line:
                if self._data:
                    name, data = self._name, b"\n".join(self._data)
                    self._data, self._size = [], 0
                    self._name = None
                    yield name, data
                self._name = None
            elif line.startswith(b"event:"):
                self._name = line[6:].strip().decode(errors="replace")
        if self._size + len(self._rest) > self._limit:
            raise BrokenStream(f"an event of more than {self._limit} bytes")


def parse(data: bytes) -> dict[str, Any]:
    """The JSON object in an event's data. Half a surrogate pair, which no storage takes, becomes U+FFFD."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise BrokenStream("an event that is not JSON") from None
    if not isinstance(value, dict):
        raise BrokenStream("an event that is not a JSON object")
    return {_whole(key): _repair(item) for key, item in value.items()}


def _repair(value: Any) -> Any:
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, dict):
        return {_whole(key): _repair(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_repair(item) for item in value]
    return value


def _whole(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
