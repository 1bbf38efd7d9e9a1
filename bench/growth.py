"""What a turn costs on disk: as much in a long conversation as in a short one, though every prompt repeats what came before.

The daemon is stopped before each look, so that the log is part of the database.
"""

import os
import time
from pathlib import Path

import trio

from bench.process import BIN, PING, folder, process, sockets, until_answer
from bench.table import Row
from bench.wire import connect

SHORT = 100
LONG = int(os.environ.get("BENCH_TURNS", "5000"))
AT_ONCE = 50
CONFIG = "[context]\nworking_set_tokens = 4000\n"  # a shorter prompt only makes the answers faster
WORDS = "The build server is called heron-7 and the deploy window is on Tuesday at 14:00 UTC; remember both."


def measure() -> list[Row]:
    with folder() as home, sockets() as short:
        (home / "config.toml").write_text(CONFIG)
        sizes, branch = [], None
        for turns in (0, SHORT, LONG - SHORT):
            with process([BIN / "ctxd", "--home", home, "--socket", short / "ctxd.sock", "--log-level", "warning"], home=home):
                until_answer(short / "ctxd.sock", PING)
                branch = trio.run(_talk, short / "ctxd.sock", home, branch, turns)
            sizes.append(_size(home))
    each = [(sizes[1] - sizes[0]) / SHORT, (sizes[2] - sizes[0]) / LONG]
    return [Row(f"disk per turn at {LONG:,} turns / at {SHORT}", each[1], "B", each[0], 1.15)]


async def _talk(path: Path, home: Path, branch: str | None, turns: int) -> str:
    async with connect(path) as wire:
        if branch is None:
            branch = (await wire.call("session.create"))["branch"]["id"]
        for start in range(0, turns, AT_ONCE):
            for number in range(start, min(turns, start + AT_ONCE)):
                text = f"{number} {time.monotonic_ns()}: {WORDS}"
                last = await wire.call("turn.submit", branch_id=branch, content=text, queue=True)
            answer = await wire.call("turn.wait", turn_id=last["turn_id"])
            assert answer["phase"] == "response_finalized", answer
        while any((home / "streams").iterdir()):  # noqa: ASYNC110 - it happens in another process
            await trio.sleep(0.05)
    return branch


def _size(home: Path) -> int:
    return sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
