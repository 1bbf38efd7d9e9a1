"""Cuts a message into chunks: what is stored, shown and packed into a context, each with its type and a line of summary.

Units and atoms come from `units.py`; `passages.py` cuts a chunk further into what search scores.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import sha256

import msgspec

from contextinfinity.daemon.core import units
from contextinfinity.daemon.core.content import SEPARATOR, Section, SectionKind, joined, sections
from contextinfinity.daemon.core.passages import cut, strip
from contextinfinity.daemon.core.quoting import sentences, words
from contextinfinity.daemon.core.tokens import estimate_text
from contextinfinity.daemon.core.units import Atom, Unit
from contextinfinity.protocol.blocks import Message
from contextinfinity.protocol.model import ChunkType

LEAST_TOKENS, MOST_TOKENS = 200, 800
BYTES_PER_TOKEN = 3  # as tokens.py estimates
LEAST, AIM, MOST = (tokens * BYTES_PER_TOKEN for tokens in (LEAST_TOKENS, 500, MOST_TOKENS))
SUMMARY_CHARS = 160
TELLING_WORDS = 3
NEW_LINE = "\n"
FENCES = ("```", "~~~")
FINISH = 3.8
"""To end with the section is better than a break before a definition, worse than one before other kinds of text."""

_decision = re.compile(
    r"\b(?:(?<!n't )(?<!n’t )(?<!not )(?<!never )decided (?:to|on|that|against|in favou?r)|(?:we|i)(?:['’]ve| have)? decided"  # noqa: RUF001
    r"|let['’]?s (?:go|stick) with|(?:agreed|settled) (?:to|on|that|upon)"  # noqa: RUF001
    r"|we(?:['’]ll| will| shall) (?:use|go with|stick with|stay with)|(?:we|i)(?:['’]ve| have)? (?:chosen|chose|settled|agreed)"  # noqa: RUF001
    r"|(?:is|are|was|were|been|be) chosen|decision\s*:)",
    re.IGNORECASE,
)
_space = re.compile(r"\s")
_word = re.compile(r"[^\W_]")
_symbol = re.compile(r"[(){}\[\];=<>]")
_sentence = re.compile(r"(?<=[.!?。！？])\s+|\n+|(?<=[。！？])")  # noqa: RUF001
_comment = re.compile(r"\s*(?:#+!?|//+!?|/\*+|--+|;+|\"\"\"|<!--)\s*(?=\w)(.*?)\s*(?:\*/|-->|\"\"\")?\s*$")


class Slice(msgspec.Struct, frozen=True):
    """A chunk as offsets into `content.searchable(message)`; passages hold what is new in it."""

    start: int
    end: int
    chunk_type: ChunkType
    summary: str
    token_est: int
    content_hash: bytes
    passages: tuple[tuple[int, int], ...]


class _Span(msgspec.Struct, frozen=True):
    begin: int
    """Earlier than start by the overlap."""
    start: int
    end: int
    code: tuple[int, int] | None
    """From where to where there is code, if that is most of it."""
    language: str = ""


def chunk(message: Message, overlap_tokens: int = 0) -> tuple[Slice, ...]:
    """In order; a text that comes twice as the same type is there once."""
    found: dict[tuple[ChunkType, bytes], Slice] = {}
    for made in slices(message, overlap_tokens):
        found.setdefault((made.chunk_type, made.content_hash), made)
    return tuple(found.values())


def slices(message: Message, overlap_tokens: int = 0) -> Iterator[Slice]:
    """Chunks that together hold every visible character, repetitions too."""
    parts = sections(message)
    text = parts[0].text if len(parts) == 1 else joined(parts)
    overlap = max(0, min(overlap_tokens, LEAST_TOKENS)) * BYTES_PER_TOKEN
    at = 0
    for region in _regions(parts):
        length = sum(len(part.text) for part in region) + len(SEPARATOR) * (len(region) - 1)
        yield from _slices(text, at, region, length, message.role == "user", overlap)
        at += length + len(SEPARATOR)


def _regions(parts: tuple[Section, ...]) -> Iterator[tuple[Section, ...]]:
    """What tools answered is never in one chunk with anything else."""
    begin = 0
    for i in range(1, len(parts)):
        if (parts[i].kind == "tool_result") != (parts[begin].kind == "tool_result"):
            yield parts[begin:i]
            begin = i
    if parts:
        yield parts[begin:]


def _slices(text: str, at: int, region: tuple[Section, ...], length: int, by_user: bool, overlap: int) -> Iterator[Slice]:
    start, end = units.trim(text, at, at + length)
    if start == end:
        return
    if end - start <= MOST and units.size(text, start, end) <= MOST:
        says: SectionKind = "text" if any(part.kind == "text" for part in region) else region[0].kind
        code, language = _mostly_code(text, start, end) if says == "text" else (None, "")
        yield _slice(text, _Span(start, start, end, code, language), says, by_user)
        return
    for part in region:
        for span in _pack(text, at, at + len(part.text), overlap):
            yield _slice(text, span, part.kind, by_user)
        at += len(part.text) + len(SEPARATOR)


def _mostly_code(text: str, start: int, end: int) -> tuple[tuple[int, int] | None, str]:
    if text.find("\n", start, end) >= 0:
        return _code_in(units.units(text, start, end), end - start)
    line = text[start:end]
    return (start, end) if len(_symbol.findall(line)) > 1 and units.looks_like_code(line) else None, ""


def _code_in(found: Sequence[Atom | Unit], length: int) -> tuple[tuple[int, int] | None, str]:
    code = [one for one in found if one.kind == "code"]
    if not code or 2 * sum(one.end - one.start for one in code) < length:
        return None, ""
    return (code[0].start, code[-1].end), next((one.language for one in code if one.language), "")


def _pack(text: str, start: int, end: int, overlap: int) -> Iterator[_Span]:
    """Chunks between least and most, each begun at the best place there is."""
    waiting = units.atoms(text, units.units(text, start, end))
    left = sum(atom.gap + atom.size for atom in waiting)
    waiting.reverse()
    before = start
    while waiting:
        window, best = _fill(text, waiting, left, MOST - overlap)
        waiting.extend(reversed(window[best:]))
        taken = window[:best]
        left -= sum(atom.gap + atom.size for atom in taken)
        first, last = taken[0].start, taken[-1].end
        begin = max(before, _earlier(text, taken[0].origin, first, overlap)) if overlap and taken[0].origin >= 0 else first
        yield _Span(begin, first, last, *_code_in(taken, sum(atom.end - atom.start for atom in taken)))
        before = first


def _fill(text: str, waiting: list[Atom], left: int, most: int) -> tuple[list[Atom], int]:
    """As many atoms as fit into a chunk, and how many of them it should have."""
    window: list[Atom] = []
    said: set[str] = set()
    heard = waiting[-1].start
    grown, best, score = 0, 0, (0.0, 0)
    while waiting:
        atom = waiting[-1]
        larger = grown + atom.gap + atom.size if window else atom.size
        if larger > most and not best and (parts := units.split(text, atom)):
            waiting[-1:] = reversed(parts)
            continue
        if larger > most and window:
            break
        window.append(waiting.pop())
        grown = larger
        if not waiting:
            good = FINISH
        elif grown < LEAST:
            continue
        else:
            good = waiting[-1].strength
            if good == units.PARAGRAPH and waiting[-1].kind == "prose":
                said.update(words(text[heard : atom.end]))
                heard = atom.end
                if _is_news(text, waiting[-1], said):
                    good = units.TOPIC
            if left - grown < LEAST:
                good -= 2 * units.HEADING
        # Of equal places the first where something else begins, else the one that makes the size most usual.
        scored = (good, -grown if good == units.TOPIC or good >= units.SWITCH else -abs(grown - AIM))
        if not best or scored > score:
            best, score = len(window), scored
    return window, best or len(window)


def _is_news(text: str, ahead: Atom, said: set[str]) -> bool:
    own = set(words(text[ahead.start : min(ahead.end, ahead.start + units.SAMPLE_CHARS)]))
    return len(own) >= TELLING_WORDS and not own & said


def _earlier(text: str, origin: int, start: int, overlap: int) -> int:
    """At most so many bytes before start, from the begin of a sentence or word, and within the same unit."""
    first = max(origin, start - overlap)
    first = start - len(text[first:start].encode()[-overlap:].decode(errors="ignore"))
    if first > origin:
        found = _sentence.search(text, first, start) or _space.search(text, first, start)
        first = found.end() if found else first
    return min(strip(text, first, start)[0], start)


def _slice(text: str, span: _Span, says: SectionKind, by_user: bool) -> Slice:
    body, new = text[span.begin : span.end], text[span.start : span.end]
    decided = ""
    kind: ChunkType
    if says == "tool_result":
        kind = "tool_result"
    elif says == "tool_use" or _says_nothing(new):
        kind = "other"
    elif span.code:
        kind = "code"
    elif decided := _decided(new):
        kind = "decision"
    else:
        kind = "user_context" if by_user else "explanation"
    summary = " ".join(body.split())
    if len(summary) > SUMMARY_CHARS:
        code = text[slice(*span.code)] if span.code else ""
        summary = _summary(new, kind, decided, code, span.language)
    digest = sha256(body.encode()).digest()
    return Slice(span.begin, span.end, kind, summary, estimate_text(body), digest, cut(text, span.start, span.end))


def _says_nothing(body: str) -> bool:
    """No letter or digit, or one long run of ASCII without a space, as encoded data is."""
    return _word.search(body) is None or (len(body) > 200 and body.isascii() and _space.search(body) is None)


def _decided(body: str) -> str:
    """The first sentence that states a decision; a question states none."""
    ends: list[int] = []
    for found in _decision.finditer(body):
        ends = ends or [0, *(m.end() for m in _sentence.finditer(body)), len(body)]
        i = bisect_right(ends, found.start())
        sentence = body[ends[i - 1] : ends[i]].strip()
        if not sentence.endswith(("?", "？")):  # noqa: RUF001
            return sentence
    return ""


def _summary(body: str, kind: ChunkType, decided: str, code: str, language: str) -> str:
    first, _, rest = body.strip().partition("\n")
    match kind:
        case "other":
            return _clip(body)
        case "tool_result":
            return _clip(first, f" ({rest.count(NEW_LINE) + 2} lines)" if rest else "")
        case "decision":
            return _clip(decided)
        case "code":
            return _clip(_code_summary(code, language))
    if units.heading_level(first):
        return _clip(first.strip("# \t\r"))
    said = sentences(body)
    return _clip(next((s for s in said if len(words(s)) >= TELLING_WORDS), said[0] if said else body))


def _code_summary(code: str, language: str) -> str:
    rows = [row for line in code.split("\n") if (row := line.strip()) and not row.startswith(FENCES)]
    names = {name: row for row in reversed(rows) if (name := units.begins(row))}
    if len(names) == 1:
        return next(iter(names.values())).rstrip("{:( ")
    said = next((found[1] for row in rows[:3] if (found := _comment.match(row))), "")
    if said and not names:
        return said
    what = ", ".join(reversed(names)) if names else next(filter(_word.search, rows), code)
    return f"{len(rows)} lines of {language or 'code'}: {what}"


def _clip(text: str, tail: str = "") -> str:
    """One line that fits, broken at a space if there is one late enough."""
    line = " ".join(text.split())
    most = SUMMARY_CHARS - len(tail)
    if len(line) > most:
        at = line.rfind(" ", most // 2, most)
        line = line[: at if at > 0 else most - 1].rstrip() + "…"
    return line + tail
