"""The indexing job: a turn becomes searchable or says why not, and what a crash left undone is done at the next start."""

from pathlib import Path

import pytest
import trio

from contextinfinity.daemon.actors import indexer
from contextinfinity.daemon.actors.branch import Submit
from contextinfinity.daemon.core.indexing import NewChunk, index
from contextinfinity.daemon.core.jobs import MOST_ATTEMPTS
from contextinfinity.daemon.runtime.ids import IdMint, now
from contextinfinity.daemon.storage.jobs import Job
from contextinfinity.protocol.blocks import message
from tests.support.answers import answered, run
from tests.support.memory import remembering
from tests.support.stores import Bench, mint, opened

LONG = "\n\n".join(f"Paragraph {n} is about heron {n} and rack {n}." for n in range(2000))


async def claimed(bench: Bench, turn_id: str) -> Job:
    job = await bench.storage.claim_job(("index_turn",), mint(), 1e12, now(), turn_id)
    assert job is not None
    return job


async def done(bench: Bench, job: Job, *, embeds: bool = False, cut: indexer.Cut = index) -> int:
    """Run a job; how often somebody was told that there is something to embed."""
    told = 0

    def tell() -> None:
        nonlocal told
        told += 1

    await indexer.run(bench.storage, IdMint(), lambda: embeds, tell, job, cut=cut)
    return told


async def test_a_job_indexes_its_turn_and_is_gone(tmp_path: Path) -> None:
    with opened(tmp_path) as bench:
        branch = (await bench.session()).branch.id
        turn = await answered(bench, branch, "Where is heron-7?", LONG)
        assert await done(bench, await claimed(bench, turn), embeds=True) == 1
        made = await bench.storage.turn(turn)
        assert made.indexed
        assert len(made.created_chunks) > 10
        assert await run(bench, "SELECT type FROM jobs") == [("embed",)]
        await run(bench, "DELETE FROM jobs")
        await bench.storage.enqueue_job("index_turn", branch, turn, now())
        assert await done(bench, await claimed(bench, turn), embeds=True) == 0, "there was nothing new to embed"
        assert (await bench.storage.turn(turn)) == made


async def test_what_cannot_be_cut_is_tried_again_and_recorded_in_the_end(tmp_path: Path) -> None:
    def broken(*_: object) -> tuple[NewChunk, ...]:
        raise ArithmeticError("no")

    with opened(tmp_path) as bench:
        branch = (await bench.session()).branch.id
        turn = await answered(bench, branch, "odd")
        for attempt in range(1, MOST_ATTEMPTS):
            job = await claimed(bench, turn)
            assert job.attempts == attempt
            with pytest.raises(ArithmeticError):
                await done(bench, job, cut=broken)
            await bench.storage.fail_job(job, "no", 0.0, 0.0, now())
            assert not (await bench.storage.turn(turn)).indexed
        await done(bench, await claimed(bench, turn), cut=broken)
        made = await bench.storage.turn(turn)
        assert (made.indexed, made.created_chunks) == (True, ())
        told = next(event for event in bench.published if event.type == "turn.indexed")
        assert "ArithmeticError" in told.data["degraded"]
        assert await run(bench, "SELECT 1 FROM jobs") == []


async def test_turns_that_a_crash_left_unindexed_are_indexed_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = trio.Event()

    async def never(*_: object, **__: object) -> None:
        begun.set()
        await trio.sleep_forever()

    async with remembering(tmp_path) as tree:
        branch = await tree.new_branch()
        first = await tree.talk(branch, "The heron is grey.", "Noted herons.")
        monkeypatch.setattr(tree.storage, "index_turn", never)
        submitted = await tree.branches.ask(branch, Submit(said=message("user", "The egret is white."), model="far"))
        await tree.far.answer("Noted egrets.")
        await begun.wait()
        assert not (await tree.storage.turn(submitted.turn_id)).indexed
        await tree.storage._write(lambda tx: tx.run("DELETE FROM passages"))
        await tree.storage._write(lambda tx: tx.run("DELETE FROM chunks"))
    async with remembering(tmp_path) as tree:
        await tree.indexed(submitted.turn_id)
        while not (await tree.storage.turn(first)).created_chunks:  # noqa: ASYNC110 - the test's deadline bounds it
            await trio.sleep(0.001)
        assert (await tree.texts("egret"))[0] in ("The egret is white.", "Noted egrets.")
        assert (await tree.texts("grey heron"))[0] == "The heron is grey."
        assert (await tree.verified()).problems == ()


async def test_a_failed_turn_is_found_too(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        branch = await tree.new_branch()
        turn = (await tree.branches.ask(branch, Submit(said=message("user", "Ask about egrets"), model="far"))).turn_id
        await tree.far.say.send("Egrets are wh")
        await tree.far.say.send(tree.far.CUT)
        await tree.indexed(turn)
        assert set(await tree.texts("egrets")) == {"Ask about egrets", "Egrets are wh"}
