"""How sources are read: JSON that may be damaged, lines of files that still grow, and messages that continue each other.

The format modules say what a decoded object means; nothing they are handed here holds NUL, half characters or deep nesting.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from contextinfinity.daemon.imports.base import Conversation, Damaged, Item, Record, Said, Skipped
from contextinfinity.protocol.blocks import MOST_NESTED

LONGEST_LINE = 256 * 2**20
# A value becomes part of a block inside a tool's result inside a message: it may be less deep than blocks may.
DEEPEST = MOST_NESTED - 10
CHUNK = 2**16
HEAD_LINES = 64
BLANK = b" \t\r\n\0"
BOM = b"\xef\xbb\xbf"
ODD = re.compile("[\0\ud800-\udfff]")
ODD_BYTES = re.compile(rb"\\u0000|\\u[dD][89a-fA-F]|\0")
TOKEN = re.compile(rb'"(?:[^"\\]+|\\.)*+"|[\[\]{},]', re.DOTALL)


class UnreadableError(ValueError):
    """Bytes that hold no JSON we can keep; says why without quoting them."""


def clean(text: str) -> str:
    """What neither UTF-8 nor every database keeps becomes U+FFFD."""
    return ODD.sub("\ufffd", text)


def decode(data: bytes) -> Any:
    try:
        value = msgspec.json.decode(data)
        strange = ODD_BYTES.search(data) is not None
    except RecursionError:
        raise UnreadableError("nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        value, strange = _decode_leniently(data, error), True
    if _is_too_deep(value):
        raise UnreadableError(f"nested more than {DEEPEST} levels deep")
    return _cleaned(value) if strange else value


def _decode_leniently(data: bytes, first: Exception) -> Any:
    """The standard library takes lone surrogates, raw control characters and NaN, which some writers leave behind."""
    try:
        return json.loads(data.decode(), strict=False)
    except UnicodeDecodeError as error:
        raise UnreadableError(f"not valid UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise UnreadableError("nested too deeply") from None
    except ValueError:
        raise UnreadableError(f"not valid JSON ({first})") from None


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST + 1):
        containers = [v for v in level if isinstance(v, dict | list)]
        if not containers:
            return False
        level = [inner for c in containers for inner in (c.values() if isinstance(c, dict) else c)]
    return True


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): _cleaned(inner) for key, inner in value.items()}
    return [_cleaned(inner) for inner in value] if isinstance(value, list) else value


def elements(data: bytes) -> Iterator[tuple[str, Any]]:
    """The objects of a JSON array (or the one object there is), each decoded for itself; raises on what is neither.

    A value of `UnreadableError` stands for an object that is damaged: those before and after it are kept.
    """
    data = data.removeprefix(BOM).strip(BLANK)
    if not data.startswith(b"["):
        yield "the document", decode(data)
        return
    parts: Iterable[bytes]
    try:
        parts = map(bytes, msgspec.json.decode(data, type=list[msgspec.Raw]))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        parts = _split(data)
    for number, part in enumerate(parts, 1):
        try:
            yield f"item {number}", decode(part.strip(BLANK))
        except UnreadableError as error:
            yield f"item {number}", error


def _split(data: bytes) -> Iterator[bytes]:
    """The parts of a damaged array, by its brackets and commas alone; the last may be cut off, or follow its end."""
    depth, start = 0, 1
    for token in TOKEN.finditer(data):
        mark = token[0]
        depth += (mark in b"[{") - (mark in b"]}")
        if (mark == b"," and depth == 1) or (mark == b"]" and depth == 0):
            yield data[start : token.start()]
            start = token.end()
            if depth == 0:
                break
    if depth or data[start:].strip(BLANK):
        yield data[start:]


class Line(NamedTuple):
    number: int
    start: int
    end: int
    value: dict[str, Any] | UnreadableError

    @property
    def where(self) -> str:
        return f"line {self.number}"


def lines(path: Path, offset: int = 0) -> Iterator[Line]:
    """The lines from an offset on, blank ones left out; a last line still being written is not there yet."""
    with path.open("rb") as file:
        number, start = _newlines(file, offset), offset
        file.seek(offset)
        while raw := file.readline(LONGEST_LINE):
            number += 1
            whole = raw.endswith(b"\n")
            end = start + len(raw)
            if not whole and len(raw) == LONGEST_LINE:
                end += _skip_line(file)
                yield Line(number, start, end, UnreadableError(f"longer than {LONGEST_LINE} bytes"))
            elif content := (raw.removeprefix(BOM) if start == 0 else raw).strip(BLANK):
                value = _object(content)
                if not whole and isinstance(value, UnreadableError):
                    return
                yield Line(number, start, end, value)
            start = end


def _object(content: bytes) -> dict[str, Any] | UnreadableError:
    try:
        value = decode(content)
    except UnreadableError as error:
        return error
    return value if isinstance(value, dict) else UnreadableError("not a JSON object")


def _newlines(file: BinaryIO, before: int) -> int:
    count = 0
    while before > 0 and (chunk := file.read(min(CHUNK, before))):
        count += chunk.count(b"\n")
        before -= len(chunk)
    return count


def _skip_line(file: BinaryIO) -> int:
    skipped = 0
    while raw := file.readline(CHUNK):
        skipped += len(raw)
        if raw.endswith(b"\n"):
            break
    return skipped


def _lines_before(path: Path, offset: int) -> Iterator[dict[str, Any]]:
    """The readable lines that end at or before an offset, the last one first."""
    with path.open("rb") as file:
        rest = b""
        while offset > 0:
            size = min(max(CHUNK, len(rest)), offset)
            offset -= size
            file.seek(offset)
            first, *others = (file.read(size) + rest).split(b"\n")
            for raw in reversed(others):
                if isinstance(value := _object(raw.strip(BLANK)), dict):
                    yield value
            rest = first
        if isinstance(value := _object(rest.removeprefix(BOM).strip(BLANK)), dict):
            yield value


def head(path: Path) -> list[dict[str, Any]]:
    """The readable ones of a file's first lines, for what a format says once at its beginning."""
    return [line.value for line, _ in zip(lines(path), range(HEAD_LINES), strict=False) if isinstance(line.value, dict)]


class Flow:
    """Puts messages in their context: announces each conversation in time, and says which messages continue one.

    A reader marks as continuing what belongs to an answer in several steps; it does continue if such a step came before.
    """

    def __init__(self, before: Said | None = None) -> None:
        self._known: Conversation | None = None
        self._before = before

    def __call__(self, item: Item, where: str | None = None) -> Item | None:
        match item:
            case Conversation():
                return self._announce(item)
            case Said(conversation=key, message=said) if said.blocks:
                before, self._before = self._before, item
                follows = before is not None and before.conversation == key and before.message.role == "assistant"
                return msgspec.structs.replace(item, continues=item.continues and follows)
            case Said():
                return Skipped(where or f"message {item.message.external_id}", "says nothing")
        return item

    def _announce(self, new: Conversation) -> Conversation | None:
        old = self._known
        if old is not None and old.key == new.key:
            new = msgspec.structs.replace(old, title=new.title or old.title)
            if new == old:
                return None
        self._known = new
        return new


def flowing(items: Iterable[Item]) -> Iterator[Record]:
    """The items of a source that is always read whole."""
    flow = Flow()
    return (Record(item, 0) for item in map(flow, items) if item is not None)


Parse = Callable[[Line], Iterable[Item]]


def read_lines(path: Path, offset: int, parse: Parse) -> Iterator[Record]:
    flow = Flow(_said_before(path, offset, parse))
    for line in lines(path, offset):
        if isinstance(line.value, UnreadableError):
            yield Record(Damaged(line.where, str(line.value)), line.end)
            continue
        items = [item for found in parse(line) if (item := flow(found, line.where)) is not None]
        for item in items[:-1]:
            yield Record(item, line.start)
        if items:
            yield Record(items[-1], line.end)


def _said_before(path: Path, offset: int, parse: Parse) -> Said | None:
    for value in _lines_before(path, offset):
        for item in reversed(list(parse(Line(0, 0, 0, value)))):
            if isinstance(item, Said) and item.message.blocks:
                return item
    return None
