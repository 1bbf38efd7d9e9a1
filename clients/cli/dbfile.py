"""What a client may learn from a database file by itself: its outside, a quick check, and what a backup recorded.

Everything else is the daemon's business. Files are opened for reading only, and never while they may be changing unseen.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

MAGIC = b"SQLite format 3\0"
HEADER = 100
DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB")


class Recorded(NamedTuple):
    """What a backup says about itself: when it was made, and the head link of every branch then."""

    made_at: datetime | None
    anchors: dict[str, str]


def is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def recorded(path: Path) -> Recorded | None:
    """What `ctx backup` wrote into a backup; None for any other file."""
    try:
        with _open(path, "immutable=1") as db:
            row = db.execute("SELECT value FROM meta WHERE key = 'backup'").fetchone()
            document: Any = json.loads(row[0]) if row else None
    except (sqlite3.Error, ValueError, TypeError):
        return None
    anchors = document.get("anchors") if isinstance(document, dict) else None
    if not isinstance(anchors, dict):
        return None
    return Recorded(_time(document.get("made_at")), {str(k): str(v) for k, v in anchors.items()})


def _time(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(value).replace("Z", "+00:00")).astimezone()
    except ValueError:
        return None


def header_damage(path: Path) -> str | None:
    """What the first bytes and the size of a database alone give away, or None."""
    with path.open("rb") as file:
        header = file.read(HEADER)
    if not header:
        return None  # made and not yet used, which is a database to SQLite
    if len(header) < HEADER or not header.startswith(MAGIC):
        return "it does not begin like a database"
    size = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if size == 1 else size
    pages = int.from_bytes(header[28:32], "big")
    same = header[24:28] == header[92:96]  # only then is the page count valid
    if same and not _has_wal(path) and path.stat().st_size < pages * page_bytes:
        return f"it is cut short: {path.stat().st_size:,} of {pages * page_bytes:,} bytes are there"
    return None


def quick_damage(path: Path) -> str | None:
    """Go over the pages of a database that nobody has open; None if they hold, or cannot be judged from here."""
    try:
        with _open(path) as db:
            rows = [str(row[0]) for row in db.execute("PRAGMA quick_check(3)")]
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "")
        return str(error) if name.startswith(DAMAGE) else None
    return None if rows == ["ok"] else "; ".join(rows)


def _has_wal(path: Path) -> bool:
    wal = path.with_name(f"{path.name}-wal")
    return wal.exists() and wal.stat().st_size > 0


@contextmanager
def _open(path: Path, option: str = "") -> Iterator[sqlite3.Connection]:
    uri = f"{path.absolute().as_uri()}?mode=ro{f'&{option}' if option else ''}"
    with closing(sqlite3.connect(uri, uri=True, timeout=2)) as db:
        yield db
