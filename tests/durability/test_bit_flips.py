"""One flipped bit in a copy of the files: changes are reported, nobody sees a traceback, a log or journal loses its tail."""

import contextlib
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
import zstandard

from contextinfinity.daemon.storage import (
    blobs,
    branches,
    chunks,
    database,
    events,
    imports,
    journals,
    pins,
    sessions,
    steps,
    turns,
    vectors,
    verify,
)
from contextinfinity.daemon.storage.connection import Job, open_reader
from contextinfinity.protocol.errors import Fault
from contextinfinity.protocol.model import VerifyReport
from tests.durability.cuts import SEED, fast_folder
from tests.durability.faults import stages
from tests.support.powerloss import lay_out
from tests.support.scenario import EXAMINE_AT, IMPORTED_FROM, Memory, Scenario, digest, dump, heads, index

FLIPS = int(os.environ.get("CTX_BIT_FLIPS", "1500"))

NOT_COVERED = {
    "branches": {"created_at", "label", "model"},
    "chunks": {"owner", "recipe"},
    "events": {"created_at", "data", "owner", "type"},
    "external_ids": {"external_id"},
    "idempotency": {"call_hash", "created_at", "key", "owner", "result", "scope"},
    "import_files": {"format", "head", "mark", "offset", "owner", "path", "sessions", "tail", "updated_at"},
    "import_sessions": {"format", "key", "owner"},
    "jobs": {"attempts", "branch_id", "created_at", "last_error", "lease", "lease_until", "owner", "run_at", "state", "type",
             "updated_at"},
    "meta": {"key", "value"},
    "migrations": {"applied_at", "name"},
    "passage_vectors": {"vector"},
    "pin_log": {"action", "created_at"},
    "pins": {"created_at", "owner", "text"},
    "sessions": {"created_at", "owner", "title", "updated_at"},
    "sqlite_sequence": {"seq"},
    "states": {"created_at", "made_by", "owner", "token_count_est"},
    "steps": {"ended_at", "items", "model_id", "outcome", "owner", "provider", "started_at", "stream_displayed_bytes",
              "stream_durable_bytes", "usage"},
    "turns": {"context_at", "created_at", "error", "failed_at", "finalized_at", "imported", "incomplete", "model", "owner",
              "responding_at", "updated_at"},
    "vector_spaces": {"created_at", "done_to", "embedder", "ready_at"},
}  # fmt: skip
"""Columns that no hash covers: a flip in them may go unnoticed. Words, answers, blobs, links, requests and ids are not here."""


@pytest.fixture(scope="module")
def life() -> tuple[dict[str, bytes], dict[str, bytes], Memory]:
    """The files of the scenario while it was open, with a log, and after it was closed; and what is known."""
    found, known = stages(SEED)
    with fast_folder() as folder:
        lay_out(found[-1].files, folder)
        scenario = Scenario(folder, SEED)
        scenario.reopen()
        scenario.close()
        closed = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert "test.db-wal" in found[-1].files
    assert "test.db-wal" not in closed
    return found[-1].files, closed, known


@pytest.fixture(autouse=True)
def cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a message gives is found out once, not for every flip elsewhere."""
    monkeypatch.setattr(chunks, "index", index)


def flips(data: bytes, count: int) -> Iterator[tuple[int, bytes]]:
    """`count` copies, each with another bit turned over, and the byte in which it is."""
    for bit in random.Random(SEED).sample(range(len(data) * 8), min(count, len(data) * 8)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bit // 8, bytes(changed)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[apsw.Connection]:
    db = open_reader(path)
    try:
        yield db
    finally:
        db.close()


def contents(path: Path) -> list[tuple[Any, ...]] | None:
    """Everything in the database, or None if it cannot all be read."""
    try:
        with reading(path) as db:
            return dump(db)
    except (apsw.Error, UnicodeDecodeError):
        return None


def columns(path: Path) -> dict[str, list[str]]:
    with reading(path) as db:
        tables = [str(r[0]) for r in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()]
        return {t: [str(r[1]) for r in db.execute(f"PRAGMA table_info({t})").fetchall()] for t in tables}


def replaced(folder: Path, name: str, data: bytes, files: dict[str, bytes]) -> VerifyReport:
    """Verify the folder with one file of other content."""
    lay_out({**files, name: data}, folder)
    return verify.check(folder / "test.db", folder / "streams")


@pytest.mark.slow
@pytest.mark.timeout(120 + FLIPS // 5)
def test_a_flip_in_the_database_is_reported_or_changes_nothing_that_is_covered(
    life: tuple[dict[str, bytes], dict[str, bytes], Memory],
) -> None:
    _, files, _ = life
    told: Counter[str] = Counter()
    with fast_folder() as folder:
        assert replaced(folder, "test.db", files["test.db"], files).ok
        whole, names = contents(folder / "test.db"), columns(folder / "test.db")
        assert whole is not None
        for byte, data in flips(files["test.db"], FLIPS):
            report = replaced(folder, "test.db", data, files)
            found = contents(folder / "test.db")
            if not report.ok:
                told["reported"] += 1
                assert all(report.problems)
                continue
            if found == whole:
                told["unused"] += 1
                continue
            told["uncovered"] += 1
            assert found is not None, f"byte {byte}: it cannot be read, and verify is content"
            assert len(found) == len(whole), f"byte {byte}: rows are missing, and verify is content"
            changed = set(_changed(whole, found, names))
            uncovered = {(table, column) for table, columns in NOT_COVERED.items() for column in columns}
            assert changed <= uncovered, f"byte {byte}: {changed - uncovered} changed, and verify is content"
    assert told["reported"] > 5 * told["uncovered"]
    assert told["unused"]


def _changed(
    before: list[tuple[Any, ...]], after: list[tuple[Any, ...]], names: dict[str, list[str]]
) -> Iterator[tuple[str, str]]:  # fmt: skip
    for old, new in zip(before, after, strict=True):
        if old != new:
            assert old[0] in names, f"the schema changed: {old[:3]}"
            for column, was, is_now in zip(names[old[0]], old[1:], new[1:], strict=True):
                if was != is_now and not _means_the_same(was, is_now):
                    yield old[0], column


def _means_the_same(was: object, is_now: object) -> bool:
    """Some bits of compressed content have no meaning, nor has the name of a field that holds nothing."""
    try:
        if isinstance(was, str) and isinstance(is_now, str):
            return msgspec.json.decode(was, type=steps.Recipe) == msgspec.json.decode(is_now, type=steps.Recipe)
        return isinstance(was, bytes) and isinstance(is_now, bytes) and blobs.expand(was) == blobs.expand(is_now)
    except (zstandard.ZstdError, msgspec.DecodeError):
        return False


@pytest.mark.slow
def test_whoever_reads_a_damaged_database_gets_an_answer_or_a_fault(
    life: tuple[dict[str, bytes], dict[str, bytes], Memory],
) -> None:
    _, files, known = life
    faults = 0
    with fast_folder() as folder:
        for byte, data in flips(files["test.db"], FLIPS // 3):
            lay_out({**files, "test.db": data}, folder)
            try:
                opened = database.open_database(folder / "test.db", folder / "backups", EXAMINE_AT, readers=1, read_only=True)
            except Fault:
                faults += 1
                continue
            try:
                outcomes = opened.reads[0](_questions(known))
            finally:
                opened.close()
            for _, error in outcomes:
                assert error is None or isinstance(error, Fault), f"byte {byte}: {error!r}"
                faults += error is not None
    assert faults


def _questions(known: Memory) -> list[Job]:
    asked: list[Job] = [
        lambda tx: sessions.page(tx, 100, None, None),
        lambda tx: events.after(tx, 0, 1 << 60, 1000, None, None),
        lambda tx: chunks.page(tx, {}, 0, 1000),
        lambda tx: chunks.passages_after(tx, 0, 1000),
        lambda tx: chunks.located(tx, [one.n for one in chunks.passages_after(tx, 0, 1000)]),
        lambda tx: chunks.timeline(tx, None, None, None, 1000),
        lambda tx: chunks.state(tx),
        lambda tx: [vectors.after(tx, space.n, 0, 1000) for space in vectors.spaces(tx)],
        lambda tx: imports.known_ids(tx, known.ids["session imported"], ["q0", "a2"]),
        lambda tx: imports.target(tx, "jsonl", "talk"),
        lambda tx: imports.position(tx, "jsonl", IMPORTED_FROM),
    ]
    for name in ("old", "main", "fork", "rolled", "imported"):
        branch = known.ids[name]
        asked += [
            lambda tx, b=branch: branches.get(tx, b),
            lambda tx, b=branch: turns.page(tx, b, 0, 1000),
            lambda tx, b=branch: pins.active(tx, b),
            lambda tx, b=branch: chunks.timeline(tx, None, b, 1.7e9, 1000),
        ]
    for promise in known.promises:
        if promise.kind == "indexed":
            asked += [
                lambda tx, t=promise.key: chunks.neighbours(tx, t, 2, 2),
                lambda tx, t=promise.key: chunks.said_in(tx, t),
                lambda tx, t=promise.key: chunks.moment(tx, t),
                lambda tx, c=promise.value[0][0]: chunks.by_id(tx, c),
            ]
    asked += [lambda tx, s=p.key: steps.request(tx, s) for p in known.promises if p.kind == "journal"]
    return asked


@pytest.mark.slow
def test_a_flip_in_the_log_costs_at_most_its_tail_and_an_anchor_shows_it(
    life: tuple[dict[str, bytes], dict[str, bytes], Memory],
) -> None:
    files, _, known = life
    shortened = 0
    with fast_folder() as folder:
        lay_out(files, folder)
        with reading(folder / "test.db") as db:
            whole, anchors = digest(db), heads(db)
        assert verify.check(folder / "test.db", folder / "streams", anchors).ok
        for byte, data in flips(files["test.db-wal"], FLIPS // 3):
            lay_out({**files, "test.db-wal": data}, folder)
            report = verify.check(folder / "test.db", folder / "streams", anchors)
            with reading(folder / "test.db") as db:
                found, links = digest(db), heads(db)
            assert found in known.states, f"byte {byte}: a state that no commit left"
            shortened += found != whole
            assert report.ok <= (links == anchors), f"byte {byte}: turns are gone, and the anchor does not show it"
    assert shortened


def test_a_flip_in_a_journal_costs_at_most_its_tail(life: tuple[dict[str, bytes], dict[str, bytes], Memory]) -> None:
    files, _, _ = life
    name = max((name for name in files if name.startswith("streams")), key=lambda n: len(files[n]))
    altered = 0
    with fast_folder() as folder:
        lay_out(files, folder)
        whole = journals.read_lines(folder / name)
        assert len(whole) > 3
        starts = [0]
        for line in files[name].splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        for byte, data in flips(files[name], FLIPS):
            (folder / name).write_bytes(data)
            lines = journals.read_lines(folder / name)
            before = sum(start <= byte for start in starts) - 1
            assert lines[:before] == whole[:before], f"byte {byte}: it costs lines before it"
            altered += len(lines) > before and lines[before] != whole[before]
    assert not altered, "a changed line was taken for what was said"
