"""Changes one text setting of a TOML file and leaves every other byte as it is: comments, order, layout.

Python reads TOML but does not write it, so the place is found here and the result is read again, to prove what changed.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any, NamedTuple

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"[ \t]*")
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_STRINGS = (
    re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL),
    re.compile(r"'''.*?'{3,5}", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)
_SCALAR = re.compile(r"[^,\]}#\r\n]*")


class NotEditable(ValueError):
    """The setting cannot be changed without touching something else."""


class _Statement(NamedTuple):
    """A line such as `[table]` (then `value` is None) or `key = value`; `path` begins at the root."""

    path: tuple[str, ...]
    end: int
    value: tuple[int, int] | None = None
    depth: int = 0
    """How many parts of the path come from the table's header."""


def with_text(document: str, section: str, key: str, value: str) -> str:
    """The document with `value` there; `tomllib.TOMLDecodeError` if it is not TOML."""
    before = tomllib.loads(document)
    try:
        changed = _edited(document, section, key, quoted(value))
        after = tomllib.loads(changed)
    except (tomllib.TOMLDecodeError, IndexError, RecursionError) as error:
        raise NotEditable(f"{section}.{key} has no place there ({error})") from None
    table = before.get(section, {})
    if not isinstance(table, dict) or not same(after, before | {section: table | {key: value}}):
        raise NotEditable(f"{section}.{key} is written in a way that is not understood here")
    return changed


def quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def same(one: Any, other: Any) -> bool:
    """Equal in types too, and nan is itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other or (one != one and other != other))


def _edited(text: str, section: str, key: str, value: str) -> str:
    header = beside = None
    for statement in _statements(text):
        if statement.value is None:
            header = statement.end if statement.path == (section,) else header
        elif statement.path == (section, key):
            return text[: statement.value[0]] + value + text[statement.value[1] :]
        elif statement.path == (section,):
            return _in_braces(text, statement.value, key, value)
        elif statement.path[0] == section and statement.depth == 0:
            beside = statement.end
    if header is not None:
        return _insert(text, header, f"{key} = {value}")
    if beside is not None:
        return _insert(text, beside, f"{section}.{key} = {value}")
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not text else newline if text.endswith("\n") else 2 * newline
    return f"{text}{gap}[{section}]{newline}{key} = {value}{newline}"


def _insert(text: str, after: int, row: str) -> str:
    """A row of its own behind the row that goes on at this place."""
    end = text.find("\n", after)
    if end < 0:
        newline = "\r\n" if "\r\n" in text else "\n"
        return f"{text}{newline}{row}{newline}"
    newline = "\r\n" if text[end - 1] == "\r" else "\n"
    return f"{text[: end + 1]}{row}{newline}{text[end + 1 :]}"


def _in_braces(text: str, extent: tuple[int, int], key: str, value: str) -> str:
    """In `section = { … }`."""
    if text[extent[0]] != "{":
        raise NotEditable("what should be a table is none")
    at = _skip(_SPACE, text, extent[0] + 1)
    if text[at] == "}":
        return f"{text[: extent[0] + 1]} {key} = {value} {text[extent[0] + 1 :]}"
    first = at
    while text[at] != "}":
        path, at = _key(text, at)
        at = _skip(_SPACE, text, _skip(_BLANK, text, at) + 1)
        end = _value(text, at)
        if path == (key,):
            return text[:at] + value + text[end:]
        at = _skip(_SPACE, text, end)
        if text[at] == ",":
            at = _skip(_SPACE, text, at + 1)
    return f"{text[:first]}{key} = {value}, {text[first:]}"


def _statements(text: str) -> Iterator[_Statement]:
    """Of a valid document, in order; tables of arrays count as tables that nothing is to be put into."""
    table: tuple[str, ...] = ()
    at = _skip(_SPACE, text, 0)
    while at < len(text):
        if text[at] == "[":
            array = text.startswith("[[", at)
            table, at = _key(text, _skip(_BLANK, text, at + 1 + array))
            at = _skip(_BLANK, text, at) + 1 + array
            if not array:
                yield _Statement(table, at)
        else:
            path, at = _key(text, at)
            begin = _skip(_BLANK, text, _skip(_BLANK, text, at) + 1)
            at = _value(text, begin)
            yield _Statement((*table, *path), at, (begin, at), len(table))
        at = _skip(_SPACE, text, at)


def _key(text: str, at: int) -> tuple[tuple[str, ...], int]:
    """A dotted key, and where it ends."""
    parts: list[str] = []
    while True:
        if text[at] in "\"'":
            end = _value(text, at)
            parts.append(next(iter(tomllib.loads(f"k = {text[at:end]}").values())))
        else:
            end = _skip(_BARE, text, at)
            parts.append(text[at:end])
        at = _skip(_BLANK, text, end)
        if not text.startswith(".", at):
            return tuple(parts), end
        at = _skip(_BLANK, text, at + 1)


def _value(text: str, at: int) -> int:
    """Where the value that begins here ends."""
    for pattern in _STRINGS:
        found = pattern.match(text, at)
        if found:
            return found.end()
    if text[at] not in "[{":
        length = len(text[at : _skip(_SCALAR, text, at)].rstrip(" \t"))
        if not length:
            raise NotEditable("its layout is not understood here")
        return at + length
    closing = "]" if text[at] == "[" else "}"
    at = _skip(_SPACE, text, at + 1)
    while text[at] != closing:
        if closing == "}":
            _, at = _key(text, at)
            at = _skip(_SPACE, text, _skip(_BLANK, text, at) + 1)
        at = _skip(_SPACE, text, _value(text, at))
        if text[at] == ",":
            at = _skip(_SPACE, text, at + 1)
    return at + 1


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at
