"""Speaks to systemd without a library: readiness, watchdog and inherited sockets."""

import os
import socket
from collections.abc import MutableMapping

FIRST_FD = 3


def notify(environ: MutableMapping[str, str], state: str) -> None:
    """Send a state such as READY=1 to the service manager, if there is one."""
    address = environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.sendto(state.encode(), address)
        except OSError:
            return  # the manager is gone; that is no reason to stop


def watchdog_seconds(environ: MutableMapping[str, str]) -> float | None:
    """How often to say that we are alive: half of what the manager waits for."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    usec = environ.get("WATCHDOG_USEC", "")
    return int(usec) / 2_000_000 if usec.isdigit() and int(usec) else None


def inherited_sockets(environ: MutableMapping[str, str]) -> list[socket.socket]:
    """The sockets systemd opened for us; the variables are cleared so that no child takes them for its own."""
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdigit():
        return []
    sockets = []
    for fd in range(FIRST_FD, FIRST_FD + int(count)):
        os.set_inheritable(fd, False)
        sockets.append(socket.socket(fileno=fd))
    return sockets
