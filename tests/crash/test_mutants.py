"""The checks of this folder against daemons with a protection taken out: each of these must be caught."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from contextinfinity.protocol.errors import Fault
from tests.crash.mutant import MUTANTS
from tests.crash.promises import Broken, Ledger, check_recovery
from tests.crash.provider import SlowProvider
from tests.crash.test_failpoints import armed, converse, died, in_parallel
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
            converse(daemon, ledger)
        died(daemon, place)
    return ledger


def complaint(folder: Path, provider: SlowProvider, name: str, deaths: Deaths) -> str:
    """What the checks have against this mutant; nothing, if it passes."""
    folder.mkdir()
    daemon = Mutant(folder, name, provider.config("buffered"))
    try:
        check_recovery(daemon, crash(daemon, provider, deaths))
    except (Broken, Fault, RuntimeError) as error:  # a broken promise, a bug that shows, or it does not even start again
        return repr(error)
    finally:
        if daemon.alive:
            daemon.kill9()
    return ""


@pytest.mark.parametrize("name", MUTATED)
def test_it_is_caught(tmp_path: Path, provider: SlowProvider, name: str) -> None:
    ways, words = MUTATED[name]
    found = [complaint(tmp_path / str(number), provider, name, deaths) for number, deaths in enumerate(ways)]
    assert any(one and words in one for one in found), found


def test_the_real_one_dies_the_same_deaths_and_is_not_caught(tmp_path: Path, provider: SlowProvider) -> None:
    everything = [deaths for ways, _ in MUTATED.values() for deaths in ways]

    def case(folder: Path, number: int) -> None:
        daemon = Daemon(folder, provider.config("buffered"))
        check_recovery(daemon, crash(daemon, provider, everything[number]))

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
