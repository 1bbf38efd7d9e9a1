"""A sign of life on the terminal while nothing else can be shown; silent in pipes and for the first second."""

import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from contextinfinity.clients.cli.output import can_draw, one_line
from contextinfinity.clients.groups import background

DELAY = 1.0


class Sign:
    """`what … n s` on stderr until it is hidden; the first word of an answer hides it."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since = time.monotonic()
        self._shown = False
        self._over = not can_draw(sys.stderr)

    async def tick(self) -> None:
        await anyio.sleep(DELAY)
        while not self._over:
            self._shown = True
            words = f"{self._what} … {time.monotonic() - self._since:.0f} s"
            # A line that wraps could not be wiped again.
            sys.stderr.write(f"\r\x1b[2K{one_line(words, shutil.get_terminal_size().columns - 1)}")
            sys.stderr.flush()
            await anyio.sleep(0.5)

    def tell(self, what: str) -> None:
        """Say something else from now on."""
        self._what = what

    def hide(self) -> None:
        self._over = True
        if self._shown:
            self._shown = False
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


@asynccontextmanager
async def waiting(what: str) -> AsyncIterator[Sign]:
    """Show the sign for as long as the block runs, from its second second on."""
    sign = Sign(what)
    async with background() as tasks:
        tasks.start_soon(sign.tick)
        try:
            yield sign
        finally:
            sign.hide()
