"""Turns on a storage bench whose answers are worth remembering: those of the embedded provider are not indexed."""

from typing import Any

import msgspec

from contextinfinity.daemon.runtime.ids import now
from contextinfinity.protocol.blocks import message
from tests.support.stores import Bench, ended, new_step

PROVIDER = "anthropic"


async def begun(bench: Bench, turn_id: str) -> str:
    turn = await bench.storage.turn(turn_id)
    step = msgspec.structs.replace(new_step(turn_id, turn.user_message), provider=PROVIDER)
    branch = await bench.storage.branch(turn.branch_id)
    await bench.storage.begin_response(turn_id, step, branch.head_state, now())
    return step.id


async def answered(bench: Bench, branch: str, text: str, reply: str = "an answer", **values: Any) -> str:
    """A turn to its answer, not indexed yet."""
    turn_id = (await bench.accept(branch, text, **values)).turn_id
    step = await begun(bench, turn_id)
    await bench.storage.finalize_response(turn_id, ended(step, reply), message("assistant", reply, created_at=now()), now())
    return turn_id


async def indexed(bench: Bench, branch: str, text: str, reply: str = "an answer") -> str:
    turn_id = await answered(bench, branch, text, reply)
    await bench.index(turn_id)
    return turn_id


async def run(bench: Bench, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """A statement of the test's own, in a transaction."""
    rows: list[tuple[Any, ...]] = await bench.storage._write(lambda tx: tx.rows(sql, *values))
    return rows
