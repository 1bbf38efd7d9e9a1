"""A ping through the socket against a bare trio echo server, asked in turn by one and the same client.

Both servers are processes of their own, so both pay for waking up.
"""

import sys
import time
from pathlib import Path

import trio

from bench.process import PING, daemon, process, sockets, until_answer
from bench.table import Row, p50
from bench.wire import Wire, connect

WARM, ROUNDS = 300, 4000


def measure() -> list[Row]:
    with daemon() as running, sockets() as short:
        path = short / "echo.sock"
        with process([sys.executable, "-m", "bench.echo", str(path)], home=running.home):
            until_answer(path, PING)
            pings, echoes = trio.run(_measure, running.socket, path)
    return [Row("ping p50 / bare trio echo", p50(pings), "us", p50(echoes), 1.5)]


async def _measure(ctxd: Path, bare: Path) -> tuple[list[float], list[float]]:
    pings: list[float] = []
    echoes: list[float] = []
    async with connect(ctxd) as a, connect(bare) as b:
        for _ in range(WARM):
            await _timed(b)
            await _timed(a)
        for _ in range(ROUNDS):
            echoes.append(await _timed(b))
            pings.append(await _timed(a))
    return pings, echoes


async def _timed(wire: Wire) -> float:
    begin = time.perf_counter()
    answer = await wire.exchange(PING)
    taken = time.perf_counter() - begin
    assert b'"error"' not in answer, answer
    return taken
