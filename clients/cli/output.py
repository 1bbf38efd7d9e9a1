"""What reaches the terminal or the pipe: text whose control characters are made visible, JSON, colour where wanted.

Words from a model must never drive the user's terminal, so everything printed there goes through `clean`.
"""

import os
import re
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import msgspec

# C0 controls but tab and newline become their pictures, DEL and C1 (which hold one-byte escape sequences) a plain dot.
_VISIBLE = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
_VISIBLE |= dict.fromkeys(range(0x80, 0xA0), ord("·"))
_VISIBLE[0x7F] = 0x2421
_C1 = re.compile("[\x7f-\x9f]")


def clean(text: str) -> str:
    """Text that moves no cursor and sets no title."""
    return text.replace("\r\n", "\n").translate(_VISIBLE)


def one_line(text: str, width: int = 0) -> str:
    line = clean(" ".join(text.split()))
    return f"{line[: width - 1]}…" if 0 < width < len(line) else line


def to_terminal(stream: TextIO) -> bool:
    return stream.isatty()


def can_draw(stream: TextIO) -> bool:
    """Whether the cursor can be moved about."""
    return to_terminal(stream) and os.environ.get("TERM", "dumb") != "dumb"


def in_colour(stream: TextIO) -> bool:
    return can_draw(stream) and not os.environ.get("NO_COLOR")


def style(text: str, code: str, stream: TextIO | None = None) -> str:
    """`code` is an SGR number such as "1" (bold) or "2" (dim)."""
    return f"\x1b[{code}m{text}\x1b[0m" if in_colour(stream or sys.stdout) else text


def write(text: str) -> None:
    """Words of a conversation: as they are into a pipe, cleaned onto a terminal."""
    sys.stdout.write(clean(text) if to_terminal(sys.stdout) else text)
    sys.stdout.flush()


def line(text: str = "") -> None:
    """A line of our own making, styled perhaps, whose parts have been cleaned."""
    print(text)


def note(text: str) -> None:
    """Something for a person to know, beside the output."""
    print(f"ctx: {clean(text)}", file=sys.stderr)


def dump(value: Any, *, compact: bool = False) -> None:
    """One JSON document."""
    document = msgspec.json.encode(value)
    text = (document if compact else msgspec.json.format(document, indent=2)).decode()
    print(_C1.sub(lambda found: f"\\u{ord(found[0]):04x}", text), flush=True)


def columns(table: Sequence[tuple[str, ...]], header: tuple[str, ...]) -> None:
    """A table whose last column is free; a header only for people."""
    rows = [tuple(clean(cell) for cell in row) for row in table]
    shown = [header, *rows] if to_terminal(sys.stdout) else rows
    widths = [max(len(row[i]) for row in shown) for i in range(len(header) - 1)] if shown else []
    for number, row in enumerate(shown):
        text = "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        line(style(text, "2") if number == 0 and shown[0] is header else text)


def counted(number: int, word: str) -> str:
    """`1 turn`, `1,200 turns`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def who(role: str, speaker: str | None) -> str:
    """Who said it: by name where the conversation has names."""
    return one_line(speaker) if speaker and speaker != role else {"user": "you"}.get(role, clean(role))


def when(timestamp: str) -> str:
    """A stored time in the user's own zone."""
    from datetime import datetime

    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).astimezone().strftime("%Y-%m-%d %H:%M")
