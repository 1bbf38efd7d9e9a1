"""A few SDK clients kept open, one per endpoint, so that a turn pays for neither connection nor set-up; for `sdk`.

A client is closed when it is both idle and one too many.
"""

from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio

from contextinfinity.daemon.providers.base import Endpoint
from contextinfinity.daemon.providers.faults import Faults

LIMIT = 4
CLOSE_S = 5.0

Build = Callable[[Endpoint, str, Faults], Any]


@dataclass
class Entry:
    client: Any
    users: int = 0


class Clients:
    """Least recently used goes first. Clients belong to the trio run that made them: their sockets do."""

    def __init__(self, build: Build, limit: int = LIMIT) -> None:
        self._build = build
        self._limit = limit
        self._entries: dict[Hashable, Entry] = {}
        self._lock = trio.Lock()

    @asynccontextmanager
    async def lease(self, endpoint: Endpoint, key: str, faults: Faults) -> AsyncIterator[Any]:
        ident = (
            trio.lowlevel.current_trio_token(),
            endpoint.base_url,
            key,
            endpoint.proxy,
            endpoint.ca_file,
            tuple(sorted(endpoint.headers.items())),
        )
        if ident not in self._entries:
            async with self._lock:
                if ident not in self._entries:
                    client = await trio.to_thread.run_sync(self._build, endpoint, key, faults)
                    self._entries[ident] = Entry(client)
        # Taken out and put back: the last in the dict is the last used.
        entry = self._entries[ident] = self._entries.pop(ident)
        entry.users += 1
        try:
            yield entry.client
        finally:
            entry.users -= 1
            await self._trim()

    async def aclose(self) -> None:
        entries, self._entries = list(self._entries.values()), {}
        for entry in entries:
            await _close(entry.client)

    async def _trim(self) -> None:
        while len(self._entries) > self._limit:
            idle = next((ident for ident, entry in self._entries.items() if not entry.users), None)
            if idle is None:
                return
            await _close(self._entries.pop(idle).client)


async def _close(client: Any) -> None:
    with trio.move_on_after(CLOSE_S, shield=True):
        await client.close()
