"""Chooses which hits of a search go into a prompt and in what form, within a budget of tokens.

A hit that is too long is cut to the part that answers, else replaced by its summary, else left out.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from contextinfinity.daemon.core.tokens import estimate_text
from contextinfinity.daemon.core.untrusted import FRAME_TOKENS, Artifact

Form = Literal["whole", "slice", "summary"]
SHARE = 2
LEAST_SLICE = 60
CHARACTERS_PER_TOKEN = 3


class Quoted(msgspec.Struct, frozen=True):
    """A quote by reference, as a step's recipe keeps it: a stretch of what one side of a turn said.

    It does not depend on the index, which may be made anew; `start` and `end` are offsets within the stretch.
    """

    chunk_id: str
    turn_id: str
    role: str
    begin: int
    length: int
    form: Form
    start: int
    end: int
    score: float
    similarity: float | None = None
    summary: str = ""


class Hit(msgspec.Struct, frozen=True):
    """A chunk that was found; `best` is where in its text the passage lies that matched."""

    artifact: Artifact
    begin: int
    summary: str
    best: tuple[int, int]
    score: float
    similarity: float | None


class Packed(msgspec.Struct, frozen=True):
    quoted: tuple[Quoted, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    tokens: int = 0


def pack(hits: Sequence[Hit], budget: int, most: int, shown: Sequence[str] = ()) -> Packed:
    """At most `most` of the hits, best first, then shown oldest first so that they read as they happened.

    `shown` is what stands in the prompt word for word; nothing is said twice.
    """
    said = [_normal(text) for text in shown]
    chosen: list[tuple[Quoted, Artifact]] = []
    left = budget - FRAME_TOKENS
    for hit in hits:
        if len(chosen) == most:
            break
        words = _normal(hit.artifact.text)
        if any(words in known for known in said):
            continue  # the same was said before, or stands in the prompt already
        fitted = _fit(hit, left if not chosen else min(left, max(budget // SHARE, LEAST_SLICE)))
        if fitted is None:
            continue
        left -= cost(fitted[1].text)
        said.append(words)
        chosen.append(fitted)
    chosen.sort(key=lambda pair: (pair[1].at, pair[1].chunk_id))
    return Packed(tuple(q for q, _ in chosen), tuple(a for _, a in chosen), budget - left if chosen else 0)


def _normal(text: str) -> str:
    return " ".join(text.casefold().split())


def cost(text: str) -> int:
    return estimate_text(text) + FRAME_TOKENS


def quote(text: str, summary: str, form: Form, start: int, end: int) -> str:
    """The words of a quote, from its chunk."""
    if form == "summary":
        return f"(summary) {summary}"
    if form == "whole":
        return text
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def _fit(hit: Hit, room: int) -> tuple[Quoted, Artifact] | None:
    text = hit.artifact.text
    if cost(text) <= room:
        return _as(hit, "whole", 0, len(text))
    start, end = _around(text, hit.best, (room - FRAME_TOKENS - 2) * CHARACTERS_PER_TOKEN)
    if end - start >= LEAST_SLICE and cost(quote(text, "", "slice", start, end)) <= room:
        return _as(hit, "slice", start, end)
    if cost(quote(text, hit.summary, "summary", 0, 0)) <= room:
        return _as(hit, "summary", 0, 0)
    return None


def _as(hit: Hit, form: Form, start: int, end: int) -> tuple[Quoted, Artifact]:
    words = quote(hit.artifact.text, hit.summary, form, start, end)
    near = round(hit.similarity, 4) if hit.similarity is not None else None
    one = hit.artifact
    made = Quoted(
        chunk_id=one.chunk_id,
        turn_id=one.turn_id,
        role=one.role,
        begin=hit.begin,
        length=len(one.text),
        form=form,
        start=start,
        end=end,
        score=round(hit.score, 4),
        similarity=near,
        summary=hit.summary if form == "summary" else "",
    )
    return made, msgspec.structs.replace(hit.artifact, text=words)


def _around(text: str, best: tuple[int, int], room: int) -> tuple[int, int]:
    """As much around the best part as there is room for in bytes, so that wide characters do not overrun it."""
    start, end = best
    if len(text[start:end].encode()) > room:
        end = start + len(text[start:end].encode()[: max(0, room)].decode(errors="ignore"))
        return start, end
    widest = 4 if not text.isascii() else 1
    extra = (room - len(text[start:end].encode())) // (2 * widest)
    return max(0, start - extra), min(len(text), end + extra)
