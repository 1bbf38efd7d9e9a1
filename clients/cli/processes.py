"""What can be told of another process: whether it still runs, and why it ended."""

import os
import re
from pathlib import Path

_LOG_PREFIX = re.compile(r"^\S+ \S+ (?:ERROR|CRITICAL) \S+: ")


def alive(pid: int) -> bool:
    """Whether it still runs; a zombie, which a container without an init process keeps, has ended."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state != b"Z"


def complaint(words: str) -> str:
    """The last complaint in what ctxd wrote; a traceback below it is for its log, not for people."""
    rows = [row for row in words.splitlines() if row.strip()]
    complaints = [_LOG_PREFIX.sub("", row) for row in rows if _LOG_PREFIX.match(row)]
    if not complaints:
        return rows[-1] if rows else "ctxd did not say why"
    if rows[-1].startswith((" ", "\t")) or _LOG_PREFIX.match(rows[-1]):
        return complaints[-1]
    return f"{complaints[-1]}: {rows[-1]}"
