"""Content blocks: six kinds that round trip, and others that are kept as they came."""

import json
from typing import Any

import msgspec
import pytest

from contextinfinity.protocol.blocks import (
    KINDS,
    MOST_NESTED,
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
    render,
)

SAMPLES: dict[str, Block] = {
    "text": Text("hello", ({"type": "citation", "url": "https://example.org"},)),
    "tool_use": ToolUse("call-1", "search", {"query": "heron", "limit": [1, None]}),
    "tool_result": ToolResult("call-1", (Text("found"), Image("image/png", {"data": "aGk="})), is_error=True),
    "image": Image("image/png", {"type": "base64", "data": "aGk="}),
    "reasoning": Reasoning("b3BhcXVl", "because", {"signature": "x"}),
    "unknown": Unknown("acme", {"type": "hologram", "depth": 3}),
}


def objects(*blocks: Block) -> list[dict[str, Any]]:
    decoded: list[dict[str, Any]] = json.loads(msgspec.json.encode(blocks))
    return decoded


def test_there_is_a_sample_of_every_kind() -> None:
    assert SAMPLES.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_round_trips(kind: str) -> None:
    block = SAMPLES[kind]
    (raw,) = objects(block)
    assert raw["type"] == kind
    assert parse_blocks([raw], "client") == (block,)
    assert msgspec.convert(raw, KINDS[kind]) == block


def test_a_message_of_all_kinds_round_trips() -> None:
    said = message("assistant", tuple(SAMPLES.values()), created_at="2026-01-02T03:04:05.678Z")
    assert msgspec.json.decode(msgspec.json.encode(said), type=Message) == said


@pytest.mark.parametrize(
    "raw",
    [
        {"type": "hologram", "deep": {"text": ["kept", 1.5, None, {"ü": "🌍"}]}},
        {"type": "Text", "text": "the case differs"},
        {"text": "no type at all"},
        {"type": None},
        {"type": ["text"]},
        {"type": {"text": 1}},
        {},
    ],
)
def test_a_kind_that_nobody_knows_is_kept_as_it_came(raw: dict[str, Any]) -> None:
    before = json.dumps(raw)
    (block,) = parse_blocks([raw], "client")
    assert block == Unknown("client", raw)
    (again,) = objects(block)
    assert json.dumps(again["raw"]) == before


def test_tool_results_nest() -> None:
    raw = [
        {
            "type": "tool_result",
            "tool_use_id": "outer",
            "content": [
                {"type": "hologram", "kept": True},
                {
                    "type": "tool_result",
                    "tool_use_id": "inner",
                    "content": [{"type": "text", "text": "deep"}],
                    "is_error": True,
                },
                {"type": "tool_result", "tool_use_id": "empty"},
            ],
        }
    ]
    parsed = parse_blocks(raw, "client")
    hologram = Unknown("client", {"type": "hologram", "kept": True})
    inner = ToolResult("inner", (Text("deep"),), is_error=True)
    assert parsed == (ToolResult("outer", (hologram, inner, ToolResult("empty"))),)
    assert parse_blocks(objects(*parsed), "client") == parsed


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ({"type": "text"}, r"missing required field `text` in block \[1\]"),
        ({"type": "text", "text": 5}, r"Expected `str`, got `int`.*\$\.text.* in block \[1\]"),
        ({"type": "tool_use", "tool_use_id": "a", "input": {}}, r"`name` in block \[1\]"),
        ({"type": "image", "source": {}}, r"`media_type` in block \[1\]"),
        ({"type": "reasoning", "summary": 1}, r"`\$\.summary` in block \[1\]"),
        ({"type": "unknown", "raw": {}}, r"`provider` in block \[1\]"),
        ({"type": "text", "text": "kept", "extra": 1}, r"unknown field `extra` in block \[1\]"),
        ({"type": "unknown", "provider": "a", "raw": 1, "more": 2}, r"unknown field `more` in block \[1\]"),
        ({"type": "tool_result", "tool_use_id": "a", "name": "x"}, r"unknown field `name` in block \[1\]"),
        (
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "x", "y": 1}]},
            r"unknown field `y` in block \[1\]\.content\[0\]$",
        ),
        ({"type": "tool_result"}, r"`tool_use_id` in block \[1\]"),
        ({"type": "tool_result", "tool_use_id": "a", "is_error": "no"}, r"`\$\.is_error` in block \[1\]"),
        ({"type": "tool_result", "tool_use_id": "a", "content": "text"}, r"Expected `array`.* in block \[1\]\.content"),
        ({"type": "tool_result", "tool_use_id": "a", "content": None}, r"Expected `array`.* in block \[1\]\.content"),
        ({"type": "tool_result", "tool_use_id": "a", "content": [5]}, r"Expected `object`.* in block \[1\]\.content"),
        (
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "x"}, {"type": "text"}]},
            r"`text` in block \[1\]\.content\[1\]$",
        ),
    ],
)
def test_a_malformed_block_of_a_known_kind_is_refused_with_its_index(block: dict[str, Any], complaint: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=complaint):
        parse_blocks([{"type": "text", "text": "fine"}, block], "client")


def nested_lists(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def nested_results(levels: int) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "text", "text": "deep"}
    for _ in range(levels):
        block = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
    return block


def test_nesting_has_a_bound() -> None:
    fits = parse_blocks([{"type": "hologram", "a": nested_lists(MOST_NESTED - 2)}], "client")
    assert json.loads(msgspec.json.encode(fits))
    assert parse_blocks([nested_results(MOST_NESTED // 2 - 1)], "client")
    for block in ({"type": "hologram", "a": nested_lists(MOST_NESTED - 1)}, nested_results(MOST_NESTED // 2)):
        with pytest.raises(msgspec.ValidationError, match=f"more than {MOST_NESTED} levels deep"):
            parse_blocks([block], "client")


def test_the_bound_does_not_depend_on_the_stack() -> None:
    with pytest.raises(msgspec.ValidationError, match="levels deep"):
        parse_blocks([{"type": "hologram", "a": nested_lists(100_000)}], "client")


def test_text_is_rendered_in_order_and_nothing_else() -> None:
    blocks = (Text("one "), SAMPLES["reasoning"], SAMPLES["tool_result"], Text("two"))
    assert render(blocks) == "one two"
    assert message("user", "plain") == Message("user", (Text("plain"),), "plain")
