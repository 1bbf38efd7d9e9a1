"""Codex's sessions: one rollout file a session below ~/.codex/sessions, of wrapped lines or (until 2025) bare items.

What the program tells the model, and the events that repeat what items already say, are left out.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contextinfinity.daemon.imports.base import Conversation, Item, Record, Said, Skipped, sources
from contextinfinity.daemon.imports.content import (
    arguments_of,
    derived_id,
    entries,
    image_of,
    is_wrapped,
    mapping,
    moment,
    role_of,
    said,
    string,
)
from contextinfinity.daemon.imports.reading import Line, lines, read_lines
from contextinfinity.protocol.blocks import Block, Reasoning, Text, ToolResult, ToolUse, Unknown

AGENT = "codex"
NAME = re.compile(r"rollout-[0-9T-]{19}-(.+)")
WRAPPED = {"session_meta", "turn_context", "event_msg", "compacted"}
BOOKKEEPING = {"ghost_snapshot", "compaction", "compaction_summary", "context_compaction"}
INSTRUCTIONS = "# AGENTS.md instructions"
WRAPPERS = frozenset(
    (
        "app-context",
        "environment_context",
        "plugins_instructions",
        "recommended_plugins",
        "skill",
        "skills_instructions",
        "subagent_notification",
        "turn_aborted",
        "user_instructions",
    )
)


class Codex:
    name = "codex"
    description = "Codex sessions, ~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl"
    append_only = True

    def files(self, path: Path) -> list[Path]:
        return sources(path, ("**/rollout-*.jsonl",), "~/.codex/sessions, a folder in it, or a rollout-*.jsonl file")

    def read(self, path: Path, offset: int = 0) -> Iterator[Record]:
        known = _session(path)

        def parse(line: Line) -> Iterator[Item]:
            value = line.value if isinstance(line.value, dict) else {}
            kind, item = string(value.get("type")), mapping(value.get("payload"))
            if kind == "session_meta":
                yield known
                yield Skipped(line.where, "about the session")
            elif kind != "response_item" and (kind in WRAPPED or "payload" in value):
                yield Skipped(line.where, "not part of the conversation")
            else:
                item = item if kind == "response_item" else value
                if "type" not in item and isinstance(item.get("content"), list):
                    item = {**item, "type": "message"}
                yield from _item(item, known, moment(value.get("timestamp")), line)

        return read_lines(path, offset, parse)


def _session(path: Path) -> Conversation:
    """A fork repeats its parent's first line after its own: only the first one of a file speaks for it."""
    named = NAME.fullmatch(path.stem)
    first = next(lines(path), None)
    value = first.value if first is not None and first.number == 1 else None
    if isinstance(value, dict):
        wrapped = value.get("type") == "session_meta"
        meta = mapping(value.get("payload")) if wrapped else value
        if (wrapped or "type" not in value) and (key := string(meta.get("id"))):
            at = moment(meta.get("timestamp")) or moment(value.get("timestamp"))
            return Conversation(key=key, created_at=at, cwd=string(meta.get("cwd")), agent=AGENT)
    return Conversation(key=named[1] if named else path.stem, agent=AGENT)


def _item(item: dict[str, Any], known: Conversation, at: str | None, line: Line) -> Iterator[Item]:
    kind = item.get("type")
    if not isinstance(kind, str) or kind in BOOKKEEPING:
        yield Skipped(line.where, "not part of the conversation")
        return
    role = role_of(item.get("role")) if kind == "message" else "assistant"
    if role is None:
        yield Skipped(line.where, "put in by the program")
        return
    blocks = _blocks(kind, item, f"line:{line.start}")
    kept = tuple(block for block in blocks if role == "assistant" or not _is_put_in(block))
    if blocks and not kept:
        yield Skipped(line.where, "put in by the program")
        return
    external_id = string(item.get("id")) or derived_id(known.key, role, kept, at, line.start)
    yield known
    yield Said(conversation=known.key, message=said(role, kept, external_id, at), continues=role == "assistant")


def _blocks(kind: str, item: dict[str, Any], unnamed: str) -> tuple[Block, ...]:
    used = string(item.get("call_id")) or string(item.get("id")) or unnamed
    match kind:
        case "message":
            return _contents(item.get("content"))
        case "reasoning":
            summary = "\n\n".join(part["text"] for part in entries(item.get("summary")) if string(part.get("text")))
            sealed, whole = string(item.get("encrypted_content")), item.get("content") or None
            return (Reasoning(sealed, summary or None, whole),) if summary or sealed or whole else ()
        case "function_call" | "custom_tool_call":
            given = item.get("arguments") if kind == "function_call" else item.get("input")
            return (ToolUse(used, string(item.get("name")) or kind, arguments_of(given)),)
        case "local_shell_call":
            return (ToolUse(used, "local_shell", item.get("action")),)
        case "web_search_call":
            return (ToolUse(used, "web_search", item.get("action")),)
        case "function_call_output" | "custom_tool_call_output":
            output = item.get("output")
            older = mapping(output)
            shown = older.get("content_items") or older.get("content") if older else output
            return (ToolResult(used, _contents(shown), older.get("success") is False),)
    return (Unknown("openai", item),)


def _contents(content: object) -> tuple[Block, ...]:
    if isinstance(content, str):
        return (Text(content),) if content else ()
    found: list[Block] = []
    for part in content if isinstance(content, list) else ():
        match part:
            case str(text) | {"type": "input_text" | "output_text" | "text", "text": str(text)}:
                found += [Text(text)] if text else []
            case {"type": "input_image", "image_url": str(url)}:
                found.append(image_of(url, "openai", part))
            case _:
                found.append(Unknown("openai", part))
    return tuple(found)


def _is_put_in(block: Block) -> bool:
    if not isinstance(block, Text):
        return False
    text = block.text.strip()
    if text.startswith(INSTRUCTIONS):
        _, ended, rest = text.partition("</INSTRUCTIONS>")
        return bool(ended) and (not rest.strip() or is_wrapped(rest, WRAPPERS))
    return is_wrapped(text, WRAPPERS)
