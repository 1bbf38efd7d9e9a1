"""Journals of several streams at once, written by the real journal actor on a disk that remembers, and cut anywhere."""

import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import trio
import trio.testing

from contextinfinity.daemon.actors.hub import Hub, Live
from contextinfinity.daemon.actors.journal import Journal, OpenStep, StepJournal
from contextinfinity.daemon.config import Stream
from contextinfinity.daemon.runtime.supervisor import Supervisor
from contextinfinity.daemon.storage import journals
from tests.durability.cuts import Findings, fast_folder, fingerprint
from tests.support.powerloss import Disk, Mark, lay_out, power_cuts

Policy = Literal["buffered", "write_ahead"]
LETTERS = 'abcdefghij äöü漢🦆\n"\\'


@dataclass
class Played:
    """What was appended to each stream, and the disk with the marks of what was shown, durable and sealed when."""

    disk: Disk
    policy: Policy
    lines: dict[str, list[tuple[str, dict[str, Any]]]] = field(default_factory=lambda: defaultdict(list))


class _TellingHub(Hub):
    """Notes in the log what subscribers are told."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def shown(self, live: Live, block: int, text: str) -> None:
        super().shown(live, block, text)
        self._disk.mark(("shown", live.step_id, live.displayed))

    def durable(self, live: Live, durable: int) -> None:
        super().durable(live, durable)
        self._disk.mark(("durable", live.step_id, durable))


def play_streams(policy: Policy, seed: int, rounds: int = 250) -> Played:
    with fast_folder() as folder:
        played = Played(Disk(folder), policy)
        with patch.object(journals, "os", played.disk.os):
            trio.run(_play, folder, played, seed, rounds, clock=trio.testing.MockClock())
    return played


async def _play(folder: Path, played: Played, seed: int, rounds: int) -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    rng = random.Random(seed)
    hub = _TellingHub(played.disk)
    actors: list[Journal] = []

    def make() -> Journal:
        actors.append(Journal(folder, hub, Stream(policy=played.policy, flush_bytes=400)))
        return actors[-1]

    supervisor = Supervisor("test")
    ref = supervisor.add("journal", make)
    live: list[StepJournal] = []
    token = trio.lowlevel.current_trio_token()

    def say() -> None:
        text = "".join(rng.choices(LETTERS, k=rng.randrange(1, 60)))
        _append(played, rng.choice(live), "recall.delta", {"text": text}, text)

    def during_sync(operation: str, name: str) -> None:
        """More arrives while the disk is at work: it must not count as synced by that."""
        if operation == "sync" and live and rng.random() < 0.2:
            trio.from_thread.run_sync(say, trio_token=token)

    played.disk.fault = during_sync
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        for number in range(rounds):
            match rng.randrange(12):
                case 0 | 1 if len(live) < 4:
                    step_id = f"s{number}"
                    played.lines[step_id].append((journals.START, {"model_id": "m", "turn_id": f"t{number}"}))
                    live.append(await ref.ask(OpenStep(Live(step_id, f"t{number}", f"b{number}", "x"), "recall", "m")))
                case 2 | 3:
                    clock.jump(rng.choice((0.1, 0.3, 2.1)))
                case 4 if live:
                    step = live.pop(rng.randrange(len(live)))
                    _append(played, step, "recall.end", {})
                    await step.seal()
                    await _settled(actors[-1])
                    played.disk.mark(("sealed", step.live.step_id, len(played.lines[step.live.step_id])))
                case _ if live:
                    for _ in range(rng.randrange(1, 5)):
                        say()
            await _settled(actors[-1])
        played.disk.fault = None
        nursery.cancel_scope.cancel()


def _append(played: Played, step: StepJournal, kind: str, payload: dict[str, Any], text: str = "") -> None:
    played.lines[step.live.step_id].append((kind, payload))
    step.append(kind, payload, [(0, text)] if text else [])


async def _settled(actor: Journal) -> None:
    """Until the actor has nothing to do before the clock moves."""
    lane = actor._lane
    assert lane is not None
    while True:
        await trio.testing.wait_all_tasks_blocked()
        if not len(lane):
            return
        time.sleep(0.0001)  # noqa: ASYNC251 - the clock of this loop stands still and its thread is at work


def cut_streams(played: Played, count: int, seed: int, most: int = 20) -> Findings:
    findings = Findings()
    told: list[dict[tuple[str, str], int]] = [{}]
    for operation in played.disk.log:
        latest = told[-1]
        if isinstance(operation, Mark):
            kind, step_id, amount = operation.what
            latest = {**latest, (kind, step_id): amount}
        told.append(latest)
    with fast_folder() as folder:
        for moment, files in power_cuts(played.disk, count, seed):
            findings.points += 1
            findings.states.add(fingerprint(files))
            lay_out(files, folder)
            for problem in _compare(folder, played, told[moment]):
                findings.lost.append(f"cut after operation {moment} (seed {seed}): {problem}")
            if len(findings.lost) >= most:
                break
    return findings


def _compare(folder: Path, played: Played, told: dict[tuple[str, str], int]) -> list[str]:
    problems = []
    for step_id, appended in played.lines.items():
        lines = [(x.event_type, x.payload) for x in journals.read_lines(journals.path_of(folder, step_id))]
        if lines != appended[: len(lines)]:
            problems.append(f"the journal of {step_id} says what was never said")
        recovered = sum(len(payload.get("text", "").encode()) for _, payload in lines)
        promised = ["durable"] if played.policy == "buffered" else ["durable", "shown"]
        for kind in promised:
            if recovered < told.get((kind, step_id), 0):
                problems.append(f"{told[kind, step_id]} bytes of {step_id} were {kind}, {recovered} came back")
        if len(lines) < told.get(("sealed", step_id), 0):
            problems.append(f"{step_id} was sealed with {told['sealed', step_id]} lines, {len(lines)} came back")
    return problems
