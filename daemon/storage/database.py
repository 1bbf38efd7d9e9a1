"""A database that is open for work: migrated, with one function that writes batches and several that read.

The store actor gives each function a thread of its own.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from contextinfinity.daemon.storage import migrations
from contextinfinity.daemon.storage.connection import Job, open_reader, open_writer, read_batch, write_batch
from contextinfinity.daemon.storage.repair import repair
from contextinfinity.protocol.errors import InvalidState

Batch = Callable[[Sequence[Job]], list[tuple[Any, BaseException | None]]]


class Database:
    def __init__(self, writer: apsw.Connection | None, readers: list[apsw.Connection]) -> None:
        self._connections = [*readers, *([writer] if writer is not None else [])]
        self.write: Batch | None = partial(write_batch, writer) if writer is not None else None
        self.reads: list[Batch] = [partial(read_batch, reader) for reader in readers]
        cursor = readers[0].execute("SELECT coalesce(max(id), 0) FROM events").fetchall()[0][0]
        assert isinstance(cursor, int)
        self.last_cursor = cursor

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


def open_database(path: Path, backups: Path, at: str, *, readers: int, read_only: bool) -> Database:
    """Open and migrate; `InvalidState` says what is wrong with the file and what to do."""
    if read_only and not path.exists():
        raise InvalidState(f"there is no database at {path} to read; start once without --read-only")
    with contextlib.ExitStack() as opened:  # a connection that nobody owns could checkpoint when nobody expects it
        database = _open(opened, path, backups, at, readers=readers, read_only=read_only)
        opened.pop_all()
    return database


def _open(
    opened: contextlib.ExitStack, path: Path, backups: Path, at: str, *, readers: int, read_only: bool
) -> Database:  # fmt: skip
    writer = None
    try:
        if not read_only:
            writer = open_writer(path)
            opened.callback(writer.close)
            path.chmod(0o600)
            migrations.migrate(writer, backups, at)
            repair(writer)
        reading = []
        for _ in range(readers):
            reading.append(open_reader(path))
            opened.callback(reading[-1].close)
        return Database(writer, reading)
    except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError, UnicodeDecodeError) as error:
        raise InvalidState(
            f"{path} is damaged or no database ({error}): move it away to start afresh, "
            f"or put a backup from {backups} in its place with `ctx restore`"
        ) from None
    except (apsw.CantOpenError, apsw.PermissionsError) as error:
        raise InvalidState(f"{path} cannot be opened ({error}): check its permissions") from None
