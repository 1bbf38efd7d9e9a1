"""Chunks: written once with their milestone, found again as words in their place, browsed in order."""

from typing import Any

import apsw
import pytest

from contextinfinity.daemon.core.indexing import index
from contextinfinity.daemon.core.words import END
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage.chunks import IndexedTurn
from contextinfinity.daemon.storage.jobs import Job
from contextinfinity.protocol.errors import Conflict, ErrorObject, NotFound
from tests.support.answers import answered, begun, indexed, run
from tests.support.stores import Bench, ended, mint

LONG = "\n\n".join(f"Paragraph {n} is about heron-{n} and its rack. " * 20 for n in range(8))


async def job_for(bench: Bench, turn: str) -> Job:
    job = await bench.storage.claim_job(("index_turn",), mint(), 1.0, now(), turn)
    assert job is not None
    return job


async def test_a_turn_is_indexed_once_however_often_it_is_done(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn = await answered(bench, branch, LONG)
    assert not (await bench.storage.turn(turn)).indexed
    made = await bench.index(turn)
    assert made > 3
    before = await bench.storage.turn(turn)
    kept = [f.chunk for f in (await bench.storage.list_chunks({}, 0, 100))[0]]
    events = [e.type for e in bench.published]
    assert (before.indexed, len(before.created_chunks)) == (True, made)
    for _ in range(3):
        assert await bench.index(turn) == 0
    assert await bench.storage.turn(turn) == before
    assert [f.chunk for f in (await bench.storage.list_chunks({}, 0, 100))[0]] == kept
    assert [e.type for e in bench.published] == events
    assert events.count("turn.indexed") == 1
    state = await bench.storage.index_state()
    assert (state.unindexed, state.chunks) == (0, made)
    assert state.indexed_at is not None


async def test_the_job_ends_with_its_effect_or_neither_happens(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn = await answered(bench, branch, "heron-7 is in rack 4")
    job = await job_for(bench, turn)
    said, at = await bench.storage.said_in(turn)
    chunks = IndexedTurn(turn, tuple((mint(), c) for one in said for c in index(one, at)))
    other = await bench.storage.claim_job(("index_turn",), mint(), 1e12, now(), turn)  # its lease ran out
    assert other is not None
    with pytest.raises(Conflict):
        await bench.storage.index_turn(chunks, now(), job, embed=True)
    assert (await bench.storage.turn(turn)).created_chunks == ()
    assert await bench.storage.index_turn(chunks, now(), other, embed=True) == 2
    assert dict(await _live_jobs(bench)) == {"embed": 1}


async def _live_jobs(bench: Bench) -> list[tuple[Any, ...]]:
    return await run(bench, "SELECT type, count(*) FROM jobs GROUP BY type")


async def test_embedding_is_asked_for_only_where_something_is_new(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn = await answered(bench, branch, "heron")
    said, at = await bench.storage.said_in(turn)
    chunks = IndexedTurn(turn, tuple((mint(), c) for one in said for c in index(one, at)))
    await bench.storage.index_turn(chunks, now(), await job_for(bench, turn), embed=False)
    assert await _live_jobs(bench) == []
    await bench.storage.index_turn(chunks, now(), None, embed=True)
    assert await _live_jobs(bench) == [], "nothing was new"


async def test_what_is_said_twice_in_a_turn_is_there_once(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn = await indexed(bench, branch, LONG + "\n\n" + LONG)
    kept = [f.chunk for f in (await bench.storage.list_chunks({"source_turn": turn}, 0, 100))[0]]
    assert len({(c.chunk_type, c.content_hash) for c in kept}) == len(kept)
    columns = "owner, session_id, branch_id, source_turn, role, start, end, summary, chunk_type, token_est, content_hash"
    with pytest.raises(apsw.ConstraintError):
        await run(bench, f"INSERT INTO chunks SELECT NULL, 'x', {columns}, speaker, asks, at, recipe FROM chunks LIMIT 1")


async def test_a_degraded_turn_is_over_and_says_why(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn = await answered(bench, branch, "odd")
    await bench.storage.index_turn(IndexedTurn(turn, (), "it could not be cut"), now(), None, embed=True)
    assert (await bench.storage.turn(turn)).indexed
    told = next(e for e in bench.published if e.type == "turn.indexed")
    assert (told.data["chunks"], told.data["degraded"]) == (0, "it could not be cut")
    assert await bench.index(turn) == 2, "once it can be cut it is"


async def test_a_failed_turn_is_indexed_as_far_as_it_came(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn = (await bench.accept(branch, "where is heron-7?")).turn_id
    step = await begun(bench, turn)
    await bench.storage.fail_turn(turn, ErrorObject(-32005, "cut", None), ended(step), "In rack fo", now())
    assert await bench.index(turn) == 2
    kept = [f.chunk for f in (await bench.storage.list_chunks({}, 0, 9))[0]]
    assert [(c.role, c.text) for c in kept] == [("user", "where is heron-7?"), ("assistant", "In rack fo")]


async def test_chunks_are_words_in_their_place(bench: Bench) -> None:
    made = await bench.session(title="Racks")
    turn = await indexed(bench, made.branch.id, LONG, "short")
    found, more = await bench.storage.list_chunks({"role": "user"}, 0, 100)
    assert more is None
    assert all(f.chunk.text in LONG for f in found)
    assert "".join("".join(f.chunk.text.split()) for f in found) == "".join(LONG.split())
    rows = await bench.storage.passages_after(0, 10_000)
    assert [row.n for row in rows] == sorted(row.n for row in rows)
    assert len({row.message for row in rows}) == 2, "one for each side"
    assert {row.turn_seq for row in rows} == {1}
    located = await bench.storage.located_chunks([row.n for row in rows][::-1])
    assert [one.found.chunk.turn_id for one in located] == [turn] * len(rows)
    for row, one in zip(rows[::-1], located, strict=True):
        passage = one.found.chunk.text[slice(*one.best)]
        assert 0 < len(passage) <= 700
        assert one.found.n == row.chunk
        assert one.title == "Racks"
    assert all(END in _terms(row.terms) for row in rows)
    assert await bench.storage.located_chunks([rows[0].n, 10**9]) == [located[-1], None]
    with pytest.raises(NotFound):
        await bench.storage.chunk("nope")


def _terms(raw: bytes) -> list[int]:
    return [int.from_bytes(raw[i : i + 4], "little") for i in range(0, len(raw), 4)]


async def test_pages_of_chunks_go_on_where_they_ended(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    for n in range(5):
        await indexed(bench, branch, f"number {n}", f"answer {n}")
    seen: list[str] = []
    after: int | None = 0
    pages = 0
    while after is not None:
        found, after = await bench.storage.list_chunks({"branch_id": branch}, after, 3)
        seen += [f.chunk.text for f in found]
        pages += 1
    assert seen == [f"{what} {n}" for n in range(5) for what in ("number", "answer")]
    assert pages == 4
    exact, more = await bench.storage.list_chunks({}, 0, 10)
    assert (len(exact), more) == (10, None)
    assert [f.chunk.text for f in (await bench.storage.list_chunks({"chunk_type": "user_context"}, 0, 9))[0]] == seen[::2]


async def test_neighbours_reach_across_a_fork_but_not_beyond_it(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turns = [await indexed(bench, branch, f"main {n}") for n in range(1, 5)]
    fork = await bench.storage.fork_branch(branch, 2, None, mint(), now())
    forked = [await indexed(bench, fork.id, f"fork {n}") for n in (3, 4)]

    async def around(turn: str, before: int, after: int) -> list[str]:
        return [m.rendered_text for _, _, m in await bench.storage.neighbours(turn, before, after) if m.role == "user"]

    assert await around(forked[0], 2, 1) == ["main 1", "main 2", "fork 3", "fork 4"]
    assert await around(forked[1], 0, 5) == ["fork 4"]
    assert await around(turns[1], 1, 2) == ["main 1", "main 2", "main 3", "main 4"]
    assert await around(turns[0], 9, 0) == ["main 1"]
    with pytest.raises(NotFound):
        await around("nope", 1, 1)


async def test_the_timeline_is_in_order_of_time_not_of_arrival(bench: Bench) -> None:
    made, other = await bench.session(), await bench.session()
    branch = made.branch.id
    turns = [await indexed(bench, branch, f"main {n}") for n in range(1, 4)]
    fork = await bench.storage.fork_branch(branch, 1, None, mint(), now())
    await indexed(bench, fork.id, "fork 2")
    await indexed(bench, other.branch.id, LONG)

    async def lines(session: str | None, branch: str | None, around: float | None = None, limit: int = 100) -> list[str]:
        found = await bench.storage.timeline(session, branch, around, limit)
        assert [line.at for line in found] == sorted(line.at for line in found)
        return [line.summary for line in found if line.role == "user"]

    assert (await lines(None, None))[:4] == ["main 1", "main 2", "main 3", "fork 2"]
    assert len(await lines(None, None)) == 5, "a message is one line, however many chunks it has"
    assert await lines(made.session.id, None) == ["main 1", "main 2", "main 3", "fork 2"]
    assert await lines(None, branch) == ["main 1", "main 2", "main 3"]
    assert await lines(None, fork.id) == ["main 1", "fork 2"]
    assert await lines(None, branch, limit=2) == ["main 3"], "the latest"
    at = await bench.storage.moment_of(turns[1])
    assert at is not None
    assert "main 2" in await lines(None, branch, at, 4)
    assert await bench.storage.moment_of("nope") is None
    chunk = (await bench.storage.turn(turns[1])).created_chunks[0]
    assert await bench.storage.moment_of(chunk) == at


async def test_indexing_again_makes_only_what_is_missing(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn = await indexed(bench, branch, LONG)
    other = await indexed(bench, branch, "heron")
    kept = (await bench.storage.turn(other)).created_chunks
    everything = [row[1] for row in await bench.storage.turns_to_index(0, 100, everything=True)]
    assert everything == [turn, other]
    assert not await bench.storage.mend_index(now())
    await run(bench, "DELETE FROM passages WHERE chunk IN (SELECT n FROM chunks WHERE source_turn = ?)", turn)
    assert [row[1] for row in await bench.storage.turns_to_index(0, 100, everything=False)] == [turn]
    assert await bench.storage.mend_index(now())
    before = await bench.storage.index_generation()
    assert await bench.index(turn) > 3
    assert await bench.storage.index_generation() > before, "whoever holds the old rows in memory must notice"
    assert await bench.index(turn) == 0
    assert (await bench.storage.turn(other)).created_chunks == kept
    assert await bench.storage.turns_to_index(0, 100, everything=False) == []


async def test_a_vector_that_is_gone_is_made_again(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    for text in ("one", "two", "three"):
        await indexed(bench, branch, text)
    rows = await bench.storage.passages_after(0, 10)
    space = await bench.storage.ensure_space("a", "local", 2, now())
    await bench.storage.add_vectors(space, [(row.n, bytes(4)) for row in rows], None, 0.0, now())
    await run(bench, "DELETE FROM passage_vectors WHERE passage = ?", rows[1].n)
    assert await bench.storage.mend_index(now())
    (space,) = await bench.storage.vector_spaces()
    assert space.done_to == rows[1].n - 1


async def test_turns_that_were_asked_again_are_left_out(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    first = (await bench.accept(branch, "hm")).turn_id
    await bench.storage.fail_turn(first, ErrorObject(-32005, "no", None), None, "", now())
    rows = await bench.storage.turns_left_out(frozenset())
    assert rows == []
    second = (await bench.accept(branch, "hm", retry_of=first)).turn_id
    await bench.finish(second)
    assert len(await bench.storage.turns_left_out(frozenset())) == 1
    assert len(await bench.storage.turns_left_out(frozenset([second, "unknown"]))) == 2


async def test_each_side_says_who_spoke_and_what_asks(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn = await indexed(bench, branch, "Is heron-7 up?", "Yes.")
    rows = await bench.storage.passages_after(0, 10)
    assert [(row.speaker, row.asks) for row in rows] == [("user", True), ("assistant", False)]
    assert [m.role for m in (await bench.storage.said_in(turn))[0]] == ["user", "assistant"]


async def test_an_answer_that_only_quotes_memory_is_not_remembered(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn = (await bench.say(branch, "Where is heron-7?", "> heron-7 is in rack 4")).turn_id  # by the embedded provider
    assert [m.role for m in (await bench.storage.said_in(turn))[0]] == ["user"]
    assert await bench.index(turn) == 1
    assert [row.speaker for row in await bench.storage.passages_after(0, 10)] == ["user"]
