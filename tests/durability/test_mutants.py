"""Tests of the tests: with one protection taken away, the same checks must find something lost."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

from contextinfinity.daemon.storage import connection, database, journals
from contextinfinity.daemon.storage.connection import Committed, Job, Tx
from tests.durability.cuts import SEED, examine_cuts, fast_folder
from tests.durability.faults import fail_everywhere
from tests.durability.streams import Policy, cut_streams, play_streams
from tests.support.scenario import STEPS, record

Mutate = Callable[[pytest.MonkeyPatch], None]
ENOUGH = 600
SHORT = STEPS[:4]


def _sync_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite syncs at checkpoints only."""
    original = connection.open_writer

    def open_writer(path: Path) -> apsw.Connection:
        db = original(path)
        db.execute("PRAGMA synchronous = NORMAL").fetchall()
        return db

    monkeypatch.setattr(connection, "open_writer", open_writer)
    monkeypatch.setattr(database, "open_writer", open_writer)


def _name_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is never synced by us."""
    monkeypatch.setattr(journals, "sync", lambda folder: None)


def _sync_no_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written to a journal counts as durable at once."""
    monkeypatch.setattr(journals.JournalFile, "sync", staticmethod(lambda files: [None for _ in files]))


def _nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code as it is."""


def _lost_in_life(*, early: bool = False) -> list[str]:
    with fast_folder() as folder:
        disk, memory = record(folder, SEED, early=early, names=SHORT)
    return trio.run(examine_cuts, disk, memory, ENOUGH, SEED, 0, 1, 1).lost


def _lost_of_streams(policy: Policy) -> list[str]:
    return cut_streams(play_streams(policy, SEED, 80), ENOUGH, SEED).lost


@pytest.mark.parametrize("mutate", [_sync_less, _name_nothing, _sync_no_journal])
def test_a_database_without_this_protection_is_caught(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    assert _lost_in_life()


def test_an_acknowledgement_before_the_commit_is_caught() -> None:
    assert _lost_in_life(early=True)


@pytest.mark.parametrize("policy", ["buffered", "write_ahead"])
@pytest.mark.parametrize("mutate", [_name_nothing, _sync_no_journal])
def test_journals_without_this_protection_are_caught(mutate: Mutate, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    assert _lost_of_streams(policy)


def test_text_shown_before_its_sync_is_caught_under_write_ahead() -> None:
    played = play_streams("buffered", SEED, 80)
    played.policy = "write_ahead"
    assert cut_streams(played, ENOUGH, SEED).lost


def _swallow(db: apsw.Connection, jobs: Sequence[Job]) -> list[tuple[Any, BaseException | None]]:
    """A writer that takes an I/O error for something that passes, and goes on with the same connection."""
    outcomes: list[tuple[Any, BaseException | None]] = []
    for job in jobs:
        tx = Tx(db)
        try:
            db.execute("BEGIN IMMEDIATE").fetchall()
            outcomes.append((Committed(job(tx), tx.events), None))
            db.execute("COMMIT").fetchall()
        except apsw.IOError:
            if db.in_transaction:
                db.execute("ROLLBACK").fetchall()
            outcomes = outcomes or [(Committed(None, []), None)]
        except Exception as error:  # noqa: BLE001 - as the real one does
            db.execute("ROLLBACK").fetchall()
            outcomes.append((None, error))
    return outcomes


def test_a_swallowed_io_error_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "write_batch", _swallow)
    monkeypatch.setattr(database, "write_batch", _swallow)
    lost = trio.run(fail_everywhere, SEED, ("new_session",)).lost
    assert any("was acknowledged and is not there" in problem for problem in lost), lost


def test_nothing_is_found_where_nothing_was_taken_away() -> None:
    """The short forms used here are clean on the real code."""
    assert _lost_in_life() == []
    assert _lost_of_streams("buffered") == []
    assert _lost_of_streams("write_ahead") == []
    assert trio.run(fail_everywhere, SEED, ("new_session",)).lost == []
