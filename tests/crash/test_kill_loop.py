"""kill -9 at any moment, again and again, while several clients talk, answers stream, one imports and one searches.

`CTX_KILL_CYCLES` and `CTX_SEED` make other runs of it.
"""

import os
import random
import time
from pathlib import Path

import pytest

from tests.crash.crowd import Crowd
from tests.crash.promises import Broken, Ledger, check, check_indexing_again, check_recovery
from tests.crash.provider import SlowProvider
from tests.support.daemon import Daemon

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CYCLES = int(os.environ.get("CTX_KILL_CYCLES", "50"))
SEED = int(os.environ.get("CTX_SEED", "7"))
CHECK_EVERY = 10
CLIENTS = 3


def kill_again_and_again(daemon: Daemon, provider: SlowProvider, ledger: Ledger, cycles: int, seed: int) -> int:
    """How many answers were cut in the middle after some of them had been reported durable."""
    rng = random.Random(seed)
    daemon.start()
    with daemon.wire() as wire:
        scripted = [ledger.session(wire) for _ in range(CLIENTS)]
        plain = ledger.session(wire, model="recall")
        ledger.history(wire, "from elsewhere")
    for cycle in range(cycles):
        with Crowd(daemon, ledger, [*scripted, plain], seed + cycle) as crowd:
            time.sleep(rng.choice((rng.uniform(0, 0.3), rng.uniform(0.5, 1.3))))
            if cycle % 2:
                crowd.wait_for_acknowledgement(1)
            daemon.kill9()
        if crowd.failures:
            raise Broken("\n".join(crowd.failures))
        ledger.write_ahead = bool(cycle // 2 % 2)
        (daemon.home / "config.toml").write_text(provider.config("write_ahead" if ledger.write_ahead else "buffered"))
        daemon.start()
        if cycle % CHECK_EVERY == CHECK_EVERY - 1:
            check(daemon, ledger)
    daemon.stop()
    check_recovery(daemon, ledger)
    check_indexing_again(daemon, ledger)
    return len(ledger.durable.keys() - ledger.ended.keys())


@pytest.mark.timeout(CYCLES * 10 + 60)
def test_nothing_is_lost_when_the_daemon_is_killed_again_and_again(tmp_path: Path) -> None:
    with SlowProvider(words=100) as provider:
        ledger = Ledger(provider.answer)
        cut = kill_again_and_again(Daemon(tmp_path, provider.config("buffered")), provider, ledger, CYCLES, SEED)
    assert len(ledger.said) >= CYCLES
    assert sum(map(len, ledger.imported.values())) >= CYCLES
    assert cut >= CYCLES // 10, "too few answers were cut in the middle to prove anything"
