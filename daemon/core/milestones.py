"""A turn collects facts; its phase on the wire is a function of them. Which fact may follow which is this table.

The database enforces the same table with triggers (`storage/migrations.py`), and a test compares the two.
"""

from typing import Literal

from contextinfinity.protocol.model import Phase

Fact = Literal["context_prepared", "responding", "response_finalized", "failed", "folded", "indexed"]

NEEDS: dict[Fact, frozenset[Fact]] = {
    "context_prepared": frozenset(),
    "responding": frozenset({"context_prepared"}),
    "response_finalized": frozenset({"responding"}),
    "failed": frozenset(),
    "folded": frozenset(),
    "indexed": frozenset(),
}
"""Facts that must be there before."""

NEEDS_END: frozenset[Fact] = frozenset({"folded", "indexed"})
"""Facts that only a turn which is over (finalised or failed) can collect."""

EXCLUDES: dict[Fact, frozenset[Fact]] = {
    "context_prepared": frozenset({"failed"}),
    "responding": frozenset({"failed"}),
    "response_finalized": frozenset({"failed"}),
    "failed": frozenset({"response_finalized"}),
    "folded": frozenset(),
    "indexed": frozenset(),
}
"""Facts that must not be there."""

REACHED: dict[Phase, int] = {
    "accepted": 0,
    "context_prepared": 1,
    "responding": 2,
    "response_finalized": 3,
    "state_committed": 4,
    "indexed": 5,
    "done": 6,
}


def may_collect(facts: frozenset[Fact], fact: Fact) -> bool:
    """Whether a turn with these facts may collect one more; each is collected at most once."""
    over = facts & {"response_finalized", "failed"}
    return fact not in facts and NEEDS[fact] <= facts and not EXCLUDES[fact] & facts and (fact not in NEEDS_END or bool(over))


def phase_of(facts: frozenset[Fact]) -> Phase:
    if "failed" in facts:
        return "failed"
    if "response_finalized" in facts:
        if "folded" in facts:
            return "done" if "indexed" in facts else "state_committed"
        return "response_finalized"
    if "responding" in facts:
        return "responding"
    return "context_prepared" if "context_prepared" in facts else "accepted"


def has_reached(phase: Phase, indexed: bool, wanted: Phase) -> bool:
    """Whether a wait for this milestone is over; failure ends every wait."""
    if phase == "failed":
        return True
    if wanted == "failed":
        return False
    if wanted == "indexed":
        return indexed
    return REACHED[phase] >= REACHED[wanted]
