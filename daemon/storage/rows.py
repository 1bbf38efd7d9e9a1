"""How the fact columns of a turn are read; `core.milestones` says what they add up to."""

from contextinfinity.daemon.core.milestones import Fact
from contextinfinity.daemon.storage.connection import Row

FACTS = "t.context_at, t.responding_at, t.finalized_at, t.failed_at, t.state_after, t.indexed_at"
_NAMES: tuple[Fact, ...] = ("context_prepared", "responding", "response_finalized", "failed", "folded", "indexed")


def facts(columns: Row) -> frozenset[Fact]:
    return frozenset(name for name, value in zip(_NAMES, columns, strict=True) if value is not None)
