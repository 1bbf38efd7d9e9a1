"""What is written for a message: always the same, every word of it, and when and by whom it was said."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextinfinity.daemon.core.content import searchable
from contextinfinity.daemon.core.hot_index import END
from contextinfinity.daemon.core.indexing import FRONT_CHARACTERS, in_context, index, spoken
from contextinfinity.daemon.core.words import terms
from contextinfinity.protocol.blocks import Message, Text, ToolResult, ToolUse, message

AT = "2023-05-08T10:00:00Z"


def split(raw: bytes) -> tuple[list[int], list[int]]:
    numbers = np.frombuffer(raw, np.uint32).tolist()
    at = numbers.index(END)
    return numbers[:at], numbers[at + 1 :]


def test_a_passage_carries_its_speaker_and_its_date() -> None:
    said = Message("user", (Text("Where is heron-7?"),), "Where is heron-7?", "Ada", AT, None)
    (chunk,) = index(said, "2020-01-01T00:00:00Z")
    (passage,) = chunk.passages
    flow, wholes = split(passage.terms)
    assert flow == terms("Ada 8 May 2023 Where is heron-7?").flow
    assert wholes == terms("heron-7").wholes
    assert (chunk.speaker, chunk.asks, chunk.at) == ("Ada", True, 1683540000.0)
    (nameless,) = index(message("assistant", "Rack 4."), AT)
    assert (nameless.speaker, nameless.asks, nameless.at) == ("assistant", False, 1683540000.0)


@pytest.mark.parametrize(("text", "asks"), [("Really? ", True), ("本当ですか？", True), ("Why? Because.", False), ("", False)])  # noqa: RUF001
def test_what_ends_in_a_question_mark_asks(text: str, asks: bool) -> None:
    assert all(chunk.asks == asks for chunk in index(message("user", text), AT))


def test_nothing_comes_of_nothing() -> None:
    assert index(message("user", ""), AT) == ()
    assert index(message("user", " \n "), AT) == ()
    assert index(message("user", ()), AT) == ()


blocks = st.one_of(
    st.text(max_size=400).map(Text),
    st.integers(1, 2000).map(lambda n: Text("Some words about herons. " * n)),
    st.text(max_size=50).map(lambda text: ToolUse("t", "grep", {"pattern": text})),
    st.text(max_size=400).map(lambda text: ToolResult("t", (Text(text),))),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(blocks, max_size=4), st.sampled_from(["user", "assistant"]))
def test_passages_lie_in_their_chunks_and_hold_every_word(parts: list[Text], role: str) -> None:
    said = message(role, tuple(parts))  # type: ignore[arg-type]
    made = index(said, AT)
    assert index(said, AT) == made
    text = searchable(said)
    covered: set[int] = set()
    for chunk in made:
        for passage in chunk.passages:
            assert chunk.start <= passage.start < passage.end <= chunk.end
            assert split(passage.terms)[0] == terms(f"{role} 8 May 2023 {text[passage.start : passage.end]}").flow
            covered.update(terms(text[passage.start : passage.end]).flow)
    # A chunk that comes twice is there once, and a cut between two words makes no new ones.
    assert {number for word in text.split() for number in terms(word[:1]).flow if len(word) == 1} <= covered


def test_what_an_embedder_reads() -> None:
    assert spoken("Ada", 1683540000.0, "In rack 4.") == "Ada said on 8 May 2023: In rack 4."
    before = "x" * 300 + "Where is heron-7?"
    assert in_context(before, "Ada said: In rack 4.") == f"{before[-FRONT_CHARACTERS:]} Ada said: In rack 4."
    assert in_context("", "x") == " x"
