"""Power loss at thousands of moments of a database's life and of its journals: nothing acknowledged is ever missing."""

import pytest

from tests.durability.cuts import POINTS, SEED, fast_folder, play_and_cut_on_all_cores
from tests.durability.streams import Played, Policy, cut_streams, play_streams
from tests.support.powerloss import Mark
from tests.support.scenario import STEPS, record


@pytest.mark.slow
@pytest.mark.timeout(120 + POINTS // 10)
def test_no_power_cut_loses_what_was_acknowledged() -> None:
    findings = play_and_cut_on_all_cores(SEED, POINTS)
    assert findings.lost == []
    assert findings.points >= POINTS
    assert len(findings.states) > findings.points // 2, "the cuts do not differ enough to prove anything"


def test_the_same_seed_plays_the_same_life() -> None:
    runs = []
    for seed in (SEED, SEED, SEED + 1):
        with fast_folder() as folder:
            disk, memory = record(folder, seed, names=STEPS[:6])
            runs.append((disk.log, memory.states))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.slow
@pytest.mark.timeout(60 + POINTS // 50)
@pytest.mark.parametrize("policy", ["buffered", "write_ahead"])
def test_no_power_cut_loses_what_a_stream_was_said_to_have_kept(policy: Policy) -> None:
    played = play_streams(policy, SEED)
    said = {operation.what[0] for operation in played.disk.log if isinstance(operation, Mark)}
    assert said == {"shown", "durable", "sealed"}
    findings = cut_streams(played, POINTS, SEED)
    assert findings.lost == []
    assert findings.points >= POINTS


@pytest.mark.parametrize("policy", ["buffered", "write_ahead"])
def test_the_same_seed_plays_the_same_streams(policy: Policy) -> None:
    assert _kinds(play_streams(policy, SEED, 60)) == _kinds(play_streams(policy, SEED, 60))


def _kinds(played: Played) -> list[object]:
    """The log without the times of day in it."""
    return [operation if isinstance(operation, Mark) else type(operation) for operation in played.disk.log]
