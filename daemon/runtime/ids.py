"""Unique, time-ordered ids and the wall clock, made safe against a clock that steps back."""

from datetime import UTC, datetime

from ulid import ULID


class IdMint:
    """ULIDs that only ever increase within this process, whatever the clock does."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> str:
        fresh = int(ULID())
        self._last = fresh if fresh > self._last else self._last + 1
        return str(ULID.from_int(self._last))


def now() -> str:
    """RFC 3339 UTC with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
