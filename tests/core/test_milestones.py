"""The milestone table as data, and the phase it adds up to."""

import pytest

from contextinfinity.daemon.core.milestones import Fact, has_reached, may_collect, phase_of
from contextinfinity.protocol.model import Phase

HAPPY: list[Fact] = ["context_prepared", "responding", "response_finalized", "folded", "indexed"]


def test_the_happy_path_is_legal_and_names_each_phase() -> None:
    facts: frozenset[Fact] = frozenset()
    phases = [phase_of(facts)]
    for fact in HAPPY:
        assert may_collect(facts, fact)
        facts |= {fact}
        phases.append(phase_of(facts))
    assert phases == ["accepted", "context_prepared", "responding", "response_finalized", "state_committed", "done"]


def test_indexing_does_not_wait_for_folding() -> None:
    over: frozenset[Fact] = frozenset({"context_prepared", "responding", "response_finalized"})
    assert may_collect(over, "indexed")
    assert phase_of(over | {"indexed"}) == "response_finalized"


@pytest.mark.parametrize("fact", HAPPY)
def test_no_fact_is_collected_twice(fact: Fact) -> None:
    assert not may_collect(frozenset(HAPPY), fact)


def test_a_turn_fails_at_any_point_before_its_answer_is_final_and_never_after() -> None:
    for n in range(3):
        assert may_collect(frozenset(HAPPY[:n]), "failed")
    assert not may_collect(frozenset(HAPPY[:3]), "failed")
    assert not may_collect(frozenset({"failed"}), "response_finalized")
    assert phase_of(frozenset({"context_prepared", "failed", "folded", "indexed"})) == "failed"


def test_nothing_is_folded_or_indexed_before_it_is_over() -> None:
    for fact in ("folded", "indexed"):
        assert not may_collect(frozenset({"context_prepared", "responding"}), fact)
        assert may_collect(frozenset({"failed"}), fact)


@pytest.mark.parametrize(
    ("phase", "indexed", "wanted", "over"),
    [
        ("responding", False, "accepted", True),
        ("responding", False, "response_finalized", False),
        ("response_finalized", False, "response_finalized", True),
        ("response_finalized", True, "indexed", True),
        ("state_committed", False, "indexed", False),
        ("done", True, "state_committed", True),
        ("failed", False, "done", True),
        ("done", True, "failed", False),
    ],
)
def test_when_a_wait_is_over(phase: Phase, indexed: bool, wanted: Phase, over: bool) -> None:
    assert has_reached(phase, indexed, wanted) is over
