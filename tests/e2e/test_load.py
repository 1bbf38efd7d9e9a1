"""Many clients, many restarts: no write fails or waits for another client, everything is indexed, and nothing is left behind.

`CTX_LOAD_SECONDS` and `CTX_RESTARTS` make the runs longer.
"""

import os
import threading
import time
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.support.wire import Wire

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SECONDS = float(os.environ.get("CTX_LOAD_SECONDS", "3"))
RESTARTS = int(os.environ.get("CTX_RESTARTS", "50"))


@pytest.mark.timeout(SECONDS + 120)
def test_twenty_clients_write_and_none_fails(tmp_path: Path) -> None:
    with Daemon(tmp_path) as d:
        failures: list[str] = []
        written: dict[str, str] = {}
        end = time.monotonic() + SECONDS

        def client(n: int) -> None:
            try:
                with d.wire() as wire:
                    branch = wire.call("session.create", title=f"client {n}")["branch"]["id"]
                    count = 0
                    while time.monotonic() < end or count == 0:
                        text = f"client {n} says {count}"
                        turn_id = wire.call("turn.submit", branch_id=branch, content=text)["turn_id"]
                        written[turn_id] = text
                        turn = wire.call("turn.wait", turn_id=turn_id)
                        if turn["phase"] != "response_finalized":
                            failures.append(str(turn.get("error")))
                        count += 1
            except Exception as error:  # noqa: BLE001 - every failure of a client is the test's failure
                failures.append(f"client {n}: {error!r}")

        threads = [threading.Thread(target=client, args=(n,)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len(written) >= 40
        with d.wire() as wire:
            for turn_id, text in written.items():
                assert wire.call("turn.get", turn_id=turn_id)["user_message"]["rendered_text"] == text
            wait_until(lambda: indexed(wire))


def indexed(wire: Wire) -> bool:
    """Whether nothing is left for the workers to do."""
    status = wire.call("daemon.status")
    return not any(status["jobs"].values()) and status["memory"]["unindexed_turns"] == 0


@pytest.mark.timeout(RESTARTS * 5 + 60)
def test_restarts_leave_no_process_socket_lock_or_file_behind(tmp_path: Path) -> None:
    d = Daemon(tmp_path)
    pids = []
    for i in range(RESTARTS):
        d.start()
        pids.append(d.pid)
        with d.wire() as wire:
            branch = wire.call("session.create")["branch"]["id"]
            wire.call("turn.submit", branch_id=branch, content=f"start {i}")
        if i % 2:
            d.kill9()
        else:
            assert d.stop() == 0
            assert not d.socket.exists()
    with d, d.wire() as wire:
        assert len(wire.call("session.list", limit=1000)["sessions"]) == RESTARTS
        wait_until(lambda: indexed(wire))
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    left = sorted(str(p.relative_to(d.home)) for p in d.home.rglob("*") if p.is_file())
    assert [f for f in left if not f.startswith("streams/")] == ["contextinfinity.db", "run/lock"]
    assert [f for f in left if f.startswith("streams/")] == []
