"""Our own format: one message a line, or a JSON array of messages; the simplest thing a script can write.

A message without an id is known by its content and its line's first byte: an append-only file gives the same ids again.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contextinfinity.daemon.imports.base import Conversation, Damaged, Item, Record, Said, Skipped, sources
from contextinfinity.daemon.imports.content import blocks_of, derived_id, moment, role_of, said, string
from contextinfinity.daemon.imports.reading import BLANK, BOM, Line, UnreadableError, elements, flowing, lines, read_lines


class Jsonl:
    name = "jsonl"
    description = "JSON lines of {role, text or content, created_at?, external_id?, speaker?, session?, title?}, or an array"
    append_only = True

    def files(self, path: Path) -> list[Path]:
        return sources(path, ("*.jsonl", "*.ndjson", "*.json"), "a file of JSON lines, or a folder of *.jsonl files")

    def read(self, path: Path, offset: int = 0) -> Iterator[Record]:
        if not offset and _is_array(path):
            return flowing(_array(path))
        return read_lines(path, offset, _line)


def _is_array(path: Path) -> bool:
    """Whether it is an array, or a damaged one; a first line that begins as one may just be damaged itself."""
    with path.open("rb") as file:
        if not file.read(4096).removeprefix(BOM).lstrip(BLANK).startswith(b"["):
            return False
    listed = [isinstance(value, dict) for _, value in elements(path.read_bytes())]
    return all(listed) or sum(listed) > sum(isinstance(line.value, dict) for line in lines(path))


def _line(line: Line) -> Iterator[Item]:
    if isinstance(line.value, dict):
        yield from _message(line.value, line.where, line.start)


def _array(path: Path) -> Iterator[Item]:
    seen: Counter[str] = Counter()
    for where, value in elements(path.read_bytes()):
        if isinstance(value, UnreadableError):
            yield Damaged(where, str(value))
        elif isinstance(value, dict):
            (same,) = {item.message.external_id or "" for item in _message(value, where, 0) if isinstance(item, Said)} or {""}
            yield from _message(value, where, seen[same])
            seen[same] += 1
        else:
            yield Damaged(where, "not a JSON object")


def _message(value: dict[str, Any], where: str, place: int) -> Iterator[Item]:
    session, role = value.get("session"), role_of(value.get("role"))
    key = str(session) if isinstance(session, str | int) else ""
    title = string(value.get("title"))
    if role is None:
        if title and "role" not in value:
            yield Conversation(key=key, title=title)
        else:
            yield Skipped(where, "its role is neither user nor assistant")
        return
    content = value["text"] if isinstance(value.get("text"), str) else value.get("content")
    created_at = moment(value.get("created_at"))
    given = value.get("external_id")
    external_id = str(given) if isinstance(given, str | int) and given != "" else None
    blocks = blocks_of(content, "jsonl", external_id or f"tool:{place}")
    external_id = external_id or derived_id(key, role, blocks, created_at, place)
    yield Conversation(key=key, title=title)
    yield Said(conversation=key, message=said(role, blocks, external_id, created_at, string(value.get("speaker"))))
