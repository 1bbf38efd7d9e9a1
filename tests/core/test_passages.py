"""Passages hold every visible character once, fit, are about equal, and end where a reader would."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextinfinity.daemon.core.passages import cut, strip

SENTENCE = "The quick brown fox jumps over the lazy dog. "

texts = st.lists(
    st.sampled_from(["word", "x" * 40, " ", "\n", "\r\n", "\t", ". ", "。", "漢字", "👩‍👩‍👧", "e\u0301", "\x1c"])
).map("".join)


@given(st.one_of(st.text(), texts), st.integers(1, 60), st.data())
def test_every_visible_character_is_in_exactly_one_passage(text: str, most: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    at = start
    for first, last in cut(text, start, end, most):
        assert not text[at:first].strip()
        assert first < last <= end
        assert last - first <= most
        assert text[first:last] == text[first:last].strip()
        at = last
    assert not text[at:end].strip()


@pytest.mark.parametrize("text", ["", " ", "\n\r\n\t", "\u3000"])
def test_nothing_comes_of_a_blank_stretch(text: str) -> None:
    assert cut(text, 0, len(text)) == ()
    assert strip(text, 0, len(text))[0] == strip(text, 0, len(text))[1]


def test_what_fits_is_one_passage_without_its_margins() -> None:
    assert cut("  hello \n", 0, 9) == ((2, 7),)


def pieces(text: str, most: int = 700) -> list[str]:
    return [text[first:last] for first, last in cut(text, 0, len(text), most)]


def test_the_cut_is_even_at_a_line_end_near_the_middle() -> None:
    lines = [SENTENCE * 2 + "and so on" for _ in range(10)]
    assert pieces("\n".join(lines)) == ["\n".join(lines[:5]), "\n".join(lines[5:])]


def test_else_at_a_sentence_end() -> None:
    got = pieces(SENTENCE * 20)
    assert len(got) == 2
    assert all(piece.endswith("dog.") for piece in got)
    assert [len(piece) // 100 for piece in pieces("漢字仮名交じり文。" * 100)] == [4, 4]


def test_else_at_a_space_even_if_that_takes_a_piece_more() -> None:
    got = pieces("word " * 279 + "word!")
    assert {word for piece in got for word in piece.split()} == {"word", "word!"}
    assert max(map(len, got)) <= 700


def test_else_just_there_and_evenly() -> None:
    got = pieces("x" * 1000)
    assert [len(piece) for piece in got] == [500, 500]


@pytest.mark.parametrize("text", ["x" * 10_000_000, "a" + " " * 10_000_000 + "b", "a b. " * 1_000_000])
def test_huge_stretches_come_to_an_end(text: str) -> None:
    got = cut(text, 0, len(text))
    assert got[0][0] == 0
    assert all(last - first <= 700 for first, last in got)
