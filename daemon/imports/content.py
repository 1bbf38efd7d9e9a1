"""What the formats have in common: blocks as Anthropic's API writes them, times, roles, wrapped texts and derived ids.

Every function takes what was decoded, whatever its type, and gives what a message can hold.
"""

import base64
import hashlib
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from contextinfinity.daemon.imports.reading import UnreadableError, decode
from contextinfinity.protocol.blocks import (
    Block,
    Image,
    Message,
    Reasoning,
    Role,
    Text,
    ToolResult,
    ToolUse,
    Unknown,
    render,
)

ROLES: dict[str, Role] = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "model": "assistant",
}
encoder = msgspec.json.Encoder(order="deterministic")


def string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def entries(value: object) -> list[dict[str, Any]]:
    """The objects of a list, whatever else is in it or instead of it."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def role_of(value: object) -> Role | None:
    return ROLES.get(value.lower()) if isinstance(value, str) else None


def moment(value: object, per_second: int = 1) -> str | None:
    """RFC 3339 in UTC, of ISO 8601 (taken as UTC where no zone is said) or of a number since 1970."""
    try:
        if isinstance(value, str):
            at = datetime.fromisoformat(value.strip())
            at = at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC)
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            at = datetime.fromtimestamp(value / per_second, UTC)
        else:
            return None
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None


def said(role: Role, blocks: Sequence[Block], external_id: str, created_at: str | None, speaker: str | None = None) -> Message:
    return Message(role, tuple(blocks), render(blocks), speaker, created_at, external_id)


def derived_id(conversation: str, role: str, blocks: Sequence[Block], created_at: str | None, place: int) -> str:
    """For messages without an id: `place` tells identical ones apart, by their line's first byte or by counting."""
    content = encoder.encode([conversation, role, list(blocks), created_at, place])
    return hashlib.sha256(content).hexdigest()[:32]


def blocks_of(content: object, provider: str, tool_id: str) -> tuple[Block, ...]:
    """A string or a list of blocks; `tool_id` names the tool uses that have no id, and the results that follow them."""
    if isinstance(content, str):
        return (Text(content),) if content else ()
    found: list[Block] = []
    for position, item in enumerate(content if isinstance(content, list) else ()):
        block = _block(item, provider, f"{tool_id}:{position}", found)
        if block is not None:
            found.append(block)
    return tuple(found)


def _block(item: object, provider: str, tool_id: str, before: Iterable[Block]) -> Block | None:
    fields = mapping(item)
    match item:
        case str(text) | {"type": "text", "text": str(text)}:
            return Text(text) if text else None
        case {"type": "tool_use", "name": str(name)}:
            used = string(fields.get("id")) or string(fields.get("tool_use_id")) or tool_id
            return ToolUse(used, name, fields.get("input"))
        case {"type": "tool_result"}:
            used = string(fields.get("tool_use_id")) or last_use(before) or tool_id
            inner = blocks_of(fields.get("content"), provider, tool_id)
            return ToolResult(used, inner, fields.get("is_error") is True)
        case {"type": "image", "source": {"media_type": str(kind)} as source} | {
            "type": "image",
            "media_type": str(kind),
            "source": source,
        }:
            return Image(kind, source)
        case {"type": "thinking", "thinking": str(thought)}:
            return Reasoning(string(fields.get("signature")), thought or None) if thought or fields.get("signature") else None
        case {"type": "redacted_thinking", "data": str(sealed)}:
            return Reasoning(sealed)
        case {"type": "reasoning"}:
            return Reasoning(string(fields.get("encrypted_content")), string(fields.get("summary")), fields.get("raw"))
        case None:
            return None
    return Unknown(provider, item)


def last_use(blocks: Iterable[Block]) -> str | None:
    found = None
    for block in blocks:
        if isinstance(block, ToolUse):
            found = block.tool_use_id
    return found


def image_of(url: str, provider: str, raw: object) -> Block:
    """An image given by URL, which holds the image itself more often than not."""
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    if url.startswith("data:") and data and "/" in kind:
        try:
            base64.b64decode(data, validate=True)
        except ValueError:
            return Unknown(provider, raw)
        return Image(kind, {"type": "base64", "media_type": kind, "data": data})
    return Image("image/*", {"type": "url", "url": url})


def arguments_of(text: object) -> Any:
    """What a tool was called with; often JSON inside a string."""
    if isinstance(text, str) and text.lstrip()[:1] in ("{", "["):
        try:
            return decode(text.encode())
        except UnreadableError:
            return text
    return text


def is_wrapped(text: str, tags: frozenset[str]) -> bool:
    """Whether a text is nothing but elements with these tags: what programs put into the user's messages."""
    rest = text.strip()
    if not rest:
        return False
    while rest:
        name, closed, _ = rest.removeprefix("<").partition(">")
        tag = name.split(" ", 1)[0]
        if not rest.startswith("<") or not closed or tag not in tags:
            return False
        _, ended, rest = rest.partition(f"</{tag}>")
        if not ended:
            return False
        rest = rest.lstrip()
    return True
