"""Cuts a stretch of text into passages of about equal length, the units that search scores.

A cut falls at a line end near the even one, else a sentence end, else a space, else just there.
"""

import re

MOST_CHARS = 700

_line_end = re.compile(r"\n")
_sentence_end = re.compile(r"[.!?…][\"'”’)\]]*(?=\s)|[。！？]")  # noqa: RUF001
_space = re.compile(r"\s")


def cut(text: str, start: int, end: int, most: int = MOST_CHARS) -> tuple[tuple[int, int], ...]:
    """Passages of at most `most` characters that hold every non-blank character between start and end."""
    start, end = strip(text, start, end)
    if end - start <= most:
        return ((start, end),) if start < end else ()
    found: list[tuple[int, int]] = []
    pieces = -(-(end - start) // most)
    while end - start > most:
        pieces = max(pieces, -(-(end - start) // most))
        here = _cut_at(text, start, end, most, pieces)
        if here is None:
            pieces += 1
            here = _cut_at(text, start, end, most, pieces) or start + -(-(end - start) // pieces)
        first, last = strip(text, start, here)
        if first < last:
            found.append((first, last))
        start, pieces = here, pieces - 1
    first, last = strip(text, start, end)
    if first < last:
        found.append((first, last))
    return tuple(found)


def strip(text: str, start: int, end: int) -> tuple[int, int]:
    """The same stretch without white space at its ends."""
    stretch = text[start:end]
    tail = stretch.rstrip()
    return end - len(stretch.lstrip()) if tail else start, start + len(tail)


def _cut_at(text: str, start: int, end: int, most: int, pieces: int) -> int | None:
    """Where the first of so many pieces ends; None if only more pieces could avoid a cut inside a word."""
    length = (end - start) // pieces
    ideal = start + length
    # What lies before must fit into one piece, what lies behind into the others.
    lowest = max(end - (pieces - 1) * most, ideal - length // 3, start + 1)
    highest = min(start + most, ideal + length // 3)
    for boundary in (_line_end, _sentence_end, _space):
        ends = (m.end() for m in boundary.finditer(text, lowest - 1, highest))
        near = [at for at in ends if lowest <= at <= highest]
        if near:
            return min(near, key=lambda at: abs(at - ideal))
    return max(ideal, lowest) if highest - lowest >= length // 3 else None
