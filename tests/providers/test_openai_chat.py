"""What only Chat Completions and the local servers that speak it have."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from contextinfinity.daemon.core.transcript import Ended, StopReason, TextDelta, UsageReport
from contextinfinity.daemon.providers.base import Endpoint, ModelRequest, RawEvent
from contextinfinity.daemon.providers.openai_chat import CHUNK, DONE, OpenAIChat
from contextinfinity.protocol.blocks import message
from contextinfinity.protocol.model import Completed, Failed, Incomplete, Outcome, Paused
from tests.providers.calls import REQUEST, call, endpoint
from tests.support.provider_server import ProviderServer, Reply


@pytest.fixture
async def chat() -> AsyncIterator[OpenAIChat]:
    adapter = OpenAIChat()
    yield adapter
    await adapter.aclose()


def _chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> list[Any]:
    payload = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}
    return list(OpenAIChat().normalise(RawEvent(CHUNK, payload)))


def test_the_system_text_is_the_first_message() -> None:
    assert OpenAIChat().body(ModelRequest("m", "Rules.", (message("user", "a"),), 9)) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Rules."}, {"role": "user", "content": "a"}],
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_a_local_server_needs_no_key(server: ProviderServer, chat: OpenAIChat) -> None:
    result = await call(chat, endpoint(server, chat, api_key=None))
    assert result.answer.outcome == Completed()
    assert server.requests[0].headers["authorization"] == "Bearer none"


async def test_without_key_and_address_nothing_leaves_the_machine(chat: OpenAIChat) -> None:
    result = await call(chat, Endpoint("m"), REQUEST)
    assert result.error is not None
    assert result.error.data["code"] == "missing_key"
    assert "base_url" in result.error.message


async def test_a_clean_end_after_a_finish_reason_is_an_end(server: ProviderServer, chat: OpenAIChat) -> None:
    server.script(Reply(done_marker=False))
    result = await call(chat, endpoint(server, chat))
    assert result.events[-1] == RawEvent(DONE, {"marker": None})
    assert result.answer.outcome == Completed()
    assert result.answer.usage["output_tokens"] == 4


async def test_a_done_marker_without_a_finish_reason_is_unexplained(server: ProviderServer, chat: OpenAIChat) -> None:
    server.script(Reply(extra=(b"data: [DONE]\n\n",), ending="clean"))
    result = await call(chat, endpoint(server, chat))
    assert result.events[-1] == RawEvent(DONE, {"marker": "[DONE]"})
    assert isinstance(result.answer.outcome, Incomplete)


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("stop", Completed()),
        ("length", Incomplete("max_tokens")),
        ("tool_calls", Paused("tool_use")),
        ("content_filter", Failed("refusal", "the provider's content filter stopped the answer")),
        ("something_new", Incomplete("something_new")),
    ],
)
def test_finish_reasons(reason: str, outcome: Outcome) -> None:
    assert _chunk({}, reason) == [StopReason(outcome)]


def test_what_chunks_mean() -> None:
    assert _chunk({"role": "assistant", "content": ""}) == []
    assert _chunk({"content": None}) == []
    assert _chunk({"content": "a"}) == [TextDelta(0, "a")]
    assert _chunk({"refusal": "no"}) == [TextDelta(0, "no")]
    # Some servers send text, finish and usage in one chunk.
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert _chunk({"content": "a"}, "stop", usage=usage) == [
        TextDelta(0, "a"),
        StopReason(Completed()),
        UsageReport({"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}),
    ]
    assert list(OpenAIChat().normalise(RawEvent(DONE, {}))) == [Ended()]
