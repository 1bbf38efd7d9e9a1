"""What of a message is searchable, and as which sections."""

from typing import Any

import pytest

from contextinfinity.daemon.core.content import Section, searchable, sections
from contextinfinity.protocol.blocks import (
    Block,
    Image,
    Message,
    Reasoning,
    Text,
    ToolResult,
    ToolUse,
    Unknown,
    message,
    parse_blocks,
)


def said(*blocks: Block) -> Message:
    return message("assistant", blocks)


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ((), ()),
        ((Text(""),), ()),
        ((Text("hello"),), (Section("hello", "text"),)),
        ((Text("as the "), Text("source says")), (Section("as the source says", "text"),)),
        ((Text("a"), Image("image/png", "…"), Text("b")), (Section("a", "text"), Section("b", "text"))),
        ((Reasoning(summary="hidden"), Unknown("x", {"text": "hidden"}), Image("image/png", "…")), ()),
        ((ToolUse("1", "read", {"path": "é.py", "limit": 2}),), (Section('read({"limit":2,"path":"é.py"})', "tool_use"),)),
        ((ToolUse("1", "sh", "ls -l"),), (Section("sh(ls -l)", "tool_use"),)),
        ((ToolUse("1", "now", None),), (Section("now(null)", "tool_use"),)),
        ((ToolResult("1", (Text("a"), Text("b"))),), (Section("ab", "tool_result"),)),
        ((ToolResult("1", (Image("image/png", "…"),)),), ()),
        (
            (ToolResult("1", (Text("a"), ToolUse("2", "f", []), ToolResult("2", (Text("b"),)))),),
            (Section("a\n\nf([])\n\nb", "tool_result"),),
        ),
    ],
)
def test_sections(blocks: tuple[Block, ...], expected: tuple[Section, ...]) -> None:
    assert sections(said(*blocks)) == expected
    assert searchable(said(*blocks)) == "\n\n".join(section.text for section in expected)


def test_a_single_text_is_not_copied() -> None:
    text = " as it is \r\n" * 3
    assert searchable(message("user", text)) is text


def test_the_order_of_keys_moves_no_offset() -> None:
    one, other = ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1})
    assert searchable(said(ToolUse("1", "f", one))) == searchable(said(ToolUse("1", "f", other)))


def test_the_deepest_result_there_can_be() -> None:
    raw: dict[str, Any] = {"type": "text", "text": "deep"}
    for n in range(48):
        raw = {"type": "tool_result", "tool_use_id": str(n), "content": [raw]}
    assert searchable(said(*parse_blocks([raw], "test"))) == "deep"
