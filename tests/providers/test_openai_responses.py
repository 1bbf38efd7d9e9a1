"""What only OpenAI's Responses API has."""

from typing import Any

import pytest

from contextinfinity.daemon.core.transcript import Ended, TextDelta, UsageReport, WholeBlock
from contextinfinity.daemon.providers.base import Endpoint, ModelRequest, RawEvent
from contextinfinity.daemon.providers.openai_responses import OpenAIResponses
from contextinfinity.protocol.blocks import Unknown, message
from contextinfinity.protocol.model import Completed, Failed, Incomplete, Outcome, Paused
from tests.providers.calls import REQUEST, call

adapter = OpenAIResponses()


def _normalise(kind: str, **payload: Any) -> list[Any]:
    return list(adapter.normalise(RawEvent(kind, {"type": kind, **payload})))


def test_the_request_keeps_nothing_on_the_other_side() -> None:
    assert adapter.body(ModelRequest("m", "Rules.", (message("user", "a"),), 9)) == {
        "model": "m",
        "instructions": "Rules.",
        "input": [{"role": "user", "content": "a"}],
        "max_output_tokens": 16,
        "parallel_tool_calls": False,
        "store": False,
        "stream": True,
        "truncation": "disabled",
    }


@pytest.mark.parametrize(
    ("kind", "response", "outcome"),
    [
        ("completed", {"output": []}, Completed()),
        ("completed", {"output": [{"type": "function_call", "name": "f"}]}, Paused("tool_use")),
        (
            "completed",
            {"output": [{"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}]},
            Failed("refusal", "the model declined to answer"),
        ),
        ("incomplete", {"incomplete_details": {"reason": "max_output_tokens"}}, Incomplete("max_tokens")),
        ("incomplete", {"incomplete_details": {"reason": "content_filter"}}, Incomplete("content_filter")),
        ("incomplete", {"incomplete_details": None}, Incomplete("the provider gave no reason")),
        ("failed", {"error": {"code": "server_error", "message": "Oh"}}, Failed("server_error", "Oh")),
        ("failed", {"error": {"code": "rate_limit_exceeded", "message": "Eh"}}, Failed("rate_limited", "Eh")),
        ("failed", {"error": None}, Failed("server_error", "the provider gave no details")),
    ],
)
def test_terminal_events(kind: str, response: dict[str, Any], outcome: Outcome) -> None:
    usage = {"input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 2}}
    assert _normalise(f"response.{kind}", response=response) == [Ended(outcome)]
    assert _normalise(f"response.{kind}", response={**response, "usage": usage}) == [
        UsageReport({"input_tokens": 3, "output_tokens": 4, "cached_tokens": 2}),
        Ended(outcome),
    ]


def test_text_and_refusals_are_visible_and_parts_stay_apart() -> None:
    where = {"item_id": "i", "output_index": 1}
    first = _normalise("response.output_text.delta", **where, content_index=0, delta="a")
    second = _normalise("response.refusal.delta", **where, content_index=1, delta="b")
    assert first == [TextDelta(1000, "a")]
    assert second == [TextDelta(1001, "b")]


def test_items_that_arrive_whole_are_kept_raw() -> None:
    thought = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"}
    assert _normalise("response.output_item.done", output_index=0, item=thought) == [WholeBlock(0, Unknown("openai", thought))]
    assert _normalise("response.output_item.done", output_index=1, item={"type": "message", "content": []}) == []


async def test_without_a_key_the_error_says_what_to_set() -> None:
    result = await call(adapter, Endpoint("m"), REQUEST)
    assert result.error is not None
    assert result.error.data["code"] == "missing_key"
    assert result.error.data["env"] == "OPENAI_API_KEY"
    assert "ctx auth set openai" in result.error.message
