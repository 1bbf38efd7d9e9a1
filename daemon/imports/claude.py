"""Claude.ai's export: conversations as lists of messages, each with its content blocks and what was attached to it.

Where messages name their parents, only those that lead to the conversation's current leaf were said in the end.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contextinfinity.daemon.imports.archive import archives, conversations
from contextinfinity.daemon.imports.base import Conversation, Damaged, Item, Record, Said, Skipped
from contextinfinity.daemon.imports.content import blocks_of, derived_id, entries, moment, role_of, said, string
from contextinfinity.daemon.imports.reading import flowing
from contextinfinity.protocol.blocks import Block, Text, Unknown

AGENT = "claude"
ROOT = "00000000-0000-4000-8000-000000000000"


class Claude:
    name = "claude"
    description = "Claude.ai's data export, the .zip or its conversations.json"
    append_only = False

    def files(self, path: Path) -> list[Path]:
        return archives(path, "the .zip that claude.ai exports, or the conversations.json in it")

    def read(self, path: Path, offset: int = 0) -> Iterator[Record]:
        return flowing(conversations(path, _conversation))


def _conversation(value: dict[str, Any], where: str) -> Iterator[Item]:
    messages = value.get("chat_messages")
    if not isinstance(messages, list):
        yield Damaged(where, "no messages in it: chat_messages is missing")
        return
    title, at = string(value.get("name")), moment(value.get("created_at"))
    key = string(value.get("uuid")) or derived_id("claude", "conversation", (Text(title or ""),), at, 0)
    yield Conversation(key=key, title=title, created_at=at, agent=AGENT)
    replaced = _replaced(entries(messages), value.get("current_leaf_message_uuid"))
    for number, message in enumerate(messages, 1):
        place = f"{where}, message {number}"
        if not isinstance(message, dict):
            yield Damaged(place, "not a JSON object")
        elif string(message.get("uuid")) in replaced:
            yield Skipped(place, "not on the conversation's current path")
        else:
            yield from _message(message, key, place, number)


def _replaced(messages: list[dict[str, Any]], leaf: object) -> set[str]:
    """The messages off the path that ends at the leaf (the last one, if none is named); none if a link is missing."""
    named = {name: message for message in messages if (name := string(message.get("uuid")))}
    path: set[str] = set()
    current = leaf if isinstance(leaf, str) and leaf in named else next(reversed(named), None)
    while isinstance(current, str) and current in named and current not in path:
        path.add(current)
        current = named[current].get("parent_message_uuid")
    return named.keys() - path if current == ROOT else set()


def _message(message: dict[str, Any], key: str, where: str, number: int) -> Iterator[Item]:
    role = role_of(message.get("sender"))
    if role is None:
        yield Skipped(where, "its sender is neither human nor assistant")
        return
    given = string(message.get("uuid"))
    blocks: tuple[Block, ...] = blocks_of(message.get("content"), "anthropic", given or f"message:{number}")
    blocks = blocks or blocks_of(message.get("text"), "anthropic", "")
    pasted = (string(one.get("extracted_content")) for one in entries(message.get("attachments")))
    blocks += tuple(Text(text) for text in pasted if text)
    blocks += tuple(Unknown("anthropic", {**one, "type": "file"}) for one in entries(message.get("files")))
    at = moment(message.get("created_at"))
    external_id = given or derived_id(key, role, blocks, at, number)
    yield Said(conversation=key, message=said(role, blocks, external_id, at))
