"""Ids that only ever increase, whatever the clock does, and the time as the protocol writes it."""

import re
from datetime import UTC, datetime, timedelta

import pytest
import ulid

from contextinfinity.daemon.runtime import ids
from contextinfinity.daemon.runtime.ids import IdMint


class Clock:
    """Milliseconds that go where a test wants them."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(ulid.default_generator, "clock", clock)
    return clock


def test_ids_are_ulids() -> None:
    minted = IdMint()()
    assert re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{26}", minted)
    assert str(ulid.ULID.from_str(minted)) == minted


def test_ids_carry_the_time(clock: Clock) -> None:
    assert ulid.ULID.from_str(IdMint()()).milliseconds == clock.now


def test_ids_increase_within_a_millisecond(clock: Clock) -> None:
    mint = IdMint()
    minted = [mint() for _ in range(1000)]
    assert minted == sorted(set(minted))


def test_ids_increase_when_the_clock_steps_back(clock: Clock) -> None:
    mint = IdMint()
    minted = []
    for step in (0, 5, -3_600_000, 0, 1, -1, 3_600_000, -86_400_000, 2):
        clock.now += step
        minted += [mint(), mint()]
    assert minted == sorted(set(minted))


def test_ids_follow_the_clock_again_when_it_has_caught_up(clock: Clock) -> None:
    mint = IdMint()
    mint()
    clock.now -= 1000
    assert ulid.ULID.from_str(mint()).milliseconds == clock.now + 1000
    clock.now += 2000
    assert ulid.ULID.from_str(mint()).milliseconds == clock.now


def test_ids_of_two_mints_differ(clock: Clock) -> None:
    one, other = IdMint(), IdMint()
    assert len({mint() for mint in (one, other) for _ in range(100)}) == 200


def test_now_is_utc_with_milliseconds() -> None:
    written = ids.now()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", written)
    assert abs(datetime.now(UTC) - datetime.fromisoformat(written)) < timedelta(minutes=1)
