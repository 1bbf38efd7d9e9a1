"""What the tests of every reader share: how to read, and what holds for whatever was read."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from contextinfinity.daemon.imports.base import Conversation, Damaged, Format, Item, Said, Skipped
from contextinfinity.protocol.blocks import Message, parse_blocks


def write_lines(path: Path, values: Iterable[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def write(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def items(kind: Format, path: Path, offset: int = 0) -> list[Item]:
    return [record.item for record in kind.read(path, offset)]


def said(found: Iterable[Item]) -> list[Said]:
    return [item for item in found if isinstance(item, Said)]


def damaged(found: Iterable[Item]) -> list[Damaged]:
    return [item for item in found if isinstance(item, Damaged)]


def skipped(found: Iterable[Item]) -> list[Skipped]:
    return [item for item in found if isinstance(item, Skipped)]


def texts(found: Iterable[Item]) -> list[tuple[str, str]]:
    return [(item.message.role, item.message.rendered_text) for item in said(found)]


def last_known(found: Iterable[Item]) -> Conversation:
    return [item for item in found if isinstance(item, Conversation)][-1]


def check(kind: Format, path: Path) -> list[Item]:
    """What holds for every source: its messages are announced, named, storable, and the same when read again."""
    found = items(kind, path)
    assert found == items(kind, path)
    announced: set[str] = set()
    for item in found:
        match item:
            case Conversation(key=key):
                announced.add(key)
            case Said(conversation=key, message=message):
                assert key in announced
                assert message.blocks
                assert message.external_id
                store(message)
    return found


def store(message: Message) -> None:
    stored: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(message.blocks))
    assert len(parse_blocks(stored, "test")) == len(message.blocks)
    assert "\0" not in message.rendered_text
    message.rendered_text.encode()
    assert message.created_at is None or message.created_at.endswith("Z")


def check_resuming(kind: Format, path: Path) -> None:
    """Reading on from any offset gives what reading everything gives after it; a conversation may be announced again."""
    whole = list(kind.read(path))
    assert [record.offset for record in whole] == sorted(record.offset for record in whole)
    for at, record in enumerate(whole):
        first = next(n for n, other in enumerate(whole) if other.offset == record.offset)
        resumed = list(kind.read(path, record.offset))
        expected = [later for later in whole[at + 1 :] if not isinstance(later.item, Conversation)]
        again = [other for other in resumed if not isinstance(other.item, Conversation)]
        assert again[-len(expected) :] == expected if expected else len(again) <= at - first + 1
        for other in again[: len(again) - len(expected)]:
            assert other in whole
