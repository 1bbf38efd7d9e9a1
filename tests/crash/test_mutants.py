"""The checks of this folder against daemons with a protection taken out: each of these must be caught."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from contextinfinity.protocol.errors import Fault
from tests.crash.mutant import MUTANTS
from tests.crash.promises import Broken, Ledger, check_indexing_again, check_left, check_two_starts
from tests.crash.provider import SlowProvider
from tests.crash.test_failpoints import armed, converse, died, in_parallel, take_over
from tests.crash.test_kill_loop import kill_again_and_again
from tests.support.daemon import Daemon

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SCRIPT = Path(__file__).with_name("mutant.py")


class Mutant(Daemon):
    """The same process, made by another program."""

    def __init__(self, folder: Path, name: str, config: str, **more: str) -> None:
        super().__init__(folder, config, more)
        self.name = name

    def launch(self) -> "subprocess.Popen[bytes]":
        assert not self.alive, "it runs already"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, SCRIPT, self.name, "--home", self.home],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self.process


Deaths = Sequence[str]
"""Where it dies, start after start, before it is checked."""

MUTATED: dict[str, tuple[Sequence[Deaths], str]] = {
    "acknowledge_before_commit": ([["turn.acknowledged:1"]], "lost: turn"),
    "report_durable_before_write": ([["journal.before_write:3"]], "shorter:"),
    "judge_again_at_every_start": ([["turn.streaming:20"]], ""),
    "report_before_recording": ([["turn.streaming:20", "recovery.finished:1"]], "reported 2 times"),
    "forget_to_finish_jobs": ([["turn.streaming:20"]], "jobs are left"),
    "mark_indexed_before_the_chunks": ([["index.stored:1"]], "of its chunks are missing"),
    "insert_chunks_again": ([["index.stored:1"]], "doubled:"),
    "acknowledge_imports_before_commit": ([["import.stored:2"]], "lost: imported"),
}
"""Ways to die, one of which must show what is wrong, and the words of the complaint."""


@pytest.fixture(scope="module")
def provider() -> Iterator[SlowProvider]:
    with SlowProvider() as running:
        yield running


def crash(daemon: Daemon, provider: SlowProvider, deaths: Deaths) -> Ledger:
    ledger = Ledger(provider.answer)
    for place in deaths:
        armed(daemon, place)
        if daemon.alive:
            (take_over if place.startswith("import") else converse)(daemon, ledger)
        died(daemon, place)
    return ledger


Check = Callable[[Daemon, Ledger], None]


def checks(deaths: Deaths) -> Sequence[Check]:
    again = [check_indexing_again] if any(place.startswith("index") for place in deaths) else []
    return [lambda daemon, ledger: check_left(daemon.home), check_two_starts, *again]


def complaints(folder: Path, provider: SlowProvider, name: str, deaths: Deaths, wanted: str) -> str:
    """What the checks have against this mutant, as far as what is wanted; nothing, if it passes."""
    folder.mkdir()
    daemon, found = Mutant(folder, name, provider.config("buffered")), ""
    try:
        ledger = crash(daemon, provider, deaths)
        for check in checks(deaths):
            if not (found and wanted in found):
                try:
                    check(daemon, ledger)
                except (Broken, Fault, RuntimeError) as error:  # a broken promise, a bug that shows, or no second start
                    found += repr(error)
                    if daemon.alive:
                        daemon.kill9()
    finally:
        if daemon.alive:
            daemon.kill9()
    return found


@pytest.mark.parametrize("name", MUTATED)
def test_it_is_caught(tmp_path: Path, provider: SlowProvider, name: str) -> None:
    ways, words = MUTATED[name]
    found = [complaints(tmp_path / str(number), provider, name, deaths, words) for number, deaths in enumerate(ways)]
    assert any(one and words in one for one in found), found


def test_the_real_one_dies_the_same_deaths_and_is_not_caught(tmp_path: Path, provider: SlowProvider) -> None:
    everything = [deaths for ways, _ in MUTATED.values() for deaths in ways]

    def case(folder: Path, number: int) -> None:
        daemon = Daemon(folder, provider.config("buffered"))
        ledger = crash(daemon, provider, everything[number])
        for check in checks(everything[number]):
            check(daemon, ledger)

    in_parallel(tmp_path, tuple(range(len(everything))), case)


def test_the_random_loop_catches_an_early_acknowledgement(tmp_path: Path, provider: SlowProvider) -> None:
    daemon = Mutant(tmp_path, "acknowledge_before_commit", provider.config("buffered"))
    try:
        with pytest.raises(Broken, match="lost: turn"):
            kill_again_and_again(daemon, provider, Ledger(provider.answer), 10, 7)
    finally:
        if daemon.alive:
            daemon.kill9()


def test_every_mutant_is_tried() -> None:
    assert {*MUTATED, "small"} == MUTANTS.keys()
