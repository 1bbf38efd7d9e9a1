"""Framing without sockets: what comes out must not depend on how the bytes were cut."""

import tracemalloc
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contextinfinity.protocol.codec import MAX_FRAME, MAX_HEADER, BrokenFraming, FrameReader, Framing, Oversized, frame

LIMIT = 40
OVERSIZED = "oversized"
KIB, MIB = 1024, 1024 * 1024

Seen = bytes | str


def named(found: bytes | Oversized) -> Seen:
    return found if isinstance(found, bytes) else OVERSIZED


def read(chunks: Iterable[bytes], limit: int = LIMIT) -> tuple[list[Seen], Framing | None]:
    """Everything a peer that sends these chunks and then ends has said."""
    reader = FrameReader(limit)
    seen: list[Seen] = []
    try:
        for chunk in chunks:
            for found in reader.feed(chunk):
                seen.append(named(found))
    except BrokenFraming as broken:
        return [*seen, f"broken: {broken}"], reader.framing
    rest = reader.leftover()
    return [*seen, *([named(rest)] if rest else [])], reader.framing


def pieces(data: bytes, cuts: Iterable[int]) -> Iterator[bytes]:
    begin = 0
    for cut in sorted({c % (len(data) + 1) for c in cuts}):
        yield data[begin:cut]
        begin = cut
    yield data[begin:]


def headed(body: bytes) -> bytes:
    return frame(Framing.HEADERS, body)


def test_lines() -> None:
    assert read([b'{"a":1}\n[2]\r\n\n  \n {"b":2} \n']) == ([b'{"a":1}', b"[2]", b'{"b":2}'], Framing.LINES)


def test_headers() -> None:
    extra = b"content-type: application/json\r\ncontent-length:  3 \r\n\r\n[2]"
    assert read([headed(b'{"a":1}') + headed(b"") + b"C" + extra[1:] + headed(b"\n\r\n\r\n")]) == (
        [b'{"a":1}', b"", b"[2]", b"\n\r\n\r\n"],
        Framing.HEADERS,
    )


@pytest.mark.parametrize("document", [b"{}", b"[]", '["ü🌍"]'.encode()])
@pytest.mark.parametrize("framing", Framing)
def test_a_frame_is_read_back_in_its_own_framing(framing: Framing, document: bytes) -> None:
    assert read([frame(framing, document) * 3]) == ([document] * 3, framing)


@pytest.mark.parametrize(
    ("first", "framing"),
    [(b"{", Framing.LINES), (b"[", Framing.LINES), (b"C", Framing.HEADERS), (b"c", Framing.HEADERS), (b"GET", Framing.LINES)],
)
@pytest.mark.parametrize("space", [b"", b" \t", b"\r\n", b"\n\n\r\n\r\n"])
def test_the_first_byte_that_is_no_space_chooses_the_framing(space: bytes, first: bytes, framing: Framing) -> None:
    reader = FrameReader()
    assert list(reader.feed(space)) == []
    assert reader.framing is None
    assert list(reader.feed(first)) == []
    assert reader.framing is framing


def test_space_before_the_first_header_is_nothing() -> None:
    assert read([b"\r\n\r\n \n" + headed(b"{}")]) == ([b"{}"], Framing.HEADERS)


def test_a_last_line_needs_no_newline() -> None:
    assert read([b'{"a":1}\n{"b":2}']) == ([b'{"a":1}', b'{"b":2}'], Framing.LINES)
    assert read([b"{}\n \t"]) == ([b"{}"], Framing.LINES)
    assert read([]) == ([], None)


def test_a_last_header_frame_that_is_not_whole_is_no_frame() -> None:
    for cut in range(1, len(headed(b"[1,2]"))):
        assert read([headed(b"{}") + headed(b"[1,2]")[:cut]]) == ([b"{}"], Framing.HEADERS)


def test_leftover_is_given_once() -> None:
    reader = FrameReader()
    list(reader.feed(b"{}"))
    assert reader.leftover() == b"{}"
    assert reader.leftover() == b""


@pytest.mark.parametrize("size", [LIMIT + 1, LIMIT * 10])
def test_a_line_over_the_limit_is_skipped_and_the_next_one_works(size: int) -> None:
    data = b"[1]\n" + b"x" * size + b"\n[2]\n" + b"y" * size + b"\n" + b"z" * LIMIT + b"\n[3]\n"
    expected = [b"[1]", OVERSIZED, b"[2]", OVERSIZED, b"z" * LIMIT, b"[3]"]
    assert read([data]) == (expected, Framing.LINES)
    assert read(data[i : i + 7] for i in range(0, len(data), 7)) == (expected, Framing.LINES)


@pytest.mark.parametrize("size", [LIMIT + 1, LIMIT * 10])
def test_a_body_over_the_limit_is_skipped_and_the_next_one_works(size: int) -> None:
    data = headed(b"[1]") + headed(b"x" * size) + headed(b"[2]") + headed(b"y" * LIMIT) + headed(b"[3]")
    expected = [b"[1]", OVERSIZED, b"[2]", b"y" * LIMIT, b"[3]"]
    assert read([data]) == (expected, Framing.HEADERS)
    assert read(data[i : i + 7] for i in range(0, len(data), 7)) == (expected, Framing.HEADERS)


def test_a_last_line_over_the_limit_is_told_too() -> None:
    assert read([b"{}\n" + b"x" * (LIMIT + 1)]) == ([b"{}", OVERSIZED], Framing.LINES)


def test_an_oversized_frame_names_the_limit() -> None:
    (found,) = FrameReader(LIMIT).feed(b"x" * 100 + b"\n")
    assert isinstance(found, Oversized)
    assert found.limit == LIMIT
    assert MAX_FRAME == 16 * MIB


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: ten",
        b"Content-Length: -5",
        b"Content-Length: 5.0",
        b"Content-Length: +5",
        b"Content-Length: 0x10",
        b"Content-Length: \xd9\xa3",
        b"Content-Length:",
        b"Content-Length 5",
        b"Content-Length: " + b"9" * 16,
        b"Content-Type: application/json",
        b"CONNECT / HTTP/1.1",
        b"C",
    ],
)
def test_a_header_without_a_length_breaks_the_framing_after_what_came_before(head: bytes) -> None:
    seen, _ = read([headed(b"{}") + head + b"\r\n\r\n" + headed(b"[]")])
    assert seen == [b"{}", "broken: a Content-Length header with a number is needed"]


def test_a_header_that_does_not_end_breaks_the_framing() -> None:
    seen, _ = read([b"Content-Length: 2\r\nX-Long: " + b"x" * MAX_HEADER + b"\r\n\r\n{}"])
    assert seen == [f"broken: no end of the Content-Length header in {MAX_HEADER} bytes"]
    assert read([b"C" * MAX_HEADER])[0] == seen
    assert read([b"C" * (MAX_HEADER - 1)])[0] == []


def test_a_header_may_be_as_long_as_the_bound() -> None:
    head = b"Content-Length: 2\r\nX: "
    head += b"x" * (MAX_HEADER - len(head) - 4) + b"\r\n\r\n"
    assert len(head) == MAX_HEADER
    assert read([head + b"{}"]) == ([b"{}"], Framing.HEADERS)


bodies = st.binary(max_size=LIMIT + 10)
lines = bodies.map(lambda body: body.replace(b"\n", b" ") + b"\n")
noise = st.lists(st.sampled_from([b"C", b"{", b"[", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"Content-Length: 3", b"12", b"x" * 30]))
streams = st.one_of(
    st.lists(lines).map(b"".join),
    st.lists(lines, min_size=1).map(lambda found: b"".join(found)[:-1]),
    st.lists(bodies.map(headed)).map(b"".join),
    noise.map(b"".join),
    st.tuples(st.lists(bodies.map(headed)).map(b"".join), noise.map(b"".join)).map(b"".join),
    st.binary(max_size=200),
)


@settings(max_examples=1000, deadline=None)
@given(streams, st.lists(st.integers(min_value=0)))
@example(b"\r\n\r\nContent-Length: 2\r\n\r\n{}", [0])
@example(b"{}" + b" " * 60 + b"\n[]\n", [50])
@example(b" " * 60 + b"\n[]\n", [50])
@example(b"{" + b"x" * LIMIT + b"\r\n", [LIMIT + 2])
def test_frames_do_not_depend_on_how_the_bytes_arrive(data: bytes, cuts: list[int]) -> None:
    whole = read([data])
    assert read(bytes([byte]) for byte in data) == whole
    assert read(pieces(data, cuts)) == whole


@settings(deadline=None)
@given(st.lists(st.binary(max_size=LIMIT).map(lambda body: b"{" + body.replace(b"\n", b"").replace(b"\r", b"") + b"}")))
@pytest.mark.parametrize("framing", Framing)
def test_what_is_framed_is_read(framing: Framing, documents: list[bytes]) -> None:
    seen, _ = read([b"".join(frame(framing, document) for document in documents)], LIMIT + 2)
    assert seen == documents


def fill(reader: FrameReader, chunk: bytes, times: int) -> int:
    """The most memory that the reader needed while it was fed."""
    tracemalloc.start()
    try:
        for _ in range(times):
            for _ in reader.feed(chunk):
                pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("opening", "chunk"),
    [
        pytest.param(b"{", b"x" * 64 * KIB, id="a line without end"),
        pytest.param(b"Content-Length: 999999999999999\r\n\r\n", b"x" * 64 * KIB, id="a body without end"),
        pytest.param(b"", b" " * 64 * KIB, id="nothing but space"),
        pytest.param(b"{", (b"x" * 1023 + b"\n") * 64, id="many lines"),
        pytest.param(b"Content-Length: 0\r\n\r\n", headed(b"x" * 1000) * 64, id="many bodies"),
        pytest.param(b"{", (b"x" * 1023 + b"\n" * 33) * 60, id="many empty lines"),
    ],
)
def test_memory_is_bounded_by_the_limit_whatever_comes(opening: bytes, chunk: bytes) -> None:
    reader = FrameReader(MIB)
    list(reader.feed(opening))
    assert fill(reader, chunk, 64) < MIB + 8 * len(chunk)


def test_a_body_that_is_not_whole_yet_is_not_copied_again_and_again() -> None:
    reader = FrameReader(MIB)
    list(reader.feed(b"Content-Length: %d\r\n\r\n" % MIB))
    assert fill(reader, b"x" * 1024, 1023) < 3 * MIB
    (body,) = reader.feed(b"x" * 1024)
    assert body == b"x" * MIB
