"""Claude Code's sessions: one JSON lines file a session below ~/.claude/projects, appended to while it runs.

What the program itself put in, and what its subagents said among themselves, is left out; tool results go to the assistant.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contextinfinity.daemon.imports.base import Conversation, Item, Record, Said, Skipped, sources
from contextinfinity.daemon.imports.content import blocks_of, derived_id, is_wrapped, mapping, moment, said, string
from contextinfinity.daemon.imports.reading import Line, head, read_lines
from contextinfinity.protocol.blocks import Block, Role, Text, ToolResult

AGENT = "claude-code"
TITLES = {"summary": "summary", "ai-title": "aiTitle", "custom-title": "customTitle"}
ASIDE = {
    "isSidechain": "a subagent's conversation",
    "isMeta": "put in by the program",
    "isCompactSummary": "a summary of what was said before",
    "isVisibleInTranscriptOnly": "put in by the program",
    "isApiErrorMessage": "a failed request",
}
WRAPPERS = frozenset(
    (
        "bash-input",
        "bash-stderr",
        "bash-stdout",
        "command-args",
        "command-contents",
        "command-message",
        "command-name",
        "ide_opened_file",
        "ide_selection",
        "local-command-caveat",
        "local-command-stderr",
        "local-command-stdout",
        "system-reminder",
        "task-notification",
        "user-prompt-submit-hook",
    )
)
INTERRUPTED = "[Request interrupted by user"


class ClaudeCode:
    name = "claude_code"
    description = "Claude Code sessions, ~/.claude/projects/<project>/<session>.jsonl"
    append_only = True

    def files(self, path: Path) -> list[Path]:
        expected = "~/.claude/projects, a project's folder in it, or a session's .jsonl file"
        found = sources(path, ("*.jsonl", "*/*.jsonl", "projects/*/*.jsonl"), expected)
        sessions = [file for file in found if file == path or not file.name.startswith("agent-")]
        if path.is_dir() and (path / "projects").is_dir():
            sessions = [file for file in sessions if path / "projects" in file.parents]
        if not sessions:
            raise ValueError(f"no sessions to import in {path}: give {expected}")
        return sessions

    def read(self, path: Path, offset: int = 0) -> Iterator[Record]:
        first = next((value for value in head(path) if string(value.get("timestamp"))), {})
        began = {string(first.get("sessionId")) or path.stem: moment(first.get("timestamp"))}

        def parse(line: Line) -> Iterator[Item]:
            value = line.value if isinstance(line.value, dict) else {}
            key = string(value.get("sessionId")) or path.stem
            kind = value.get("type")
            known = Conversation(key=key, created_at=began.get(key), cwd=string(value.get("cwd")), agent=AGENT)
            if isinstance(kind, str) and kind in TITLES:
                if title := string(value.get(TITLES[kind])):
                    yield Conversation(key=key, title=title, created_at=began.get(key), agent=AGENT)
                yield Skipped(line.where, "a title")
                return
            why = next((why for mark, why in ASIDE.items() if value.get(mark) is True), None)
            if why is None and kind == "attachment":
                value, why = _typed_meanwhile(value)
            elif why is None and kind not in ("user", "assistant"):
                why = "not part of the conversation"
            if why is not None:
                yield Skipped(line.where, why)
                return
            yield from _said(value, known, line)

        return read_lines(path, offset, parse)


def _typed_meanwhile(value: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """What a user types while the assistant works is kept as an attachment to it."""
    attachment = mapping(value.get("attachment"))
    origin = mapping(attachment.get("origin")).get("kind", "human")
    mode = attachment.get("commandMode", "prompt")
    if attachment.get("type") == "queued_command" and (mode, origin) == ("prompt", "human"):
        return {**value, "type": "user", "message": {"role": "user", "content": attachment.get("prompt")}}, None
    return value, "not part of the conversation"


def _said(value: dict[str, Any], known: Conversation, line: Line) -> Iterator[Item]:
    spoken = mapping(value.get("message"))
    at = moment(value.get("timestamp"))
    given = string(value.get("uuid"))
    blocks = blocks_of(spoken.get("content"), "anthropic", given or f"line:{line.start}")
    results = tuple(block for block in blocks if isinstance(block, ToolResult))

    def one(role: Role, content: tuple[Block, ...], suffix: str = "") -> Iterator[Item]:
        external_id = given + suffix if given else derived_id(known.key, role, content, at, line.start)
        yield known
        yield Said(conversation=known.key, message=said(role, content, external_id, at), continues=role == "assistant")

    if value.get("type") == "assistant":
        if spoken.get("model") == "<synthetic>":
            yield Skipped(line.where, "put in by the program")
        else:
            yield from one("assistant", blocks)
        return
    typed = tuple(block for block in blocks if not isinstance(block, ToolResult) and not _is_put_in(block))
    if results:
        yield from one("assistant", results)
    if typed:
        yield from one("user", typed, ":user" if results else "")
    elif not results:
        yield Skipped(line.where, "put in by the program" if blocks else "says nothing")


def _is_put_in(block: Block) -> bool:
    return isinstance(block, Text) and (is_wrapped(block.text, WRAPPERS) or block.text.startswith(INTERRUPTED))
