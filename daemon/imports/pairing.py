"""Turns a stream of messages into exchanges: a user's message with the answer to it, or whichever side stands alone.

Pure; `actors/importer.py` writes what comes out of it.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from contextinfinity.daemon.imports.base import Said
from contextinfinity.protocol.blocks import Message, message


class Exchange(msgspec.Struct, frozen=True):
    """What becomes one turn; `external_ids` are those of every message that went into it."""

    user: Message | None
    answer: Message | None
    external_ids: tuple[str, ...]

    def sides(self) -> tuple[Message, ...]:
        return tuple(m for m in (self.user, self.answer) if m is not None)


def closed(said: Sequence[Said]) -> int:
    """How many of these belong to exchanges that are over: the last may still be answered, or its answer go on."""
    at = len(said) - 1
    while at > 0 and said[at].message.role == "assistant" and (said[at].continues or said[at - 1].message.role == "user"):
        at -= 1
    return max(at, 0)


def named(messages: Iterable[Message]) -> list[Message]:
    """A message that says when it was said, but not what it is called, is known by both and by how often they came before.

    One without either is new every time: rather a word twice than a word lost.
    """
    seen: Counter[str] = Counter()
    return [_named(m, seen) if m.external_id is None and m.created_at is not None else m for m in messages]


def _named(m: Message, seen: Counter[str]) -> Message:
    content = hashlib.sha256(msgspec.json.encode((m.role, m.rendered_text, m.created_at))).hexdigest()[:24]
    seen[content] += 1
    return msgspec.structs.replace(m, external_id=f"sha256:{content}:{seen[content]}")


def exchanges(said: Sequence[Said]) -> list[Exchange]:
    made: list[Exchange] = []
    user: Message | None = None
    answer: list[Message] = []
    for one in [*said, None]:
        goes_on = one is not None and one.message.role == "assistant" and (not answer or one.continues)
        if not goes_on:
            if user is not None or answer:
                made.append(_exchange(user, answer))
            user, answer = None, []
        if one is None:
            break
        if one.message.role == "user":
            user = one.message
        else:
            answer.append(one.message)
    return made


def _exchange(user: Message | None, answer: list[Message]) -> Exchange:
    """An answer that came in parts, between which tools ran, is one message with all their blocks."""
    whole = answer[0] if answer else None
    if len(answer) > 1:
        first = answer[0]
        joined = message("assistant", [block for part in answer for block in part.blocks], created_at=first.created_at)
        whole = msgspec.structs.replace(joined, speaker=first.speaker, external_id=first.external_id)
    ids = [m.external_id for m in ([user] if user is not None else []) + answer]
    return Exchange(user, whole, tuple(dict.fromkeys(i for i in ids if i is not None)))
