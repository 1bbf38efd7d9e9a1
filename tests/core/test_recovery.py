"""What an interrupted step amounts to, and that the live stream is judged the same way."""

from contextinfinity.daemon.core.recovery import INTERRUPTED, judge
from contextinfinity.daemon.core.transcript import Answer, Ended, StopReason, TextDelta, UsageReport, WholeBlock
from contextinfinity.protocol.blocks import Text, Unknown
from contextinfinity.protocol.errors import ErrorObject
from contextinfinity.protocol.model import Completed, Failed, Incomplete

HELLO = [[TextDelta(0, "hel")], [TextDelta(0, "lo"), UsageReport({"output_tokens": 2})]]


def test_a_terminal_event_makes_the_answer_whole() -> None:
    verdict = judge([*HELLO, [StopReason(Completed())], [Ended()]], None)
    assert (verdict.error, verdict.outcome, verdict.answer.text()) == (None, Completed(), "hello")
    assert verdict.answer.usage == {"output_tokens": 2}


def test_an_error_line_fails_the_turn_and_keeps_the_text() -> None:
    error = ErrorObject(-32005, "overloaded", {"code": "overloaded"})
    verdict = judge(HELLO, error)
    assert (verdict.error, verdict.outcome, verdict.answer.text()) == (error, Failed("overloaded", "overloaded"), "hello")


def test_neither_means_interrupted() -> None:
    verdict = judge(HELLO, None)
    assert verdict.error == INTERRUPTED
    assert isinstance(verdict.outcome, Incomplete)
    assert verdict.answer.text() == "hello"


def test_a_stop_reason_without_the_terminal_event_is_no_end() -> None:
    assert judge([*HELLO, [StopReason(Completed())]], None).error == INTERRUPTED


def test_a_refusal_fails_with_the_providers_word() -> None:
    verdict = judge([[Ended(Failed("refusal", "no"))]], None)
    assert verdict.error is not None
    assert (verdict.error.code, verdict.error.data) == (-32005, {"code": "refusal"})


def test_an_answer_that_hit_its_length_limit_is_kept_as_an_answer() -> None:
    assert judge([*HELLO, [Ended(Incomplete("max_tokens"))]], None).error is None


def test_blocks_come_in_the_order_of_their_indices() -> None:
    answer = Answer()
    for effect in (TextDelta(2, "b"), WholeBlock(1, Unknown("p", {"type": "x"})), TextDelta(0, "a"), TextDelta(2, "c")):
        answer.apply(effect)
    assert answer.blocks() == (Text("a"), Unknown("p", {"type": "x"}), Text("bc"))
    assert answer.text() == "abc"
    assert answer.bytes == 3
