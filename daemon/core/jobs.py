"""When a job that failed is tried again, and when it is given up.

Doubling waits with jitter; after the last attempt it is parked, where a person can see it.
"""

MOST_ATTEMPTS = 5
FIRST_WAIT, LONGEST_WAIT = 0.5, 300.0
LEASE_SECONDS = 120.0


def wait_after(attempts: int, chance: float) -> float:
    """Seconds before the next try after this many; `chance` in [0, 1) spreads those that failed together."""
    whole: float = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (attempts - 1))
    return whole * (0.5 + chance / 2)


def is_poison(attempts: int) -> bool:
    """Attempts are counted when a job is claimed, so one that kills the process is given up like any other."""
    return attempts >= MOST_ATTEMPTS
