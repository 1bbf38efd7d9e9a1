"""Event streams cut anywhere, in every line ending, give the same events."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextinfinity.daemon.providers.sse import BrokenStream, SseReader, parse

STREAM = '\ufeff: hello\nevent: a\ndata: {"x": "é\u2028"}\n\nid: 1\ndata: one\ndata:two\n\nevent: lost\n\ndata: [DONE]\n\n'
EVENTS = [("a", '{"x": "é\u2028"}'.encode()), (None, b"one\ntwo"), (None, b"[DONE]")]


@given(st.lists(st.integers(0, 200)), st.sampled_from(["\n", "\r\n"]))
def test_cuts_and_line_endings_do_not_matter(cuts: list[int], end: str) -> None:
    stream = STREAM.replace("\n", end).encode()
    edges = [0, *sorted(min(c, len(stream)) for c in cuts), len(stream)]
    reader = SseReader()
    chunks = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert [event for chunk in chunks for event in reader.feed(chunk)] == EVENTS


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_byte_by_byte(end: str) -> None:
    reader = SseReader()
    stream = STREAM.replace("\n", end).encode()
    assert [event for i in range(len(stream)) for event in reader.feed(stream[i : i + 1])] == EVENTS


def test_an_event_without_its_blank_line_is_not_there_yet() -> None:
    reader = SseReader()
    assert list(reader.feed(b"data: 1\n")) == []
    assert list(reader.feed(b"\n")) == [(None, b"1")]


def test_a_bare_carriage_return_ends_a_line_too() -> None:
    assert list(SseReader().feed(b"data: 1\r\rdata: 2\r\n\r\n")) == [(None, b"1"), (None, b"2")]


@pytest.mark.parametrize("chunk", [b"data: " + b"x" * 50, b"data: " + b"x" * 50 + b"\n"])
def test_an_event_without_end_is_refused(chunk: bytes) -> None:
    reader = SseReader(max_event=120)
    list(reader.feed(chunk))
    list(reader.feed(chunk))
    with pytest.raises(BrokenStream):
        list(reader.feed(chunk))


def test_half_a_surrogate_pair_becomes_a_character_that_can_be_stored() -> None:
    assert parse(b'{"a": ["x\\ud83d", {"\\udc00": "\\ud83c\\udf0d"}], "n": 1}') == {
        "a": ["x\ufffd", {"\ufffd": "🌍"}],
        "n": 1,
    }


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"5", b"null", b'{"a":' * 5000, b'{"a": "\xff"}'])
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(BrokenStream):
        parse(data)


@given(st.dictionaries(st.text(), st.recursive(st.none() | st.text() | st.integers(0, 9), st.lists, max_leaves=5)))
def test_objects_survive(value: dict[str, object]) -> None:
    assert parse(json.dumps(value, ensure_ascii=False).encode()) == value
