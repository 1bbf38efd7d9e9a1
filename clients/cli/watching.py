"""`ctx import --watch`: imports again and again, over restarts of the daemon, until Ctrl-C.

The daemon remembers how far it read each file, so asking for one that did not grow costs next to nothing.
"""

import sys
from collections.abc import Sequence
from datetime import datetime

import anyio
import msgspec

from contextinfinity.clients.api import Client
from contextinfinity.clients.cli.base import Settings
from contextinfinity.clients.cli.connection import open_client
from contextinfinity.clients.cli.failures import FAILURE
from contextinfinity.clients.cli.imports import Outcome, Total, one, show, show_damage, unusable
from contextinfinity.clients.cli.output import clean, counted, dump, line, note, one_line
from contextinfinity.clients.errors import DaemonUnreachable
from contextinfinity.protocol.errors import Fault
from contextinfinity.protocol.methods import Imported, TranscriptImport

EVERY = 1.0
LONGEST_PAUSE = 30.0


def watch(shared: Settings, asked: Sequence[TranscriptImport]) -> int:
    watcher = Watcher(shared, asked)
    try:
        anyio.run(watcher.run)
    except KeyboardInterrupt:
        watcher.say_total()
        return 0
    return FAILURE


class Watcher:
    """Knows what came in so far, and of every path what was last complained about, so that it is said once."""

    def __init__(self, shared: Settings, asked: Sequence[TranscriptImport]) -> None:
        self.total = Total()
        self._shared = shared
        self._asked = asked
        self._connected = False
        self._lost = False
        self._begun = False
        self._complaints: dict[str, str] = {}
        self._damage: set[str] = set()
        self._pause = EVERY

    async def run(self) -> None:
        """Returns only if there is nothing to watch: no path can be used."""
        while True:
            try:
                async with open_client(self._shared) as client:
                    self._say_connected()
                    while await self._round(client):
                        self._pause = EVERY
                        await anyio.sleep(EVERY)
                    return
            except DaemonUnreachable as error:
                if not self._connected:
                    raise
                if not self._lost:
                    self._lost = True
                    note(f"{error}; connecting again")
            await anyio.sleep(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    async def _round(self, client: Client) -> bool:
        first = not self._begun
        outcomes = [await self._ask(client, params, first=first) for params in self._asked]
        self._begun = True
        return not first or any(outcome.imported for outcome in outcomes)

    async def _ask(self, client: Client, params: TranscriptImport, *, first: bool) -> Outcome:
        path = str(params.path)
        try:
            if first:
                outcome = await one(client, params)
            elif (reason := unusable(path)) is not None:
                outcome = Outcome(path, error=reason)
            else:
                imported = await client.call(params, timeout=None)
                outcome = Outcome(path, imported)
        except Fault as fault:  # a full disk, a daemon that is about to stop: it may be over next time
            outcome = Outcome(path, error=fault.message)
        self._say(outcome, first=first)
        return outcome

    def _say(self, outcome: Outcome, *, first: bool) -> None:
        if outcome.imported is None:
            reason = str(outcome.error)
            if self._complaints.get(outcome.path) != reason:
                self._complaints[outcome.path] = reason
                note(one_line(reason))
            return
        self._complaints.pop(outcome.path, None)
        # A file that is read whole each time tells of the same damage each time.
        fresh = tuple(place for place in outcome.imported.damaged if place not in self._damage)
        self._damage.update(fresh)
        imported = msgspec.structs.replace(outcome.imported, damaged=fresh)
        if not (first or imported.turns or fresh):
            return
        self.total.add(imported if first else msgspec.structs.replace(imported, skipped=0))
        if self._shared.json:
            dump(Outcome(outcome.path, imported).document(), compact=True)
        elif first:
            show(Outcome(outcome.path, imported))
        else:
            _say_news(outcome.path, imported)
        sys.stdout.flush()

    def _say_connected(self) -> None:
        if self._lost:
            note("connected again")
        self._connected, self._lost = True, False

    def say_total(self) -> None:
        if self._shared.json:
            dump({"total": self.total.document()}, compact=True)
        else:
            line(f"Watched until now: {self.total.sentence()}.")


def _say_news(path: str, imported: Imported) -> None:
    if imported.turns:
        at = datetime.now().astimezone().strftime("%H:%M:%S")
        line(f"{at} {clean(path)}: {counted(imported.turns, 'turn')}, {counted(imported.messages, 'message')}")
    show_damage(imported.damaged)
