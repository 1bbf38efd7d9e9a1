"""Finishes what an earlier process left undone: every turn that was accepted but never ended gets its one outcome.

Runs before the daemon says it is ready, and for one branch when its actor wakes; running it again changes nothing.
"""

import logging
import random
import time
from pathlib import Path

import msgspec
import trio

from contextinfinity.daemon.core.jobs import is_poison
from contextinfinity.daemon.core.recovery import INTERRUPTED, Verdict, judge
from contextinfinity.daemon.core.transcript import Answer
from contextinfinity.daemon.providers.base import RawEvent
from contextinfinity.daemon.providers.registry import provider
from contextinfinity.daemon.runtime import failpoints
from contextinfinity.daemon.runtime.ids import IdMint, now
from contextinfinity.daemon.storage import journals
from contextinfinity.daemon.storage.jobs import Job, JobType
from contextinfinity.daemon.storage.steps import EndedStep
from contextinfinity.daemon.storage.storage import Storage
from contextinfinity.daemon.storage.turns import Unfinished
from contextinfinity.protocol.blocks import message
from contextinfinity.protocol.errors import ErrorObject, Fault
from contextinfinity.protocol.model import Incomplete

log = logging.getLogger(__name__)

KIND: JobType = "reconcile_stream"
UNREAD = Verdict(Answer(), Incomplete(INTERRUPTED.message), INTERRUPTED)
_mint = IdMint()


async def reconcile(storage: Storage, streams: Path, found: list[Unfinished]) -> None:
    """Give each of these unfinished turns its outcome; none of them may be live in this process."""
    failpoints.hit("recovery.begun")
    for turn in found:
        if turn.step_id is None:
            await storage.fail_turn(turn.turn_id, INTERRUPTED, None, "", now(), recovered=True)
            continue
        if await storage.is_parked(KIND, turn.turn_id):  # judging it killed the daemon too often: its journal stays unread
            await _record(storage, turn.turn_id, turn.step_id, UNREAD, None)
            continue
        await storage.enqueue_job(KIND, turn.branch_id, turn.turn_id, now())
        job = await storage.claim_job((KIND,), _mint(), time.time(), now(), turn.turn_id)
        if job is not None:
            await run(storage, streams, job)
    if found:
        log.info("recovered %d unfinished turns", len(found))


async def run(storage: Storage, streams: Path, job: Job) -> None:
    """One job: judge the journal of an interrupted step, and record the verdict with the job's end."""
    assert job.turn_id is not None
    turn = await storage.unfinished_turn(job.turn_id)
    if turn is None or turn.step_id is None:
        await storage.finish_job(job, now())
        return
    try:
        judged = await _judge(streams, turn)
    except Exception as error:
        log.exception("the journal of step %s cannot be judged", turn.step_id)
        if not is_poison(job.attempts):
            await storage.fail_job(job, repr(error), time.time(), random.random(), now())
            return
        judged = UNREAD
    failpoints.hit("recovery.judged")
    await _record(storage, turn.turn_id, turn.step_id, judged, job)
    failpoints.hit("recovery.finished")


async def _judge(streams: Path, turn: Unfinished) -> Verdict:
    assert turn.step_id is not None
    assert turn.provider is not None
    lines = await trio.to_thread.run_sync(journals.read_lines, journals.path_of(streams, turn.step_id))
    adapter = provider(turn.provider)
    error = next((msgspec.convert(x.payload, ErrorObject) for x in lines if x.event_type == journals.ERROR), None)
    return judge((adapter.normalise(RawEvent(x.event_type, x.payload)) for x in lines), error)


async def _record(storage: Storage, turn_id: str, step_id: str, judged: Verdict, job: Job | None) -> None:
    answer = judged.answer
    ended = EndedStep(
        id=step_id,
        outcome=judged.outcome,
        items=answer.items(),
        usage=answer.usage,
        displayed=answer.bytes,
        durable=answer.bytes,
    )
    try:
        if judged.error is None:
            said = message("assistant", answer.blocks(), created_at=now())
            await storage.finalize_response(turn_id, ended, said, now(), job=job)
        else:
            await storage.fail_turn(turn_id, judged.error, ended, answer.text(), now(), recovered=True, job=job)
    except Fault as fault:
        log.warning("turn %s cannot be recovered yet: %s", turn_id, fault.message)
        raise
