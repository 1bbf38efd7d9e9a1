"""SQLite databases of other programs, read from a copy so that the program never meets a lock or a file of ours.

`opencode` and `llm` ask the copy; whatever is wrong with it is told in the words of SQLite, which quote no row.
"""

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path

from contextinfinity.daemon.imports.base import Damaged, Item
from contextinfinity.daemon.imports.reading import clean

MAGIC = b"SQLite format 3\0"
BESIDE = ("", "-wal", "-journal")
ATTEMPTS = 5
# The names of columns are decoded by the module itself, without asking how.
FAULTS = (sqlite3.Error, sqlite3.Warning, UnicodeError)


class Tables:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.names = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}

    def columns(self, table: str) -> set[str]:
        """None if there is no such table."""
        return {str(name) for (name,) in self._connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}

    def rows(self, sql: str, *values: object) -> Iterator[sqlite3.Row]:
        yield from self._connection.execute(sql, values)


@contextmanager
def opened(path: Path) -> Iterator[Tables]:
    """A copy of a database with what its log holds; raises `OSError` if it cannot be read, one of `FAULTS` if it is none."""
    with tempfile.TemporaryDirectory(prefix="contextinfinity-import-") as folder:
        copy = Path(folder) / "copy.db"
        _copy(path, copy)
        with closing(sqlite3.connect(copy)) as connection:
            connection.text_factory = lambda data: clean(data.decode(errors="replace"))
            connection.row_factory = sqlite3.Row
            yield Tables(connection)


def _copy(path: Path, copy: Path) -> None:
    """Copied again while the program writes at the same time: a database and a log of different moments do not fit."""
    for _ in range(ATTEMPTS):
        before = _state(path)
        for suffix in BESIDE:
            source, target = Path(f"{path}{suffix}"), Path(f"{copy}{suffix}")
            target.unlink(missing_ok=True)
            with suppress(FileNotFoundError) if suffix else nullcontext():
                shutil.copyfile(source, target)
        if _state(path) == before:
            return


def _state(path: Path) -> list[tuple[int, int] | None]:
    files = [Path(f"{path}{suffix}") for suffix in BESIDE]
    return [(file.stat().st_mtime_ns, file.stat().st_size) if file.exists() else None for file in files]


def items(path: Path, read: Callable[[Tables], Iterator[Item]]) -> Iterator[Item]:
    try:
        with opened(path) as tables:
            yield from read(tables)
    except FAULTS as error:
        yield Damaged("the database", "not valid UTF-8" if isinstance(error, UnicodeError) else str(error))
