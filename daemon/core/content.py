"""What of a message can be searched: its text, its tool calls and what the tools answered, each a section of its own.

Chunks and passages (`chunking.py`, `passages.py`) are offsets into `searchable(message)`, so what it returns must never change.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from contextinfinity.protocol.blocks import Block, Message, Text, ToolResult, ToolUse

SEPARATOR = "\n\n"

SectionKind = Literal["text", "tool_use", "tool_result"]


class Section(msgspec.Struct, frozen=True):
    text: str
    kind: SectionKind


def sections(message: Message) -> tuple[Section, ...]:
    """In order; adjacent text blocks are one section, and images, reasoning and unknown blocks are none."""
    return _sections(message.blocks)


def searchable(message: Message) -> str:
    """What the offsets of chunks refer to."""
    if len(message.blocks) == 1:
        only = message.blocks[0]
        if type(only) is Text:
            return only.text
    return joined(_sections(message.blocks))


def joined(parts: Iterable[Section]) -> str:
    return SEPARATOR.join(part.text for part in parts)


def _sections(blocks: Sequence[Block]) -> tuple[Section, ...]:
    if len(blocks) == 1 and type(blocks[0]) is Text:
        return (Section(blocks[0].text, "text"),) if blocks[0].text else ()
    found: list[Section] = []
    run: list[str] = []
    for block in blocks:
        if isinstance(block, Text):
            run.append(block.text)
            continue
        _close(run, found)
        match block:
            case ToolUse(name=name, input=given):
                found.append(Section(f"{name}({_compact(given)})", "tool_use"))
            case ToolResult(content=content):
                if text := joined(_sections(content)):
                    found.append(Section(text, "tool_result"))
            case _:
                pass
    _close(run, found)
    return tuple(found)


def _close(run: list[str], found: list[Section]) -> None:
    if text := "".join(run):
        found.append(Section(text, "text"))
    run.clear()


def _compact(value: Any) -> str:
    """With sorted keys: the order in which a provider sent them must not move an offset."""
    return value if isinstance(value, str) else msgspec.json.encode(value, order="deterministic").decode()
