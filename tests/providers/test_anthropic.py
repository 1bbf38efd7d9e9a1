"""What only Anthropic's Messages API has."""

from typing import Any

import pytest

from contextinfinity.daemon.core.transcript import Answer, TextDelta, WholeBlock
from contextinfinity.daemon.providers.anthropic import Anthropic
from contextinfinity.daemon.providers.base import Endpoint, ModelRequest, RawEvent
from contextinfinity.protocol.blocks import Unknown, message
from contextinfinity.protocol.model import Completed, Failed, Incomplete, Outcome, Paused
from tests.providers.calls import REQUEST, call

adapter = Anthropic()


def test_the_system_text_is_no_message() -> None:
    request = ModelRequest("m", "Rules.", (message("user", "a"), message("assistant", "b"), message("user", "c")), 9)
    assert adapter.body(request) == {
        "model": "m",
        "max_tokens": 9,
        "system": "Rules.",
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ],
        "stream": True,
    }


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("end_turn", Completed()),
        ("stop_sequence", Completed()),
        ("max_tokens", Incomplete("max_tokens")),
        ("pause_turn", Paused("pause_turn")),
        ("tool_use", Paused("tool_use")),
        ("refusal", Failed("refusal", "the model declined to answer")),
        ("something_new", Incomplete("something_new")),
        (None, Incomplete("the provider gave no reason for the end")),
    ],
)
def test_stop_reasons(reason: str | None, outcome: Outcome) -> None:
    answer = Answer()
    delta = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 3}}
    for effect in adapter.normalise(RawEvent("message_delta", delta)):
        answer.apply(effect)
    assert answer.outcome is None
    for effect in adapter.normalise(RawEvent("message_stop", {"type": "message_stop"})):
        answer.apply(effect)
    assert answer.outcome == outcome
    assert answer.usage == {"output_tokens": 3}


def _start(block: dict[str, Any]) -> list[Any]:
    payload = {"type": "content_block_start", "index": 2, "content_block": block}
    return list(adapter.normalise(RawEvent("content_block_start", payload)))


def test_blocks_that_arrive_whole_are_kept_raw_and_growing_ones_wait() -> None:
    hidden = {"type": "redacted_thinking", "data": "xyz"}
    assert _start(hidden) == [WholeBlock(2, Unknown("anthropic", hidden))]
    assert _start({"type": "thinking", "thinking": "", "signature": ""}) == []
    assert _start({"type": "tool_use", "id": "t", "name": "n", "input": {}}) == []
    assert _start({"type": "text", "text": ""}) == []
    assert _start({"type": "text", "text": "early"}) == [TextDelta(2, "early")]


async def test_without_a_key_the_error_says_what_to_set() -> None:
    for key in (None, "", " \n"):
        where = Endpoint("m", api_key=key, api_key_env="MY_ANTHROPIC_KEY")
        result = await call(adapter, where, REQUEST)
        assert result.error is not None
        assert result.error.data == {
            "code": "missing_key",
            "provider": "anthropic",
            "env": "MY_ANTHROPIC_KEY",
            "retryable": False,
        }
        assert "MY_ANTHROPIC_KEY" in result.error.message
        assert "ctx auth set anthropic" in result.error.message
