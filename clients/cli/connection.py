"""Runs a command's work with a connected client, starting a daemon first where that is allowed.

Everything here is on anyio's asyncio backend, which starts faster than trio; `base.settings` says which daemon.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

import anyio

from contextinfinity.clients import autostart
from contextinfinity.clients.api import Client, connect
from contextinfinity.clients.cli.base import Settings
from contextinfinity.clients.cli.output import note
from contextinfinity.clients.endpoint import find
from contextinfinity.clients.errors import DaemonSilent, DaemonUnreachable
from contextinfinity.protocol.methods import DaemonPing
from contextinfinity.protocol.model import Pong

T = TypeVar("T")


def run(settings: Settings, work: Callable[[Client], Awaitable[T]]) -> T:
    """Connect, do the work, disconnect."""

    async def connected() -> T:
        async with open_client(settings) as client:
            return await work(client)

    return anyio.run(connected)


@asynccontextmanager
async def open_client(settings: Settings) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        endpoint = find(settings.home, settings.socket)
        try:
            client = await stack.enter_async_context(connect(endpoint.unix))
            pong = await client.call(DaemonPing())
        except DaemonSilent:
            raise
        except DaemonUnreachable as error:
            if not settings.autostart:
                raise DaemonUnreachable(f"{error}; start one with ctx daemon start") from None
            endpoint = await autostart.start(settings.home, settings.socket, tell=note)
            client = await stack.enter_async_context(connect(endpoint.unix))
            pong = await client.call(DaemonPing())
        warn_of_skew(pong)
        yield client


def own_version() -> str:
    try:
        return version("contextinfinity")
    except PackageNotFoundError:
        return "unknown"


def warn_of_skew(pong: Pong) -> None:
    mine = own_version()
    if pong.version != mine:
        note(f"the daemon is version {pong.version}, this is {mine}; when idle, `ctx daemon stop` lets the new one start")
