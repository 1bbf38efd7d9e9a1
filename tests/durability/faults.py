"""An I/O error at every operation of every step of the scenario, once each, and what is left afterwards."""

import contextlib
import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import apsw
import trio

from contextinfinity.protocol.errors import Fault
from tests.durability.cuts import CORES, fast_folder
from tests.support.powerloss import Disk, FailedSync, FailOnce, Platter, lay_out
from tests.support.scenario import STEPS, Acknowledged, Memory, Scenario, examine, snapshot

STRIDE = int(os.environ.get("CTX_IO_STRIDE", "3"))
"""Every so manyth operation fails, each time in a run of its own; 1 takes minutes."""


@dataclass
class Failures:
    """How many operations failed, of which kind, for how many of them nobody was told, and what was lost all the same."""

    failed: Counter[str] = field(default_factory=Counter)
    untold: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)

    def add(self, other: "Failures") -> None:
        self.failed += other.failed
        self.untold += other.untold
        self.lost += other.lost


@dataclass
class Stage:
    """The moment before a step: what is on disk and what is known."""

    name: str
    files: dict[str, bytes]
    memory: Memory


def stages(seed: int) -> tuple[list[Stage], Memory]:
    """Play the scenario and stop before each step; and what is known at the end."""
    found = []
    with fast_folder() as folder:
        scenario = Scenario(folder, seed, Disk(folder))
        assert scenario.disk is not None
        with scenario.disk.as_default():
            for name in STEPS:
                found.append(Stage(name, _files(folder), snapshot(scenario.memory)))
                scenario.run([name])
            scenario.abandon()
    return found, scenario.memory


def _files(folder: Path) -> dict[str, bytes]:
    paths = [p for p in folder.rglob("*") if p.is_file() and not p.name.endswith("-shm")]
    return {str(p.relative_to(folder)): p.read_bytes() for p in paths}


async def fail_everywhere(seed: int, names: Sequence[str] = STEPS, most: int = 20) -> Failures:
    """Run each step again and again, each time with the next operation failing, until none is left to fail."""
    failures = Failures()
    found, known = stages(seed)
    with fast_folder() as folder, fast_folder() as after:
        for stage in (s for s in found if s.name in names):
            nth = -(seed % STRIDE)
            while len(failures.lost) < most:
                nth += STRIDE
                if nth < 1:
                    continue
                fault = FailOnce(nth)
                disk, memory, told = _run(stage, folder, fault)
                if fault.hit is None:
                    break
                failures.failed[fault.hit[0]] += 1
                failures.untold[fault.hit[0]] += not told
                problems = await _examine_both(disk, known, memory, folder, after, seed + nth)
                failures.lost += [f"{stage.name}, {fault.hit} as operation {nth}: {problem}" for problem in problems]
    return failures


def _run(stage: Stage, folder: Path, fault: FailOnce) -> tuple[Disk, Memory, bool]:
    """One step with its fault; whether anybody was told."""
    lay_out(stage.files, folder)
    disk = Disk(folder, _database_only(fault))
    scenario = Scenario(folder, 0, disk, snapshot(stage.memory))
    scenario.undisturbed = lambda: _paused(fault)
    told = False
    with disk.as_default():
        try:
            if stage.name not in ("first_version", "migrate"):
                with _paused(fault):
                    scenario.reopen()
            scenario.run([stage.name])
        except (apsw.Error, Fault):
            told = True
        finally:
            fault.paused = True
            scenario.abandon()
    return disk, scenario.memory, told


def _database_only(fault: FailOnce) -> Callable[[str, str], BaseException | None]:
    return lambda operation, name: None if name.startswith("streams") else fault(operation, name)


@contextlib.contextmanager
def _paused(fault: FailOnce) -> Iterator[None]:
    before, fault.paused = fault.paused, True
    try:
        yield
    finally:
        fault.paused = before


async def _examine_both(disk: Disk, known: Memory, memory: Memory, folder: Path, after: Path, seed: int) -> list[str]:
    """What a restart finds, and what a restart after a power cut finds."""
    told = Acknowledged(len(memory.states) - 1, len(memory.promises))
    done = len(memory.states)
    states, anchors = memory.states + known.states[done:], memory.anchors + known.anchors[done:]
    expected = replace(known, promises=memory.promises, states=states, anchors=anchors)
    platter = Platter(disk.before, seed)
    for operation in disk.log:
        platter.apply(operation)
    problems = [f"after a restart: {p}" for p in await examine(folder, expected, told, again=False)]
    if platter.uncertain or any(isinstance(operation, FailedSync) for operation in disk.log):
        lay_out(platter.cut(random.Random(seed)), after)
        problems += [f"after a power cut: {p}" for p in await examine(after, expected, told, again=False)]
    return problems


def fail_everywhere_on_all_cores(seed: int) -> Failures:
    failures = Failures()
    with ProcessPoolExecutor(CORES, multiprocessing.get_context("spawn")) as pool:
        for step in [pool.submit(trio.run, fail_everywhere, seed, (name,)) for name in STEPS]:
            failures.add(step.result())
    return failures
