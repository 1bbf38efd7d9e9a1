"""Stream journals as files: one JSON line per provider event, appended, synced, read back with a torn tail tolerated.

The journal actor decides when; these functions block and belong in a thread.
"""

import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from contextinfinity.daemon.runtime import failpoints

START, ERROR = "ctx.start", "ctx.error"
"""Our own event types: the first line names model and turn, an error line says what the provider died of."""


class Line(msgspec.Struct, frozen=True):
    ts: str
    provider: str
    event_type: str
    seq: int
    payload: dict[str, Any]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode
_CHECK = b',"crc":'


def encode_line(line: Line) -> bytes:
    """A line ends in a checksum of all before it, so that a changed word is not taken for what was said."""
    body = _encode(line)
    return body[:-1] + _CHECK + b"%d}" % zlib.crc32(body)


def decode_line(piece: bytes) -> Line | None:
    """The line, if it is whole and unchanged."""
    body, found, check = piece.rpartition(_CHECK)
    if not found or check != b"%d}" % zlib.crc32(body + b"}"):
        return None
    try:
        return _decode(body + b"}")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class JournalFile:
    """An open journal. Its name counts as durable only after the folder was synced once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._named = False

    def write(self, data: bytes) -> None:
        if self._fd is None:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        failpoints.hit("journal.before_write")
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        failpoints.hit("journal.after_write")

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @staticmethod
    def sync(files: Iterable["JournalFile"]) -> None:
        """One round: every file, then once the folder of those that are new in it."""
        new = []
        for file in files:
            if file._fd is not None:
                os.fsync(file._fd)
                failpoints.hit("journal.after_sync")
                if not file._named:
                    new.append(file)
        for folder in {file.path.parent for file in new}:
            sync(folder)
            failpoints.hit("journal.after_folder_sync")
        for file in new:
            file._named = True


def sync(path: Path) -> None:
    """Make a file's bytes, or a folder's names, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def path_of(folder: Path, step_id: str) -> Path:
    return folder / f"{step_id}.jsonl"


def read_lines(path: Path) -> list[Line]:
    """The whole lines of a journal, in order; a torn or damaged line ends it. A missing file has none."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    lines: list[Line] = []
    for piece in raw.split(b"\n"):
        line = decode_line(piece)
        if line is None or line.seq != len(lines):
            break
        lines.append(line)
    return lines


def read_raw(path: Path) -> bytes:
    """The bytes of a journal up to its last whole line."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return b""
    return raw[: raw.rfind(b"\n") + 1]


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def list_steps(folder: Path) -> list[str]:
    """The step ids that have a journal file."""
    return sorted(path.stem for path in folder.glob("*.jsonl"))
