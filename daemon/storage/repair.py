"""The index can be made anew from the transcript, so damage to it is mended by emptying it, not by refusing the database.

Runs when the writer opens; what it empties, the startup hook asks to be indexed again.
"""

import logging

import apsw

from contextinfinity.daemon.storage import migrations

log = logging.getLogger(__name__)

TABLES = ("retrievals", "passage_vectors", "vector_spaces", "passages", "chunks")
"""Those that point at others come first."""


def repair(db: apsw.Connection) -> list[str]:
    """Empty the tables of the index if any of them is gone or cannot be read; which were not right."""
    wrong = [table for table in TABLES if not _can_be_read(db, table)]
    if wrong:
        log.error("the index is damaged (%s): it is emptied and made anew from the transcript", ", ".join(wrong))
        db.execute("PRAGMA foreign_keys = OFF").fetchall()
        try:
            leaked = [_drop(db, table) for table in TABLES]
            _create(db)
        finally:
            db.execute("PRAGMA foreign_keys = ON").fetchall()
        if any(leaked):
            db.execute("VACUUM").fetchall()  # pages of a table that could not be dropped belong to nobody
    return wrong


def _can_be_read(db: apsw.Connection, table: str) -> bool:
    """Whether it is there, and its pages are a table's; rows that are missing or wrong are found elsewhere."""
    try:
        db.execute(f"SELECT count(*) FROM {table}").fetchall()
        db.execute(f"SELECT * FROM {table} LIMIT 1").fetchall()
    except (apsw.CorruptError, apsw.SQLError, apsw.NotADBError):
        return False
    return True


def _drop(db: apsw.Connection, table: str) -> bool:
    """Whether its pages were left behind."""
    try:
        db.execute(f"DROP TABLE IF EXISTS {table}").fetchall()
    except apsw.Error:
        db.execute("PRAGMA writable_schema = ON").fetchall()
        db.execute("DELETE FROM sqlite_schema WHERE tbl_name = ?", (table,)).fetchall()
        db.execute("PRAGMA writable_schema = RESET").fetchall()
        return True
    return False


def _create(db: apsw.Connection) -> None:
    db.execute("BEGIN IMMEDIATE").fetchall()
    for statement in migrations.statements(migrations.MEMORY):
        if _table_of(statement) in TABLES:
            db.execute(statement).fetchall()
    db.execute("UPDATE meta SET value = value + 1 WHERE key = 'index_generation'").fetchall()
    db.execute("COMMIT").fetchall()


def _table_of(statement: str) -> str | None:
    """The table that a statement makes, or makes an index or a trigger on."""
    words = statement.replace("(", " ").split()
    if words[:2] == ["CREATE", "TABLE"]:
        return words[2]
    return words[words.index("ON") + 1] if words[0] == "CREATE" and "ON" in words else None
