"""Terms: what is one word for search, what counts not at all, and that no text is too strange."""

import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contextinfinity.daemon.core import words
from contextinfinity.daemon.core.words import END, IRREGULAR, STOP, Terms, spelled, terms


def flow(text: str) -> list[int]:
    return terms(text).flow


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("running", "runs"),
        ("connections", "connected"),
        ("relational", "relate"),
        ("went", "go"),
        ("children", "kid"),
        ("mice", "mouse"),
        ("bought", "buying"),
        ("Wolves", "wolf"),
        ("photographed", "photographing"),
        ("pics", "photo"),
        ("db", "databases"),
        ("config", "configuration"),
        ("STRASSE", "straße"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        ("Ünïcode", "ÜNÏCODE"),
        ("HTTP", "http"),
        ("fooBar", "foo bar"),
        ("snake_case", "snake case"),
        ("Zug-Fahrt", "zug fahrt"),
        ("it’s heron’s", "heron"),  # noqa: RUF001
    ],
)
def test_these_are_one_and_the_same(one: str, other: str) -> None:
    assert flow(one) == flow(other) != []


@pytest.mark.parametrize(
    ("one", "other"),
    [("cat", "car"), ("heron-7", "heron-8"), ("v1.2", "v1.3"), ("naïve", "naive"), ("漢字", "字漢"), ("🦊", "🐺"), ("7", "8")],
)
def test_these_are_different(one: str, other: str) -> None:
    assert terms(one) != terms(other)


def test_stop_words_say_nothing() -> None:
    assert flow("What was it that the dog would have had?") == flow("dog")
    assert terms(" ".join(STOP)) == Terms([], [])
    assert terms("I don't, you can't, we're, it's") == Terms([], [])
    assert {"go", "not", "no"} & STOP == {"not", "no"}


def test_an_irregular_form_is_never_lost_to_a_stop_word() -> None:
    """`said` finds `says`, whatever else is done to a word."""
    for form, first in IRREGULAR.items():
        if not {form, first} & STOP:
            assert flow(form) == flow(first) != [], form


@pytest.mark.parametrize(
    ("text", "whole", "parts"),
    [
        ("daemon/core/words.py", "daemon/core/words.py", "daemon core words py"),
        ("see HotIndex.append now", "hotindex.append", "hot index append"),
        ("MAX_TOKENS", "max_tokens", "max tokens"),
        ("getUserName", "getusername", "get user name"),
        ("ada@example.org", "ada@example.org", "ada example org"),
        ("feature#42", "feature#42", "feature 42"),
        ("C:\\temp\\x", "c:\\temp\\x", "c temp x"),
        ("heron-7", "heron-7", "heron 7"),
        ("tokio::spawn", "tokio::spawn", "tokio spawn"),
        ("_private", "_private", "private"),
    ],
)
def test_identifiers_and_paths_are_there_whole_and_in_parts(text: str, whole: str, parts: str) -> None:
    found = terms(text)
    assert words._hashed("=" + whole) in found.wholes
    assert set(flow(parts)) <= set(found.flow)
    assert not set(found.wholes) & set(found.flow)


def test_plain_words_have_no_whole() -> None:
    assert terms("The quick brown Fox, jumps. Over 3 dogs!").wholes == []


def test_scripts_without_spaces_are_compared_by_pairs() -> None:
    assert [word for word, _ in spelled("漢字仮名")] == ["漢字", "字仮", "仮名"]
    assert [word for word, _ in spelled("字")] == ["字"]
    assert set(flow("漢字")) <= set(flow("これは漢字です"))
    assert flow("使う heron 漢字") == [*flow("使う"), *flow("heron"), *flow("漢字")]
    assert len(flow("안녕하세요")) == 4
    assert len(flow("สวัสดี")) == 5


def test_an_emoji_is_a_word_of_its_own() -> None:
    assert flow("we shipped 🚀🚀 today") == [*flow("shipped"), *flow("🚀"), *flow("🚀"), *flow("today")]
    assert flow("👩‍👩‍👧") == [*flow("👩"), *flow("👩"), *flow("👧")]
    assert flow("→") != []


def test_no_text_is_too_long_and_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MOST_CACHED", 100)
    text = " ".join(f"w{n}x" for n in range(1000))
    assert flow(text) == flow(text)
    assert len(words._known) <= 100
    assert len(set(flow(text))) == 1000
    assert len(flow("x" * 1_000_000)) == 1


anything = st.one_of(
    st.text(),
    st.text(st.characters(categories=["Cs", "Lo", "So", "Lu", "Ll", "Nd", "Pc", "Po", "Mn"])),
    st.lists(
        st.sampled_from(["fooBar", "a_b", "漢", "字", "🦊", "\ud800", "x/y.z", "İ", "ß", "don't", "went", " ", "\0", "-", "ﬁ"])
    ).map("".join),
)


@settings(deadline=None)
@given(anything)
@example("\ud800_\udfff")
@example("İ_İ")
def test_any_text_has_terms_and_none_is_the_end_mark(text: str) -> None:
    found = terms(text)
    assert terms(text) == found
    assert all(END < number < 2**32 for number in (*found.flow, *found.wholes))


@settings(deadline=None)
@given(anything)
def test_case_does_not_matter_to_what_stands_alone(text: str) -> None:
    if not words._may_be_compound.search(text):  # in identifiers, capitals begin words
        assert flow(text.casefold()) == flow(text)


@settings(deadline=None)
@given(anything)
def test_what_is_shown_as_matching_is_what_matches(text: str) -> None:
    shown = [number for _, number in spelled(text)]
    assert set(terms(text).flow) <= set(shown)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["heron", "runs", "漢字", "🦊", "a/b.c", "getName", "the", "straße", "7"]), max_size=8))
def test_a_question_and_a_document_of_the_same_words_agree(parts: list[str]) -> None:
    """Whatever stands around a word, it keeps its terms."""
    inside = terms("Before, " + " , ".join(parts) + " , after.")
    for part in parts:
        alone = terms(part)
        assert set(alone.flow) <= set(inside.flow)
        assert set(alone.wholes) <= set(inside.wholes)


@settings(deadline=None, max_examples=30)
@given(st.text(st.characters(categories=["Lu", "Ll"]), min_size=1, max_size=8))
def test_composed_letters_are_whole_words(text: str) -> None:
    composed = unicodedata.normalize("NFC", text)
    assert len(flow(composed.casefold())) <= len(composed.casefold())
