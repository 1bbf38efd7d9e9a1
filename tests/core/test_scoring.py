"""The fast scores against slow ones: the same recipe written twice must say the same of any small store."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextinfinity.daemon.core import hot_index
from contextinfinity.daemon.core.hot_index import Floats, HotIndex, Passage, Scope
from contextinfinity.daemon.core.scoring import Term, best_of_messages, dense, lexical
from contextinfinity.daemon.core.words import END
from tests.support import scores as slow

DIM = 6
HOUR = 3600.0


def passage(n: int, message: int, flow: Sequence[int], wholes: Sequence[int] = (), **values: object) -> Passage:
    base: dict[str, object] = {
        "n": n, "chunk": n, "message": message, "session": "s", "branch": "b", "turn_seq": message, "at": 0.0,
        "speaker": "user", "asks": False, "chunk_type": "explanation",
        "terms": np.array([*flow, END, *wholes], np.uint32).tobytes(),
    }  # fmt: skip
    return Passage(**(base | values))  # type: ignore[arg-type]


@st.composite
def stores(draw: st.DrawFn) -> list[Passage]:
    """A few branches with sittings of short and long messages over a small vocabulary, so that words meet."""
    rows: list[Passage] = []
    clock = 0.0
    for message in range(1, draw(st.integers(1, 9)) + 1):
        branch = draw(st.sampled_from("ab"))
        clock += draw(st.sampled_from([0.0, 60.0, 2.9 * HOUR, 3.1 * HOUR, -4 * HOUR]))
        speaker, asks = draw(st.sampled_from(["user", "Ada"])), draw(st.booleans())
        for _ in range(draw(st.integers(1, 3))):
            flow = draw(st.lists(st.integers(1, 6), max_size=14))
            if draw(st.integers(0, 4)) == 0:
                flow = flow * 8
            wholes = draw(st.lists(st.integers(100, 102), max_size=2))
            rows.append(passage(len(rows) + 1, message, flow, wholes, branch=branch, at=clock, speaker=speaker, asks=asks))
    return rows


questions = st.tuples(
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from([1.0, 0.3])), max_size=6),
    st.lists(st.tuples(st.integers(100, 103), st.sampled_from([1.0, 0.3])), max_size=2),
)
Asked = tuple[list[tuple[int, float]], list[tuple[int, float]]]


def filled(rows: Sequence[Passage], width: int | None = None) -> HotIndex:
    index = HotIndex(width)
    index.append(rows)
    return index


def fast(index: HotIndex, scope: Scope, asked: Asked) -> slow.Scores:
    """What the code says, by numbers instead of positions."""
    found = lexical(index, scope, [Term(*t) for t in asked[0]], [Term(*t) for t in asked[1]])
    numbers = index.numbers.values[scope.members].tolist()
    messages = index.messages.values[scope.members][scope.message_starts].tolist()
    sittings = index.sittings.values[scope.members][scope.sitting_starts].tolist()
    return slow.Scores(
        dict(zip(numbers, found.passages.tolist(), strict=True)),
        dict(zip(numbers, found.coverage.tolist(), strict=True)),
        dict(zip(sittings, found.sittings.tolist(), strict=True)),
        dict(zip(messages, best_of_messages(scope, found.passages).tolist(), strict=True)),
        dict(zip(messages, found.messages.tolist(), strict=True)),
    )


def same(one: slow.Scores, other: slow.Scores) -> None:
    for name in ("passages", "coverage", "sittings", "messages", "whole"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-5, abs=1e-5), name


@settings(deadline=None, max_examples=150)
@given(stores(), questions)
def test_words_score_as_the_recipe_says(rows: list[Passage], asked: Asked) -> None:
    index = filled(rows)
    same(fast(index, index.everything(), asked), slow.lexical(slow.docs(rows), *asked))


@settings(deadline=None, max_examples=100)
@given(stores(), questions, st.data())
def test_a_scope_scores_as_if_nothing_else_were_there(rows: list[Passage], asked: Asked, data: st.DataObject) -> None:
    """By whole messages, as scopes are; sittings and lengths of messages stay those of the store."""
    wanted = data.draw(st.sets(st.integers(1, 9)))
    mask = np.array([row.message in wanted for row in rows])
    index = filled(rows)
    scope = index.chosen(mask)
    assert index.numbers.values[scope.members].tolist() == [
        doc.row.n for doc in slow.in_order([d for d in slow.docs(rows) if d.row.message in wanted])
    ]
    if mask.any():
        same(fast(index, scope, asked), slow.lexical([d for d in slow.docs(rows) if d.row.message in wanted], *asked))


@settings(deadline=None, max_examples=60)
@given(stores(), questions, st.sampled_from("ab"))
def test_a_branch_alone_scores_like_a_store_of_that_branch(rows: list[Passage], asked: Asked, branch: str) -> None:
    own = [row for row in rows if row.branch == branch]
    if own:
        index, alone = filled(rows), filled(own)
        scope = index.chosen(np.array([row.branch == branch for row in rows]))
        one, other = fast(index, scope, asked), fast(alone, alone.everything(), asked)
        one.sittings = dict(enumerate(one.sittings.values()))
        other.sittings = dict(enumerate(other.sittings.values()))
        same(one, other)


@settings(deadline=None, max_examples=60)
@given(stores(), questions, st.data())
def test_it_does_not_matter_in_how_many_pieces_a_store_was_read(rows: list[Passage], asked: Asked, data: st.DataObject) -> None:
    """Storage is read page by page, and a page may end inside a message."""
    cut = data.draw(st.integers(0, len(rows)))
    index = HotIndex()
    index.append(rows[:cut])
    index.occurrences(1)
    index.everything()
    index.append(rows[cut:])
    whole = filled(rows)
    same(fast(index, index.everything(), asked), fast(whole, whole.everything(), asked))


@settings(deadline=None, max_examples=40)
@given(stores(), questions, st.integers(0, 20))
def test_what_is_sorted_and_what_is_still_a_tail_count_alike(rows: list[Passage], asked: Asked, cut: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hot_index, "MOST_TAIL", 0)
        patched.setattr(hot_index, "TAIL_SHARE", 0.0)
        index = filled(rows[:cut])
        index.occurrences(1)
        assert len(index._sorted[1]) == index._tokens.size, "this part is sorted now"
    index.append(rows[cut:])
    found = {term: index.occurrences(term).tolist() for term in range(1, 9)}
    whole = filled(rows)
    assert found == {term: whole.occurrences(term).tolist() for term in range(1, 9)}
    assert len(index._sorted[1]) == sum(len(row.terms) // 4 + 1 for row in rows[:cut]), "the rest is still a tail"


def vectors_for(rows: Sequence[Passage], seed: int, share: float) -> dict[int, Floats]:
    rng = np.random.default_rng(seed)
    made: dict[int, Floats] = {}
    for row in rows:
        v = rng.normal(size=DIM)
        if rng.random() < share:
            made[row.n] = (v / np.linalg.norm(v)).astype(np.float32)
    return made


def put(index: HotIndex, vectors: Mapping[int, Floats]) -> None:
    if vectors:
        index.put_vectors(list(vectors), np.array(list(vectors.values()), np.float32))


@settings(deadline=None, max_examples=120)
@given(stores(), st.integers(0, 10_000), st.sampled_from([1.0, 0.7]), st.data())
def test_vectors_score_as_the_recipe_says(rows: list[Passage], seed: int, share: float, data: st.DataObject) -> None:
    vectors = vectors_for(rows, seed, share)
    if len(vectors) < 3:  # with fewer there is no direction that could stand out
        return
    wanted = data.draw(st.sets(st.integers(1, 9), min_size=1))
    mask = np.array([row.message in wanted for row in rows])
    if not mask.any():
        return
    query = vectors_for([rows[0]], seed + 1, 1.0)[rows[0].n]
    index = filled(rows, DIM)
    put(index, vectors)
    scope = index.chosen(mask)
    found = dense(index, scope, query)
    expected = slow.dense([d for d in slow.docs(rows) if d.row.message in wanted], vectors, query)
    messages = index.messages.values[scope.members][scope.message_starts].tolist()
    sittings = index.sittings.values[scope.members][scope.sitting_starts].tolist()
    close = {"rel": 2e-3, "abs": 2e-3}  # float32 sums, divided by a small spread
    assert dict(zip(messages, found.similarity.tolist(), strict=True)) == pytest.approx(expected.similarity, rel=1e-5, abs=1e-5)
    assert dict(zip(messages, found.messages.tolist(), strict=True)) == pytest.approx(expected.messages, **close)
    assert dict(zip(sittings, found.sittings.tolist(), strict=True)) == pytest.approx(expected.sittings, **close)


def test_an_empty_scope_has_no_scores() -> None:
    index = filled([passage(1, 1, [1, 2])])
    scope = index.chosen(np.array([False]))
    found = lexical(index, scope, [Term(1)], [])
    assert (found.passages.size, found.sittings.size, found.coverage.size) == (0, 0, 0)


def test_a_short_message_is_found_through_the_one_before_it_but_not_across_a_gap() -> None:
    rows = [passage(1, 1, [1] * 3, at=0.0), passage(2, 2, [2], at=60.0), passage(3, 3, [2], at=60.0 + 4 * HOUR)]
    index = filled(rows)
    found = lexical(index, index.everything(), [Term(1)], []).passages
    assert found[0] > found[1] > 0 == found[2]


def test_adjacent_words_count_more_than_scattered_ones() -> None:
    rows = [passage(1, 1, [1, 2, 9, 9], branch="a"), passage(2, 2, [1, 9, 2, 9], branch="b")]
    index = filled(rows)
    found = lexical(index, index.everything(), [Term(1), Term(2)], []).passages
    assert found[0] > found[1] > 0


def test_words_of_two_passages_are_never_adjacent() -> None:
    rows = [passage(1, 1, [9, 1], [100]), passage(2, 2, [2, 9])]
    index = filled(rows)
    apart = lexical(index, index.everything(), [Term(1), Term(2)], []).passages
    single = (
        lexical(index, index.everything(), [Term(1)], []).passages + lexical(index, index.everything(), [Term(2)], []).passages
    )
    np.testing.assert_allclose(apart, single)


def test_what_has_no_vector_stands_out_in_neither_direction() -> None:
    rows = [passage(n, n, [1]) for n in range(1, 6)]
    index = filled(rows, DIM)
    put(index, {n: v for n, v in vectors_for(rows, 1, 1.0).items() if n != 3})
    found = dense(index, index.everything(), np.ones(DIM, np.float32) / np.float32(np.sqrt(DIM)))
    assert found.similarity[2] == -1
    assert found.messages[2] == found.passages[2] == 0.0
    assert np.isfinite(found.messages).all()
    assert np.isfinite(found.passages).all()


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_equal_vectors_and_hardly_any_are_no_accident(count: int) -> None:
    """Nothing stands out among equals, whatever the rounding."""
    rows = [passage(n, n, [1]) for n in range(1, 6)]
    index = filled(rows, DIM)
    same_one = vectors_for(rows[:1], 3, 1.0)[1]
    put(index, dict.fromkeys(range(1, count + 1), same_one))
    query = vectors_for(rows[:1], 4, 1.0)[1]
    found = dense(index, index.everything(), query)
    assert found.messages.tolist() == pytest.approx([0.0] * 5, abs=1e-6)
