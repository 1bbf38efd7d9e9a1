"""Backups: a consistent copy made while turns stream, with the journals of answers under way, verified before it counts.

`restore` puts one back and keeps what was there before; nothing else may have the home open then.
"""

import contextlib
import os
import tempfile
from pathlib import Path

import apsw
import msgspec

from contextinfinity.daemon.runtime import failpoints
from contextinfinity.daemon.storage import blobs, journals, migrations, verify
from contextinfinity.daemon.storage.connection import open_reader, open_writer
from contextinfinity.protocol.errors import InvalidParams, InvalidState, StorageFull
from contextinfinity.protocol.methods import BackupMade

SIDE_FILES = ("", "-wal", "-shm")


def make(database: Path, streams: Path, target: Path, at: str) -> BackupMade:
    """Copy, add the journals, verify, and only then give the file its name."""
    _check_place(database.parent, target)
    draft = target.with_name(f".{target.name}.draft")
    draft.unlink(missing_ok=True)
    try:
        _copy(database, draft)
        failpoints.hit("backup.copied")
        _add_journals(draft, streams)
        anchors = _check(draft)
        _record(draft, at, anchors)
        failpoints.hit("backup.verified")
        journals.sync(draft)
        draft.replace(target)
        journals.sync(target.parent)
    except (apsw.FullError, OSError) as error:
        if isinstance(error, OSError) and error.errno != 28:
            raise InvalidState(f"the backup could not be written: {error.strerror}") from None
        raise StorageFull(f"there is no room for a backup at {target}; choose another place") from None
    finally:
        draft.unlink(missing_ok=True)
    return BackupMade(str(target), target.stat().st_size, anchors)


def _check_place(home: Path, target: Path) -> None:
    try:
        taken, folder = target.exists(), target.parent.is_dir()
    except OSError as error:
        raise InvalidParams(f"{target} cannot be a file: {error.strerror}") from None
    if taken:
        raise InvalidParams(f"{target} exists already; choose another path")
    if not folder:
        raise InvalidParams(f"{target.parent} is no folder; make it first")
    place, ours = Path(os.path.realpath(target.parent)), Path(os.path.realpath(home))
    if place.is_relative_to(ours) and not place.is_relative_to(ours / "backups"):
        # SQLite takes a file named like its journal for its own and deletes it; other names here mean something to us.
        raise InvalidParams(f"{place} is the daemon's own; choose a path in {ours / 'backups'} or outside the home")


def _copy(database: Path, draft: Path) -> None:
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    source = open_reader(database)
    try:
        source.execute("VACUUM INTO ?", (str(draft),)).fetchall()
    finally:
        source.close()


def _add_journals(draft: Path, streams: Path) -> None:
    """Ended steps get their response, as packing would do; the journals of live ones travel along."""
    db = apsw.Connection(str(draft))
    try:
        db.execute("BEGIN IMMEDIATE").fetchall()
        db.execute("CREATE TABLE backup_journals (step_id TEXT PRIMARY KEY, data BLOB NOT NULL)").fetchall()
        rows = db.execute("SELECT id, ended_at IS NOT NULL FROM steps WHERE response IS NULL").fetchall()
        for step_id, ended in rows:
            raw = journals.read_raw(journals.path_of(streams, str(step_id)))
            if raw:
                sql = (
                    "UPDATE steps SET response = ? WHERE id = ? AND response IS NULL"
                    if ended
                    else "INSERT INTO backup_journals(data, step_id) VALUES (?, ?)"
                )
                db.execute(sql, (blobs.compress(raw), step_id)).fetchall()
        db.execute("COMMIT").fetchall()
    finally:
        db.close()


def _check(draft: Path) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as nothing:
        report = verify.check(draft, Path(nothing))
    if not report.ok:
        raise InvalidState(f"the backup does not verify ({report.problems[0]}): run `ctx verify` on the original")
    return report.anchors


def _record(draft: Path, at: str, anchors: dict[str, str]) -> None:
    """The head links go with the copy: against them, a later loss of the newest turns can be shown."""
    db = apsw.Connection(str(draft))
    try:
        document = msgspec.json.encode({"made_at": at, "anchors": anchors})
        db.execute("INSERT OR REPLACE INTO meta(key, value) VALUES ('backup', ?)", (document,)).fetchall()
    finally:
        db.close()


def restore(backup: Path, database: Path, streams: Path, kept: Path, at: str) -> Path | None:
    """Put a backup in the database's place; where the old one was kept, if there was one.

    At every instant there is a whole database at its place: the old one until the new one takes its name.
    """
    if not backup.is_file():
        raise InvalidParams(f"{backup} is no file")
    draft = database.with_name(f".{database.name}.restoring")
    for suffix in SIDE_FILES:
        draft.with_name(draft.name + suffix).unlink(missing_ok=True)
    try:
        brought = _prepare(backup, draft, kept.parent, at)
        moved = _keep_old(database, streams, kept)
        for step_id, raw in brought.items():
            file = journals.JournalFile(journals.path_of(streams, step_id))
            file.write(raw)
            journals.JournalFile.sync([file])
            file.close()
        draft.replace(database)
        journals.sync(database.parent)
    finally:
        draft.unlink(missing_ok=True)
    return moved


def _prepare(backup: Path, draft: Path, backups: Path, at: str) -> dict[str, bytes]:
    """A copy with everything that belongs to it, brought up to this version's schema, verified and on disk."""
    try:
        _copy(backup, draft)
        brought = _take_out_journals(draft)
        db = open_writer(draft)
        try:
            migrations.migrate(db, backups, at)
            db.execute("PRAGMA journal_mode = DELETE").fetchall()
        finally:
            db.close()
    except apsw.Error as error:
        raise InvalidState(f"{backup} is damaged or no backup, so it was not restored: {error}") from None
    with tempfile.TemporaryDirectory() as nothing:
        report = verify.check(draft, Path(nothing))
    if not report.ok:
        raise InvalidState(f"{backup} does not verify, so it was not restored: {report.problems[0]}")
    journals.sync(draft)
    return brought


def _keep_old(database: Path, streams: Path, kept: Path) -> Path | None:
    """A second name for the old database, and its side files and journals beside it."""
    if database.exists():
        _merge_wal(database)
    old = [database.with_name(database.name + suffix) for suffix in SIDE_FILES]
    left = [*(path for path in old if path.exists()), *streams.glob("*.jsonl")]
    if not left:
        return None
    kept.mkdir(mode=0o700, parents=True)
    if database.exists():
        os.link(database, kept / database.name)
    for path in left:
        if path != database:
            path.replace(kept / path.name)
    journals.sync(kept)
    return kept


def _merge_wal(database: Path) -> None:
    """So that the old file alone is whole; one that is too damaged for it keeps its side files as they are."""
    with contextlib.suppress(apsw.Error):
        db = open_writer(database)
        try:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            db.close()


def _take_out_journals(draft: Path) -> dict[str, bytes]:
    db = apsw.Connection(str(draft))
    try:
        if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'backup_journals'").fetchall():
            return {}
        found = {str(r[0]): blobs.expand(bytes(r[1])) for r in db.execute("SELECT step_id, data FROM backup_journals")}
        db.execute("DROP TABLE backup_journals").fetchall()
        return found
    finally:
        db.close()
