"""Ten thousand spoilt frames through the socket of a real daemon: it goes on as if nothing had been."""

import random
import socket
import threading
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import pytest

from contextinfinity.protocol.codec import Framing
from tests.protocol.mutations import spoilt
from tests.support.daemon import Daemon
from tests.support.wire import Wire

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
COUNT = 10_000
WARM_UP = 2_000
PER_CONNECTION = 50
GROWTH = 30 * 1024 * 1024
AT_ONCE = 1.0
MIND = "the words of a client that minds its own business"


def rubbish(seed: int, ids: dict[str, str]) -> Iterator[list[bytes]]:
    """Connections' worth of spoilt frames, in either framing."""
    supplies = [spoilt(random.Random(f"live {seed} {framing.value}"), framing, ids) for framing in Framing]
    for supply in cycle(supplies):
        yield list(islice(supply, PER_CONNECTION))


def victim(wire: Wire) -> dict[str, str]:
    """A conversation that the rubbish is about."""
    created = wire.call("session.create", title="a victim")
    branch = created["branch"]["id"]
    turn = wire.call("turn.submit", branch_id=branch, content="hello")
    wire.call("turn.wait", turn_id=turn["turn_id"])
    step = wire.call("turn.get", turn_id=turn["turn_id"])["steps"][0]["id"]
    return {"branch_id": branch, "session_id": created["session"]["id"], "turn_id": turn["turn_id"], "step_id": step}


def throw(daemon: Daemon, frames: list[bytes]) -> int:
    """All of it down one connection, which is then half-closed and read to its end: how many bytes came back."""
    with Wire(daemon.socket) as wire:
        reader = threading.Thread(target=drain, args=(wire.socket, heard := []))
        reader.start()
        try:
            for frame in frames:
                wire.raw(frame)
            wire.half_close()
        except (BrokenPipeError, ConnectionResetError):
            pass  # its framing was beyond repair
        reader.join()
        return sum(heard)


def drain(sock: socket.socket, heard: list[int]) -> None:
    try:
        while chunk := sock.recv(64 * 1024):
            heard.append(len(chunk))
    except ConnectionResetError:
        return


def ping_seconds(wire: Wire) -> float:
    began = time.monotonic()
    wire.call("daemon.ping")
    return time.monotonic() - began


def test_spoilt_frames_leave_no_trace(tmp_path: Path) -> None:
    with Daemon(tmp_path, args=["--log-level", "error"]) as daemon, daemon.wire() as bystander:
        branch = bystander.call("session.create", title="mine")["branch"]["id"]
        pid, supply = daemon.pid, rubbish(1, victim(bystander))
        for frames in islice(supply, WARM_UP // PER_CONNECTION):
            throw(daemon, frames)
        before, heard = daemon.resident_bytes, 0
        for i, frames in enumerate(islice(supply, COUNT // PER_CONNECTION)):
            heard += throw(daemon, frames)
            if i % 20 == 0:
                assert ping_seconds(bystander) < AT_ONCE
                turn = bystander.call("turn.submit", branch_id=branch, content=MIND, queue=True)
                assert bystander.call("turn.wait", turn_id=turn["turn_id"])["phase"] == "response_finalized"
        grown = daemon.resident_bytes - before
        with daemon.wire() as fresh:
            assert ping_seconds(fresh) < AT_ONCE
            status = fresh.call("daemon.status")
            said = [turn["user_message"]["rendered_text"] for turn in fresh.call("turn.list", branch_id=branch)["turns"]]
        assert (daemon.pid, daemon.alive) == (pid, True)
        assert status["clients"] == 2, "only these two are left"
        assert all(actor["restarts"] == 0 for actor in status["actors"]), status["actors"]
        assert said == [MIND] * (COUNT // PER_CONNECTION // 20)
        assert heard > COUNT * 10, "it was answered"
        assert "incident" not in daemon.logs
        assert "Traceback" not in daemon.logs, daemon.logs[-5000:]
        assert grown < GROWTH, f"{grown / 1024 / 1024:.0f} MiB more than before"
