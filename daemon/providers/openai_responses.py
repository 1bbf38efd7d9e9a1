"""OpenAI's Responses API, text only: the request it accepts and what its events mean; `sdk` carries both.

Nothing is stored on the provider's side: our own history is sent each time.
"""

from collections.abc import Sequence
from typing import Any

from contextinfinity.daemon.core.transcript import Effect, Ended, TextDelta, UsageReport, WholeBlock
from contextinfinity.daemon.providers.base import ModelRequest, RawEvent
from contextinfinity.daemon.providers.faults import failed
from contextinfinity.daemon.providers.sdk import Adapter, alternating, token_counts
from contextinfinity.protocol.blocks import Unknown
from contextinfinity.protocol.model import Completed, Failed, Incomplete, Outcome, Paused

LEAST_OUTPUT = 16
PARTS = 1000  # content parts of an output item that block numbers leave room for


class OpenAIResponses(Adapter):
    name = "openai"
    module = "openai"
    env = "OPENAI_API_KEY"
    default_url = "https://api.openai.com/v1"
    terminal = frozenset({"response.completed", "response.incomplete", "response.failed"})
    text_event = "response.output_text.delta"

    def body(self, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": request.model_id,
            "input": alternating(request.messages),
            "max_output_tokens": max(LEAST_OUTPUT, request.max_output_tokens),
            "parallel_tool_calls": False,
            "store": False,
            "stream": True,
            "truncation": "disabled",
        }
        if request.system.strip():
            body["instructions"] = request.system
        return body

    def client(self, sdk: Any, **settings: Any) -> Any:
        return without_environment(sdk.AsyncOpenAI(**settings))

    def resource(self, client: Any) -> Any:
        return client.responses

    def normalise(self, event: RawEvent) -> Sequence[Effect]:
        match event.payload:
            case {
                "type": "response.output_text.delta" | "response.refusal.delta",
                "output_index": int(item),
                "content_index": int(part),
                "delta": str(text),
            }:
                return (TextDelta(item * PARTS + part, text),)
            case {"type": "response.output_item.done", "output_index": int(item), "item": {"type": str(kind)} as raw}:
                return () if kind == "message" else (WholeBlock(item * PARTS, Unknown("openai", raw)),)
            case {
                "type": "response.completed" | "response.incomplete" | "response.failed" as kind,
                "response": dict(response),
            }:
                counts = token_counts(response.get("usage"))
                ended = Ended(_outcome(kind, response))
                return (UsageReport(counts), ended) if counts else (ended,)
            case {"type": "error"}:
                return (Ended(failed(event.payload)),)
        return ()


def _outcome(kind: str, response: dict[str, Any]) -> Outcome:
    match kind, response:
        case "response.failed", _:
            return failed(response.get("error"))
        case "response.incomplete", {"incomplete_details": {"reason": str(reason)}}:
            return Incomplete("max_tokens" if reason == "max_output_tokens" else reason)
        case "response.incomplete", _:
            return Incomplete("the provider gave no reason")
    output = [item for item in response.get("output") or () if isinstance(item, dict)]
    if any(item.get("type") in ("function_call", "custom_tool_call") for item in output):
        return Paused("tool_use")
    parts = [part for item in output for part in item.get("content") or () if isinstance(part, dict)]
    if any(part.get("type") == "refusal" for part in parts):
        return Failed("refusal", "the model declined to answer")
    return Completed()


def without_environment(client: Any) -> Any:
    """The client reads these from environment variables and would send them to whatever endpoint is configured."""
    client.organization = client.project = client.admin_api_key = None
    return client
