"""Ranking: the recipe's sum, what it may be limited to and weighed by, and what of it belongs into a prompt."""

import time
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextinfinity.daemon.core.hot_index import Floats, HotIndex, Passage, pack
from contextinfinity.daemon.core.ranking import (
    CONTEXT_WEIGHT,
    DATED,
    MOST_TERMS,
    NAMED,
    Mode,
    Question,
    Ranked,
    Ranking,
    Wanted,
    diverse,
    is_follow_up,
    question,
    rank,
    relevant,
)
from contextinfinity.daemon.core.scoring import Term
from contextinfinity.daemon.core.when import Span
from contextinfinity.daemon.core.words import terms
from tests.core.test_scoring import DIM, Asked, put, questions, stores, vectors_for
from tests.support import scores as slow

DAY = 86_400.0
FAR = 100 * DAY


def store(*texts: str, **values: list[object]) -> HotIndex:
    """Each text a message of a sitting of its own."""
    rows = []
    for n, text in enumerate(texts, 1):
        own = {name: each[n - 1] for name, each in values.items()}
        base: dict[str, object] = {
            "n": n, "chunk": n, "message": n, "session": "s", "branch": "b", "turn_seq": n, "at": n * DAY,
            "speaker": "user", "asks": text.endswith("?"), "chunk_type": "explanation", "terms": pack(text),
        }  # fmt: skip
        rows.append(Passage(**(base | own)))  # type: ignore[arg-type]
    index = HotIndex(3)
    index.append(rows)
    return index


def found(index: HotIndex, text: str, vector: Floats | None = None, most: int = 10, **wanted: object) -> list[Ranked]:
    rules = Wanted(**wanted)  # type: ignore[arg-type]
    return rank(index, index.everything(), question(index, text), vector, rules, most).best


def numbers(index: HotIndex, ranked: list[Ranked]) -> list[int]:
    return [int(index.numbers.values[r.position]) for r in ranked]


def by_number(index: HotIndex, ranked: list[Ranked]) -> dict[int, Ranked]:
    return dict(zip(numbers(index, ranked), ranked, strict=True))


def unit(*values: float) -> Floats:
    made = np.array(values, np.float32)
    return made / np.float32(np.linalg.norm(made))


VECTORS = {1: unit(1, 0, 0), 2: unit(0, 1, 0), 3: unit(0, 0, 1), 4: unit(1, 1, 0)}


def embed(index: HotIndex, vectors: Mapping[int, Floats] = VECTORS) -> None:
    known = [n for n in vectors if n <= len(index)]
    index.put_vectors(known, np.array([vectors[n] for n in known]))


def asked_for(asked: Asked) -> Question:
    return Question(tuple(Term(*t) for t in asked[0]), tuple(Term(*t) for t in asked[1]))


@settings(deadline=None, max_examples=120)
@given(stores(), questions, st.integers(0, 9999), st.booleans(), st.booleans())
def test_the_sum_is_that_of_the_recipe(rows: list[Passage], asked: Asked, seed: int, near: bool, more: bool) -> None:
    index = HotIndex(DIM)
    index.append(rows)
    vectors = vectors_for(rows, seed, 1.0)
    put(index, vectors)
    near = near and len(rows) > 2
    query = vectors_for(rows[:1], seed + 1, 1.0)[rows[0].n]
    dates = (Span(0.0, 3600.0),) if more else ()
    rules = Wanted(now=7200.0, recency=0.1 if more else 0.0)
    of = msgspec.structs.replace(asked_for(asked), dates=dates)
    made = rank(index, index.everything(), of, query if near else None, rules, 100)
    ranked = made.best
    docs = slow.docs(rows)
    words = slow.lexical(docs, *asked)
    meant = slow.dense(docs, vectors, query) if near else None
    expected = slow.fused(docs, words, meant, dates=dates, now=7200.0, recency=rules.recency)
    eligible = set(expected) if near else {m for m, score in words.messages.items() if score > 0}
    got = {int(index.messages.values[r.position]): r.score for r in ranked}
    assert got == pytest.approx({m: expected[m] for m in eligible}, rel=2e-3, abs=2e-3)
    assert made.answering == len(eligible)
    assert [r.score for r in ranked] == sorted((r.score for r in ranked), reverse=True)


def test_three_modes() -> None:
    index = store("heron in the reeds", "cheese and olives", "heron heron")
    embed(index)
    near_cheese = unit(0, 1, 0.1)
    assert set(numbers(index, found(index, "heron", None))) == {1, 3}
    by_words = found(index, "heron", near_cheese, mode="text")
    assert set(numbers(index, by_words)) == {1, 3}
    assert {(r.score_vector, r.similarity, r.rank_vector) for r in by_words} == {(None, None, None)}
    by_meaning = found(index, "heron", near_cheese, mode="vector")
    assert numbers(index, by_meaning)[0] == 2
    assert len(by_meaning) == 3
    both = found(index, "heron", near_cheese)
    cheese = by_number(index, both)[2]
    assert (cheese.rank_text, cheese.rank_vector) == (None, 1)
    assert sorted(r.rank_vector or 0 for r in both) == [1, 2, 3]
    assert sorted(r.rank_text for r in both if r.rank_text) == [1, 2]


def test_without_a_vector_the_hybrid_is_the_words() -> None:
    index = store("the heron is grey", "a heron", "cheese")
    assert found(index, "heron", None, mode="hybrid") == found(index, "heron", None, mode="text")


@pytest.mark.parametrize("vector", [None, unit(1, 0, 0)])
def test_an_empty_scope_and_an_empty_store(vector: Floats | None) -> None:
    assert found(HotIndex(3), "heron", vector) == []
    index = store("heron")
    nobody = index.chosen(np.array([False]))
    assert rank(index, nobody, question(index, "heron"), vector, Wanted(), 5) == Ranking()


def test_a_question_of_stop_words_finds_nothing_by_words_and_something_by_meaning() -> None:
    index = store("what was it", "heron")
    embed(index)
    assert found(index, "what was it?", None) == []
    ranked = found(index, "what was it?", unit(0, 1, 0))
    assert numbers(index, ranked) == [2, 1]
    assert [r.rank_text for r in ranked] == [None, None]
    assert [r.coverage for r in ranked] == [0, 0]


def test_what_may_not_be_found_still_lends_its_words() -> None:
    index = store("the heron stands in rack 4", "yes, that one", at=[0.0, 60.0])
    allowed = np.array([False, True])
    ranked = found(index, "heron", None, allowed=allowed)
    assert numbers(index, ranked) == [2]
    assert ranked[0].score_text > 0
    assert ranked[0].coverage == 0, "it holds none of it itself"
    assert found(index, "heron", None, allowed=np.array([False, False])) == []


def test_ranks_count_only_what_may_be_found() -> None:
    index = store("heron heron heron", "heron heron", "heron", "heron")
    ranked = found(index, "heron", None, allowed=np.array([False, True, True, True]))
    assert [r.rank_text for r in ranked] == [1, 2, 2], "and equals share a rank"


def test_who_is_named_and_when_it_was_counts_and_is_said() -> None:
    index = store(
        "the heron is grey", "the heron is grey", "the heron is grey", speaker=["Ada", "Ben", "user"], at=[0.0, FAR, 2 * FAR]
    )
    plain = by_number(index, found(index, "heron grey"))
    named = found(index, "what did ada say of the grey heron?")
    assert numbers(index, named)[0] == 1
    assert named[0].reasons == ("said by somebody you name",)
    assert all(not r.reasons for r in named[1:])
    span = Span(FAR - DAY, FAR + DAY)
    rules = Wanted()
    dated = rank(index, index.everything(), question(index, "heron grey", dates=(span,)), None, rules, 5).best
    assert numbers(index, dated)[0] == 2
    assert dated[0].reasons == ("of the time you name",)
    assert dated[0].score == pytest.approx(plain[2].score + DATED)
    assert NAMED > 0


def test_a_question_is_a_worse_answer_than_a_statement() -> None:
    index = store("is the heron grey?", "the heron is grey")
    assert numbers(index, found(index, "grey heron")) == [2, 1]


def test_recency_prefers_the_newer_and_only_if_wanted() -> None:
    now = 200 * DAY
    index = store("the heron is grey", "the heron is grey", at=[now - 60 * DAY, now - DAY])
    old, new = sorted(found(index, "heron", now=now), key=lambda r: r.position)
    assert old.score == pytest.approx(new.score)
    old, new = sorted(found(index, "heron", now=now, recency=0.1), key=lambda r: r.position)
    assert new.score - old.score == pytest.approx(0.4 * (0.5 ** (1 / 30) - 0.5**2), abs=1e-6)
    future = found(index, "heron", now=0.0, recency=1.0)
    assert all(np.isfinite(r.score) for r in future)


def test_what_was_demoted_comes_later() -> None:
    index = store("the heron is grey", "the heron is grey", "the heron is grey")
    ranked = found(index, "grey heron", demoted={1: 0.5, 2: 7.0})
    assert numbers(index, ranked) == [3, 1, 2]
    assert ranked[1].score == pytest.approx(ranked[0].score / 2)
    assert ranked[2].score == pytest.approx(0)


def test_a_message_is_shown_by_its_best_passage() -> None:
    rows = ["cheese and olives " * 20, "the heron stands in rack 4", "bread and soup " * 20]
    index = store(*rows, message=[1, 1, 1], at=[0.0, 0.0, 0.0])
    (only,) = found(index, "heron rack")
    assert only.position == 1
    embed(index, {1: unit(1, 0, 0), 2: unit(0, 1, 0), 3: unit(0, 0, 1)})
    (only,) = found(index, "nothing shared", unit(0, 0.1, 1))
    assert only.position == 2


def test_no_more_than_wanted() -> None:
    index = store(*(f"heron {n}" for n in range(30)))
    assert len(found(index, "heron", most=7)) == 7


# questions


def test_words_of_the_context_count_less_and_only_a_short_question_needs_them() -> None:
    index = store("heron rack", "egret nest")
    short = question(index, "and the egret?", "we spoke of herons")
    assert {t.weight for t in short.flow} == {1.0, CONTEXT_WEIGHT}
    assert {t.weight for t in question(index, "and the egret?").flow} == {1.0}
    assert is_follow_up("and the egret?")
    assert is_follow_up("")
    assert not is_follow_up("where does the grey egret build nests in spring")
    assert not is_follow_up("a " * 20_000)
    assert numbers(index, rank(index, index.everything(), short, None, Wanted(), 5).best)[0] == 2


def test_a_page_that_was_pasted_is_asked_for_by_its_rarest_words() -> None:
    index = store(*(f"common word number {n}" for n in range(50)), "the heron stands in rack 4")
    page = " ".join(f"w{n}x{n}" for n in range(20_000)) + " common word"
    page = "heron rack common word " + page
    assert len(page) > 100_000
    begun = time.perf_counter()
    asked = question(index, page)
    kept = {t.number for t in (*asked.flow, *asked.wholes)}
    assert 0 < len(kept) <= MOST_TERMS
    assert set(terms("heron rack").flow) <= kept, "what stands anywhere comes before what stands nowhere"
    ranked = rank(index, index.everything(), asked, None, Wanted(), 5).best
    assert numbers(index, ranked)[0] == 51
    assert time.perf_counter() - begun < 5

    def many(count: int) -> set[int]:
        wide = store(*(f"a{n}b" for n in range(count)))
        return {t.number for t in question(wide, " ".join(f"a{n}b" for n in range(count))).flow}

    assert len(many(MOST_TERMS)) == MOST_TERMS
    assert len(many(MOST_TERMS * 3)) == MOST_TERMS


SYNTAX = ["", " ", '"', "'", "AND OR NOT", "a* NEAR(b)", "col:x -y +z ^w ~v (", "SELECT * FROM x; --", "%_\\", "NULL"]
STRANGE = [
    "\0",
    "\ud800",
    "漢字",
    "漢",
    "🦊🦊",
    "👩‍👩‍👧",
    "def f(x): return x",
    "../../etc/passwd",
    "\n\n",
    "é" * 5000,
    "?" * 5000,
    "İ",
]


@pytest.mark.parametrize("text", [*SYNTAX, *STRANGE])
@pytest.mark.parametrize("mode", ["hybrid", "vector", "text"])
def test_any_text_is_a_question(text: str, mode: Mode) -> None:
    index = store("the heron", text, "漢字仮名交じり文", "def f(x):\n    return x", "🦊 fox")
    embed(index)
    for vector in (None, unit(1, 1, 1)):
        ranked = found(index, text, vector, mode=mode)
        assert all(np.isfinite(r.score) for r in ranked)
        assert question(index, text, text).dates == ()


@pytest.mark.parametrize(
    "text", ["漢字", "🦊", "def f(x)", "daemon/core/words.py", "getUserName", '"exact words"', "MAX_TOKENS"]
)
def test_what_is_odd_is_found_where_it_was_said(text: str) -> None:
    index = store("the heron", f"I said {text} then", "something else")
    assert numbers(index, found(index, text))[:1] == [2]


# prompts


def ranked(position: int, score: float, similarity: float | None = None, coverage: float = 0.0) -> Ranked:
    return Ranked(position, score, score, None, similarity, 1, None, coverage, ())


def test_into_a_prompt_belongs_what_is_near_or_holds_the_rare_words() -> None:
    near, far, held, hardly = ranked(0, 1, 0.7), ranked(1, 9, 0.69), ranked(2, 1, None, 0.5), ranked(3, 1, 0.1, 0.49)
    assert relevant([near, far, held, hardly], 0.7) == [near, held]
    assert relevant([far], -1.0) == [far]
    assert relevant([], 0.5) == []


def test_coverage_is_the_share_of_rarity_that_a_message_holds_itself() -> None:
    index = store("heron rack", "heron", "cheese", "bread")
    held = by_number(index, found(index, "heron rack"))
    assert held[1].coverage == pytest.approx(1.0)
    assert 0 < held[2].coverage < 1
    missing = found(index, "heron rack submarine periscope")
    assert all(r.coverage < 0.75 for r in missing), "words that nobody ever said count too"


def test_the_next_one_is_good_and_unlike_those_before_it() -> None:
    index = store("heron grey rack", "heron grey rack", "egret white nest", "cheese")
    order = [ranked(0, 1.0), ranked(1, 0.99), ranked(2, 0.9), ranked(3, 0.0)]
    assert [r.position for r in diverse(index, order, 4)] == [0, 2, 1, 3]
    assert [r.position for r in diverse(index, order, 2)] == [0, 2]
    assert diverse(index, [], 3) == []
    assert diverse(index, order[:1], 3) == order[:1]
    equal = [ranked(p, 1.0) for p in range(4)]
    assert len(diverse(index, equal, 9)) == 4


def test_likeness_is_by_vector_where_both_have_one() -> None:
    index = store("heron grey rack", "egret white nest", "heron grey rack", "cheese")
    embed(index, {1: unit(1, 0, 0), 2: unit(1, 0.01, 0)})
    order = [ranked(0, 1.0), ranked(1, 0.99), ranked(3, 0.95), ranked(2, 0.0)]
    assert [r.position for r in diverse(index, order, 4)] == [0, 3, 1, 2]
    order = [ranked(0, 1.0), ranked(2, 0.99), ranked(3, 0.95), ranked(1, 0.0)]
    assert [r.position for r in diverse(index, order, 4)] == [0, 3, 2, 1], "the third has none: by its words"


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-5, 5), max_size=8), st.integers(1, 10))
def test_diverse_is_a_choice_that_begins_with_the_best(scores: list[float], most: int) -> None:
    index = store(*(f"heron {n}" for n in range(8)))
    order = [ranked(n, score) for n, score in enumerate(sorted(scores, reverse=True))]
    chosen = diverse(index, order, most)
    assert len(chosen) == min(most, len(order))
    assert len({r.position for r in chosen}) == len(chosen)
    assert chosen[:1] == order[:1]
