"""The durable job queue: unique while live, leased, in branch order, never twice to a visible effect."""

import pytest

from contextinfinity.daemon.core.jobs import LEASE_SECONDS, MOST_ATTEMPTS, wait_after
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.protocol.blocks import message
from contextinfinity.protocol.errors import Conflict
from contextinfinity.protocol.model import JobCounts
from tests.support.stores import Bench, ended

KIND = "reconcile_stream"


async def claim(bench: Bench, clock: float = 0.0, lease: str = "me", turn: str | None = None):  # type: ignore[no-untyped-def]
    return await bench.storage.claim_job((KIND,), lease, clock, now(), turn)


async def test_the_same_work_is_asked_for_once_while_it_is_live(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn = (await bench.accept(branch)).turn_id
    assert await bench.storage.enqueue_job(KIND, branch, turn, now())
    assert not await bench.storage.enqueue_job(KIND, branch, turn, now())
    job = await claim(bench)
    assert not await bench.storage.enqueue_job(KIND, branch, turn, now()), "running counts as live"
    await bench.storage.finish_job(job, now())
    assert await bench.storage.enqueue_job(KIND, branch, turn, now())


async def test_jobs_of_a_branch_run_in_order_and_branches_do_not_wait_for_each_other(bench: Bench) -> None:
    first, second = (await bench.session()).branch.id, (await bench.session()).branch.id
    turns = [(await bench.accept(branch)).turn_id for branch in (first, first, second)]
    for branch, turn in zip((first, first, second), turns, strict=True):
        await bench.storage.enqueue_job(KIND, branch, turn, now())
    one = await claim(bench)
    other = await claim(bench)
    assert (one.turn_id, other.turn_id) == (turns[0], turns[2]), "the second of a branch waits for its first"
    assert await claim(bench) is None
    await bench.storage.finish_job(one, now())
    assert (await claim(bench)).turn_id == turns[1]


async def test_a_lease_that_ran_out_goes_to_somebody_else_and_the_first_can_do_no_harm(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn = (await bench.accept(branch)).turn_id
    step = await bench.begin(turn)
    await bench.storage.enqueue_job(KIND, branch, turn, now())
    slow = await claim(bench, 0.0, "slow")
    assert await claim(bench, LEASE_SECONDS - 1, "fast") is None
    fast = await claim(bench, LEASE_SECONDS + 1, "fast")
    assert (fast.id, fast.attempts) == (slow.id, 2)
    with pytest.raises(Conflict):
        await bench.storage.finalize_response(turn, ended(step), message("assistant", "slow"), now(), job=slow)
    assert (await bench.storage.turn(turn)).phase == "responding", "the effect was undone with the refusal"
    assert await bench.storage.finalize_response(turn, ended(step), message("assistant", "fast"), now(), job=fast)
    with pytest.raises(Conflict):
        await bench.storage.finish_job(slow, now())
    assert await bench.storage.job_counts() == JobCounts(1, 0, 0), "what is left is to index the answer"


async def test_a_failed_job_waits_longer_each_time_and_is_parked_with_its_last_error(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn = (await bench.accept(branch)).turn_id
    await bench.storage.enqueue_job(KIND, branch, turn, now())
    clock = 0.0
    for attempt in range(1, MOST_ATTEMPTS + 1):
        job = await claim(bench, clock)
        assert job.attempts == attempt
        await bench.storage.fail_job(job, f"error {attempt}", clock, 0.5, now())
        if attempt < MOST_ATTEMPTS:
            assert await claim(bench, clock) is None
            due = await bench.storage.next_job_at((KIND,))
            assert due == pytest.approx(clock + wait_after(attempt, 0.5))
            clock = due
    assert await claim(bench, clock + 1e9) is None
    assert await bench.storage.job_counts() == JobCounts(0, 0, 1)


async def test_at_start_nobody_holds_a_lease_and_what_kept_killing_is_parked(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn = (await bench.accept(branch)).turn_id
    await bench.storage.enqueue_job(KIND, branch, turn, now())
    for attempt in range(1, MOST_ATTEMPTS + 1):
        job = await claim(bench)
        assert job.attempts == attempt
        await bench.storage.release_jobs(now())  # as if the process had died and another started
    assert await claim(bench) is None
    assert await bench.storage.job_counts() == JobCounts(0, 0, 1)


async def test_a_claim_can_be_for_one_turn_or_other_kinds(bench: Bench) -> None:
    mine = (await bench.session()).branch.id
    turn = (await bench.accept(mine)).turn_id
    await bench.storage.enqueue_job(KIND, mine, turn, now())
    assert await claim(bench, turn="another") is None
    assert await bench.storage.claim_job(("something_else",), "me", 0.0, now()) is None
    assert (await claim(bench, turn=turn)).turn_id == turn


def test_waits_double_up_to_a_limit_and_are_spread() -> None:
    assert wait_after(1, 0.0) < wait_after(1, 0.99) <= wait_after(2, 0.99) / 2 * 1.01
    assert wait_after(50, 0.99) <= 300
