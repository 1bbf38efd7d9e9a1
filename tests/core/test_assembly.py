"""Assembly: a stable order, whole turns only, and never more than the model takes."""

from hypothesis import given
from hypothesis import strategies as st

from contextinfinity.daemon.core.assembly import Piece, Reserves, assemble, entry, original_words, prompt_messages, usage
from contextinfinity.daemon.core.limits import Limits, limits_for
from contextinfinity.protocol.blocks import message
from contextinfinity.protocol.errors import ContextTooLarge, ErrorObject
from contextinfinity.protocol.model import Turn

RESERVES = Reserves(100, 50, 5000)
LIMITS = Limits(10_000, 1000, "test")


def _piece(seq: int, words: int) -> Piece:
    entries = tuple(_entry(role, f"{role} {seq} " * words) for role in ("user", "assistant"))
    return Piece(str(seq), seq, entries, sum(e.tokens for e in entries), True)


def _entry(role: str, text: str):  # type: ignore[no-untyped-def]
    return entry(message(role, text), text.encode())  # type: ignore[arg-type]


def _turn(**values: object) -> Turn:
    base: dict[str, object] = {
        "id": "t", "session_id": "s", "branch_id": "b", "turn_seq": 1, "phase": "failed", "indexed": False,
        "user_message": message("user", "please  do\nthis " * 20), "state_before": "x", "steps": (), "retrieved": (),
        "created_chunks": (), "error": ErrorObject(-32005, "no", None), "model": "m",
        "created_at": "2026-01-01T00:00:00.000Z", "updated_at": "",
    }  # fmt: skip
    return Turn(**(base | values))  # type: ignore[arg-type]


@given(
    words=st.lists(st.integers(1, 400), max_size=30),
    new=st.integers(1, 4000),
    pins=st.lists(st.text(max_size=300), max_size=5),
    window=st.integers(200, 20_000),
    working=st.integers(1, 20_000),
)
def test_it_fits_or_names_what_to_change(words: list[int], new: int, pins: list[str], window: int, working: int) -> None:
    pieces = [_piece(i, n) for i, n in enumerate(words)]
    limits, reserves = Limits(window, 1000, "test"), Reserves(100, 50, working)
    try:
        made = assemble("system", pins, pieces, _entry("user", "w " * new), limits, reserves)
    except ContextTooLarge as error:
        assert error.data["required"] > error.data["budget"]
        assert error.data["suggestions"]
        return
    assert made.usage.used <= made.usage.budget == max(0, window - 100 - 50)
    assert list(made.pieces) == pieces[len(pieces) - len(made.pieces) :], "the newest turns, whole and in order"
    if made.pieces:
        assert made.usage.used <= working
    assert all(pin in made.system for pin in pins)
    assert made.max_output_tokens == 100


def test_the_prefix_does_not_change_when_only_the_new_message_does() -> None:
    pieces = [_piece(i, 3) for i in range(4)]
    first = assemble("s", ["p"], pieces, _entry("user", "one"), LIMITS, RESERVES)
    second = assemble("s", ["p"], pieces, _entry("user", "two"), LIMITS, RESERVES)
    third = assemble("s", ["p"], pieces[1:], _entry("user", "two"), LIMITS, RESERVES)
    assert first.prefix_hash == second.prefix_hash != third.prefix_hash


def test_a_partial_answer_is_labelled_incomplete() -> None:
    said = prompt_messages(_turn(partial_text="half", incomplete=True, error=ErrorObject(-32005, "it was cut", None)))
    assert [m.role for m in said] == ["user", "assistant"]
    assert "incomplete: it was cut" in said[1].rendered_text
    assert said[1].rendered_text.endswith("half")
    assert [original_words(m.rendered_text) for m in said] == [said[0].rendered_text, "half"], "the label is ours"


def test_a_message_that_was_never_answered_is_one_short_line() -> None:
    (line,) = prompt_messages(_turn())
    assert line.role == "user"
    assert "\n" not in line.rendered_text
    assert len(line.rendered_text) < 150
    assert "please do this" in line.rendered_text
    assert original_words(line.rendered_text).startswith("please do this please")
    assert "]" not in original_words(line.rendered_text)


def test_usage_reads_like_a_gauge() -> None:
    assert usage(2100, 200_000).text == "2.1k / 200k (1%)"
    assert usage(50_000, 200_000).text == "50k / 200k (25%)"
    assert [usage(n, 100).severity for n in (69, 70, 90, 91)] == [0, 1, 1, 2]


def test_limits_by_longest_prefix_override_and_fallback() -> None:
    assert limits_for("claude-opus-4-5-20251101", None, None) == Limits(200_000, 64_000, "prefix claude-opus-4-5")
    assert limits_for("gpt-5.2-mini", None, None) == Limits(400_000, 128_000, "prefix gpt-5.2")
    assert limits_for("llama3", None, None) == Limits(8_192, 4_096, "fallback")
    assert limits_for("llama3", 32_768, None) == Limits(32_768, 4_096, "override")
    assert limits_for("gpt-5.2", None, 999_999_999).max_output == 400_000
