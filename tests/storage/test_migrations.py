"""Migrations: each with its record in one transaction, a backup first, and no step towards an unknown future."""

from pathlib import Path

import apsw
import pytest

from contextinfinity.daemon.storage.connection import open_writer
from contextinfinity.daemon.storage.migrations import MIGRATIONS, migrate, version
from contextinfinity.protocol.errors import InvalidState

AT = "2026-01-02T03:04:05.000Z"


@pytest.fixture
def db(tmp_path: Path) -> apsw.Connection:
    return open_writer(tmp_path / "m.db")


def test_a_new_database_gets_every_migration_once(db: apsw.Connection, tmp_path: Path) -> None:
    assert migrate(db, tmp_path / "b", AT) == [name for name, _ in MIGRATIONS]
    assert migrate(db, tmp_path / "b", AT) == []
    assert version(db) == len(MIGRATIONS)
    assert not (tmp_path / "b").exists(), "there was nothing to back up"
    db.close()


def test_a_failing_migration_leaves_neither_its_tables_nor_its_record(db: apsw.Connection, tmp_path: Path) -> None:
    migrate(db, tmp_path / "b", AT)
    broken = [*MIGRATIONS, ("broken", "CREATE TABLE half (a); CREATE TABLE half (a);")]
    with pytest.raises(apsw.SQLError):
        migrate(db, tmp_path / "b", AT, broken)
    assert version(db) == len(MIGRATIONS)
    assert db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'half'").fetchall() == []
    assert migrate(db, tmp_path / "b", AT, [*MIGRATIONS, ("whole", "CREATE TABLE half (a);")]) == ["whole"]
    db.close()


def test_there_is_a_backup_from_before_each_migration_of_an_existing_database(db: apsw.Connection, tmp_path: Path) -> None:
    migrate(db, tmp_path / "b", AT)
    db.execute("INSERT INTO meta VALUES ('k', 'v')").fetchall()
    migrate(db, tmp_path / "b", AT, [*MIGRATIONS, ("more", "CREATE TABLE more (a);")])
    db.close()
    (backup,) = (tmp_path / "b").iterdir()
    copy = apsw.Connection(str(backup), flags=apsw.SQLITE_OPEN_READONLY)
    assert version(copy) == len(MIGRATIONS)
    assert copy.execute("SELECT value FROM meta WHERE key = 'k'").fetchall() == [("v",)]
    copy.close()
    assert backup.stat().st_mode & 0o777 == 0o600


def test_a_newer_schema_is_refused_naming_both_versions_and_the_backup(db: apsw.Connection, tmp_path: Path) -> None:
    future = [*MIGRATIONS, ("future", "CREATE TABLE future (a);")]
    migrate(db, tmp_path / "b", AT)
    migrate(db, tmp_path / "b", AT, future)
    with pytest.raises(InvalidState) as caught:
        migrate(db, tmp_path / "b", AT)
    db.close()
    assert str(len(future)) in caught.value.message
    assert str(len(MIGRATIONS)) in caught.value.message
    assert "before-" in caught.value.message
