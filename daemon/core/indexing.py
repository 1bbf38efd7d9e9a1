"""What TX-C writes for a message: its chunks, and their passages with the terms that search compares.

Pure and deterministic, so indexing a turn again finds the same; `RECIPE` changes whenever the result would.
"""

import msgspec

from contextinfinity.daemon.core.chunking import chunk
from contextinfinity.daemon.core.content import searchable
from contextinfinity.daemon.core.hot_index import pack
from contextinfinity.daemon.core.when import posix, written
from contextinfinity.protocol.blocks import Message, Role
from contextinfinity.protocol.model import ChunkType

RECIPE, MOST_OVERLAP = 1000, 200
"""A recipe's last three digits are the overlap in tokens."""
FRONT_CHARACTERS = 200
ASKING = ("?", "？")  # noqa: RUF001


class NewPassage(msgspec.Struct, frozen=True):
    start: int
    end: int
    terms: bytes


class NewChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk before it has an id; offsets count characters of `core.content.searchable`."""

    role: Role
    start: int
    end: int
    chunk_type: ChunkType
    summary: str
    token_est: int
    content_hash: bytes
    speaker: str
    asks: bool
    at: float
    passages: tuple[NewPassage, ...]
    recipe: int = RECIPE


def index(message: Message, at: str, overlap_tokens: int = 0) -> tuple[NewChunk, ...]:
    """The chunks of one message; `at` is when it was said, if the message does not know itself."""
    text = searchable(message)
    when = message.created_at or at
    head = f"{message.speaker or message.role} {written(when)} "
    return tuple(
        NewChunk(
            role=message.role,
            start=piece.start,
            end=piece.end,
            chunk_type=piece.chunk_type,
            summary=piece.summary,
            token_est=piece.token_est,
            content_hash=piece.content_hash,
            speaker=message.speaker or message.role,
            asks=text.rstrip().endswith(ASKING),
            at=posix(when) or 0.0,
            passages=tuple(NewPassage(start, end, pack(head + text[start:end])) for start, end in piece.passages),
            recipe=RECIPE + overlap_tokens,
        )
        for piece in chunk(message, overlap_tokens)
    )


def overlap_of(recipe: int) -> int | None:
    """By how many tokens chunks that were made so overlap; None if this version makes them in another way."""
    overlap = recipe - RECIPE
    return overlap if 0 <= overlap <= MOST_OVERLAP else None


def spoken(speaker: str, at: float, text: str) -> str:
    """A passage as an embedder reads it."""
    return f"{speaker} said on {written(at)}: {text}"


def in_context(before: str, passage: str) -> str:
    """A short message with the end of the one it answers in front."""
    return f"{before[-FRONT_CHARACTERS:]} {passage}"
