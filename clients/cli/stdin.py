"""Text that is piped into a command, without swallowing input that was meant for somebody else.

A command inside `while read …` or a script inherits the script's input; taking it would eat the loop's lines, and a pipe
that nobody closes would never end. Such input is left alone unless `-` asks for it, and that is said on stderr.
"""

import fcntl
import os
import select
import stat
import struct
import sys
import termios

import click

from contextinfinity.clients.cli.output import note


def read_all() -> str:
    """Everything up to the end of input, as UTF-8."""
    return sys.stdin.buffer.read().decode()


def piped(*, needed: bool) -> str:
    """What was piped in; with `needed` there is no other text, so input is waited for whatever it is."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return ""
    if needed or not _inherited():
        return read_all()
    if _holds_words():
        raise click.UsageError(
            "something is piped in, but to a script or group that this command is part of, so it may be meant for others: "
            "add - to send it along, or </dev/null to leave it; nothing was sent"
        )
    if _waiting():
        note("standard input is left unread, because this command inherited it; add - to read it")
    return ""


def _inherited() -> bool:
    """Whether the parent process has the very same input; where that cannot be told, it counts as ours."""
    try:
        mine, parents = os.fstat(sys.stdin.fileno()), os.stat(f"/proc/{os.getppid()}/fd/0")
    except (OSError, ValueError):
        return False
    return (mine.st_dev, mine.st_ino) == (parents.st_dev, parents.st_ino)


def _holds_words() -> bool:
    """Whether a pipe has something in it right now; a file that a loop reads is left to the loop."""
    number = sys.stdin.fileno()
    return stat.S_ISFIFO(os.fstat(number).st_mode) and _available(number) > 0


def _waiting() -> bool:
    """Whether there is, or may yet be, something to read that we do not read."""
    number = sys.stdin.fileno()
    mode = os.fstat(number).st_mode
    if stat.S_ISREG(mode):
        return os.lseek(number, 0, os.SEEK_CUR) < os.fstat(number).st_size
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False  # /dev/null and its like
    at_end = bool(select.select([number], [], [], 0)[0]) and not _available(number)
    return not at_end


def _available(number: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(number, termios.FIONREAD, b"\0" * 4))
    return int(count)
