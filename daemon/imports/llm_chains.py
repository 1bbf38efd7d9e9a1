"""The message store of newer versions of llm: threads that point at the last message of a chain, messages made of parts.

`llm` reads the responses that were logged before there were chains.
"""

from collections.abc import Iterator
from typing import Any

from contextinfinity.daemon.imports.base import Conversation, Damaged, Item, Said, Skipped
from contextinfinity.daemon.imports.content import entries, moment, role_of, said, string
from contextinfinity.daemon.imports.reading import UnreadableError, decode
from contextinfinity.daemon.imports.tables import Tables
from contextinfinity.protocol.blocks import Block, Reasoning, Text, ToolResult, ToolUse, Unknown

TIPS = """SELECT id, name, tip_message_hash, datetime_utc FROM threads WHERE tip_message_hash IS NOT NULL
    UNION ALL SELECT id, NULL, tip_message_hash, datetime_utc FROM turns
    WHERE thread_id IS NULL AND tip_message_hash IS NOT NULL ORDER BY 4, 1"""
CHAIN = """WITH RECURSIVE chain (hash, parent_hash, role, depth) AS (
    SELECT hash, parent_hash, role, 0 FROM messages WHERE hash = ?
    UNION ALL SELECT m.hash, m.parent_hash, m.role, depth + 1 FROM chain JOIN messages m ON m.hash = chain.parent_hash
    WHERE depth < 1000000)
    SELECT hash, role FROM chain ORDER BY depth DESC"""


def is_in(db: Tables) -> bool:
    return {"threads", "turns", "messages", "parts"} <= db.names and "tip_message_hash" in db.columns("turns")


def chains(db: Tables, agent: str) -> Iterator[Item]:
    turns = db.rows("SELECT tip_message_hash, min(datetime_utc) FROM turns GROUP BY tip_message_hash")
    ended = {tip: moment(at) for tip, at in turns}
    for key, name, tip, created in list(db.rows(TIPS)):
        yield Conversation(key=str(key), title=string(name), created_at=moment(created), agent=agent)
        chain = list(db.rows(CHAIN, tip))
        for (digest, speaks), at in zip(chain, _times([ended.get(digest) for digest, _ in chain]), strict=True):
            yield from _message(db, str(key), str(digest), speaks, at)


def _times(ends: list[str | None]) -> list[str | None]:
    """Only the last message of a turn has a time: those before it were said no later."""
    times: list[str | None] = []
    for end in reversed(ends):
        times.append(min((at for at in (end, times[-1] if times else None) if at), default=None))
    return times[::-1]


def _message(db: Tables, key: str, digest: str, speaks: object, at: str | None) -> Iterator[Item]:
    role = "assistant" if speaks == "tool" else role_of(speaks)
    if role is None:
        yield Skipped(f"message {digest}", "the system prompt")
        return
    blocks: list[Block] = []
    sql = "SELECT position, type, text, payload FROM parts WHERE message_hash = ? ORDER BY position"
    for position, kind, text, payload in list(db.rows(sql, digest)):
        try:
            content = decode(str(payload).encode()) if payload else {}
        except UnreadableError as error:
            yield Damaged(f"message {digest}, part {position}", str(error))
            continue
        content = content if isinstance(content, dict) else {"payload": content}
        text = text if isinstance(text, str) else _referred(db, content)
        blocks += _part(kind, text, content, f"{digest}:{position}")
    if blocks and all(isinstance(block, ToolResult) for block in blocks):
        role = "assistant"
    yield Said(conversation=key, message=said(role, blocks, digest, at), continues=role == "assistant")


def _referred(db: Tables, content: dict[str, Any]) -> str:
    """A text that borrows from fragments, put together again."""
    pieces: list[str] = []
    for piece in entries(content.get("text_ref")):
        literal = piece.get("literal")
        found = (
            [literal]
            if literal is not None
            else [row[0] for row in db.rows("SELECT content FROM fragments WHERE id = ?", _number(piece.get("fragment")))]
        )
        pieces += [one for one in found if isinstance(one, str)]
    return "".join(pieces)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and abs(value) < 2**63 else None


def _part(kind: object, text: str, content: dict[str, Any], unnamed: str) -> tuple[Block, ...]:
    use = string(content.get("tool_call_id")) or unnamed
    match kind:
        case "text":
            return (Text(text),) if text else ()
        case "reasoning":
            return (Reasoning(summary=text),) if text else ()
        case "tool_call":
            return (ToolUse(use, string(content.get("name")) or "", content.get("arguments")),)
        case "tool_result":
            output = string(content.get("output"))
            return (ToolResult(use, (Text(output),) if output else (), content.get("exception") is not None),)
        case "attachment":
            return ()
    return (Unknown("llm", {**content, "type": kind, "text": text}),)
