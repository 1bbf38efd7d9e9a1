"""Vectors: in spaces of one dimension each, filled in order, and one takes over from another only when it is whole."""

import apsw
import numpy as np
import pytest

from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage.jobs import Job
from contextinfinity.daemon.storage.vectors import Space
from contextinfinity.protocol.errors import Conflict
from tests.support.answers import indexed
from tests.support.stores import Bench, mint


def vector(dim: int, value: float = 0.5) -> bytes:
    return np.full(dim, value, np.float16).tobytes()


async def spoken(bench: Bench, *texts: str, branch: str | None = None) -> str:
    branch = branch or (await bench.session()).branch.id
    for text in texts:
        await indexed(bench, branch, text, f"answer to {text}")
    return branch


async def claimed(bench: Bench) -> Job:
    await bench.storage.enqueue_job("embed", "", None, now())
    job = await bench.storage.claim_job(("embed",), mint(), 1.0, now())
    assert job is not None
    return job


async def space(bench: Bench, name: str = "a", dim: int = 2) -> Space:
    return await bench.storage.ensure_space(name, "local", dim, now())


async def fill(bench: Bench, into: Space, upto: int | None = None) -> Space:
    rows = [(one.n, vector(into.dim)) for one in await bench.storage.unembedded(into.done_to, 1000)]
    await bench.storage.add_vectors(into, rows[:upto], None, 0.0, now())
    return next(s for s in await bench.storage.vector_spaces() if s.n == into.n)


async def test_a_vector_of_another_length_cannot_be_stored(bench: Bench) -> None:
    await spoken(bench, "heron")
    made = await space(bench, dim=4)
    for wrong in (b"", vector(3), vector(5), vector(4) + b"\0"):
        with pytest.raises(apsw.ConstraintError, match="dimension of its space"):
            await bench.storage.add_vectors(made, [(1, wrong)], None, 0.0, now())
    with pytest.raises(apsw.ConstraintError, match="dimension of its space"):
        await bench.storage.add_vectors(Space(99, "x", "x", 4, 0, False), [(1, vector(4))], None, 0.0, now())
    assert await bench.storage.vectors_after(made.n, 0, 10) == ([], b"")
    assert (await bench.storage.vector_spaces())[0].done_to == 0


async def test_passages_wait_in_their_order_with_what_was_said_before(bench: Bench) -> None:
    await spoken(bench, "First words.", "Second words. " * 100, "Third words.")
    waiting = await bench.storage.unembedded(0, 100)
    assert [one.n for one in waiting] == sorted(one.n for one in waiting)
    by_start = {one.text[:6]: one for one in waiting}
    assert by_start["First "].before == ""
    assert by_start["First "].speaker == "user"
    assert by_start["Second"].before == "", "only a message that is one passage leans on the one before it"
    assert by_start["Third "].before.startswith("answer to Second words.")
    assert [one.n for one in await bench.storage.unembedded(waiting[1].n, 2)] == [one.n for one in waiting[2:4]]
    assert await bench.storage.embedding_backlog(waiting[1].n) == len(waiting) - 2


async def test_what_was_said_before_is_looked_for_across_a_fork(bench: Bench) -> None:
    branch = await spoken(bench, "On the trunk.")
    fork = await bench.storage.fork_branch(branch, 1, None, mint(), now())
    await spoken(bench, "On the fork.", branch=fork.id)
    waiting = {one.text: one.before for one in await bench.storage.unembedded(0, 100)}
    assert waiting["On the fork."] == "answer to On the trunk."


async def test_a_space_takes_over_only_when_it_is_whole(bench: Bench) -> None:
    await spoken(bench, "one", "two")
    old = await fill(bench, await space(bench, "old"))
    assert await bench.storage.finish_embedding(old, await claimed(bench), now())
    assert [(s.name, s.ready) for s in await bench.storage.vector_spaces()] == [("old", True)]
    new = await fill(bench, await space(bench, "new", 3), upto=1)
    job = await claimed(bench)
    assert not await bench.storage.finish_embedding(new, job, now())
    assert [(s.name, s.ready) for s in await bench.storage.vector_spaces()] == [("old", True), ("new", False)]
    assert (await bench.storage.vectors_after(old.n, 0, 10))[0] != []
    new = await fill(bench, new)
    assert await bench.storage.finish_embedding(new, job, now())
    assert [(s.name, s.ready, s.dim) for s in await bench.storage.vector_spaces()] == [("new", True, 3)]
    assert await bench.storage.vectors_after(old.n, 0, 10) == ([], b"")


async def test_what_comes_in_meanwhile_keeps_the_job_alive(bench: Bench) -> None:
    branch = await spoken(bench, "one")
    made = await fill(bench, await space(bench))
    job = await claimed(bench)
    await spoken(bench, "two", branch=branch)
    assert not await bench.storage.finish_embedding(made, job, now())
    made = await fill(bench, made)
    assert await bench.storage.finish_embedding(made, job, now())
    with pytest.raises(Conflict):
        await bench.storage.finish_embedding(made, job, now())


async def test_a_job_that_was_lost_stores_nothing(bench: Bench) -> None:
    await spoken(bench, "one")
    made = await space(bench)
    job = await claimed(bench)
    assert await bench.storage.claim_job(("embed",), mint(), 1e12, now()) is not None
    with pytest.raises(Conflict):
        await bench.storage.add_vectors(made, [(1, vector(2))], job, 0.0, now())
    assert (await bench.storage.vectors_after(made.n, 0, 10))[0] == []


async def test_storing_again_changes_nothing_and_done_to_never_goes_back(bench: Bench) -> None:
    await spoken(bench, "one", "two")
    made = await fill(bench, await space(bench))
    await bench.storage.add_vectors(made, [(1, vector(2, 9.0))], None, 0.0, now())
    after = (await bench.storage.vector_spaces())[0]
    assert after == made
    numbers, raw = await bench.storage.vectors_after(made.n, 0, 10)
    assert raw == vector(2) * len(numbers)
    assert (await bench.storage.vectors_after(made.n, numbers[0], 2))[0] == numbers[1:3]


async def test_another_dimension_under_the_same_name_is_another_space(bench: Bench) -> None:
    await spoken(bench, "one")
    old = await fill(bench, await space(bench, "a", 2))
    assert await space(bench, "a", 2) == old
    other = await space(bench, "a", 5)
    assert (other.dim, other.done_to, other.ready) == (5, 0, False)
    assert other.n != old.n, "a number is never given twice: whoever holds the vectors of the old one must notice"
    assert len(await bench.storage.vector_spaces()) == 1


async def test_a_space_that_is_forgotten_is_made_under_a_new_number(bench: Bench) -> None:
    await spoken(bench, "one")
    old = await fill(bench, await space(bench, "a"))
    await bench.storage.forget_space("b")
    assert await bench.storage.vector_spaces() == [old]
    await bench.storage.forget_space("a")
    assert await bench.storage.vector_spaces() == []
    assert (await space(bench, "a")).n != old.n
