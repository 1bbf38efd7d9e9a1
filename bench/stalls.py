"""The longest that a client waits for the acknowledgement of its words while something large goes on beside it.

Checkpoints happen in the ordinary run of things; a backup copies, packs and verifies everything; nothing vacuums in place.
"""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from bench.process import BIN, PING, folder, process, sockets, until_answer
from bench.recovery import History
from bench.table import Row
from bench.wire import connect, result

TURNS = 3000
CLIENTS = 2
SAMPLES = 1000
"""Of each client: enough for a p99.9."""
PAUSE_S = 0.002
MOST_MS = 250.0


def measure() -> list[Row]:
    with folder() as home, sockets() as short:
        history = History(home)
        history.add(TURNS, 0)
        history.close()
        path = short / "ctxd.sock"
        with process([BIN / "ctxd", "--home", home, "--socket", path, "--log-level", "warning"], home=home):
            until_answer(path, PING)
            return trio.run(_measure, path)


async def _measure(path: Path) -> list[Row]:
    quiet, _ = await _submits(path, _nothing)
    backups, made = await _submits(path, lambda: _back_up(path))
    verifies, _ = await _submits(path, lambda: _verify(path))
    assert made, "no backup was made meanwhile"
    return [
        Row("submit, p99.9, with the checkpoints of the run", _late(quiet), "ms", target=MOST_MS),
        Row(f"submit, p99.9, during {made} backups", _late(backups), "ms", target=MOST_MS),
        Row("submit, p99.9, during verify", _late(verifies), "ms", target=MOST_MS),
        Row("  the longest of all", max(quiet + backups + verifies) * 1e3, "ms"),
    ]


def _late(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.999) - 1] * 1e3


async def _submits(path: Path, beside: Callable[[], Awaitable[int]]) -> tuple[list[float], int]:
    """The latencies, and what the work beside them counted."""
    taken: list[float] = []
    counted = 0
    begun = trio.Event()

    async def count() -> None:
        nonlocal counted
        while True:
            counted += await beside()
            begun.set()

    async with trio.open_nursery() as whole:
        whole.start_soon(count)
        async with trio.open_nursery() as clients:
            for _ in range(CLIENTS):
                clients.start_soon(_client, path, taken)
        if beside is not _nothing:
            await begun.wait()
        whole.cancel_scope.cancel()
    return taken, counted


async def _client(path: Path, taken: list[float]) -> None:
    async with connect(path) as wire:
        for number in range(SAMPLES):
            if number % 40 == 0:
                branch = (await wire.call("session.create"))["branch"]["id"]
            request = wire.request("turn.submit", branch_id=branch, content=f"remember {number}", queue=True)
            await trio.sleep(PAUSE_S)
            begin = time.perf_counter()
            answer = await wire.exchange(request)
            taken.append(time.perf_counter() - begin)
            await wire.call("turn.wait", turn_id=result(answer)["turn_id"])


async def _nothing() -> int:
    await trio.sleep_forever()
    return 0


async def _back_up(path: Path) -> int:
    async with connect(path) as wire:
        made: dict[str, Any] = await wire.call("store.backup")
    await trio.Path(made["path"]).unlink()
    return 1


async def _verify(path: Path) -> int:
    async with connect(path) as wire:
        report = await wire.call("store.verify")
    assert report["ok"], report["problems"]
    return 1
