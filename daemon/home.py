"""The home folder: made private, locked for one daemon, checked for filesystems that cannot keep a database safe."""

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import sys
from pathlib import Path

import msgspec

log = logging.getLogger(__name__)

NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "sshfs", "fuse.sshfs", "afs", "ceph", "glusterfs", "fuse.glusterfs"}
)  # fmt: skip


class HomeError(Exception):
    """The home cannot be used; the message names the fix."""


class HomeBusy(Exception):
    """Another daemon holds this home."""


class Home:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.database = path / "contextinfinity.db"
        self.streams = path / "streams"
        self.backups = path / "backups"
        self.logs = path / "logs"
        self.run = path / "run"
        self._lock: int | None = None

    def prepare(self) -> None:
        """Make the folders, private to their owner."""
        try:
            for folder in (self.path, self.streams, self.backups, self.logs, self.run):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
            for draft in self.backups.glob(".*.draft"):
                draft.unlink()
        except FileExistsError as error:
            raise HomeError(f"{error.filename} is no folder; move it away or choose another home with --home") from None
        except OSError as error:
            raise HomeError(
                f"the home {self.path} cannot be written ({error.strerror}); fix its permissions or choose another with --home"
            ) from None
        kind = filesystem(self.path)
        if kind in NETWORK_FILESYSTEMS:
            raise HomeError(
                f"{self.path} is on a network filesystem ({kind}), where a database can be damaged; "
                "choose a local folder with --home"
            )

    def lock(self) -> None:
        """Be the only daemon here until the process ends."""
        fd = os.open(self.run / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 20, 0).decode(errors="replace").strip()
            os.close(fd)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise HomeError(f"{self.run / 'lock'} cannot be locked: {error.strerror}") from None
            raise HomeBusy(
                f"another daemon (pid {holder or 'unknown'}) already serves {self.path}; "
                "stop it with `ctx daemon stop`, or choose another home with --home"
            ) from None
        self._lock = fd
        with contextlib.suppress(OSError):  # on a full disk the lock is held all the same
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)

    def token(self) -> str:
        """The websocket's secret: made once, readable by the owner only."""
        path = self.run / "token"
        with contextlib.suppress(OSError):
            known = path.read_text(encoding="ascii").strip()
            if len(known) >= 43:
                path.chmod(0o600)
                return known
        token = secrets.token_urlsafe(32)
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(token + "\n")
        return token

    def announce(self, unix: str, websocket: str | None, version: str) -> None:
        """Tell clients where we really listen; complete or not at all."""
        path, fresh = self.run / "endpoint.json", self.run / "endpoint.json.new"
        endpoint = {"unix": unix, "pid": os.getpid(), "version": version}
        if websocket is not None:
            endpoint["websocket"] = websocket
        try:
            fresh.write_bytes(msgspec.json.encode(endpoint))
            fresh.chmod(0o600)
            fresh.replace(path)
        except OSError as error:  # clients still find us at the default place, or where they are told
            log.warning("%s could not be written: %s", path, error.strerror)

    def withdraw(self) -> None:
        (self.run / "endpoint.json").unlink(missing_ok=True)


def filesystem(path: Path) -> str:
    """The type of filesystem a folder is on, as far as this system tells."""
    if sys.platform != "linux":
        return ""
    best, kind = "", ""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    real = os.path.realpath(path)
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        point = fields.split(" ")[4].encode().decode("unicode_escape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, rest.split(" ")[0]
    return kind
