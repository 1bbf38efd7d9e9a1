"""Power cuts examined by the thousand: plays the scenario once, cuts it everywhere, and collects what was lost."""

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import trio

from tests.support.powerloss import Disk, lay_out, power_cuts
from tests.support.scenario import Memory, acknowledged_by, examine, record

SEED = int(os.environ.get("CTX_SEED", "0"))
POINTS = int(os.environ.get("CTX_CRASH_POINTS", "5000"))
CORES = min(os.cpu_count() or 1, 8)


@dataclass
class Findings:
    """How many power cuts, how many different states they left, and every acknowledged thing that one of them lost."""

    points: int = 0
    states: set[bytes] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)

    def add(self, other: "Findings") -> None:
        self.points += other.points
        self.states |= other.states
        self.lost += other.lost


@contextmanager
def fast_folder() -> Iterator[Path]:
    """A folder whose syncs cost nothing, where there is one: power cuts are modelled, the real disk need not be waited for."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="ctx-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def fingerprint(files: dict[str, bytes]) -> bytes:
    hashed = blake2b(digest_size=16)
    for name, data in sorted(files.items()):
        hashed.update(f"{name}\0{len(data)}\0".encode())
        hashed.update(data)
    return hashed.digest()


async def examine_cuts(
    disk: Disk, memory: Memory, count: int, seed: int, part: int = 0, parts: int = 1, most: int = 20
) -> Findings:  # fmt: skip
    """Cut the recorded run `count` times; stops early once `most` losses were found."""
    told = acknowledged_by(disk)
    findings = Findings()
    clean: set[tuple[bytes, int, int]] = set()
    with fast_folder() as folder:
        for moment, files in power_cuts(disk, count, seed, part, parts):
            findings.points += 1
            state = fingerprint(files)
            findings.states.add(state)
            if (state, *told[moment]) in clean:
                continue
            lay_out(files, folder)
            problems = await examine(folder, memory, told[moment])
            if problems:
                findings.lost += [f"cut after operation {moment} (seed {seed}): {problem}" for problem in problems]
                if len(findings.lost) >= most:
                    break
            clean.add((state, *told[moment]))
    return findings


def play_and_cut(seed: int, count: int, part: int, parts: int) -> Findings:
    with fast_folder() as folder:
        disk, memory = record(folder, seed)
    return trio.run(examine_cuts, disk, memory, count, seed, part, parts)


def play_and_cut_on_all_cores(seed: int, count: int) -> Findings:
    findings = Findings()
    with ProcessPoolExecutor(CORES, multiprocessing.get_context("spawn")) as pool:
        for part in [pool.submit(play_and_cut, seed, count, i, CORES) for i in range(CORES)]:
            findings.add(part.result())
    return findings
