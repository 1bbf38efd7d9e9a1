"""Reads a text as units (headings, paragraphs, fenced and pasted code, logs) and cuts what is too large into atoms.

An atom says how good a place its start is to begin a chunk; `chunking.py` packs atoms by that.
"""

import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from contextinfinity.daemon.core.passages import cut, strip

Kind = Literal["prose", "code", "log"]

# How good it is to begin a chunk before an atom.
GLUED, PLAIN, SENTENCE, LINE, PARAGRAPH, TOPIC, DEFINITION, SWITCH, HEADING = -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 3.5, 4.0, 5.0

BYTES_PER_PIECE = 600
"""Split prose comes in pieces of this size at most, where its sentences allow."""
MOST_PER_PIECE = 1200
LINES_JOIN = 150
SAMPLE_CHARS = 2000
WINDOW_CHARS = 4000
"""The splitter's time grows with the square of its input, so it sees a window at a time."""
SPARSE = 100
"""With fewer than one break in so many characters there are no sentences to look for."""
INDENT_CHARS = 100

_fence = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`\n]*$")
_heading = re.compile(r" {0,3}(#{1,6})[ \t]+\S")
_definition = re.compile(
    r"""[ \t]*+(?:
    (?:(?:export|default|pub(?:\([\w:]{1,40}\))?|public|private|protected|internal|static|async|abstract|final|override
      |unsafe|sealed|open|data|inline|extern)[ \t]+)*+
    (?:def|class|fn|fun|func(?:[ \t]*\([^)\n]{0,80}\))?|function\*?|impl(?:<[^>\n]{0,80}>)?|struct|enum|trait|interface
      |module|namespace|object|record)[ \t]+(?P<a>[\w$.]+(?:::\w+)*)[^.!?]*$
    |(?:(?:public|private|protected|static|final|abstract|async|override)[ \t]+)+[^=;\n]{0,100}?\b(?P<b>\w+)[ \t]*\(
    |(?:export[ \t]+)?(?:const|let|var)[ \t]+(?P<c>[\w$]+)[ \t]*=[ \t]*
      (?:async[ \t]*)?(?:function\b|\([^)\n]{0,200}\)[ \t]*=>|\w+[ \t]*=>)
    |(?:CREATE|create)[ \t]+(?:\w+[ \t]+){0,3}
      (?:TABLE|VIEW|FUNCTION|TRIGGER|INDEX|table|view|function|trigger|index)[ \t]+(?P<d>[\w."]+)
    )""",
    re.VERBOSE,
)
_code_line = re.compile(
    r"""^[ \t]*+(?:
    (?:async[ ]+)?def[ ]+\w+[ ]*\(.* | class[ ]+\w+[^.!?\n]*[:{]
    |from[ ]+[\w.]+[ ]+import[ ]+.* | import[ ]+[\w.]+(?:[ ]+as[ ]+\w+)?;? | import[ ]+.*[ ]from[ ]+['"].*
    |(?:pub(?:\([\w:]+\))?[ ]+)?(?:async[ ]+)?fn[ ]+\w+.* | func[ ]+[\w(].*[{] | (?:export[ ]+.*)?function\b.*\(.*
    |(?:public|private|protected|static|final)[ ]+.*[({;=].* | (?:const|let|var)[ ]+[\w{\[].*=.*
    |(?:return|yield|raise|throw)\b[ (]?[^ ]*(?:[ ][^ ]+)?
    |(?:if|elif|else|while|try|except|finally|switch|case|match)\b.*[:{] | for\b.*[ ;](?:in\b|;).*[:{] | with\b.*[ (].*:
    |\#(?:include|define|ifn?def|endif|pragma)\b.* | \#!.* | @[\w.]+(?:\(.*\))?
    |[\w.\[\]'"()*,]+[ ]?(?:[-+*/|&^%:]?=)[ ]?[^= ].* | .*[;{}] | [)\]}]+[,;:)]* | [\w.]+\(.*\),?
    |(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP)[ ].* | //.* | /\*.* | \*/.* | >>>[ ].* | \$[ ]\w.* | </?[\w-]+[^>]*>.*
    |"\w+"[ ]?:[ ].* | "[^"\n]*", | '[^'\n]*', | pass | break | continue | \"\"\".*
    )[ \t\r]*$""",
    re.VERBOSE | re.MULTILINE,
)
_log_line = re.compile(
    r"""^(?:[\[(]?(?:\d{4}[-/]\d\d[-/]\d\d[T ]\d|\d\d:\d\d:\d\d|[A-Z][a-z]{2}[ ]+\d+[ ]\d\d:\d\d)
    |[\[(]?(?:TRACE|DEBUG|INFO|WARN(?:ING)?|ERROR|FATAL|CRITICAL|PASSED|FAILED)\b
    |Traceback[ ]\(|[ \t]+File[ ]".*",[ ]line[ ]\d|[ \t]+at[ ][\w.$<>]+|[\w.]+(?:Error|Exception):[ ]).*$""",
    re.VERBOSE | re.MULTILINE,
)
_lead_line = re.compile(r"[ \t]*(?:@\w|#|//|/\*|\*|--)")
_stop = re.compile("[、。，．！？]")  # noqa: RUF001
_comment_line = re.compile(r"^[ \t]*+#+[ \t]", re.MULTILINE)
_any_line = re.compile(r"^[ \t]*+[^\s].*$", re.MULTILINE)
_flush_line = re.compile(r"^[^\s].*$", re.MULTILINE)


class Unit(msgspec.Struct, frozen=True, gc=False):
    start: int
    end: int
    kind: Kind = "prose"
    language: str = ""
    fenced: bool = False
    level: int = 0
    """Of the heading it begins with; 0 if with none."""
    bare: bool = False
    """Nothing but that heading."""


class Atom(msgspec.Struct, frozen=True, gc=False):
    start: int
    end: int
    gap: int
    """Bytes of white space before it."""
    size: int
    strength: float
    kind: Kind = "prose"
    language: str = ""
    origin: int = -1
    """Where the prose began that it is a later piece of; -1 if it is not one."""
    whole: bool = True


def begins(line: str) -> str:
    """The name of what a line of code defines, or an empty string."""
    found = _definition.match(line[:300])
    return (found["a"] or found["b"] or found["c"] or found["d"]) if found else ""


def heading_level(line: str) -> int:
    found = _heading.match(line)
    return len(found[1]) if found else 0


def looks_like_code(line: str) -> bool:
    return _code_line.match(line) is not None


def units(text: str, start: int, end: int) -> list[Unit]:
    return _runs(text, list(_paragraphs(text, start, end)))


def _paragraphs(text: str, start: int, end: int) -> Iterator[Unit]:
    """Fences, headings and paragraphs, the last kind judged each by itself."""
    fence, language, level, single = "", "", 0, False
    begin, last = -1, -1  # of the open paragraph or fence
    at = start
    for line in text[start:end].split("\n"):
        here, at = at, at + len(line) + 1
        head = line[:INDENT_CHARS].strip()
        if not head and not line.strip():
            if begin >= 0 and not fence:
                yield _judged(text, begin, last, level, level > 0 and single)
                begin = -1
            continue
        until = here + len(line)
        if fence:
            last = until
            if head.startswith(fence) and not head.strip(fence[0]):
                yield Unit(begin, last, "code", language, True)
                fence, begin = "", -1
            continue
        mark = _fence.match(line) if head.startswith(("```", "~~~")) else None
        rank = heading_level(line) if head.startswith("#") else 0
        if (mark or rank) and begin >= 0:
            yield _judged(text, begin, last, level, level > 0 and single)
            begin = -1
        single = begin < 0
        if begin < 0:
            begin, level = here, rank
        if mark:
            fence, language, level = mark[1], mark[2].lower(), 0
        last = until
    if begin >= 0:
        yield Unit(begin, last, "code", language, True) if fence else _judged(text, begin, last, level, level > 0 and single)


def _judged(text: str, start: int, end: int, level: int, bare: bool) -> Unit:
    kind = "prose" if bare else kind_of(text[start : min(end, start + SAMPLE_CHARS)])
    return Unit(start, end, kind, level=level if kind == "prose" else 0, bare=bare)


def kind_of(sample: str) -> Kind:
    """What most of its lines look like; comments count for neither side."""
    if "\n" not in sample:
        if len(sample) > 200:
            return "code" if sum(map(sample.count, '{}();=<>[]":')) * 12 > len(sample) else "prose"
        return "log" if _log_line.match(sample) else "code" if _code_line.match(sample) else "prose"
    lines = max(1, len(_any_line.findall(sample)) - len(_comment_line.findall(sample)))
    if 2 * len(_log_line.findall(sample)) >= lines:
        return "log"
    return "code" if 2 * len(_code_line.findall(sample)) >= lines else "prose"


def _runs(text: str, found: list[Unit]) -> list[Unit]:
    """Neighbouring paragraphs of pasted code or log become one unit, with the comments and indented lines among them."""
    joined: list[Unit] = []
    for i, unit in enumerate(found):
        before = joined[-1] if joined else None
        if before is None or before.fenced or before.kind == "prose" or unit.fenced:
            joined.append(unit)
            continue
        goes_on = unit.kind == before.kind
        if not goes_on:
            ahead = i + 1 < len(found) and found[i + 1].kind == before.kind and not found[i + 1].fenced
            sample = text[unit.start : min(unit.end, unit.start + SAMPLE_CHARS)]
            goes_on = (unit.bare and ahead) or not _flush_line.search(sample)
        if goes_on:
            joined[-1] = Unit(before.start, unit.end, before.kind)
        else:
            joined.append(unit)
    return joined


def atoms(text: str, found: list[Unit]) -> list[Atom]:
    made: list[Atom] = []
    before: Unit | None = None
    for unit in found:
        start, end = trim(text, unit.start, unit.end)
        gap = size(text, before.end, start) if before else 0
        made.append(Atom(start, end, gap, size(text, start, end), _strength(text, before, unit), unit.kind, unit.language))
        before = msgspec.structs.replace(unit, end=end)
    return made


def _strength(text: str, before: Unit | None, unit: Unit) -> float:
    if before is None:
        return PLAIN
    if before.bare:
        return GLUED
    if unit.level:
        return HEADING - unit.level / 10
    if unit.kind == before.kind:
        return SWITCH if unit.fenced or before.fenced else PARAGRAPH
    # What announces a piece of code stays with it if it can.
    return PARAGRAPH if before.kind == "prose" and text.endswith(":", 0, before.end) else SWITCH


def size(text: str, start: int, end: int) -> int:
    return len(text[start:end].encode())


def trim(text: str, start: int, end: int) -> tuple[int, int]:
    """Without surrounding blank lines; the first line keeps its indentation unless that is absurd."""
    first, last = strip(text, start, end)
    line = text.rfind("\n", start, first) + 1 or start
    return line if first < last and first - line <= INDENT_CHARS else first, last


def split(text: str, atom: Atom) -> list[Atom]:
    """The same stretch in smaller atoms; nothing if it cannot be split again."""
    if not atom.whole or atom.size <= BYTES_PER_PIECE:
        return []
    return _split_prose(text, atom) if atom.kind == "prose" else _split_lines(text, atom)


def _split_prose(text: str, atom: Atom) -> list[Atom]:
    made: list[Atom] = []
    end = atom.start
    for first, last in _sentences(text, atom.start, atom.end):
        if not made:
            made.append(Atom(atom.start, last, atom.gap, size(text, atom.start, last), atom.strength, whole=False))
        else:
            strength = LINE if text.find("\n", end, first) >= 0 else SENTENCE
            gap = size(text, end, first)
            made.append(Atom(first, last, gap, size(text, first, last), strength, origin=atom.start, whole=False))
        end = last
    return made


def _sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    from semantic_text_splitter import MarkdownSplitter  # most messages never need it

    for a, b in cut(text, start, end, WINDOW_CHARS):
        window = text[a:b]
        room = BYTES_PER_PIECE * len(window) // len(window.encode())
        if (len(window.split()) + len(_stop.findall(window))) * SPARSE < len(window):
            yield from cut(text, a, b, room)
            continue
        for offset, piece in MarkdownSplitter((room // 2, room)).chunk_indices(window):
            first, last = strip(text, a + offset, a + offset + len(piece))
            if last - first <= MOST_PER_PIECE // 4 or size(text, first, last) <= MOST_PER_PIECE:
                if first < last:
                    yield first, last
            else:
                yield from cut(text, first, last, MOST_PER_PIECE // 4)


def _split_lines(text: str, atom: Atom) -> list[Atom]:
    made: list[Atom] = []
    end = atom.start
    for first, last, strength in _lines(text, atom):
        for a, b in ((first, last),) if last - first <= MOST_PER_PIECE // 4 else cut(text, first, last, MOST_PER_PIECE // 4):
            gap, own = size(text, end, a), size(text, a, b)
            tail = made[-1] if made else None
            if tail and strength <= LINE and tail.size + gap + own <= LINES_JOIN:
                joined = tail.size + gap + own
                made[-1] = Atom(tail.start, b, tail.gap, joined, tail.strength, atom.kind, atom.language, whole=False)
            else:
                good, gap = (strength, gap) if tail else (atom.strength, atom.gap)
                made.append(Atom(a, b, gap, own, good, atom.kind, atom.language, whole=False))
            end, strength = b, PLAIN
    return made


def _lines(text: str, atom: Atom) -> list[tuple[int, int, float]]:
    """Lines that are not blank, and how good it is to begin a chunk with each: best with the outermost definitions."""
    found: list[tuple[int, int, float]] = []
    defined: dict[int, int] = {}  # line number -> indentation
    at, blank, leads = atom.start, False, 0
    for line in text[atom.start : atom.end].split("\n"):
        here, at = at, at + len(line) + 1
        if not line.strip():
            blank, leads = True, 0
            continue
        first, last = trim(text, here, here + len(line))
        outer = not text[first].isspace()
        if begins(line):
            # Comments and decorators right above a definition belong to it.
            defined[len(found) - leads] = len(line) - len(line.lstrip())
            leads = 0
        else:
            leads = leads + 1 if _lead_line.match(line) else 0
        found.append((first, last, (PARAGRAPH if blank else LINE) if outer else LINE if blank else PLAIN))
        blank = False
    depths = sorted(set(defined.values()))
    for i, depth in defined.items():
        found[i] = (*found[i][:2], DEFINITION - min(depths.index(depth), 5) / 5)
    return found
