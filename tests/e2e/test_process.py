"""The daemon as a process: homes, sockets, signals, service managers, and everything that can be wrong with them."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contextinfinity.protocol.errors import Conflict, Fault, NotFound
from tests.support.daemon import CTXD, Daemon, clean_environment
from tests.support.waiting import wait_until
from tests.support.wire import Wire

pytestmark = pytest.mark.e2e


def refusal(folder: Path, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a daemon that must not start; what it said."""
    result = subprocess.run(
        [CTXD, *args], env=clean_environment(folder) | (env or {}), capture_output=True, text=True, timeout=30, check=False
    )
    assert result.returncode != 0
    assert result.stdout == "", "nothing on stdout"
    assert "Traceback" not in result.stderr
    return result


def fault(wire: Wire, method: str, **params: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        wire.call(method, **params)
    return caught.value


def test_a_new_home_is_made_private(tmp_path: Path) -> None:
    with Daemon(tmp_path) as d:
        for path, mode in (
            (d.home, 0o700),
            (d.home / "streams", 0o700),
            (d.socket, 0o600),
            (d.home / "contextinfinity.db", 0o600),
        ):
            assert stat.S_IMODE(path.stat().st_mode) == mode, path
        assert stat.S_IMODE(d.socket.parent.stat().st_mode) == 0o700
        endpoint = json.loads((d.home / "run" / "endpoint.json").read_text())
        assert (endpoint["unix"], endpoint["pid"]) == (str(d.socket), d.pid)
    assert not d.socket.exists()
    assert not (d.home / "run" / "endpoint.json").exists()


def test_a_second_daemon_refuses_and_leaves_the_first_alone(tmp_path: Path) -> None:
    with Daemon(tmp_path) as d:
        result = refusal(tmp_path, "--home", str(d.home))
        assert result.returncode == 75
        assert str(d.pid) in result.stderr
        assert "ctx daemon stop" in result.stderr
        other = refusal(tmp_path, "--home", str(tmp_path / "other"), "--socket", str(d.socket))
        assert "another daemon answers" in other.stderr
        with d.wire() as wire:
            wire.call("daemon.ping")


def test_a_stale_socket_file_is_replaced(tmp_path: Path) -> None:
    d = Daemon(tmp_path)
    with d:
        d.kill9()
        assert d.socket.exists()
        d.start()


def test_a_file_where_the_socket_should_be_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("mine")
    assert "is no socket" in refusal(tmp_path, "--home", str(tmp_path / "h"), "--socket", str(path)).stderr
    assert path.read_text() == "mine"


def test_a_socket_path_over_the_limit_of_the_system(tmp_path: Path) -> None:
    result = refusal(tmp_path, "--home", str(tmp_path / "h"), "--socket", str(tmp_path / ("x" * 120)))
    assert "--socket" in result.stderr
    assert "107" in result.stderr or "103" in result.stderr


def test_a_home_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert "--home" in refusal(tmp_path, "--home", str(path)).stderr


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    home = Path("/proc/self/nowhere")  # not even root can write here
    result = refusal(tmp_path, "--home", str(home))
    assert "cannot be written" in result.stderr
    assert "--home" in result.stderr


def test_a_broken_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "h").mkdir()
    (tmp_path / "h" / "config.toml").write_text("[stream]\npolicy = 'sometimes'\n")
    result = refusal(tmp_path, "--home", str(tmp_path / "h"))
    assert result.returncode == 78
    assert "policy" in result.stderr


def test_a_database_that_is_none_is_named_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "h").mkdir()
    database = tmp_path / "h" / "contextinfinity.db"
    database.write_bytes(b"this is my diary, not a database" * 100)
    assert "contextinfinity.db" in refusal(tmp_path, "--home", str(tmp_path / "h")).stderr
    assert database.read_bytes().startswith(b"this is my diary")


def test_every_id_that_was_returned_survives_a_kill(tmp_path: Path) -> None:
    with Daemon(tmp_path) as d:
        with d.wire() as wire:
            made = wire.call("session.create", title="t", idempotency_key="s")
            branch = made["branch"]["id"]
            turns = [_say(wire, branch, f"word {i}") for i in range(3)]
            fork = wire.call("branch.fork", branch_id=branch, at_turn_seq=2)["id"]
            pin = wire.call("pin.add", branch_id=branch, text="pinned")["id"]
            before = [wire.call("turn.get", turn_id=t) for t in turns]
            steps = [wire.call("step.get", step_id=t["steps"][0]["id"]) for t in before]
        d.kill9()
        d.start()
        with d.wire() as wire:
            assert wire.call("session.get", session_id=made["session"]["id"])["title"] == "t"
            assert wire.call("session.create", title="t", idempotency_key="s")["branch"]["id"] == branch
            assert [wire.call("turn.get", turn_id=t) for t in turns] == before
            assert [wire.call("step.get", step_id=s["id"]) for s in steps] == steps
            assert [t["id"] for t in wire.call("turn.list", branch_id=fork)["turns"]] == turns[:2]
            assert [p["id"] for p in wire.call("pin.list", branch_id=branch)["pins"]] == [pin]


def test_what_was_acknowledged_can_be_read_at_once_by_any_client(tmp_path: Path) -> None:
    with Daemon(tmp_path) as d, d.wire() as writer, d.wire() as reader:
        branch = writer.call("session.create")["branch"]["id"]
        for i in range(50):
            turn_id = writer.call("turn.submit", branch_id=branch, content=f"w{i}", queue=True)["turn_id"]
            assert reader.call("turn.get", turn_id=turn_id)["user_message"]["rendered_text"] == f"w{i}"
            assert reader.call("turn.list", branch_id=branch, after_seq=i)["turns"][0]["id"] == turn_id


def test_a_missing_key_is_named_and_the_branch_lives_on(tmp_path: Path) -> None:
    config = '[models.claude]\nprovider = "anthropic"\nmodel_id = "claude-x"\napi_key_env = "MY_KEY"\nbase_url = "http://127.0.0.1:9"\n'
    with Daemon(tmp_path, config=config) as d, d.wire() as wire:
        branch = wire.call("session.create")["branch"]["id"]
        turn = wire.call("turn.wait", turn_id=wire.call("turn.submit", branch_id=branch, content="hi")["turn_id"])
        assert turn["error"]["code"] == -32005
        assert turn["error"]["data"]["env"] == "MY_KEY"
        assert "MY_KEY" in turn["error"]["message"]
        turn_id = wire.call("turn.submit", branch_id=branch, content="hi", model="recall")["turn_id"]
        assert wire.call("turn.wait", turn_id=turn_id)["phase"] == "response_finalized"


def test_read_only_answers_and_changes_nothing(tmp_path: Path) -> None:
    with Daemon(tmp_path) as d, d.wire() as wire:
        branch = wire.call("session.create", title="kept")["branch"]["id"]
        _say(wire, branch, "hello")
    d = Daemon(tmp_path, args=["--read-only"])
    with d, d.wire() as wire:
        assert wire.call("daemon.status")["read_only"] is True
        assert len(wire.call("turn.list", branch_id=branch)["turns"]) == 1
        assert fault(wire, "turn.submit", branch_id=branch, content="no").code == -32007


def test_sigterm_under_load_loses_nothing(tmp_path: Path) -> None:
    acknowledged: dict[str, str] = {}
    with Daemon(tmp_path) as d:
        with d.wire() as wire:
            branches = [wire.call("session.create")["branch"]["id"] for _ in range(3)]
            for i in range(60):
                text = f"word {i}"
                turn = wire.call("turn.submit", branch_id=branches[i % 3], content=text, queue=True)
                acknowledged[turn["turn_id"]] = text
        assert d.stop() == 0
        d.start()
        with d.wire() as wire:
            for turn_id, text in acknowledged.items():
                turn = wire.call("turn.get", turn_id=turn_id)
                assert turn["user_message"]["rendered_text"] == text
                assert turn["phase"] in ("response_finalized", "failed")


def test_sighup_reloads_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    with Daemon(tmp_path) as d, d.wire() as wire:
        config = d.home / "config.toml"
        config.write_text('[models.mine]\nprovider = "recall"\nmodel_id = "recall"\n')
        os.kill(d.pid, signal.SIGHUP)
        wait_until(lambda: any(m["name"] == "mine" for m in wire.call("model.list")["models"]))
        config.write_text('[models.mine]\nprovider = "nonsense"\n')
        broken = fault(wire, "config.reload")
        assert broken.code == -32602
        assert "models.mine" in broken.message
        assert any(m["name"] == "mine" for m in wire.call("model.list")["models"])
        config.write_text("[stream]\nflush_ms = 7\n")
        reloaded = wire.call("config.reload")
        assert reloaded["needs_restart"] == ["stream.flush_ms"]
        assert reloaded["applied"] == ["models.mine"]


def test_shutdown_over_the_wire_answers_first(tmp_path: Path) -> None:
    with Daemon(tmp_path) as d:
        with d.wire() as wire:
            assert wire.call("daemon.shutdown") == {}
        assert d.process is not None
        assert d.process.wait(20) == 0


def test_a_service_manager_is_told_and_its_socket_is_used(tmp_path: Path) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(20)
    listener = socket.socket(socket.AF_UNIX)
    path = tmp_path / "activated"
    listener.bind(str(path))
    listener.listen()
    activate = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ |= {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '1'}; "
        "os.execv(sys.argv[2], sys.argv[2:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", activate, str(listener.fileno()), CTXD, "--home", tmp_path / "h"],
        env=clean_environment(tmp_path) | {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"},
        pass_fds=[listener.fileno()],
        stderr=subprocess.PIPE,
    )
    try:
        assert manager.recv(100) == b"READY=1"
        assert manager.recv(100) == b"WATCHDOG=1"
        assert manager.recv(100) == b"WATCHDOG=1"
        with Wire(path) as wire:
            wire.call("daemon.ping")
        process.terminate()
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0, errors.decode()
    finally:
        process.kill()
        process.wait()
        listener.close()
        manager.close()
    assert path.exists(), "an activated socket is never unlinked"


def test_a_client_gone_mid_turn_cancels_nothing(tmp_path: Path) -> None:
    with Daemon(tmp_path) as d:
        with d.wire() as wire:
            branch = wire.call("session.create")["branch"]["id"]
            turn_id = wire.call("turn.submit", branch_id=branch, content="hello")["turn_id"]
        with d.wire() as wire:
            assert wire.call("turn.wait", turn_id=turn_id)["phase"] == "response_finalized"


def test_errors_name_what_was_wrong(tmp_path: Path) -> None:
    with Daemon(tmp_path) as d, d.wire() as wire:
        branch = wire.call("session.create")["branch"]["id"]
        with pytest.raises(NotFound, match="turn"):
            wire.call("turn.get", turn_id="nope")
        assert "surprise" in fault(wire, "turn.submit", branch_id=branch, content="x", surprise=1).message
        assert "content" in fault(wire, "turn.submit", branch_id=branch).message
        assert fault(wire, "turn.submit", branch_id=branch, content="  ").code == -32602
        wire.call("pin.add", branch_id=branch, text="a", idempotency_key="k")
        with pytest.raises(Conflict):
            wire.call("pin.add", branch_id=branch, text="b", idempotency_key="k")


def _say(wire: Wire, branch: str, text: str) -> str:
    turn_id: str = wire.call("turn.submit", branch_id=branch, content=text)["turn_id"]
    assert wire.call("turn.wait", turn_id=turn_id)["phase"] == "response_finalized"
    return turn_id


def test_a_configuration_that_was_named_must_exist(tmp_path: Path) -> None:
    result = refusal(tmp_path, "--home", str(tmp_path / "h"), "--config", str(tmp_path / "nope.toml"))
    assert result.returncode == 78
    assert "nope.toml does not exist" in result.stderr
