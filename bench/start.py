"""What one waits for before anything happens: `ctx --help` against `python -c pass`, a daemon until it answers, its memory.

Processes are timed from outside, with the processor time that the system charged them.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import trio

from bench.process import BIN, PING, daemon, environment, folder, process, sockets, until_answer
from bench.table import Row
from bench.wire import connect

WARM, ROUNDS = 2, 15
STARTS = 7
SETTLE_S = 0.5


def help_time() -> list[Row]:
    ours: list[tuple[float, float]] = []
    bare: list[tuple[float, float]] = []
    with folder() as home:
        for number in range(WARM + ROUNDS):
            pair = _run([BIN / "ctx", "--help"], home), _run([sys.executable, "-c", "pass"], home)
            if number >= WARM:
                ours.append(pair[0])
                bare.append(pair[1])
    wall, cpu = ([median(run[i] for run in runs) * 1e3 for runs in (ours, bare)] for i in (0, 1))
    return [
        Row("ctx --help, wall / python -c pass", wall[0], "ms", wall[1], 6.0),
        Row("ctx --help, CPU / python -c pass", cpu[0], "ms", cpu[1], 6.0),
    ]


def _run(command: list[str | Path], home: Path) -> tuple[float, float]:
    """Seconds of wall and processor time."""
    begin = time.perf_counter()
    started = subprocess.Popen(command, env=environment(home), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(started.pid, 0)
    taken = time.perf_counter() - begin
    started.returncode = os.waitstatus_to_exitcode(status)
    assert started.returncode == 0, command
    return taken, used.ru_utime + used.ru_stime


def ready_time() -> list[Row]:
    """From starting the process to the answer to a ping: in a new home, which gets its database, and in one that has it."""
    first: list[float] = []
    again: list[float] = []
    for _ in range(STARTS):
        with folder() as home, sockets() as short:
            for times in (first, again):
                path = short / "ctxd.sock"
                begin = time.perf_counter()
                with process([BIN / "ctxd", "--home", home, "--socket", path], home=home):
                    until_answer(path, PING)
                    times.append(time.perf_counter() - begin)
    return [
        Row("daemon ready, new home", median(first) * 1e3, "ms", target=600.0, sense="<"),
        Row("daemon ready, known home", median(again) * 1e3, "ms", target=600.0, sense="<"),
    ]


def memory() -> list[Row]:
    with daemon() as running:
        trio.run(_create_session, running.socket)
        time.sleep(SETTLE_S)
        shown = subprocess.run(["ps", "-o", "rss=", "-p", str(running.pid)], capture_output=True, text=True, check=True)
    return [Row("memory before the first turn", int(shown.stdout) * 1024 / 1e6, "MB", target=90.0, sense="<")]


async def _create_session(path: Path) -> None:
    async with connect(path) as wire:
        await wire.call("session.create")
