"""The durable job queue: unique while live, leased, in branch order, parked when poisonous.

A job ends in the same transaction as its effect (`finish`), so it never runs twice to anything visible.
"""

from typing import Literal

import msgspec

from contextinfinity.daemon.core import jobs as policy
from contextinfinity.daemon.storage.connection import Row, Tx
from contextinfinity.protocol.errors import Conflict
from contextinfinity.protocol.model import JobCounts

JobType = Literal["reconcile_stream", "index_turn", "mend_index", "reindex", "embed"]


PLENTIFUL: frozenset[str] = frozenset({"index_turn", "mend_index", "reindex", "embed"})
"""Every turn has its job of these kinds: what they did is to be seen elsewhere, so done ones are not kept."""


class Job(msgspec.Struct, frozen=True):
    """A claimed job; whoever holds `lease` may finish it."""

    id: int
    type: str
    branch_id: str
    turn_id: str | None
    attempts: int
    lease: str


def enqueue(tx: Tx, kind: JobType, branch_id: str, turn_id: str | None, at: str) -> bool:
    """Ask for work; False if the same is pending or running already."""
    live = tx.row(
        "SELECT 1 FROM jobs WHERE owner = ? AND type = ? AND branch_id = ? AND turn_id IS ? "
        "AND state IN ('pending', 'running')",
        tx.owner,
        kind,
        branch_id,
        turn_id,
    )
    if live is not None:
        return False
    tx.run(
        "INSERT INTO jobs(owner, type, branch_id, turn_id, state, attempts, run_at, created_at, updated_at) "
        "VALUES (?,?,?,?,'pending',0,0,?,?)",
        tx.owner,
        kind,
        branch_id,
        turn_id,
        at,
        at,
    )
    return True


def claim(tx: Tx, kinds: tuple[str, ...], lease: str, clock: float, at: str, turn_id: str | None = None) -> Job | None:
    """The next job of these kinds that is due, oldest first and in branch order; its attempt counts from now."""
    marks = ",".join("?" * len(kinds))
    row = tx.row(
        f"SELECT id, type, branch_id, turn_id, attempts FROM jobs j WHERE owner = ? AND type IN ({marks}) "
        "AND (? IS NULL OR turn_id = ?) AND (state = 'pending' AND run_at <= ? "
        "OR state = 'running' AND lease_until < ?) AND NOT EXISTS (SELECT 1 FROM jobs e WHERE e.branch_id = j.branch_id "
        "AND e.type = j.type AND e.id < j.id AND e.state IN ('pending', 'running')) ORDER BY id LIMIT 1",
        tx.owner,
        *kinds,
        turn_id,
        turn_id,
        clock,
        clock,
    )
    if row is None:
        return None
    tx.run(
        "UPDATE jobs SET state = 'running', attempts = attempts + 1, lease = ?, lease_until = ?, updated_at = ? WHERE id = ?",
        lease,
        clock + policy.LEASE_SECONDS,
        at,
        row[0],
    )
    return Job(row[0], row[1], row[2], row[3], row[4] + 1, lease)


def finish(tx: Tx, job: Job | None, at: str) -> None:
    """Done, together with what this transaction did; if the lease went to somebody else, nothing of it happens."""
    if job is None:
        return
    _check_lease(tx, job)
    if job.type in PLENTIFUL:
        tx.run("DELETE FROM jobs WHERE id = ?", job.id)
    else:
        tx.run("UPDATE jobs SET state = 'done', lease = NULL, last_error = NULL, updated_at = ? WHERE id = ?", at, job.id)


def extend(tx: Tx, job: Job, clock: float, at: str) -> None:
    """A long job is still alive: its lease starts anew."""
    _check_lease(tx, job)
    tx.run("UPDATE jobs SET lease_until = ?, updated_at = ? WHERE id = ?", clock + policy.LEASE_SECONDS, at, job.id)


def fail(tx: Tx, job: Job, error: str, clock: float, chance: float, at: str) -> None:
    """Try again later, or park it."""
    _check_lease(tx, job)
    state = "parked" if policy.is_poison(job.attempts) else "pending"
    tx.run(
        "UPDATE jobs SET state = ?, lease = NULL, last_error = ?, run_at = ?, updated_at = ? WHERE id = ?",
        state,
        error[:500],
        clock + policy.wait_after(job.attempts, chance),
        at,
        job.id,
    )


def release(tx: Tx, at: str) -> None:
    """At start: nobody holds the leases of an earlier process. Jobs that killed it too often are parked."""
    tx.run(
        "UPDATE jobs SET state = CASE WHEN attempts >= ? THEN 'parked' ELSE 'pending' END, lease = NULL, run_at = 0, "
        "last_error = coalesce(last_error, 'the daemon ended while it ran'), updated_at = ? WHERE state = 'running'",
        policy.MOST_ATTEMPTS,
        at,
    )


def is_parked(tx: Tx, kind: JobType, turn_id: str) -> bool:
    """Whether this was given up."""
    return tx.row("SELECT 1 FROM jobs WHERE type = ? AND turn_id = ? AND state = 'parked'", kind, turn_id) is not None


def counts(tx: Tx) -> JobCounts:
    found: dict[str, int] = {
        row[0]: row[1] for row in tx.rows("SELECT state, count(*) FROM jobs WHERE state != 'done' GROUP BY state")
    }
    return JobCounts(found.get("pending", 0), found.get("running", 0), found.get("parked", 0))


def next_due(tx: Tx, kinds: tuple[str, ...]) -> float | None:
    """The clock time at which the next pending job of these kinds may run."""
    marks = ",".join("?" * len(kinds))
    row: Row | None = tx.row(f"SELECT min(run_at) FROM jobs WHERE state = 'pending' AND type IN ({marks})", *kinds)
    return float(row[0]) if row is not None and row[0] is not None else None


def _check_lease(tx: Tx, job: Job) -> None:
    if tx.row("SELECT 1 FROM jobs WHERE id = ? AND lease = ? AND state = 'running'", job.id, job.lease) is None:
        raise Conflict(f"job {job.id} is no longer ours: its lease ran out", job=job.id)
