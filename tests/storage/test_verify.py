"""Verify finds what it promises to find: each invariant is broken by hand once, and named."""

import shutil
from pathlib import Path

import apsw
import pytest

from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage import verify
from contextinfinity.protocol.errors import ErrorObject
from tests.support.stores import Bench, ended, mint, opened


async def filled(bench: Bench, folder: Path) -> None:
    made = await bench.session(title="t")
    branch = made.branch
    await bench.storage.add_pin(branch, mint(), "pin", None, now())
    large = await bench.say(branch.id, "x" * 20_000)
    await bench.say(branch.id, "small")
    await bench.index(large.turn_id)
    space = await bench.storage.ensure_space("space", "local", 2, now())
    await bench.storage.add_vectors(space, [(1, bytes(4)), (2, bytes(4))], None, 0.0, now())
    failed = (await bench.accept(branch.id)).turn_id
    step = await bench.begin(failed)
    await bench.storage.fail_turn(failed, ErrorObject(-32005, "no", None), ended(step), "half", now())
    fork = await bench.storage.fork_branch(branch.id, 1, None, mint(), now())
    await bench.accept(fork.id, "waiting")
    await bench.storage.enqueue_job("reconcile_stream", fork.id, failed, now())


TAMPERINGS: dict[str, tuple[str, str]] = {
    "a user's words": (
        "UPDATE turns SET user_message = replace(user_message, 'small', 'large') WHERE user_message LIKE '%small%'",
        "accepted content",
    ),
    "an answer": (
        "UPDATE turns SET final_assistant_message = replace(final_assistant_message, 'answer', 'lie')",
        "finalized content",
    ),
    "a partial text": ("UPDATE turns SET partial_text = 'other'  WHERE partial_text IS NOT NULL", "failed content"),
    "a link": ("UPDATE chain SET link = zeroblob(32) WHERE seq = 2", "links"),
    "a missing link": ("DELETE FROM chain WHERE seq = 3", "links"),
    "the head link": ("UPDATE branches SET link = zeroblob(32)", "head link"),
    "a fork's base": (
        "UPDATE branches SET base_link = zeroblob(31) WHERE parent_id IS NOT NULL",
        "starts from a link that its parent",
    ),
    "a blob": ("UPDATE blobs SET data = zeroblob(40) WHERE length(data) > 15", "blob"),
    "a lost blob": ("DELETE FROM blobs", "stored content"),
    "a turn number": ("UPDATE turns SET turn_seq = turn_seq + 10 WHERE turn_seq = 2", "should have turns"),
    "a counter": ("UPDATE branches SET turn_seq = turn_seq + 1", "should have turns"),
    "a head state": ("UPDATE branches SET head_state = 'nowhere'", "no state of its past"),
    "an active branch": ("UPDATE sessions SET active_branch = 'nowhere'", "active branch"),
    "a milestone": ("UPDATE turns SET context_at = NULL WHERE responding_at IS NOT NULL", "without what must come before"),
    "an answer without its milestone": ("UPDATE turns SET finalized_at = NULL", "deny"),
    "a lost event": ("DELETE FROM events WHERE type = 'turn.accepted'", "reported 0 times"),
    "a doubled event": (
        "INSERT INTO events(owner, type, session_id, branch_id, turn_id, data, created_at) "
        "SELECT owner, type, session_id, branch_id, turn_id, data, created_at FROM events WHERE type = 'turn.accepted'",
        "reported 2 times",
    ),
    "a lost step event": ("DELETE FROM events WHERE type = 'step.ended'", "step.ended"),
    "a request's proof": ("UPDATE steps SET request_hash = zeroblob(32)", "cannot be proven"),
    "a step that never ended": ("UPDATE steps SET ended_at = NULL", "ended steps"),
    "a job about nothing": ("UPDATE jobs SET turn_id = 'nowhere' WHERE type = 'reconcile_stream'", "does not exist"),
    "a chunk's place": ("UPDATE chunks SET start = start + 1 WHERE n = 1", "not what the transcript gives"),
    "a chunk's summary": ("UPDATE chunks SET summary = 'lies' WHERE n = 1", "not what the transcript gives"),
    "a passage's terms": ("UPDATE passages SET terms = zeroblob(8) WHERE n = 2", "not what the transcript gives"),
    "a lost index": ("UPDATE passage_vectors SET space = 1; DELETE FROM passages; DELETE FROM chunks", "chunks are missing"),
    "a vector of another length": ("UPDATE passage_vectors SET vector = zeroblob(6) WHERE passage = 1", "no vector of 2"),
    "a lost vector": ("DELETE FROM passage_vectors WHERE passage = 2", "no vector of 2 numbers"),
    "an indexing that nobody heard of": ("DELETE FROM events WHERE type = 'turn.indexed'", "indexed was reported 0 times"),
    "an orphan": ("UPDATE steps SET turn_id = 'nowhere' WHERE n = 1", "points at no row"),
}


def tampered(source: Path, target: Path, sql: str) -> Path:
    shutil.copyfile(source, target)
    db = apsw.Connection(str(target))
    for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        db.execute(f"DROP TRIGGER {name}").fetchall()
    db.execute(sql).fetchall()
    assert db.total_changes(), "the tampering changed nothing"
    db.close()
    return target


@pytest.fixture
async def database(tmp_path: Path) -> Path:
    with opened(tmp_path) as bench:
        await filled(bench, tmp_path)
    return tmp_path / "test.db"


async def test_an_untouched_database_verifies(database: Path, tmp_path: Path) -> None:
    report = verify.check(database, tmp_path)
    assert report.problems == ()
    assert report.ok
    assert {
        "pages",
        "blobs",
        "links",
        "branches",
        "turns",
        "sessions",
        "milestones",
        "events",
        "steps",
        "jobs",
        "chunks",
        "vectors",
    } <= report.checked.keys()
    assert all(report.checked.values())
    assert len(report.anchors) == 2


@pytest.mark.parametrize("what", TAMPERINGS)
async def test_tampering_is_found_and_named(database: Path, tmp_path: Path, what: str) -> None:
    sql, named = TAMPERINGS[what]
    report = verify.check(tampered(database, tmp_path / "copy.db", sql), tmp_path)
    assert not report.ok
    assert any(named in problem for problem in report.problems), report.problems


async def test_a_journal_of_no_step_is_named(database: Path, tmp_path: Path) -> None:
    (tmp_path / "01STRANGER.jsonl").write_text("{}\n")
    assert any("01STRANGER" in p for p in verify.check(database, tmp_path).problems)


async def test_a_lost_tail_shows_only_against_an_anchor(tmp_path: Path) -> None:
    with opened(tmp_path) as bench:
        await filled(bench, tmp_path)
        older = tmp_path / "older.db"
        apsw.Connection(str(tmp_path / "test.db")).execute("VACUUM INTO ?", (str(older),)).fetchall()
        branch = (await bench.storage.list_sessions(1, None, None)).sessions[0].active_branch
        await bench.say(branch, "the newest words")
    anchors = verify.check(tmp_path / "test.db", tmp_path).anchors
    assert verify.check(older, tmp_path).ok
    assert verify.check(tmp_path / "test.db", tmp_path, anchors).ok
    assert any("turns are missing" in p for p in verify.check(older, tmp_path, anchors).problems)


def test_what_is_no_database_is_a_problem_not_an_exception(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"nonsense" * 1000)
    assert not verify.check(tmp_path / "x.db", tmp_path).ok
    assert not verify.check(tmp_path / "missing.db", tmp_path).ok
