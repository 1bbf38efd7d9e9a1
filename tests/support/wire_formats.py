"""What the three providers put on the wire for a text answer, and what they accept: events, errors, request rules.

Pure; `provider_server` sends these over real sockets.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

Event = tuple[str | None, dict[str, Any]]

STOPS = {
    "anthropic": {
        "end": "end_turn",
        "length": "max_tokens",
        "refusal": "refusal",
        "tool": "tool_use",
        "pause": "pause_turn",
    },
    "openai": {"end": "completed", "length": "incomplete", "refusal": "completed", "failed": "failed"},
    "openai_chat": {"end": "stop", "length": "length", "refusal": "content_filter", "tool": "tool_calls"},
}
PATHS = {"/v1/messages": "anthropic", "/v1/responses": "openai", "/v1/chat/completions": "openai_chat"}


def sse(name: str | None, payload: dict[str, Any]) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(payload, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def opening(wire: str, model: str, noise: bool) -> list[Event]:
    match wire:
        case "anthropic":
            usage = {"input_tokens": 25, "cache_read_input_tokens": 0, "output_tokens": 1, "service_tier": "standard"}
            message: dict[str, Any] = {
                "id": "msg_01",
                "type": "message",
                "role": "assistant",
                "model": model,
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": usage,
            }
            events: list[Event] = [
                _typed({"type": "message_start", "message": message}),
                _typed({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
                _typed({"type": "ping"}),
            ]
            future = _typed({"type": "weather_report", "index": 0, "delta": {"type": "sunny_delta", "sun": [1, 2]}})
        case "openai":
            part = {"type": "output_text", "text": "", "annotations": []}
            where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
            events = [
                _typed({"type": "response.created", "response": _response(model, "in_progress"), "sequence_number": 0}),
                _typed({"type": "response.output_item.added", "output_index": 0, "item": _item(""), "sequence_number": 1}),
                _typed({"type": "response.content_part.added", **where, "part": part, "sequence_number": 2}),
            ]
            future = _typed({"type": "response.weather.delta", "delta": {"sun": 1}, "sequence_number": 3})
        case _:
            events = [(None, _chunk(model, {"role": "assistant", "content": ""}))]
            future = (None, {"object": "weather.report", "sun": [1, 2]})
    return [*events, future] if noise else events


def delta(wire: str, model: str, text: str) -> Event:
    match wire:
        case "anthropic":
            return _typed({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})
        case "openai":
            where = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
            return _typed({"type": "response.output_text.delta", **where, "delta": text, "sequence_number": 9})
        case _:
            return None, _chunk(model, {"content": text})


def closing(wire: str, model: str, text: str, stop: str, count: int) -> list[Event]:
    reason = STOPS[wire][stop]
    match wire:
        case "anthropic":
            change = {"stop_reason": reason, "stop_sequence": None}
            return [
                _typed({"type": "content_block_stop", "index": 0}),
                _typed({"type": "message_delta", "delta": change, "usage": {"output_tokens": count}}),
                _typed({"type": "message_stop"}),
            ]
        case "openai":
            item = _item(text, refusal=stop == "refusal")
            final = _response(model, reason) | {"output": [item], "usage": _responses_usage(count)}
            if stop == "length":
                final["incomplete_details"] = {"reason": "max_output_tokens"}
            if stop == "failed":
                final["error"] = {"code": "server_error", "message": "The model failed."}
            return [
                _typed({"type": "response.output_item.done", "output_index": 0, "item": item, "sequence_number": 10}),
                _typed({"type": f"response.{reason}", "response": final, "sequence_number": 11}),
            ]
        case _:
            usage = {"prompt_tokens": 25, "completion_tokens": count, "total_tokens": 25 + count}
            return [
                (None, _chunk(model, {}, reason)),
                (None, {**_chunk(model, {}), "choices": [], "usage": usage}),
            ]


def done(wire: str) -> bytes:
    return b"data: [DONE]\n\n" if wire == "openai_chat" else b""


def error_event(wire: str, kind: str, text: str) -> Event:
    match wire:
        case "anthropic":
            return _typed({"type": "error", "error": {"type": kind, "message": text}})
        case "openai":
            return _typed({"type": "error", "code": kind, "message": text, "param": None, "sequence_number": 9})
        case _:
            return None, {"error": {"message": text, "type": kind, "code": kind, "param": None}}


def error_body(wire: str, kind: str, text: str) -> dict[str, Any]:
    if wire == "anthropic":
        return {"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_1"}
    return {"error": {"message": text, "type": kind, "param": None, "code": kind}}


def violations(wire: str, body: Any, headers: dict[str, str]) -> list[str]:
    """What the provider would refuse this text request for; empty if nothing."""
    if not isinstance(body, dict):
        return ["the body is not a JSON object"]
    found = [f"unknown field {name}" for name in sorted(body.keys() - FIELDS[wire])]
    if not isinstance(body.get("model"), str) or not body["model"]:
        found.append("model: Field required")
    if body.get("stream") is not True:
        found.append("stream: these tests always stream")
    authorised = headers.get("authorization", "").startswith("Bearer ") or "x-api-key" in headers
    if wire != "openai_chat" and not authorised:
        found.append("no credentials")
    return found + RULES[wire](body, headers)


def _anthropic_rules(body: dict[str, Any], headers: dict[str, str]) -> list[str]:
    found = [] if "anthropic-version" in headers else ["anthropic-version: header is required"]
    found += _positive(body, "max_tokens", 1)
    system = body.get("system")
    if "system" in body and (not isinstance(system, str) or not system.strip()):
        found.append("system: text must be non-empty")
    found += _dialogue(body.get("messages"), {"user", "assistant"})
    roles = [m.get("role") for m in body.get("messages") or () if isinstance(m, dict)]
    if any(a == b for a, b in itertools.pairwise(roles)):
        found.append("messages: roles must alternate")
    if roles[:1] != ["user"]:
        found.append("messages: first message must use the user role")
    if roles[-1:] != ["user"]:
        found.append("messages: the conversation must end with a user message")
    return found


def _responses_rules(body: dict[str, Any], headers: dict[str, str]) -> list[str]:
    found = _positive(body, "max_output_tokens", 16)
    if body.get("store") is not False:
        found.append("store: must be false")
    if body.get("truncation") != "disabled":
        found.append("truncation: must be disabled")
    return found + _dialogue(body.get("input"), {"user", "assistant"})


def _chat_rules(body: dict[str, Any], headers: dict[str, str]) -> list[str]:
    found = _positive(body, "max_tokens", 1)
    messages = body.get("messages")
    found += _dialogue(messages, {"system", "user", "assistant"})
    if any(m.get("role") == "system" for m in (messages or ())[1:] if isinstance(m, dict)):
        found.append("messages: the system message must come first")
    return found


def _positive(body: dict[str, Any], name: str, least: int) -> list[str]:
    value = body.get(name)
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
    return [] if fits else [f"{name}: an integer of at least {least} is required"]


def _dialogue(messages: Any, roles: set[str]) -> list[str]:
    if not isinstance(messages, list) or not messages:
        return ["messages: at least one message is required"]
    found = []
    for i, item in enumerate(messages):
        if not isinstance(item, dict) or item.keys() != {"role", "content"}:
            found.append(f"messages.{i}: expected role and content alone")
        elif item["role"] not in roles:
            found.append(f"messages.{i}: unexpected role {item['role']!r}")
        elif not isinstance(item["content"], str) or not item["content"].strip():
            found.append(f"messages.{i}: text content must be non-empty")
    return found


Rules = Callable[[dict[str, Any], dict[str, str]], list[str]]
RULES: dict[str, Rules] = {"anthropic": _anthropic_rules, "openai": _responses_rules, "openai_chat": _chat_rules}
FIELDS: dict[str, set[str]] = {
    "anthropic": {"model", "max_tokens", "messages", "system", "stream"},
    "openai": {
        "model",
        "input",
        "instructions",
        "max_output_tokens",
        "store",
        "truncation",
        "stream",
        "parallel_tool_calls",
    },
    "openai_chat": {"model", "messages", "max_tokens", "stream", "stream_options"},
}


def _typed(payload: dict[str, Any]) -> Event:
    return payload["type"], payload


def _chunk(model: str, change: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": change, "logprobs": None, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": model,
        "choices": [choice],
        "usage": None,
    }


def _item(text: str, *, refusal: bool = False) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
    if refusal:
        part = {"type": "refusal", "refusal": text}
    content: Sequence[dict[str, Any]] = [part] if text else []
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content}


def _response(model: str, status: str) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "usage": None,
    }


def _responses_usage(count: int) -> dict[str, Any]:
    return {
        "input_tokens": 25,
        "input_tokens_details": {"cached_tokens": 5},
        "output_tokens": count,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 25 + count,
    }
