"""Starting a daemon when none answers: an installed service if there is one, else a detached `ctxd`.

Any number of clients may do this at the same instant: the daemon's own lock lets one process win, the others leave with
`LOCK_HELD`, and every client waits for whichever answers. `endpoint` says where.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio

from contextinfinity.clients import services
from contextinfinity.clients.api import connect
from contextinfinity.clients.endpoint import Endpoint, find, written_down
from contextinfinity.clients.errors import ClientError, DaemonUnreachable
from contextinfinity.protocol.errors import Fault
from contextinfinity.protocol.methods import DaemonPing

LOCK_HELD = 75
DEADLINE = 15.0
AGAIN_AFTER = 1.0
LOG_BYTES = 5 * 1024 * 1024
LOGS_KEPT = 3
MANAGER_TIMEOUT = 10.0
NOT_INHERITED = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


async def start(
    home: str | None = None,
    socket: str | None = None,
    *,
    deadline: float = DEADLINE,
    tell: Callable[[str], None] = lambda _: None,
) -> Endpoint:
    """Start the daemon of this home, or wait for one that somebody else is starting; returns where it answers."""
    endpoint = find(home, socket)
    until = anyio.current_time() + deadline
    process = None if await _start_service(endpoint) else Detached(endpoint)
    pause, told = 0.01, False
    while not await answers((endpoint := find(home, socket)).unix):
        if process is not None and process.ended():
            await _check_elsewhere(endpoint)
            if anyio.current_time() - process.since > AGAIN_AFTER:
                process = Detached(endpoint)  # the holder of the lock may have been one on its way out
        if anyio.current_time() > until:
            where = log_file(endpoint.home)
            raise DaemonUnreachable(f"the daemon was started but does not answer after {deadline:g} s; see {where}")
        if not told and until - anyio.current_time() < deadline - 1:
            told = True
            tell("starting the daemon …")
        await anyio.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return endpoint


async def answers(socket: Path) -> bool:
    """Whether a daemon at this socket answers a ping right now."""
    try:
        async with connect(socket, connect_timeout=1, call_timeout=2) as client:
            await client.call(DaemonPing())
    except (ClientError, Fault):
        return False
    return True


async def _start_service(endpoint: Endpoint) -> bool:
    if endpoint.explicit or not services.serves(endpoint.home):
        return False
    try:
        with anyio.fail_after(MANAGER_TIMEOUT):
            result = await anyio.run_process(services.start_command(), check=False)
    except (OSError, TimeoutError):
        return False
    return result.returncode == 0


async def _check_elsewhere(endpoint: Endpoint) -> None:
    """The lock's holder may listen at another place than the one asked for; waiting here would not help."""
    other = written_down(endpoint.home)
    if endpoint.explicit and other is not None and other != endpoint.unix and await answers(other):
        raise DaemonUnreachable(f"the daemon of {endpoint.home} listens on {other}, not on {endpoint.unix}")


class Detached:
    """A `ctxd` in a session of its own that outlives its starter; its words go to the log file."""

    _alive: list["subprocess.Popen[bytes]"] = []  # noqa: RUF012 - kept, because a collected Popen warns of its child

    def __init__(self, endpoint: Endpoint) -> None:
        self._log = log_file(endpoint.home)
        self.since = anyio.current_time()
        command = [find_ctxd(), "--home", str(endpoint.home)]
        if endpoint.explicit:
            command += ["--socket", str(endpoint.unix)]
        try:
            self._offset = prepare_log(self._log)
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=endpoint.home,
                    env={k: v for k, v in os.environ.items() if k not in NOT_INHERITED},
                    start_new_session=True,
                    umask=0o077,
                )
        except OSError as error:
            raise DaemonUnreachable(f"cannot start a daemon in {endpoint.home}: {error.strerror}") from None
        self._alive.append(self._process)

    def ended(self) -> bool:
        """Whether it gave way to another daemon; any other end is raised, with the last words of the log."""
        code = self._process.poll()
        if code is None or code == LOCK_HELD:
            return code is not None
        how = f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"
        raise DaemonUnreachable(f"the daemon {how}: {self._last_words() or f'see {self._log}'}")

    def _last_words(self) -> str:
        with self._log.open("rb") as log:
            log.seek(max(self._offset, self._log.stat().st_size - 4096))
            lines = log.read().decode(errors="replace").split("\n")
        return " | ".join([line.strip() for line in lines if line.strip()][-5:])


def find_ctxd() -> str:
    """The daemon that was installed together with this client, else the first on the path."""
    for folder in (Path(sys.executable).parent, Path(sys.argv[0]).absolute().parent):
        if os.access(folder / "ctxd", os.X_OK):
            return str(folder / "ctxd")
    found = shutil.which("ctxd")
    if found is None:
        raise DaemonUnreachable("no daemon answers and no ctxd is installed beside ctx or on the PATH")
    return found


def log_file(home: Path) -> Path:
    return home / "logs" / "ctxd.log"


def prepare_log(log: Path) -> int:
    """Make the folder, put a large log aside (three are kept), and return the size of the one in use."""
    log.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    log.parent.mkdir(mode=0o700, exist_ok=True)
    if log.exists() and log.stat().st_size > LOG_BYTES:
        for number in range(LOGS_KEPT - 1, 0, -1):
            older = log.with_name(f"{log.name}.{number}")
            if older.exists():
                older.replace(log.with_name(f"{log.name}.{number + 1}"))
        log.replace(log.with_name(f"{log.name}.1"))
    log.touch(mode=0o600)
    return log.stat().st_size
