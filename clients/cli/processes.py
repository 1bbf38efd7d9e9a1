"""Whether another process still runs, as far as the system tells."""

import os
from pathlib import Path


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
