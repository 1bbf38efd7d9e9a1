"""Opens the database with the pragmas that durability needs, and runs batches of transactions on it.

`Tx` is what a transaction function gets: statements in, and events that are published only after the commit.
"""

import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec
import zstandard

from contextinfinity.daemon.runtime import failpoints
from contextinfinity.protocol.errors import Fault, InvalidState, ReadOnly, StorageFull, Unavailable
from contextinfinity.protocol.events import Event

log = logging.getLogger(__name__)

Row = tuple[Any, ...]
BUSY_MS = 5000
DAMAGE = (apsw.CorruptError, apsw.NotADBError)
UNREADABLE = (
    apsw.SQLError,
    AssertionError,
    TypeError,
    msgspec.DecodeError,
    UnicodeDecodeError,
    zstandard.ZstdError,
    LookupError,
)
"""What readers make of a schema or of content that is not what was once written."""
BREAKING = (apsw.IOError, apsw.FullError, apsw.ReadOnlyError, apsw.BusyError, *DAMAGE)
"""Errors of the storage itself, not of what was asked of it."""


class Tx:
    """One transaction in progress."""

    __slots__ = ("_db", "events", "owner")

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self.owner = "local"
        self.events: list[Event] = []

    def run(self, sql: str, *values: Any) -> None:
        failpoints.hit("store.statement")
        self._db.execute(sql, values).fetchall()

    def insert(self, sql: str, *values: Any) -> int:
        """The number of the new row."""
        self.run(sql, *values)
        return self._db.last_insert_rowid()

    def row(self, sql: str, *values: Any) -> Row | None:
        rows = self._db.execute(sql, values).fetchall()
        return rows[0] if rows else None

    def rows(self, sql: str, *values: Any) -> list[Row]:
        return self._db.execute(sql, values).fetchall()

    def each(self, sql: str, *values: Any) -> Iterator[Row]:
        """Rows one by one, for more of them than memory should hold; read them to the end."""
        yield from self._db.execute(sql, values)

    def emit(self, kind: str, at: str, *, session_id: str, branch_id: str, turn_id: str | None = None, **data: Any) -> None:
        """Write an event with the fact it reports; subscribers hear of it after the commit."""
        self.run(
            "INSERT INTO events(owner, type, session_id, branch_id, turn_id, data, created_at) VALUES (?,?,?,?,?,?,?)",
            self.owner,
            kind,
            session_id,
            branch_id,
            turn_id,
            msgspec.json.encode(data).decode(),
            at,
        )
        self.events.append(Event(self._db.last_insert_rowid(), kind, branch_id, data, turn_id, session_id))


Job = Callable[[Tx], Any]


class Committed(msgspec.Struct, frozen=True):
    """What a write returned, and the events that became facts with it."""

    value: Any
    events: list[Event]


def open_writer(path: Path) -> apsw.Connection:
    return _prepared(
        apsw.Connection(str(path)),
        "journal_mode = WAL",
        "synchronous = FULL",  # NORMAL loses acknowledged rows at power loss
        "fullfsync = ON",  # macOS only
        "foreign_keys = ON",
        "temp_store = MEMORY",
        "secure_delete = OFF",
        "wal_autocheckpoint = 1000",
    )


def open_reader(path: Path) -> apsw.Connection:
    return _prepared(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY), "temp_store = MEMORY")


def _prepared(db: apsw.Connection, *pragmas: str) -> apsw.Connection:
    try:
        db.set_busy_timeout(BUSY_MS)
        for pragma in pragmas:
            db.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        db.close()
        raise
    return db


Outcome = tuple[Any, BaseException | None]


def write_batch(db: apsw.Connection, jobs: Sequence[Job]) -> list[Outcome]:
    """Run each job in a savepoint of one transaction and commit them together.

    A fault or a bug undoes its own job only. A full disk refuses the whole batch, and writing goes on when there is space.
    An I/O error or damage breaks the writer: SQLite's next commit would succeed without the lost pages, so it must not come.
    """
    try:
        db.execute("BEGIN IMMEDIATE").fetchall()
        outcomes = [_run_in_savepoint(db, job) for job in jobs] if len(jobs) > 1 else [_run_alone(db, jobs[0])]
        if not db.in_transaction:
            return outcomes
        failpoints.hit("store.before_commit")
        db.execute("COMMIT").fetchall()
        failpoints.hit("store.after_commit")
    except apsw.FullError:
        return _refuse(db, jobs, full())
    except apsw.BusyError:
        return _refuse(
            db, jobs, Unavailable("another program holds the database's lock; close it and try again", retry_after=1)
        )
    except apsw.ReadOnlyError:
        return _refuse(db, jobs, ReadOnly("the database cannot be written; check the permissions of its folder"))
    except apsw.IOError as error:
        if _is_out_of_space(error):
            return _refuse(db, jobs, full())
        raise
    return outcomes


def _run_alone(db: apsw.Connection, job: Job) -> Outcome:
    """Without a savepoint, which would cost a lone writer two statements: what fails takes the transaction with it."""
    tx = Tx(db)
    try:
        return Committed(job(tx), tx.events), None
    except BREAKING:
        raise
    except Exception as error:  # noqa: BLE001 - a fault is an answer, a bug is its caller's alone
        db.execute("ROLLBACK").fetchall()
        return None, error


def _run_in_savepoint(db: apsw.Connection, job: Job) -> Outcome:
    tx = Tx(db)
    db.execute("SAVEPOINT job").fetchall()
    try:
        value = job(tx)
    except BREAKING:
        raise
    except Exception as error:  # noqa: BLE001 - a fault is an answer, a bug is its caller's alone
        db.execute("ROLLBACK TO job").fetchall()
        db.execute("RELEASE job").fetchall()
        return None, error
    db.execute("RELEASE job").fetchall()
    return Committed(value, tx.events), None


def _refuse(db: apsw.Connection, jobs: Sequence[Job], fault: Fault) -> list[Outcome]:
    if db.in_transaction:
        db.execute("ROLLBACK").fetchall()
    return [(None, fault) for _ in jobs]


def full() -> StorageFull:
    return StorageFull("the disk is full: nothing was written; free some space, writing resumes by itself", retry_after=5)


def damaged(error: Exception) -> InvalidState:
    return InvalidState(
        f"the database is damaged ({error}): run `ctx verify` to see how far, then `ctx restore` with a backup", damaged=True
    )


def _is_out_of_space(error: apsw.IOError) -> bool:
    """Some filesystems report a full disk as a failed write."""
    return getattr(error.__context__, "errno", None) in (errno.ENOSPC, errno.EDQUOT)


def read_batch(db: apsw.Connection, jobs: Sequence[Job]) -> list[Outcome]:
    """Run each job on a snapshot of its own; whatever one finds damaged is its own answer."""
    outcomes: list[Outcome] = []
    for job in jobs:
        try:
            db.execute("BEGIN").fetchall()
            outcomes.append((job(Tx(db)), None))
        except (*DAMAGE, *UNREADABLE) as error:
            log.error("stored content cannot be read", exc_info=error)  # if verify finds nothing, it is a bug of ours
            outcomes.append((None, damaged(error)))
        except Exception as error:  # noqa: BLE001 - a fault is an answer, a bug is its caller's alone
            outcomes.append((None, error))
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK").fetchall()
    return outcomes
