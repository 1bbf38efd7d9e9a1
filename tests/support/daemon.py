"""A real daemon process in a home that the test owns: ready when it answers, gone when the test is over.

`with Daemon(tmp_path) as d: Wire(d.socket).call("daemon.ping")`; `kill9` and `start` make a crash and a restart of it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.wire import DEADLINE, Wire

CTXD = Path(sys.executable).parent / "ctxd"
POLL = 0.005
HIDDEN = ("CTX_", "XDG_", "ANTHROPIC_", "OPENAI_", "LISTEN_", "NOTIFY_", "WATCHDOG_")


def clean_environment(folder: Path) -> dict[str, str]:
    """The environment without anything that could reach into the person's own home, keys or runtime folder."""
    return {k: v for k, v in os.environ.items() if not k.startswith(HIDDEN)} | {"HOME": str(folder)}


class Daemon:
    def __init__(
        self, folder: Path, config: str = "", env: Mapping[str, str] | None = None, args: Sequence[str] = ()
    ) -> None:  # fmt: skip
        self.home = folder / "h"
        self.socket = self.home / "run" / "ctxd.sock"
        self.log = folder / "ctxd.log"
        self.env = clean_environment(folder) | dict(env or {})
        self.args = list(args)
        self.process: subprocess.Popen[bytes] | None = None
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if config:
            (self.home / "config.toml").write_text(config)

    def launch(self) -> "subprocess.Popen[bytes]":
        """Start the process and do not wait for it."""
        assert not self.alive, "it runs already"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [CTXD, "--home", self.home, *self.args], env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        return self.process

    def start(self) -> Self:
        """Start and return once it answers."""
        process = self.launch()
        end = time.monotonic() + DEADLINE
        while True:
            if process.poll() is not None:
                raise RuntimeError(f"ctxd ended with {process.returncode}:\n{self.logs}")
            try:
                with self.wire() as wire:
                    wire.call("daemon.ping")
                return self
            except OSError:
                if time.monotonic() > end:
                    self.kill9()
                    raise TimeoutError(f"ctxd did not answer in {DEADLINE:g} s:\n{self.logs}") from None
                time.sleep(POLL)

    def stop(self) -> int:
        """SIGTERM, then its exit code; one that does not stop in time is killed and that is an error."""
        assert self.process is not None
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise TimeoutError(f"ctxd did not stop in {DEADLINE:g} s:\n{self.logs}") from None

    def kill9(self) -> None:
        """Kill it as a power cut would, and wait until it is gone."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(DEADLINE)

    def wire(self, **options: Any) -> Wire:
        """A new connection."""
        return Wire(self.socket, **options)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def logs(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def resident_bytes(self) -> int:
        """Memory in RAM now; Linux only."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self.alive:
            return
        if kind is not None:
            self.kill9()
            sys.stderr.write(self.logs)  # pytest shows it with the failure
            return
        code = self.stop()
        assert code == 0, f"ctxd ended with {code}:\n{self.logs}"
