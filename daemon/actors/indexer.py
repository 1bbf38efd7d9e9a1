"""Indexing: the job that makes a finished turn searchable by its words (TX-C), and what is undone of that at start.

Vectors follow by `embedding`; neither ever holds up a conversation.
"""

import logging
import time
from collections.abc import Callable

import trio

from contextinfinity.daemon.core.indexing import NewChunk, index
from contextinfinity.daemon.core.jobs import is_poison
from contextinfinity.daemon.runtime import failpoints
from contextinfinity.daemon.runtime.ids import IdMint, now
from contextinfinity.daemon.storage.chunks import IndexedTurn
from contextinfinity.daemon.storage.jobs import Job
from contextinfinity.daemon.storage.storage import Storage
from contextinfinity.protocol.blocks import Message

log = logging.getLogger(__name__)

INLINE_CHARACTERS = 4000
BATCH = 50
Cut = Callable[[Message, str], tuple[NewChunk, ...]]


async def run(storage: Storage, mint: IdMint, embeds: Callable[[], bool], done: Callable[[], None], job: Job, *,
              cut: Cut = index) -> None:  # fmt: skip
    """One job; a turn that cannot be cut into chunks is recorded as degraded in the end, rather than tried for ever."""
    assert job.turn_id is not None
    said, at = await storage.said_in(job.turn_id)
    failpoints.hit("index.begun")
    try:
        indexed = await prepared(job.turn_id, said, at, mint, cut)
    except Exception as error:
        if not is_poison(job.attempts):
            raise
        log.exception("turn %s cannot be indexed", job.turn_id)
        indexed = IndexedTurn(job.turn_id, (), f"it could not be cut into chunks: {type(error).__name__}")
    failpoints.hit("index.prepared")
    made = await storage.index_turn(indexed, now(), job, embed=embeds())
    failpoints.hit("index.stored")
    if made and embeds():
        done()


async def prepared(turn_id: str, said: list[Message], at: str, mint: IdMint, cut: Cut) -> IndexedTurn:
    """The chunks of a turn, with ids; what is long is cut in a thread."""

    def all_cut() -> IndexedTurn:
        return IndexedTurn(turn_id, tuple((mint(), chunk) for one in said for chunk in cut(one, at)))

    if sum(len(one.rendered_text) + 1000 * (len(one.blocks) - 1) for one in said) <= INLINE_CHARACTERS:
        return all_cut()
    return await trio.to_thread.run_sync(all_cut)


async def again(storage: Storage, mint: IdMint, embeds: Callable[[], bool], done: Callable[[], None], job: Job, *,
                cut: Cut = index) -> None:  # fmt: skip
    """One job for many turns, in batches, so that nobody waits for it: all of them, or those that lack some of their index."""
    after = 0
    while batch := await storage.turns_to_index(after, BATCH, everything=job.type == "reindex"):
        many = []
        for _, turn_id in batch:
            said, at = await storage.said_in(turn_id)
            try:
                many.append(await prepared(turn_id, said, at, mint, cut))
            except Exception as error:
                log.exception("turn %s cannot be indexed", turn_id)
                many.append(IndexedTurn(turn_id, (), f"it could not be cut into chunks: {type(error).__name__}"))
        made = await storage.index_turns(many, job, time.time(), now(), embed=embeds())
        failpoints.hit("index.again")
        after = batch[-1][0]
        if made and embeds():
            done()
    await storage.finish_job(job, now())


async def enqueue_undone(storage: Storage) -> None:
    """At start: whatever is over and was not indexed, or has lost some of its index."""
    if await storage.mend_index(now()):
        log.info("the index is mended in the background")
