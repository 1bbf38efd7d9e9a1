"""Message content: six kinds of block, messages built of them, and the provider-neutral transcript items of a step.

A block kind that nobody here knows is kept whole as `Unknown`, so nothing a provider or client says is ever dropped.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec

MOST_NESTED = 100
type_of = "type"
T = TypeVar("T")


class Text(msgspec.Struct, frozen=True, tag_field=type_of, tag="text", omit_defaults=True):
    text: str
    annotations: tuple[Any, ...] = ()


class ToolUse(msgspec.Struct, frozen=True, tag_field=type_of, tag="tool_use"):
    tool_use_id: str
    name: str
    input: Any


class Image(msgspec.Struct, frozen=True, tag_field=type_of, tag="image"):
    media_type: str
    source: Any


class Reasoning(msgspec.Struct, frozen=True, tag_field=type_of, tag="reasoning", omit_defaults=True):
    encrypted_content: str | None = None
    summary: str | None = None
    raw: Any = None


class Unknown(msgspec.Struct, frozen=True, tag_field=type_of, tag="unknown"):
    provider: str
    raw: Any


class ToolResult(msgspec.Struct, frozen=True, tag_field=type_of, tag="tool_result", omit_defaults=True):
    tool_use_id: str
    content: "tuple[Text | ToolUse | ToolResult | Image | Reasoning | Unknown, ...]" = ()
    is_error: bool = False


Block = Text | ToolUse | ToolResult | Image | Reasoning | Unknown
KINDS: dict[str, type[Block]] = {
    "text": Text,
    "tool_use": ToolUse,
    "tool_result": ToolResult,
    "image": Image,
    "reasoning": Reasoning,
    "unknown": Unknown,
}


def parse_blocks(raw: Sequence[dict[str, Any]], provider: str) -> tuple[Block, ...]:
    """Blocks from JSON objects; kinds we do not know are kept raw, malformed known kinds raise `ValidationError`.

    So does a field that a known kind does not have: it would be lost, and the sender would not know.
    """
    if _is_deeper(raw, MOST_NESTED):
        raise msgspec.ValidationError(f"blocks are nested more than {MOST_NESTED} levels deep")
    return _parse_all(raw, provider, "")


def _is_deeper(value: object, levels: int) -> bool:
    """What is stored has to be read back whatever the stack looks like then, so its depth has a bound far from that."""
    containers: list[Any] = [value]
    for _ in range(levels):
        inside = [v for c in containers for v in (c.values() if isinstance(c, dict) else c)]
        containers = [v for v in inside if isinstance(v, dict | list)]
        if not containers:
            return False
    return True


def _parse_all(raw: Sequence[dict[str, Any]], provider: str, where: str) -> tuple[Block, ...]:
    return tuple(_parse(item, provider, f"{where}[{i}]") for i, item in enumerate(raw))


def _parse(item: dict[str, Any], provider: str, where: str) -> Block:
    name = item.get(type_of)
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        return Unknown(provider, item)
    if kind is ToolResult:
        inner = f"{where}.content"
        nested = _parse_all(_convert(item.get("content", []), list[dict[str, Any]], inner), provider, inner)
        return msgspec.structs.replace(_convert({**item, "content": ()}, ToolResult, where), content=nested)
    return _convert(item, kind, where)


def _convert(item: object, kind: type[T], where: str) -> T:
    try:
        made = msgspec.convert(item, kind)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"{error} in block {where}") from None
    if isinstance(item, dict) and isinstance(made, msgspec.Struct):
        for extra in item.keys() - {type_of, *made.__struct_fields__}:
            raise msgspec.ValidationError(f"Object contains unknown field `{extra}` in block {where}")
    return made


Role = Literal["user", "assistant"]


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one side said: structured blocks and the text a person would read."""

    role: Role
    blocks: tuple[Block, ...]
    rendered_text: str
    speaker: str | None = None
    created_at: str | None = None
    external_id: str | None = None


def render(blocks: Sequence[Block]) -> str:
    """The visible text of a message: its text blocks, in order."""
    return "".join(block.text for block in blocks if isinstance(block, Text))


def message(role: Role, content: str | Sequence[Block], *, created_at: str | None = None) -> Message:
    blocks = (Text(content),) if isinstance(content, str) else tuple(content)
    return Message(role, blocks, render(blocks), created_at=created_at)


class AssistantMessage(msgspec.Struct, frozen=True, tag_field=type_of, tag="assistant_message"):
    blocks: tuple[Block, ...]


class ToolCall(msgspec.Struct, frozen=True, tag_field=type_of, tag="tool_call"):
    call_id: str
    name: str
    arguments: Any


class ToolOutput(msgspec.Struct, frozen=True, tag_field=type_of, tag="tool_output"):
    call_id: str
    output: Any


class ReasoningItem(msgspec.Struct, frozen=True, tag_field=type_of, tag="reasoning_item", omit_defaults=True):
    encrypted_content: str | None = None
    raw: Any = None


class Metadata(msgspec.Struct, frozen=True, tag_field=type_of, tag="metadata"):
    key: str
    value: str


class UnknownItem(msgspec.Struct, frozen=True, tag_field=type_of, tag="unknown_item"):
    provider: str
    raw: Any


TranscriptItem = AssistantMessage | ToolCall | ToolOutput | ReasoningItem | Metadata | UnknownItem
