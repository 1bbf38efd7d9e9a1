"""The Chat Completions API as OpenAI and most local servers speak it, text only; `sdk` carries it.

The finish reason comes in a chunk, usage in a later one, and the end is `[DONE]` or a clean close after a finish reason.
"""

from collections.abc import Sequence
from typing import Any

from contextinfinity.daemon.core.transcript import Effect, Ended, StopReason, TextDelta, UsageReport
from contextinfinity.daemon.providers.base import Endpoint, ModelRequest, RawEvent
from contextinfinity.daemon.providers.faults import Faults, failed
from contextinfinity.daemon.providers.openai_responses import without_environment
from contextinfinity.daemon.providers.sdk import Adapter, alternating, token_counts
from contextinfinity.protocol.model import Completed, Failed, Incomplete, Outcome, Paused

CHUNK = "chat.completion.chunk"
DONE = "chat.completion.done"
DUMMY_KEY = "none"
OUTCOMES: dict[str, Outcome] = {
    "stop": Completed(),
    "stop_sequence": Completed(),
    "eos_token": Completed(),
    "length": Incomplete("max_tokens"),
    "content_filter": Failed("refusal", "the provider's content filter stopped the answer"),
    "tool_calls": Paused("tool_use"),
    "function_call": Paused("tool_use"),
    "error": Failed("server_error", "the provider failed during the answer"),
}
USAGE_NAMES = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}


class OpenAIChat(Adapter):
    name = "openai_chat"
    module = "openai"
    env = "OPENAI_API_KEY"
    default_url = "https://api.openai.com/v1"
    terminal = frozenset({DONE})
    text_event = CHUNK

    def body(self, request: ModelRequest) -> dict[str, Any]:
        system = [{"role": "system", "content": request.system}] if request.system.strip() else []
        return {
            "model": request.model_id,
            "messages": system + alternating(request.messages),
            "max_tokens": max(1, request.max_output_tokens),
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def client(self, sdk: Any, **settings: Any) -> Any:
        return without_environment(sdk.AsyncOpenAI(**settings))

    def resource(self, client: Any) -> Any:
        return client.chat.completions

    def key(self, endpoint: Endpoint, faults: Faults) -> str:
        key = (endpoint.api_key or "").strip()
        if not key and endpoint.base_url is None:
            # Local servers need no key; without an address this would go to OpenAI.
            raise faults.make("missing_key", note="or set base_url to your own server")
        return key or DUMMY_KEY

    def event(self, name: str | None, data: bytes, faults: Faults) -> RawEvent:
        if data.startswith(b"[DONE]"):
            return RawEvent(DONE, {"marker": "[DONE]"})
        return super().event(name, data, faults)

    def event_type(self, name: str | None, payload: dict[str, Any]) -> str:
        if payload.get("error"):
            return "error"
        return CHUNK if "choices" in payload else str(payload.get("object") or name or "message")

    def is_stop(self, event: RawEvent) -> bool:
        match event.payload:
            case {"choices": [{"finish_reason": str()}, *_]}:
                return True
        return False

    def clean_end(self) -> RawEvent:
        return RawEvent(DONE, {"marker": None})

    def normalise(self, event: RawEvent) -> Sequence[Effect]:
        if event.type == "error":
            return (Ended(failed(event.payload)),)
        if event.type == DONE:
            return (Ended(),)
        effects: list[Effect] = []
        match event.payload:
            case {"choices": [{"delta": {"content": str(text)}}, *_]} if text:
                effects.append(TextDelta(0, text))
            case {"choices": [{"delta": {"refusal": str(text)}}, *_]} if text:
                effects.append(TextDelta(0, text))
        match event.payload:
            case {"choices": [{"finish_reason": str(reason)}, *_]}:
                effects.append(StopReason(OUTCOMES.get(reason) or Incomplete(reason)))
        if counts := token_counts(event.payload.get("usage"), USAGE_NAMES):
            effects.append(UsageReport(counts))
        return effects
