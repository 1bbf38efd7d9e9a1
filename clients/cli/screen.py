"""The status line of `ctx chat`: where the conversation stands and how much of the answer is safe on disk.

It lives on the terminal's last row, outside the scrolling region, so that the text above keeps its scrollback.
"""

import shutil
import sys

import msgspec

from contextinfinity.clients.cli.output import can_draw, in_colour, one_line
from contextinfinity.protocol.events import Notification
from contextinfinity.protocol.model import Branch, StreamBytes

SMALLEST = (40, 6)


class Header:
    """Session, branch, head state, pending turns, phase and stream, from a branch and the events since."""

    def __init__(self) -> None:
        self._branch: Branch | None = None
        self._title = "new session"
        self._phase = "ready"
        self._stream = StreamBytes()

    def show(self, branch: Branch, title: str | None) -> None:
        same = self._branch is not None and self._branch.id == branch.id
        self._branch, self._title = branch, title or short(branch.session_id)
        self._phase, stream = branch.phase or "ready", branch.stream
        if same and not stream.displayed:
            # Nothing streams any more: what was shown last was committed when its turn ended.
            stream = StreamBytes(self._stream.displayed, self._stream.displayed)
        self._stream = stream

    def see(self, event: Notification) -> None:
        if event.type == "turn.accepted" and self._branch is not None:
            self._branch = msgspec.structs.replace(self._branch, pending_turns=self._branch.pending_turns + 1)
        elif event.type == "turn.phase":
            self._phase = str(event.data.get("phase", self._phase))
        elif "displayed" in event.data and "durable" in event.data:
            self._stream = StreamBytes(int(event.data["displayed"]), int(event.data["durable"]))

    def text(self, width: int) -> str:
        stream = self._stream
        # The last answer may be shown before it is on disk; that has to be visible.
        buffered = " buffered" if stream.displayed > stream.durable else ""
        parts = [self._phase, f"Stream: {stream.durable}/{stream.displayed}{buffered}"]
        if self._branch is not None:
            branch = self._branch
            head = f"head {branch.head_seq} {short(branch.head_state)}"
            parts = [branch.label or short(branch.id), head, f"pending {branch.pending_turns}", *parts]
        rest = " · ".join(one_line(part) for part in parts)
        title = one_line(self._title, max(8, width - len(rest) - 5))
        return f" {title} · {rest} "[:width]


def short(ident: str) -> str:
    """The end of an id: the beginning is a time, the same for all that was made together."""
    return f"…{ident[-6:]}"


class Screen:
    """Draws the header; does nothing where the cursor cannot be moved or there is no room."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._size: tuple[int, int] | None = None

    def draw(self) -> None:
        columns, rows = shutil.get_terminal_size()
        if not can_draw(sys.stdout) or columns < SMALLEST[0] or rows < SMALLEST[1]:
            return
        out = ""
        if self._size != (columns, rows):
            self._size = (columns, rows)
            # A free row below the cursor first; setting the region moves the cursor, so it is kept around it.
            out = f"\n\x1b[1A\x1b7\x1b[1;{rows - 1}r\x1b8"
        text = self._header.text(columns).ljust(columns)
        bar = f"\x1b[7m{text}\x1b[0m" if in_colour(sys.stdout) else text.rstrip()
        sys.stdout.write(f"{out}\x1b7\x1b[{rows};1H\x1b[2K{bar}\x1b8")
        sys.stdout.flush()

    def close(self) -> None:
        if self._size is not None:
            sys.stdout.write(f"\x1b7\x1b[r\x1b[{self._size[1]};1H\x1b[2K\x1b8")
            sys.stdout.flush()
            self._size = None
