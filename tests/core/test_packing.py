"""Packing: never more than the budget, the best first, cut where it answers, shown in the order it was said."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextinfinity.daemon.core.packing import LEAST_SLICE, Hit, Quoted, pack, quote
from contextinfinity.daemon.core.tokens import estimate_text
from contextinfinity.daemon.core.untrusted import Artifact, wrap

MARK = "0123456789abcdef"


def hit(
    text: str, at: str = "2024-05-08T10:00:00Z", *, best: tuple[int, int] | None = None, summary: str = "", name: str = "c",
    speaker: str = "user", score: float = 1.0, similarity: float | None = None,
) -> Hit:  # fmt: skip
    artifact = Artifact(name, f"turn-of-{name}".ljust(26, "0"), "s", "user", speaker, at, text)
    return Hit(artifact, 0, summary or text[:40], best or (0, min(len(text), 700)), score, similarity)


@st.composite
def hits(draw: st.DrawFn, *speakers: str) -> Hit:
    text = draw(st.sampled_from(["a", "word ", "漢字", "👩‍👩‍👧", "é", "\n", "x\ny "])) * draw(st.integers(1, 1500))
    start = draw(st.integers(0, len(text) - 1))
    end = draw(st.integers(start + 1, min(len(text), start + 700)))
    day = draw(st.integers(1, 28))
    return hit(
        text,
        f"2024-05-{day:02}T10:00:00Z",
        best=(start, end),
        summary=draw(st.sampled_from(["", "short", "lang " * 32, "漢" * 160])),
        name=str(draw(st.integers(0, 99))),
        speaker=draw(st.sampled_from(speakers or ("user",))),
    )


@settings(deadline=None, max_examples=300)
@given(st.lists(hits(), max_size=10), st.integers(0, 8000), st.integers(1, 8))
def test_the_budget_is_never_exceeded(found: list[Hit], budget: int, most: int) -> None:
    packed = pack(found, budget, most)
    block = wrap(MARK, packed.artifacts)
    assert len(packed.quoted) == len(packed.artifacts) <= most
    assert estimate_text(block) <= packed.tokens <= budget if packed.artifacts else packed.tokens == 0
    for one, artifact in zip(packed.quoted, packed.artifacts, strict=True):
        assert (one.form, one.end > one.start) in {("summary", False), ("whole", True), ("slice", True)}
        sources = [h for h in found if h.artifact.chunk_id == one.chunk_id]
        assert artifact.text in {quote(h.artifact.text, h.summary, one.form, one.start, one.end) for h in sources}


@settings(deadline=None, max_examples=60)
@given(st.lists(hits("user", "Ada " * 300, "漢" * 500), max_size=6), st.integers(0, 4000))
def test_nor_by_those_with_very_long_names(found: list[Hit], budget: int) -> None:
    packed = pack(found, budget, 6)
    assert estimate_text(wrap(MARK, packed.artifacts)) <= budget


@settings(deadline=None)
@given(st.lists(hits(), max_size=8))
def test_quotes_stand_in_the_order_they_were_said(found: list[Hit]) -> None:
    artifacts = pack(found, 8000, 6).artifacts
    assert [a.at for a in artifacts] == sorted(a.at for a in artifacts)


def test_the_best_are_taken_not_the_oldest() -> None:
    found = [hit(f"fact {n}", f"2024-05-{20 - n:02}T10:00:00Z", name=str(n)) for n in range(9)]
    packed = pack(found, 6000, 3)
    assert [a.text for a in packed.artifacts] == ["fact 2", "fact 1", "fact 0"]


def test_what_is_too_long_is_cut_to_the_part_that_answers() -> None:
    text = "noise " * 1000 + "heron-7 is in rack 4. " + "noise " * 1000
    at = text.index("heron-7")
    packed = pack([hit(text, best=(at, at + 21))], 400, 6)
    (one,) = packed.quoted
    assert one.form == "slice"
    assert "heron-7 is in rack 4." in packed.artifacts[0].text
    assert packed.artifacts[0].text == f"…{text[one.start : one.end]}…"
    assert len(packed.artifacts[0].text) > 200, "with something around it"


def test_a_slice_at_either_end_has_no_dots_there() -> None:
    text = "heron-7 is in rack 4. " + "noise " * 1000
    (first,) = pack([hit(text, best=(0, 21))], 300, 6).artifacts
    assert first.text.startswith("heron-7 ")
    assert first.text.endswith("…")
    text = "noise " * 1000 + "heron-7 is in rack 4."
    (last,) = pack([hit(text, best=(len(text) - 21, len(text)))], 300, 6).artifacts
    assert last.text.startswith("…")
    assert last.text.endswith("rack 4.")


def test_then_to_its_summary_then_it_is_left_out() -> None:
    text = "noise " * 1000
    found = hit(text, summary="About noise.", best=(0, 700))
    forms = {}
    for budget in range(0, 2300, 5):
        packed = pack([found], budget, 6)
        forms[budget] = packed.quoted[0].form if packed.quoted else None
    order = list(dict.fromkeys(forms.values()))
    assert order == [None, "summary", "slice", "whole"]
    assert pack([found], 175, 6).artifacts[0].text == "(summary) About noise."


def test_one_long_hit_leaves_room_for_another() -> None:
    found = [hit("first " * 400, name="1"), hit("second " * 400, name="2"), hit("short", name="3")]
    packed = pack(found, 1500, 6)
    assert {q.chunk_id for q in packed.quoted} == {"1", "2", "3"}
    assert packed.quoted[0].form == "whole"


def test_what_does_not_fit_does_not_keep_others_out() -> None:
    long = hit("x" * 30_000, best=(0, 20), summary="y" * 160, name="1")
    packed = pack([long, hit("short", name="2")], 170, 6)
    assert [q.chunk_id for q in packed.quoted] == ["2"]


@pytest.mark.parametrize("wide", ["漢", "👩‍👩‍👧", "é"])
def test_wide_characters_are_cut_between_and_not_inside(wide: str) -> None:
    text = wide * 3000
    packed = pack([hit(text, best=(1000, 1700))], 500, 6)
    (one,) = packed.quoted
    assert one.form == "slice"
    assert text[one.start : one.end] in text
    assert packed.artifacts[0].text.strip("…").encode().decode()
    assert one.end - one.start >= LEAST_SLICE


def test_nothing_costs_nothing() -> None:
    assert pack([], 6000, 6).tokens == 0
    assert pack([hit("x")], 0, 6).quoted == ()
    assert pack([hit("x")], 6000, 6).quoted == (
        Quoted("c", "turn-of-c".ljust(26, "0"), "user", 0, 1, "whole", 0, 1, 1.0, None),
    )


def test_figures_are_rounded_so_that_a_stored_quote_is_stable() -> None:
    (one,) = pack([hit("x", score=1 / 3, similarity=2 / 3)], 600, 1).quoted
    assert (one.score, one.similarity) == (0.3333, 0.6667)


def test_the_same_words_are_quoted_once_and_not_at_all_where_they_stand_already() -> None:
    found = [hit("The  server is heron-7.", name="1"), hit("the server is HERON-7.", name="2"), hit("Other.", name="3")]
    assert [q.chunk_id for q in pack(found, 2000, 6).quoted] == ["1", "3"]
    assert [q.chunk_id for q in pack(found, 2000, 6, ["As I said: the server is heron-7. Remember?"]).quoted] == ["3"]
