"""`python mutant.py NAME [ctxd's arguments]`: the daemon with one of its protections taken out, or a limit put in.

A test of the tests: each of these daemons must be caught by the checks that the real one passes.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec
import trio

from contextinfinity.daemon import main
from contextinfinity.daemon.actors import journal, recovery
from contextinfinity.daemon.actors.branch import BranchActor, Submit
from contextinfinity.daemon.actors.turn import Accepted
from contextinfinity.daemon.runtime import failpoints
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage import chunks, connection, database, imports, jobs, migrations, storage, turns
from contextinfinity.daemon.storage.connection import Job, Tx
from contextinfinity.protocol.methods import Submitted

LATE = 0.05
PAGES = "CTX_TEST_PAGES"
"""A file that holds the most pages the database may have."""


def acknowledge_before_commit() -> None:
    """The client hears of its turn while the words are still in memory; whoever asks about it waits, so only a crash tells."""
    pending: set[str] = set()
    read, honest = storage.Storage._read, BranchActor._submit

    async def early(self: BranchActor, message: Submit) -> Submitted:
        branch = await self._world.storage.branch(self._id)
        if self.busy or pending or message.keyed is not None:
            return await honest(self, message)
        turn_id = self._world.mint()
        pending.add(turn_id)
        self.nursery.start_soon(late, self, message, turn_id)
        return Submitted(turn_id, branch.turn_seq + 1)

    async def late(self: BranchActor, message: Submit, turn_id: str) -> None:
        await trio.sleep(LATE)
        failpoints.hit("turn.acknowledged")
        model = message.model or self._branch.model
        new = turns.NewTurn(id=turn_id, branch_id=self._id, message=message.said, model=model, at=now())
        await self._world.storage.accept_turn(new, message.keyed)
        pending.remove(turn_id)
        self._queue.append(Accepted(turn_id, message.said, model))
        self._run_next()

    async def patient(self: storage.Storage, fn: Any, *args: Any, **kwargs: Any) -> Any:
        while pending:  # noqa: ASYNC110 - what is in the way here is not worth an event
            await trio.sleep(0.001)
        return await read(self, fn, *args, **kwargs)

    BranchActor._submit = early  # type: ignore[method-assign]
    storage.Storage._read = patient  # type: ignore[method-assign]


def report_durable_before_write() -> None:
    """Clients hear of durable bytes that are still in a buffer."""
    round_ = journal.Journal._round

    async def hasty(self: journal.Journal, lane: Any, *, sync_all: bool) -> None:
        for step in self._steps.values():
            for block, text in step.unseen:
                self.hub.shown(step.live, block, text)
            step.unseen = []
            self.hub.durable(step.live, step.visible)
        await trio.sleep(LATE)
        await round_(self, lane, sync_all=sync_all)

    journal.Journal._round = hasty  # type: ignore[method-assign]


def judge_again_at_every_start() -> None:
    """A reconciler that does not notice what it did before."""

    def everything(tx: Tx, branch_id: str | None = None) -> list[turns.Unfinished]:
        rows = tx.rows(
            "SELECT t.id, t.branch_id, s.id, s.provider FROM turns t LEFT JOIN steps s ON s.turn_id = t.id "
            "WHERE t.failed_at IS NOT NULL OR t.finalized_at IS NULL ORDER BY t.n"
        )
        return [turns.Unfinished(*row) for row in rows if branch_id in (None, row[1])]

    turns.unfinished = everything
    turns._is_over = lambda tx, turn_id: False


def report_before_recording() -> None:
    """A reconciler whose event is not in the transaction of the fact it reports."""
    record = recovery._record

    async def twice(store: storage.Storage, turn_id: str, step_id: str, judged: Any, job: Any) -> None:
        def tell(tx: Tx) -> None:
            session_id, branch_id = turns._where(tx, turn_id)
            tx.emit("recovery.partial", now(), session_id=session_id, branch_id=branch_id, turn_id=turn_id, step_id=step_id)

        await store._write(tell)
        failpoints.hit("recovery.finished")
        await record(store, turn_id, step_id, judged, job)

    recovery._record = twice
    fail = turns.fail
    turns.fail = lambda *args, recovered=False, **more: fail(*args, recovered=False, **more)  # type: ignore[assignment]


def forget_to_finish_jobs() -> None:
    """A job stays live after its effect, so that the next process does it again."""
    jobs.finish = lambda tx, job, at: None


def mark_indexed_before_the_chunks() -> None:
    """The milestone is in one transaction, the chunks are in the next."""

    async def hasty(self: storage.Storage, indexed: chunks.IndexedTurn, at: str, job: jobs.Job, *, embed: bool) -> int:
        await self._write(chunks.index_turn, msgspec.structs.replace(indexed, chunks=()), at, job)
        failpoints.hit("index.stored")
        made: int = await self._write(chunks.index_turn, indexed, at, None, embed=embed)
        return made

    storage.Storage.index_turn = hasty  # type: ignore[method-assign, assignment]


def insert_chunks_again() -> None:
    """Neither the schema nor the code minds a chunk that is there already."""
    unique = "UNIQUE (source_turn, chunk_type, content_hash)"
    scripts = [(name, script.replace(f",\n  {unique}", "")) for name, script in migrations.MIGRATIONS]
    assert scripts != migrations.MIGRATIONS
    migrations.MIGRATIONS[:] = scripts
    insert = chunks._insert

    class Forgetful:
        """A transaction that never finds a chunk."""

        def __init__(self, tx: Tx) -> None:
            self._tx = tx

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tx, name)

        def row(self, sql: str, *values: Any) -> Any:
            return None if sql.startswith("SELECT 1 FROM chunks") else self._tx.row(sql, *values)

    chunks._insert = lambda tx, *more: insert(Forgetful(tx), *more)  # type: ignore[arg-type]


def acknowledge_imports_before_commit() -> None:
    """The client hears that its history is safe while it is still in memory."""
    add = storage.Storage.add_imported

    async def early(self: storage.Storage, batch: imports.Batch, at: str) -> int:
        async def late() -> None:
            await trio.sleep(LATE)
            failpoints.hit("import.stored")
            await add(self, batch, at)

        trio.lowlevel.spawn_system_task(late)
        return len(batch.turns)

    storage.Storage.add_imported = early  # type: ignore[method-assign]


def small() -> None:
    """A database that may not grow beyond the number of pages in a file: a full disk where none can be made."""
    limits = Path(os.environ[PAGES])
    write = connection.write_batch

    def limited(db: apsw.Connection, batch: Sequence[Job]) -> list[Any]:
        db.execute(f"PRAGMA max_page_count = {int(limits.read_text())}").fetchall()
        return write(db, batch)

    database.write_batch = limited


MUTANTS: dict[str, Callable[[], None]] = {
    made.__name__: made
    for made in (
        acknowledge_before_commit,
        report_durable_before_write,
        judge_again_at_every_start,
        report_before_recording,
        forget_to_finish_jobs,
        mark_indexed_before_the_chunks,
        insert_chunks_again,
        acknowledge_imports_before_commit,
        small,
    )
}

if __name__ == "__main__":
    MUTANTS[sys.argv.pop(1)]()
    main.main()
