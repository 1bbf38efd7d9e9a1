"""The maintenance worker: long jobs on the whole database, one at a time, in a thread beside the store.

It opens connections of its own, so nobody waits for it; if it crashes, nobody is disconnected.
"""

from functools import partial
from pathlib import Path
from typing import assert_never

import trio

from contextinfinity.daemon.runtime.actor import Actor, Request
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage import backup, verify
from contextinfinity.protocol.errors import Fault
from contextinfinity.protocol.methods import BackupMade
from contextinfinity.protocol.model import VerifyReport

DEADLINE = 24 * 3600.0


class Verify(Request[VerifyReport], frozen=True):
    anchors: dict[str, str]


class Backup(Request[BackupMade], frozen=True):
    target: str | None


class Maintenance(Actor):
    answers = (Fault,)

    def __init__(self, database: Path, streams: Path, backups: Path) -> None:
        self._database = database
        self._streams = streams
        self._backups = backups

    async def handle(self, message: Verify | Backup) -> object:
        match message:
            case Verify(anchors):
                check = partial(verify.check, self._database, self._streams, anchors)
                return await trio.to_thread.run_sync(check, abandon_on_cancel=True)
            case Backup(target):
                at = now()
                path = Path(target) if target is not None else self._backups / f"backup-{at.replace(':', '')}.db"
                make = partial(backup.make, self._database, self._streams, path, at)
                return await trio.to_thread.run_sync(make, abandon_on_cancel=True)  # at worst a draft is left, never a backup
            case _:
                assert_never(message)
