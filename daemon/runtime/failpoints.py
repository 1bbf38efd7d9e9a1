"""Named places where a test can make the process die, enabled by the environment alone.

`CTX_FAILPOINT=name:3` kills the process with SIGKILL the third time it reaches `name`; unset, a place costs one comparison.
"""

import os
import signal

VARIABLE = "CTX_FAILPOINT"

NAMES = (
    "store.statement",
    "store.before_commit",
    "store.after_commit",
    "turn.acknowledged",
    "turn.assembled",
    "turn.responding",
    "turn.streaming",
    "turn.streamed",
    "turn.sealed",
    "turn.recorded",
    "journal.before_write",
    "journal.after_write",
    "journal.after_sync",
    "journal.after_folder_sync",
    "pack.before",
    "pack.stored",
    "pack.removed",
    "index.begun",
    "index.prepared",
    "index.stored",
    "index.again",
    "embed.made",
    "embed.stored",
    "embed.finished",
    "import.prepared",
    "import.stored",
    "recovery.begun",
    "recovery.judged",
    "recovery.finished",
    "migration.statement",
    "backup.copied",
    "backup.verified",
)


def _parse(value: str) -> tuple[str, int]:
    name, _, count = value.partition(":")
    return name, int(count or 1)


_armed, _left = _parse(os.environ.get(VARIABLE, ""))


def hit(name: str) -> None:
    if name == _armed:
        _reached()


def _reached() -> None:
    global _left
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
