"""The job worker: runs what is due, tries again what fails, and parks what keeps failing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from contextinfinity.daemon.actors.jobs import Handler, JobRunner
from contextinfinity.daemon.core import jobs as policy
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.runtime.supervisor import Supervisor
from contextinfinity.daemon.storage.jobs import Job
from contextinfinity.protocol.model import JobCounts
from tests.support.stores import Bench, opened

KIND = "reconcile_stream"


@asynccontextmanager
async def runner(bench: Bench, handler: Handler) -> AsyncIterator[None]:
    supervisor = Supervisor("test")
    ref = supervisor.add("jobs", lambda: JobRunner(bench.storage, {KIND: handler}, can_write=lambda: True))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(supervisor.run)
            ref.tell("look")
            yield
            nursery.cancel_scope.cancel()


async def enqueued(bench: Bench, count: int) -> list[str]:
    branch = (await bench.session()).branch.id
    turns = [(await bench.accept(branch)).turn_id for _ in range(count)]
    for turn in turns:
        await bench.storage.enqueue_job(KIND, branch, turn, now())
    return turns


async def settled(bench: Bench) -> JobCounts:
    while True:
        counts = await bench.storage.job_counts()
        if not counts.pending and not counts.running:
            return counts
        await trio.sleep(0.001)


async def test_jobs_run_once_each_in_order(tmp_path: Path) -> None:
    done: list[str | None] = []
    with opened(tmp_path) as bench:

        async def handler(job: Job) -> None:
            done.append(job.turn_id)
            await bench.storage.finish_job(job, now())

        turns = await enqueued(bench, 5)
        async with runner(bench, handler):
            assert await settled(bench) == JobCounts(0, 0, 0)
        assert done == turns


async def test_a_job_that_fails_is_tried_again_and_then_parked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(policy, "FIRST_WAIT", 0.001)
    tries: list[int] = []
    with opened(tmp_path) as bench:

        async def handler(job: Job) -> None:
            tries.append(job.attempts)
            raise RuntimeError("poison")

        await enqueued(bench, 1)
        async with runner(bench, handler):
            assert await settled(bench) == JobCounts(0, 0, 1)
        assert tries == list(range(1, policy.MOST_ATTEMPTS + 1))


async def test_work_that_comes_later_is_seen_when_the_worker_is_nudged(tmp_path: Path) -> None:
    with opened(tmp_path) as bench:

        async def handler(job: Job) -> None:
            await bench.storage.finish_job(job, now())

        supervisor = Supervisor("test")
        ref = supervisor.add("jobs", lambda: JobRunner(bench.storage, {KIND: handler}, can_write=lambda: True))
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                await nursery.start(supervisor.run)
                await trio.testing.wait_all_tasks_blocked()
                await enqueued(bench, 2)
                ref.tell("look")
                assert await settled(bench) == JobCounts(0, 0, 0)
                nursery.cancel_scope.cancel()
