"""A thread with a queue of jobs: order, groups, bounds, and an answer for everybody when it breaks. Threads: real time."""

import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import assert_no_checkpoints, wait_all_tasks_blocked

from contextinfinity.daemon.runtime.actor import ActorGone, MailboxFull
from contextinfinity.daemon.runtime.lane import Lane, Outcome

pytestmark = pytest.mark.timeout(10)

GUARD = 5.0
BREAK = -1
REFUSE = -2


class Bench:
    """Where the thread works: it notes each batch, and waits before it when the gate is shut."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.busy = threading.Event()

    def perform(self, jobs: Sequence[int]) -> list[Outcome]:
        self.batches.append(list(jobs))
        self.busy.set()
        assert self.gate.wait(GUARD)
        if BREAK in jobs:
            raise OSError("the disk is gone")
        return [(None, ValueError(job)) if job == REFUSE else (job * 10, None) for job in jobs]

    @property
    def jobs(self) -> list[int]:
        return [job for batch in self.batches for job in batch]

    async def until_busy(self) -> None:
        assert await trio.to_thread.run_sync(self.busy.wait, GUARD)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@asynccontextmanager
async def opened(lane: Lane[int], bench: Bench) -> AsyncIterator[Lane[int]]:
    """Closes it after the block, and sees its thread end."""
    with trio.fail_after(GUARD):
        try:
            yield lane
        finally:
            bench.gate.set()
            await lane.close()
            assert await trio.to_thread.run_sync(ended, lane)


def ended(lane: Lane[int]) -> bool:
    lane._thread.join(GUARD)
    return not lane._thread.is_alive()


async def fate(answer: Awaitable[object]) -> object:
    """The answer, or the type of the error that came instead."""
    try:
        return await answer
    except (ActorGone, ValueError) as error:
        return type(error)


# working


async def test_jobs_are_performed_in_order_and_each_gets_its_own_outcome(bench: Bench) -> None:
    async with opened(Lane("lane", bench.perform), bench) as lane:
        answers = [lane.submit(job) for job in (1, REFUSE, 3)]
        assert [await fate(answer) for answer in answers] == [10, ValueError, 30]
        assert bench.jobs == [1, REFUSE, 3]
        assert not lane.failed.is_set()
        assert lane.cause is None


async def test_submitting_does_not_wait(bench: Bench) -> None:
    bench.gate.clear()
    async with opened(Lane("lane", bench.perform), bench) as lane:
        with assert_no_checkpoints():
            answers = [lane.submit(job) for job in range(3)]
        bench.gate.set()
        assert [await answer for answer in answers] == [0, 10, 20]


async def test_jobs_that_wait_together_are_performed_together(bench: Bench) -> None:
    bench.gate.clear()
    async with opened(Lane("lane", bench.perform, most_at_once=3), bench) as lane:
        first = lane.submit(0)
        await bench.until_busy()
        rest = [lane.submit(job) for job in range(1, 6)]
        bench.gate.set()
        assert [await answer for answer in (first, *rest)] == [0, 10, 20, 30, 40, 50]
        assert bench.batches == [[0], [1, 2, 3], [4, 5]]


async def test_a_lane_takes_as_many_jobs_as_its_capacity(bench: Bench) -> None:
    bench.gate.clear()
    async with opened(Lane("small", bench.perform, capacity=3), bench) as lane:
        answers = [lane.submit(1)]
        await bench.until_busy()  # what is being performed counts too
        answers += [lane.submit(2), lane.submit(3)]
        assert len(lane) == 3
        with pytest.raises(MailboxFull, match="small"):
            lane.submit(4)
        bench.gate.set()
        assert [await answer for answer in answers] == [10, 20, 30]
        assert len(lane) == 0
        assert await lane.submit(5) == 50
        assert 4 not in bench.jobs


async def test_a_waiter_that_is_cancelled_cancels_no_job(bench: Bench) -> None:
    bench.gate.clear()
    async with opened(Lane("lane", bench.perform), bench) as lane:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fate, lane.submit(REFUSE))  # and the error of one who is not there hurts nobody
            nursery.start_soon(fate, lane.submit(2))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        bench.gate.set()
        assert await lane.submit(3) == 30
        assert bench.jobs == [REFUSE, 2, 3]
        assert len(lane) == 0


# settling


async def test_outcomes_are_settled_on_the_loop_in_order_before_anybody_sees_them(bench: Bench) -> None:
    log: list[object] = []

    def settled(outcomes: list[Outcome]) -> list[Outcome]:
        log.append(threading.current_thread() is threading.main_thread())
        log.extend(value for value, _ in outcomes)
        return [(f"settled {value}", error) for value, error in outcomes]

    async def ask(answer: Awaitable[str]) -> None:
        log.append(await answer)

    async with opened(Lane("lane", bench.perform, settled=settled, most_at_once=2), bench) as lane:
        bench.gate.clear()
        answers = [lane.submit(0)]
        await bench.until_busy()
        answers += [lane.submit(1), lane.submit(2)]
        bench.gate.set()
        async with trio.open_nursery() as nursery:
            for answer in answers:
                nursery.start_soon(ask, answer)
    assert [entry for entry in log if entry != "settled 0"][:5] == [True, 0, True, 10, 20]
    assert log.index(0) < log.index("settled 0")
    assert set(log[-2:]) <= {"settled 0", "settled 10", "settled 20"}
    assert len(log) == 8


def too_few(outcomes: list[Outcome]) -> list[Outcome]:
    return outcomes[1:]


def stumble(outcomes: list[Outcome]) -> list[Outcome]:
    raise RuntimeError("the hook stumbles")


@pytest.mark.parametrize("settled", [too_few, stumble])
async def test_a_lane_whose_outcomes_cannot_be_settled_breaks_and_the_loop_lives(
    settled: Callable[[list[Outcome]], list[Outcome]], bench: Bench
) -> None:
    bench.gate.clear()
    async with opened(Lane("lane", bench.perform, settled=settled, most_at_once=1), bench) as lane:
        answers = [lane.submit(job) for job in range(5)]
        bench.gate.set()
        assert [await fate(answer) for answer in answers] == [ActorGone] * 5
        assert lane.failed.is_set()
        assert isinstance(lane.cause, ValueError if settled is too_few else RuntimeError)
        with pytest.raises(ActorGone):
            lane.submit(6)


@pytest.mark.parametrize("closed", ["before", "after"])
async def test_a_lane_that_broke_on_the_loop_ends_when_its_thread_does(closed: str, bench: Bench) -> None:
    """Whoever closes it may then close what the thread was working on."""
    second, release = threading.Event(), threading.Event()
    settlings: list[list[Outcome]] = []

    def perform(jobs: Sequence[int]) -> list[Outcome]:
        if 2 in jobs:
            second.set()
            assert release.wait(GUARD)
        return bench.perform(jobs)

    def settled(outcomes: list[Outcome]) -> list[Outcome]:
        settlings.append(outcomes)
        assert second.wait(GUARD)  # the thread is at the second when the first cannot be settled
        raise RuntimeError("the hook stumbles")

    async with opened(Lane("lane", perform, settled=settled, most_at_once=1), bench) as lane:
        bench.gate.clear()
        answers = [lane.submit(1), lane.submit(2), lane.submit(3)]
        async with trio.open_nursery() as nursery:
            if closed == "before":
                nursery.start_soon(lane.close)
                await wait_all_tasks_blocked()
            bench.gate.set()
            await lane.failed.wait()
            if closed == "after":
                nursery.start_soon(lane.close)
            await wait_all_tasks_blocked()
            still_working = len(nursery.child_tasks) == 1
            release.set()
        assert still_working
        assert settlings == [[(10, None)]]
        assert [await fate(answer) for answer in answers] == [ActorGone] * 3
        assert bench.jobs == [1, 2]


# breaking


async def test_a_lane_that_breaks_answers_everybody_and_tells_its_owner(bench: Bench) -> None:
    bench.gate.clear()
    async with opened(Lane("lane", bench.perform, most_at_once=2), bench) as lane:
        answers = [lane.submit(1)]
        await bench.until_busy()
        answers += [lane.submit(job) for job in (BREAK, 3, 4, 5)]
        bench.gate.set()
        assert [await fate(answer) for answer in answers] == [10, *[ActorGone] * 4]
        assert bench.batches == [[1], [BREAK, 3]]
        assert lane.failed.is_set()
        assert isinstance(lane.cause, OSError)
        assert len(lane) == 0
        with pytest.raises(ActorGone, match="lane has stopped"):
            lane.submit(6)


async def test_jobs_that_come_between_the_break_and_its_news_are_answered_too(bench: Bench) -> None:
    bench.gate.clear()
    async with opened(Lane("lane", bench.perform), bench) as lane:
        first = lane.submit(BREAK)
        await bench.until_busy()
        bench.gate.set()
        assert ended(lane)  # and the loop, which waits here, has not heard of it
        second = lane.submit(2)
        with pytest.raises(ActorGone, match="lane broke: the disk is gone"):
            await second
        assert await fate(first) is ActorGone


async def test_a_perform_that_forgets_a_job_breaks_the_lane(bench: Bench) -> None:
    async with opened(Lane("lane", lambda jobs: bench.perform(jobs)[1:]), bench) as lane:
        assert await fate(lane.submit(1)) is ActorGone
        assert isinstance(lane.cause, ValueError)


# closing


async def test_closing_performs_what_is_queued_and_takes_no_more(bench: Bench) -> None:
    bench.gate.clear()
    async with opened(Lane("lane", bench.perform, most_at_once=2), bench) as lane:
        answers = [lane.submit(job) for job in range(5)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lane.close)
            nursery.start_soon(lane.close)
            await wait_all_tasks_blocked()
            with pytest.raises(ActorGone, match="lane has stopped"):
                lane.submit(6)
            bench.gate.set()
        assert [await answer for answer in answers] == [0, 10, 20, 30, 40]
        await lane.close()
        assert not lane.failed.is_set()


async def test_a_lane_that_breaks_while_it_closes_still_ends(bench: Bench) -> None:
    bench.gate.clear()
    async with opened(Lane("lane", bench.perform), bench) as lane:
        answer = lane.submit(BREAK)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lane.close)
            await wait_all_tasks_blocked()
            bench.gate.set()
        assert await fate(answer) is ActorGone
        assert lane.failed.is_set()


def test_a_thread_that_outlives_the_loop_ends_quietly(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bench.gate.clear()

    async def main() -> Lane[int]:
        lane: Lane[int] = Lane("orphan", bench.perform)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fate, lane.submit(1))
                nursery.start_soon(lane.close)
                await bench.until_busy()
                scope.cancel()
        return lane

    lane = trio.run(main)
    bench.gate.set()
    assert ended(lane)
    assert bench.batches == [[1]]
    assert "orphan: the loop ended before its last answer" in caplog.messages
