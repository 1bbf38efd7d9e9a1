"""What is particular to SQLite: immutability and milestones by trigger, the hash chain, group commit, durable settings."""

from itertools import chain as flat
from itertools import combinations
from pathlib import Path
from typing import get_args

import apsw
import pytest

from contextinfinity.daemon.core import chain
from contextinfinity.daemon.core.milestones import Fact, may_collect
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage import blobs, turns
from contextinfinity.daemon.storage.connection import Tx, open_reader, open_writer, write_batch
from contextinfinity.daemon.storage.migrations import WRITE_ONCE
from contextinfinity.protocol.errors import NotFound, ReadOnly
from tests.support.stores import Bench, mint, new_turn, opened

COLUMNS: dict[Fact, str] = {
    "context_prepared": "context_at",
    "responding": "responding_at",
    "response_finalized": "finalized_at",
    "failed": "failed_at",
    "folded": "state_after",
    "indexed": "indexed_at",
}
FACTS: tuple[Fact, ...] = get_args(Fact)


def _reachable(facts: frozenset[Fact]) -> bool:
    """Whether some order of collecting leads to exactly these facts."""
    return not facts or any(may_collect(facts - {f}, f) and _reachable(facts - {f}) for f in facts)


async def test_the_database_allows_exactly_the_moves_of_the_milestone_table(bench: Bench, tmp_path: Path) -> None:
    branch = (await bench.session()).branch.id
    db = open_writer(tmp_path / "test.db")
    subsets = flat.from_iterable(combinations(FACTS, n) for n in range(len(FACTS) + 1))
    tried = 0
    for facts in map(frozenset, subsets):
        if not _reachable(facts):
            continue
        for fact in FACTS:
            if fact in facts:
                continue
            turn_id = (await bench.accept(branch)).turn_id
            for step in _order(facts):
                db.execute(f"UPDATE turns SET {COLUMNS[step]} = 'x' WHERE id = ?", (turn_id,)).fetchall()
            try:
                db.execute(f"UPDATE turns SET {COLUMNS[fact]} = 'x' WHERE id = ?", (turn_id,)).fetchall()
                allowed = True
            except apsw.ConstraintError:
                allowed = False
            assert allowed == may_collect(facts, fact), (sorted(facts), fact)
            tried += 1
    db.close()
    assert tried > 40


def _order(facts: frozenset[Fact]) -> list[Fact]:
    """Some legal order of collecting these facts."""
    for fact in facts:
        if may_collect(facts - {fact}, fact) and _reachable(facts - {fact}):
            return [*_order(facts - {fact}), fact]
    return []


async def test_nothing_that_was_written_can_be_changed_or_removed(bench: Bench, tmp_path: Path) -> None:
    made = await bench.session()
    await bench.storage.add_pin(made.branch, mint(), "pin", None, now())
    await bench.say(made.branch.id, "x" * 20_000)
    db = open_writer(tmp_path / "test.db")
    db.execute("PRAGMA foreign_keys = OFF").fetchall()
    for table, (once, never) in WRITE_ONCE.items():
        assert db.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0], f"the test wrote no row of {table}"
        with pytest.raises(apsw.ConstraintError):
            db.execute(f"DELETE FROM {table}").fetchall()
        for column in never:
            with pytest.raises(apsw.ConstraintError):
                db.execute(f"UPDATE {table} SET {column} = 777").fetchall()
        for column in once:
            db.execute(f"UPDATE {table} SET {column} = 'z' WHERE {column} IS NULL AND 0").fetchall()
            if db.execute(f"SELECT 1 FROM {table} WHERE {column} IS NOT NULL").fetchall():
                with pytest.raises(apsw.ConstraintError):
                    db.execute(f"UPDATE {table} SET {column} = 'other' WHERE {column} IS NOT NULL").fetchall()
    db.close()


async def test_every_link_of_every_branch_covers_what_was_said(bench: Bench, tmp_path: Path) -> None:
    branch = (await bench.session()).branch.id
    for i in range(4):
        await bench.say(branch, f"w{i}", f"a{i}")
    fork = await bench.storage.fork_branch(branch, 2, None, mint(), now())
    await bench.say(fork.id, "on the fork")
    db = open_reader(tmp_path / "test.db")
    tx = Tx(db)
    links = dict(tx.rows("SELECT branch_id || '/' || seq, link FROM chain"))
    checked = 0
    for branch_id, base, head, count in tx.rows("SELECT id, base_link, link, link_seq FROM branches"):
        previous = base
        for _, kind, turn_id, salt, hashed, link in tx.rows(
            "SELECT seq, kind, turn_id, salt, content_hash, link FROM chain WHERE branch_id = ? ORDER BY seq", branch_id
        ):
            column = {"accepted": "user_message", "finalized": "final_assistant_message"}[kind]
            said = tx.row(f"SELECT {column} FROM turns WHERE id = ?", turn_id)
            assert said is not None
            assert hashed == chain.content_hash(salt, blobs.get(tx, said[0]))
            assert link == chain.link(previous, kind, turn_id, hashed)
            previous = link
            checked += 1
            count -= 1
        assert (previous, count) == (head, 0)
    assert checked == 10
    fork_base = tx.row("SELECT base_link FROM branches WHERE id = ?", fork.id)
    assert fork_base == (links[f"{branch}/4"],), "a fork goes on from its parent's link after the fork's turn"
    db.close()


async def test_one_refused_job_leaves_the_others_of_its_batch(bench: Bench, tmp_path: Path) -> None:
    branch = (await bench.session()).branch.id
    good, bad = new_turn(branch, "good"), new_turn(mint(), "bad")
    assert bench.database.write is not None
    outcomes = bench.database.write(
        [
            lambda tx: turns.accept(tx, bad, None),
            lambda tx: turns.accept(tx, good, None),
            lambda tx: turns.accept(tx, bad, None),
        ]
    )
    assert [type(error) for _, error in outcomes] == [NotFound, type(None), NotFound]
    assert [t.user_message.rendered_text for t in (await bench.storage.list_turns(branch, 0, 9)).turns] == ["good"]
    assert [e.type for e in outcomes[1][0].events] == ["turn.accepted"]


async def test_a_bug_in_a_job_is_its_callers_alone(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn = new_turn(branch)
    assert bench.database.write is not None

    def bug(tx: Tx) -> None:
        tx.run("UPDATE branches SET label = 'half' WHERE 1 = 0")
        tx.run("INSERT INTO nowhere VALUES (1)")

    outcomes = bench.database.write([bug, lambda tx: turns.accept(tx, turn, None)])
    assert isinstance(outcomes[0][1], apsw.SQLError)
    assert outcomes[1][1] is None
    assert [t.id for t in (await bench.storage.list_turns(branch, 0, 9)).turns] == [turn.id]


def test_the_writer_is_durable_by_its_settings(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    db = open_writer(tmp_path / "test.db")
    settings = {name: db.execute(f"PRAGMA {name}").fetchall()[0][0] for name in ("journal_mode", "synchronous", "foreign_keys")}
    db.close()
    assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_the_database_file_is_private(tmp_path: Path) -> None:
    with opened(tmp_path):
        assert (tmp_path / "test.db").stat().st_mode & 0o777 == 0o600


def test_a_read_only_connection_says_so(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    db = open_reader(tmp_path / "test.db")
    ((_, error),) = write_batch(db, [lambda tx: tx.run("INSERT INTO meta VALUES ('a', 'b')")])
    assert isinstance(error, ReadOnly)
    db.close()


async def test_the_same_words_are_stored_once_however_often_they_are_sent(bench: Bench, tmp_path: Path) -> None:
    branch = (await bench.session()).branch.id
    for _ in range(5):
        await bench.say(branch, "y" * 50_000)
    db = open_reader(tmp_path / "test.db")
    assert db.execute("SELECT count(*) FROM blobs WHERE length(data) > 20").fetchall()[0][0] <= 6
    db.close()
