"""What every reader yields and what a format is; `formats` lists the formats, `reading` and `content` are what they share.

A reader says what it found, what it could not read and what it left out on purpose, so that nothing is lost in silence.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from contextinfinity.protocol.blocks import Message


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """Announced before its first message, and again when more is known of it: a field that is None says nothing new."""

    key: str
    title: str | None = None
    created_at: str | None = None
    cwd: str | None = None
    agent: str | None = None


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """One message; `continues` when it is more of the assistant message that the one said before it belongs to."""

    conversation: str
    message: Message
    continues: bool = False


class Damaged(msgspec.Struct, frozen=True):
    """A place that could not be read; `why` never quotes it."""

    where: str
    why: str


class Skipped(msgspec.Struct, frozen=True):
    """A place that was read and is no part of the conversation."""

    where: str
    why: str


Item = Conversation | Said | Damaged | Skipped


class Record(NamedTuple):
    """An item, and where reading may resume when everything up to it has been taken; 0 where a source is read whole.

    That is the byte after the item's line, or the line's first byte while more items of the same line follow.
    """

    item: Item
    offset: int


class Format(Protocol):
    """Every other failure to read is an item: only a file that cannot be opened raises its `OSError`."""

    name: str
    description: str
    append_only: bool

    def files(self, path: Path) -> list[Path]:
        """The sources at a path, sorted; `ValueError` says what to give instead when there are none."""
        ...

    def read(self, path: Path, offset: int = 0) -> Iterator[Record]: ...


def sources(path: Path, patterns: tuple[str, ...], expected: str) -> list[Path]:
    """A file is taken at its word; below a folder, the files that fit the patterns."""
    if path.is_dir():
        found = sorted({file for pattern in patterns for file in path.glob(pattern) if file.is_file()})
        if found:
            return found
        raise ValueError(f"nothing to import in {path}: give {expected}")
    path.stat()
    if not path.is_file():
        raise ValueError(f"{path} is neither a file nor a folder: give {expected}")
    return [path]
