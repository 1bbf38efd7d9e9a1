"""Processes and folders that a measurement needs: a real `ctxd` in a home of its own, on the disk that the project is on.

Everything made here is gone when the block ends; only processes that were started here are signalled.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

ROOT = Path(__file__).absolute().parent.parent
BIN = Path(sys.executable).parent
OUT = ROOT / "bench" / "out"
PING = b'{"jsonrpc":"2.0","id":1,"method":"daemon.ping"}\n'
DEADLINE = 20.0
HIDDEN = ("CTX_", "XDG_", "ANTHROPIC_", "OPENAI_", "NOTIFY_", "LISTEN_", "WATCHDOG_")


@dataclass(frozen=True)
class Daemon:
    pid: int
    home: Path
    socket: Path

    async def quiet(self) -> None:
        """Wait until the journals of ended turns are packed away, the last thing that follows an answer."""
        while True:
            if not any((self.home / "streams").iterdir()):
                return
            await trio.sleep(0.001)


@contextmanager
def folder() -> Iterator[Path]:
    """An empty folder on the project's disk: the system's temporary one may be in memory, where a sync costs nothing."""
    OUT.mkdir(exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="home-", dir=OUT))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if not any(OUT.iterdir()):
            OUT.rmdir()


@contextmanager
def sockets() -> Iterator[Path]:
    """An empty folder whose path is short enough for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="ctx-") as made:
        yield Path(made)


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's, without what would lead to another daemon, another provider or a proxy."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(HIDDEN) and not k.lower().endswith("_proxy")}
    return kept | {"HOME": str(home), "CTX_HOME": str(home)} | dict(more or {})


@contextmanager
def process(command: Sequence[str | Path], *, home: Path, more: Mapping[str, str] | None = None) -> Iterator[int]:
    """A process of ours until the end of the block; its last words come with the error if it cannot serve."""
    with tempfile.TemporaryFile() as log:
        started = subprocess.Popen(
            command, cwd=ROOT, env=environment(home, more), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            yield started.pid
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-4000:])
            raise
        finally:
            started.send_signal(signal.SIGTERM)
            try:
                started.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


@contextmanager
def daemon(config: str = "", more: Mapping[str, str] | None = None) -> Iterator[Daemon]:
    """A daemon that answers, in an empty home."""
    with folder() as home, daemon_in(home, config, more) as running:
        yield running


@contextmanager
def daemon_in(home: Path, config: str = "", more: Mapping[str, str] | None = None) -> Iterator[Daemon]:
    """The same in a home that may have been used before."""
    with sockets() as short:
        path = short / "ctxd.sock"
        (home / "config.toml").write_text(config)
        command = [BIN / "ctxd", "--home", home, "--socket", path, "--log-level", "warning"]
        with process(command, home=home, more=more) as pid:
            until_answer(path, PING)
            yield Daemon(pid, home, path)


def until_answer(path: Path, request: bytes) -> None:
    """Ask again and again until whoever is to listen there gives an answer."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.settimeout(DEADLINE)
                client.connect(str(path))
                client.sendall(request)
                if client.recv(65536):
                    return
        except OSError:
            if time.monotonic() > end:
                raise
        time.sleep(0.001)
