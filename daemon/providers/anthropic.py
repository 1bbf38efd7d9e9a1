"""Anthropic's Messages API, text only: the request it accepts and what its events mean; `sdk` carries both.

The stop reason comes in `message_delta`, the end in `message_stop`.
"""

from collections.abc import Sequence
from typing import Any

from contextinfinity.daemon.core.transcript import (
    Effect,
    Ended,
    StopReason,
    TextDelta,
    UsageReport,
    WholeBlock,
)
from contextinfinity.daemon.providers.base import ModelRequest, RawEvent
from contextinfinity.daemon.providers.faults import failed
from contextinfinity.daemon.providers.sdk import Adapter, alternating, token_counts
from contextinfinity.protocol.blocks import Unknown
from contextinfinity.protocol.model import Completed, Failed, Incomplete, Outcome, Paused

OUTCOMES: dict[str, Outcome] = {
    "end_turn": Completed(),
    "stop_sequence": Completed(),
    "max_tokens": Incomplete("max_tokens"),
    "refusal": Failed("refusal", "the model declined to answer"),
    "pause_turn": Paused("pause_turn"),
    "tool_use": Paused("tool_use"),
}
# These start empty and arrive in deltas; every other kind is whole when it starts.
GROWING = {"thinking", "tool_use", "server_tool_use", "mcp_tool_use"}


class Anthropic(Adapter):
    name = "anthropic"
    module = "anthropic"
    env = "ANTHROPIC_API_KEY"
    default_url = "https://api.anthropic.com"
    terminal = frozenset({"message_stop"})
    text_event = "content_block_delta"

    def body(self, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": request.model_id,
            "max_tokens": max(1, request.max_output_tokens),
            "messages": alternating(request.messages),
            "stream": True,
        }
        if request.system.strip():
            body["system"] = request.system
        return body

    def client(self, sdk: Any, **settings: Any) -> Any:
        return sdk.AsyncAnthropic(**settings, open_telemetry=False)

    def resource(self, client: Any) -> Any:
        return client.messages

    def normalise(self, event: RawEvent) -> Sequence[Effect]:
        match event.payload:
            case {"type": "content_block_delta", "index": int(i), "delta": {"type": "text_delta", "text": str(text)}}:
                return (TextDelta(i, text),)
            case {"type": "content_block_start", "index": int(i), "content_block": {"type": str(kind)} as block}:
                return _started(i, kind, block)
            case {"type": "message_start", "message": {"usage": usage}}:
                return (UsageReport(token_counts(usage)),)
            case {"type": "message_delta"}:
                return _changed(event.payload)
            case {"type": "message_stop"}:
                return (Ended(),)
            case {"type": "error"}:
                return (Ended(failed(event.payload)),)
        return ()


def _started(index: int, kind: str, block: dict[str, Any]) -> Sequence[Effect]:
    if kind == "text":
        text = block.get("text")
        return (TextDelta(index, text),) if isinstance(text, str) and text else ()
    return () if kind in GROWING else (WholeBlock(index, Unknown("anthropic", block)),)


def _changed(payload: dict[str, Any]) -> Sequence[Effect]:
    effects: list[Effect] = []
    if counts := token_counts(payload.get("usage")):
        effects.append(UsageReport(counts))
    match payload:
        case {"delta": {"stop_reason": str(reason)}}:
            # A reason of the future claims nothing.
            effects.append(StopReason(OUTCOMES.get(reason) or Incomplete(reason)))
    return effects
