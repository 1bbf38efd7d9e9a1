"""A long conversation with everything going wrong all the time: kills, cancels, forks, retries, both policies, clean restarts.

Histories are imported and searches made meanwhile. `CTX_SOAK_TURNS` says how many turns; `CTX_SEED` makes another run of it.
"""

import os
import random
import time
from pathlib import Path

import pytest

from tests.crash.crowd import Crowd
from tests.crash.promises import Broken, Ledger, check, check_recovery
from tests.crash.provider import SlowProvider
from tests.support.daemon import Daemon

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
TURNS = int(os.environ.get("CTX_SOAK_TURNS", "60"))
SEED = int(os.environ.get("CTX_SEED", "11"))
ROUND_SECONDS = 30


@pytest.mark.timeout(TURNS * 2 + 120)
def test_a_long_conversation_with_faults_is_never_damaged(tmp_path: Path) -> None:
    rng, rounds = random.Random(SEED), 0
    with SlowProvider(words=20, gap=0.002) as provider:
        daemon, ledger = Daemon(tmp_path, provider.config("buffered")).start(), Ledger(provider.answer)
        with daemon.wire() as wire:
            branches = [ledger.session(wire), ledger.session(wire), ledger.session(wire, model="recall")]
            ledger.history(wire, "from elsewhere")
        while len(ledger.said) < TURNS:
            wanted = min(TURNS, len(ledger.said) + rng.randrange(5, 30))
            with Crowd(daemon, ledger, branches, SEED + rounds) as crowd:
                end = time.monotonic() + ROUND_SECONDS
                while len(ledger.said) < wanted and time.monotonic() < end:
                    time.sleep(0.005)
                if rng.random() < 0.8:
                    daemon.kill9()
            if crowd.failures:
                raise Broken("\n".join(crowd.failures))
            if daemon.alive:
                assert daemon.stop() == 0
            rounds += 1
            ledger.write_ahead = rng.random() < 0.5
            (daemon.home / "config.toml").write_text(provider.config("write_ahead" if ledger.write_ahead else "buffered"))
            daemon.start()
            with daemon.wire() as wire:
                report = wire.call("store.verify")
                assert report["ok"], report["problems"]
                forked = next((b for b in reversed(ledger.branches) if b not in branches), None)
                if forked is not None and forked not in ledger.unscripted:
                    branches[0] = forked  # go on where the newest fork left
            if rounds % 10 == 0:
                check(daemon, ledger)
        daemon.stop()
        check_recovery(daemon, ledger)
    assert len(ledger.said) >= TURNS
