"""Which daemon is meant, and how one is started: the order of precedence, log rotation, the ways a start can go wrong."""

import json
import stat
import sys
from pathlib import Path

import anyio
import pytest

from contextinfinity.clients import autostart, services
from contextinfinity.clients.autostart import LOG_BYTES, prepare_log
from contextinfinity.clients.endpoint import Endpoint, find, home_of
from contextinfinity.clients.errors import DaemonUnreachable
from tests.clients.fake import FakeDaemon

PYTHON = sys.executable


def write_endpoint(home: Path, content: str) -> None:
    (home / "run").mkdir(parents=True, exist_ok=True)
    (home / "run" / "endpoint.json").write_text(content)


def test_the_home_is_named_by_option_then_environment_then_config_then_default(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    usual = tmp_path / ".contextinfinity"
    assert home_of(None, env) == usual
    usual.mkdir()
    (usual / "config.toml").write_text('[general]\ndata_dir = "/srv/data"\n')
    assert home_of(None, env) == Path("/srv/data")
    (usual / "config.toml").write_text("not toml")
    assert home_of(None, env) == usual
    assert home_of(None, {**env, "CTX_HOME": "/srv/env"}) == Path("/srv/env")
    assert home_of("/srv/option", {**env, "CTX_HOME": "/srv/env"}) == Path("/srv/option")


def test_a_relative_home_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert home_of("here/../there", {}) == tmp_path / "there"


def test_the_socket_is_named_by_option_then_environment_then_file_then_default(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    home = tmp_path / ".contextinfinity"
    assert find(None, None, env) == Endpoint(home, home / "run" / "ctxd.sock", False)
    write_endpoint(home, json.dumps({"unix": "/run/written.sock", "pid": 1, "version": "9"}))
    assert find(None, None, env).unix == Path("/run/written.sock")
    env["CTX_SOCKET"] = "/run/env.sock"
    assert find(None, None, env) == Endpoint(home, Path("/run/env.sock"), True)
    assert find(None, "/run/option.sock", env) == Endpoint(home, Path("/run/option.sock"), True)


def test_the_runtime_folder_serves_the_usual_home_only(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": "/run/user/7"}
    assert find(None, None, env).unix == Path("/run/user/7/contextinfinity/ctxd.sock")
    other = tmp_path / "other"
    assert find(str(other), None, env).unix == other / "run" / "ctxd.sock"
    assert find(None, None, {**env, "CTX_HOME": str(other)}).unix == other / "run" / "ctxd.sock"


@pytest.mark.parametrize("content", ["", "{", "[]", '"x"', '{"unix": 5}', '{"unix": "relative.sock"}', "{}"])
def test_a_damaged_endpoint_file_says_nothing(tmp_path: Path, content: str) -> None:
    write_endpoint(tmp_path, content)
    assert find(str(tmp_path), None, {}).unix == tmp_path / "run" / "ctxd.sock"


def test_a_log_is_put_aside_when_large_and_three_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "home" / "logs" / "ctxd.log"
    assert prepare_log(log) == 0
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.parent.stat().st_mode) == 0o700
    log.write_bytes(b"small")
    assert prepare_log(log) == 5, "a small log is left alone"
    for generation in range(6):
        log.write_bytes(b"%d" % generation + b"x" * LOG_BYTES)
        assert prepare_log(log) == 0
    kept = {path.name: path.read_bytes()[:1] for path in log.parent.iterdir()}
    assert kept == {"ctxd.log": b"", "ctxd.log.1": b"5", "ctxd.log.2": b"4", "ctxd.log.3": b"3"}


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose ctxd is ours to write."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(autostart.sys, "executable", str(folder / "python"))
    monkeypatch.setattr(services, "unit_file", lambda: tmp_path / "no-unit")
    monkeypatch.delenv("CTX_SOCKET", raising=False)
    return folder


def script(folder: Path, text: str) -> None:
    path = folder / "ctxd"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def start(home: Path, socket: Path | None = None, deadline: float = 5) -> Endpoint:
    async def work() -> Endpoint:
        return await autostart.start(str(home), str(socket) if socket else None, deadline=deadline)

    return anyio.run(work)


def test_a_daemon_that_dies_is_reported_with_the_end_of_its_log(tmp_path: Path, bin_folder: Path) -> None:
    home = tmp_path / "home"
    log = home / "logs" / "ctxd.log"
    log.parent.mkdir(parents=True)
    log.write_text("of an earlier life\n")
    script(bin_folder, "echo 'schema 9 is newer than 3' >&2; exit 4")
    with pytest.raises(DaemonUnreachable, match="ended with code 4: schema 9 is newer than 3") as caught:
        start(home)
    assert "earlier life" not in str(caught.value)


def test_a_killed_daemon_names_the_signal(tmp_path: Path, bin_folder: Path) -> None:
    script(bin_folder, "kill -9 $$")
    with pytest.raises(DaemonUnreachable, match="killed by signal 9"):
        start(tmp_path / "home")


def test_losing_to_another_daemon_means_waiting_for_it(tmp_path: Path, bin_folder: Path) -> None:
    home, socket = tmp_path / "home", tmp_path / "winner.sock"
    script(bin_folder, f"echo lost; touch {tmp_path}/lost; exit 75")
    daemon = FakeDaemon()

    async def work() -> Endpoint:
        async with anyio.create_task_group() as tasks:
            ready = anyio.Event()

            async def winner() -> None:
                while not await anyio.Path(tmp_path / "lost").exists():  # noqa: ASYNC110 - another process makes it
                    await anyio.sleep(0.005)
                async with daemon.serving(socket):
                    await anyio.to_thread.run_sync(write_endpoint, home, json.dumps({"unix": str(socket)}))
                    await ready.wait()

            tasks.start_soon(winner)
            endpoint = await autostart.start(str(home), deadline=10)
            ready.set()
        return endpoint

    assert anyio.run(work).unix == socket


def test_a_lock_that_was_held_by_one_on_its_way_out_is_tried_again(
    tmp_path: Path, bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autostart, "AGAIN_AFTER", 0.05)
    script(bin_folder, f"echo x >> {tmp_path}/tries; [ $(wc -l < {tmp_path}/tries) -ge 3 ] && exit 9; exit 75")
    with pytest.raises(DaemonUnreachable, match="code 9"):
        start(tmp_path / "home")
    assert len((tmp_path / "tries").read_text().splitlines()) == 3


def test_a_daemon_of_this_home_at_another_socket_is_named(tmp_path: Path, bin_folder: Path) -> None:
    home, there = tmp_path / "home", tmp_path / "there.sock"
    write_endpoint(home, json.dumps({"unix": str(there)}))
    script(bin_folder, "exit 75")
    with FakeDaemon().in_thread(there), pytest.raises(DaemonUnreachable, match=r"listens on .*there\.sock, not on"):
        start(home, tmp_path / "elsewhere.sock")


def test_a_daemon_that_never_answers_meets_the_deadline(tmp_path: Path, bin_folder: Path) -> None:
    script(bin_folder, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    try:
        with pytest.raises(DaemonUnreachable, match=r"does not answer after 0\.5 s; see .*ctxd\.log"):
            start(tmp_path / "home", deadline=0.5)
    finally:
        child = autostart.Detached._alive[-1]
        assert child.pid == int((tmp_path / "pid").read_text())
        child.kill()
        child.wait()


def test_the_spawned_daemon_is_detached_and_gets_the_home_and_an_explicit_socket(
    tmp_path: Path, bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, socket = tmp_path / "home", tmp_path / "s.sock"
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/somebody-else")
    look = "import os; print('leader', os.getsid(0) == os.getppid(), os.path.samestat(os.fstat(0), os.stat('/dev/null')))"
    script(bin_folder, f'echo "$@"; echo "notify=$NOTIFY_SOCKET"; {PYTHON} -c "{look}"; exit 1')
    with pytest.raises(DaemonUnreachable) as caught:
        start(home, socket)
    words = str(caught.value)
    assert f"--home {home} --socket {socket}" in words
    assert "notify= |" in words
    assert "leader True True" in words


def test_without_a_ctxd_the_error_says_so(tmp_path: Path, bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autostart.sys, "argv", [str(tmp_path / "ctx")])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DaemonUnreachable, match="no ctxd is installed"):
        start(tmp_path / "home")


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path, bin_folder: Path) -> None:
    script(bin_folder, "exit 0")
    (tmp_path / "file").write_text("")
    with pytest.raises(DaemonUnreachable, match=r"cannot start a daemon in .*file/home"):
        start(tmp_path / "file" / "home")


def test_an_installed_service_of_this_home_is_preferred(
    tmp_path: Path, bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, socket, unit = tmp_path / "my home", tmp_path / "s.sock", tmp_path / "ctxd.service"
    script(bin_folder, "exit 9")
    monkeypatch.setattr(services, "unit_file", lambda: unit)
    monkeypatch.setattr(services, "start_command", lambda: ["touch", str(tmp_path / "started")])
    unit.write_text(f'[Service]\nExecStart=/bin/ctxd --home "{tmp_path}/another"\n')
    with pytest.raises(DaemonUnreachable, match="code 9"):
        start(home)
    assert not (tmp_path / "started").exists(), "a service of another home is none of ours"
    unit.write_text(f'[Service]\nExecStart=/bin/ctxd --home "{home}"\n')
    write_endpoint(home, json.dumps({"unix": str(socket)}))
    with FakeDaemon().in_thread(socket):
        assert start(home).unix == socket
    assert (tmp_path / "started").exists()


def test_a_service_manager_that_fails_leaves_the_detached_way(
    tmp_path: Path, bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = tmp_path / "ctxd.service"
    unit.write_text(f"[Service]\nExecStart=/bin/ctxd --home {tmp_path}/home\n")
    monkeypatch.setattr(services, "unit_file", lambda: unit)
    script(bin_folder, "exit 9")
    for command in (["false"], ["no-such-manager"]):
        monkeypatch.setattr(services, "start_command", lambda command=command: command)
        with pytest.raises(DaemonUnreachable, match="code 9"):
            start(tmp_path / "home")
