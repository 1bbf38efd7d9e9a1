"""What `ctx doctor` looks at by itself: files, permissions, disk, lock, configuration. Needs no daemon.

Every check gives findings with a fix that can be typed or done; `vitals` judges what a running daemon says.
"""

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from contextinfinity.clients.autostart import log_file
from contextinfinity.clients.cli import dbfile
from contextinfinity.clients.cli.configfile import refusal
from contextinfinity.clients.cli.daemon import tail
from contextinfinity.clients.cli.processes import alive
from contextinfinity.clients.cli.status import duration, size
from contextinfinity.clients.endpoint import Endpoint, daemon_pid
from contextinfinity.clients.errors import DaemonUnreachable

Level = Literal["ok", "warning", "problem"]
MEGABYTE = 1_000_000
LITTLE_SPACE, TOO_LITTLE_SPACE = 1000 * MEGABYTE, 100 * MEGABYTE
OLD_BACKUP = 30 * 86400
QUICK_LIMIT = 512 * 1024 * 1024
"""A larger database is not gone over by the way; `ctx verify` takes its time."""
LONGEST_SOCKET = 103 if sys.platform == "darwin" else 107
NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "sshfs", "fuse.sshfs", "afs", "ceph", "glusterfs", "fuse.glusterfs"}
)  # fmt: skip
DATABASE = "contextinfinity.db"


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    check: str
    level: Level
    message: str
    fix: str | None = None


def examine(endpoint: Endpoint, *, running: bool) -> Iterator[Finding]:
    """Everything but the daemon itself; `running` says whether one answers."""
    home = endpoint.home
    yield from home_folder(home)
    yield from disk(home)
    yield from filesystem(home)
    yield from socket(endpoint.unix, running=running)
    if not (os.path.isdir(home) and os.access(home, os.R_OK | os.X_OK)):
        return
    yield from config(home)
    yield from announcement(home, running=running)
    yield from lock(home, running=running)
    yield from database(home, running=running)
    yield from backups(home)
    if not running:
        yield from last_start(home)


def home_folder(home: Path) -> Iterator[Finding]:
    try:
        found = home.stat()
    except FileNotFoundError:
        fix = "the first ctx ask makes it; another one is chosen with --home or CTX_HOME"
        yield Finding("home", "warning", f"there is no {home} yet", fix)
        return
    except OSError as error:
        yield Finding("home", "problem", f"{home} cannot be looked at: {error.strerror}", "choose another with --home")
        return
    if not stat.S_ISDIR(found.st_mode):
        yield Finding("home", "problem", f"{home} is no folder", "move it away, or choose another with --home")
    elif found.st_uid != os.geteuid():
        message = f"{home} belongs to another user (uid {found.st_uid})"
        yield Finding(
            "home", "problem", message, f"become that user, choose another with --home, or: sudo chown -R $USER {home}"
        )
    elif _open_to_others(found):
        yield Finding("home", "problem", f"others may look into {home} (mode {_mode(found)})", f"chmod 700 {home}")
    elif not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("home", "problem", f"{home} cannot be written (mode {_mode(found)})", f"chmod 700 {home}")
    else:
        yield Finding("home", "ok", f"{home} is yours alone")


def disk(home: Path) -> Iterator[Finding]:
    folder = _nearest(home)
    free = shutil.disk_usage(folder).free
    message = f"{size(free)} free at {folder}"
    if free < LITTLE_SPACE:
        level: Level = "problem" if free < TOO_LITTLE_SPACE else "warning"
        yield Finding("disk", level, f"only {message}", "free some space; a full disk refuses new turns and loses none")
    else:
        yield Finding("disk", "ok", message)


def filesystem(home: Path) -> Iterator[Finding]:
    kind = filesystem_of(_nearest(home))
    if kind in NETWORK_FILESYSTEMS:
        message = f"{home} is on a network filesystem ({kind}), where a database can be damaged; the daemon refuses it"
        yield Finding("filesystem", "problem", message, "choose a folder on a local disk with --home")
    elif kind:
        yield Finding("filesystem", "ok", f"{kind}, local")


def config(home: Path) -> Iterator[Finding]:
    path = home / "config.toml"
    try:
        tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        yield Finding("config", "ok", "no config.toml, so defaults")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        yield Finding("config", "problem", f"{path} is not valid TOML: {error}", f"edit {path}")
    except OSError as error:
        yield Finding("config", "problem", f"{path} cannot be read: {error.strerror}", f"chmod 600 {path}")
    else:
        yield _judged_by_ctxd(home, path)


def _judged_by_ctxd(home: Path, path: Path) -> Finding:
    """Only the daemon knows which settings it takes, so it is asked; it reads the file and starts nothing."""
    try:
        reason = refusal(home, path)
    except (DaemonUnreachable, OSError, subprocess.TimeoutExpired) as error:
        return Finding("config", "warning", f"{path} is valid TOML; ctxd could not be asked about it: {error}")
    if reason is None:
        return Finding("config", "ok", f"{path} is valid")
    return Finding("config", "problem", f"the daemon refuses the configuration: {reason}", f"edit {path}")


def socket(path: Path, *, running: bool) -> Iterator[Finding]:
    length = len(os.fsencode(path))
    if length > LONGEST_SOCKET:
        message = f"{path} has {length} bytes, a socket path may have {LONGEST_SOCKET}"
        yield Finding("socket", "problem", message, "choose a shorter one with --socket or CTX_SOCKET")
        return
    try:
        found = path.lstat()
    except FileNotFoundError:
        if not running:
            yield Finding("socket", "ok", f"{path} is free")
        return
    except OSError as error:
        yield Finding("socket", "problem", f"{path} cannot be looked at: {error.strerror}", "choose another with --socket")
        return
    if not stat.S_ISSOCK(found.st_mode):
        fix = f"move it away (mv {path} {path}.old), or choose another with --socket"
        yield Finding("socket", "problem", f"{path} is no socket", fix)
    elif _open_to_others(found):
        yield Finding("socket", "problem", f"others may use {path} (mode {_mode(found)})", f"chmod 600 {path}")
    elif running:
        yield Finding("socket", "ok", f"{path} answers")
    else:
        yield Finding("socket", "warning", f"nobody answers at {path}", "if no daemon runs, the next command replaces it")


def announcement(home: Path, *, running: bool) -> Iterator[Finding]:
    """`run/endpoint.json`, which tells clients where the daemon is."""
    path = home / "run" / "endpoint.json"
    if not path.exists():
        if running:
            fix = "ctx daemon stop; the next command starts one that writes it"
            yield Finding("endpoint", "warning", f"a daemon answers, but {path} is missing", fix)
        return
    pid = daemon_pid(home)
    if pid is None:
        yield Finding("endpoint", "warning", f"{path} cannot be read", "the next daemon to start replaces it")
    elif not alive(pid):
        message = f"{path} was left by pid {pid}, which ended without stopping in order"
        yield Finding(
            "endpoint", "warning", message, "nothing was lost by that; the next command starts a daemon and replaces it"
        )
    else:
        yield Finding("endpoint", "ok", f"written by pid {pid}, which runs")


def lock(home: Path, *, running: bool) -> Iterator[Finding]:
    path = home / "run" / "lock"
    try:
        held, holder = _held(path)
    except FileNotFoundError:
        return
    except OSError as error:
        yield Finding("lock", "problem", f"{path} cannot be opened: {error.strerror}", f"chmod 600 {path}")
        return
    who = f"pid {holder}" if holder else "an unknown process"
    if not held:
        last = f"; {who}, which had it last, has ended" if holder and not alive(holder) else ""
        yield Finding("lock", "ok", f"free{last}")
    elif running:
        yield Finding("lock", "ok", f"held by {who}")
    elif holder and alive(holder):
        fix = f"if it is starting, wait; else look at ctx daemon logs, and then: kill {holder}"
        yield Finding("lock", "problem", f"{who} has the home and does not answer", fix)
    else:
        message = f"somebody has the home: not {who}, which has ended, but a process that it left behind"
        yield Finding("lock", "problem", message, f"find and end it: fuser {path}")


def _held(path: Path) -> tuple[bool, int | None]:
    """Whether the lock is held, and the process id in the file; asking takes a shared lock for an instant."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.pread(fd, 20, 0).decode(errors="replace").strip()
        holder = int(text) if text.isdecimal() else None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True, holder
        return False, holder
    finally:
        os.close(fd)


def database(home: Path, *, running: bool) -> Iterator[Finding]:
    path = home / DATABASE
    if not path.exists():
        yield Finding("database", "ok", "none yet; the first turn makes it")
        return
    files = [side for side in (path, *(path.with_name(path.name + s) for s in ("-wal", "-shm"))) if side.exists()]
    for side in files:
        found = side.stat()
        if _open_to_others(found):
            yield Finding("database", "problem", f"others may read {side} (mode {_mode(found)})", f"chmod 600 {side}")
    try:
        damage = dbfile.header_damage(path) or (None if running or not is_small(home) else dbfile.quick_damage(path))
    except OSError as error:
        yield Finding("database", "problem", f"{path} cannot be read: {error.strerror}", f"chmod 600 {path}")
        return
    if damage:
        yield Finding("database", "problem", f"{path} is damaged: {damage}", restore_hint(home))
    else:
        yield Finding("database", "ok", f"{path}, {size(sum(side.stat().st_size for side in files))}")


def is_small(home: Path) -> bool:
    """Whether going over the whole database takes seconds rather than minutes."""
    total = 0
    for name in (DATABASE, f"{DATABASE}-wal"):
        with suppress(OSError):
            total += (home / name).stat().st_size
    return total <= QUICK_LIMIT


def restore_hint(home: Path) -> str:
    newest = _newest_backup(home)
    return f"ctx restore {newest}" if newest else "ctx restore FILE, with a backup that you keep elsewhere"


def backups(home: Path) -> Iterator[Finding]:
    if not (home / DATABASE).exists():
        return
    newest = _newest_backup(home)
    if newest is None:
        fix = "ctx backup; one kept on another disk survives more: ctx backup /mnt/usb/today.db"
        yield Finding("backup", "warning", f"there is none in {home / 'backups'}", fix)
        return
    age = max(0.0, time.time() - newest.stat().st_mtime)
    message = f"the newest, {newest.name}, is {duration(age)} old"
    if age > OLD_BACKUP:
        yield Finding("backup", "warning", message, "ctx backup")
    else:
        yield Finding("backup", "ok", message)


def _newest_backup(home: Path) -> Path | None:
    files = [path for path in (home / "backups").glob("*.db") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_mtime, default=None)


def last_start(home: Path) -> Iterator[Finding]:
    """Why the daemon that ran last is not there any more, if its log complains at the end."""
    complaint = None
    for row in _log_lines(home, 100):
        if row.endswith((": ready", ": stopping")):
            complaint = None
        elif (" ERROR " in row or " CRITICAL " in row) and "another daemon" not in row:
            complaint = row
    if complaint is not None:
        fix = "if that is mended, ctx daemon start; ctx daemon logs shows more"
        yield Finding("log", "warning", f"the last word of the last daemon: {complaint}", fix)


def _log_lines(home: Path, count: int) -> list[str]:
    file = log_file(home)
    try:
        return tail(file, count)[0]
    except OSError:
        return []


def filesystem_of(folder: Path) -> str:
    """The type of filesystem a folder is on, as far as this system tells."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    best, kind, real = "", "", os.path.realpath(folder)
    for row in mounts.splitlines():
        fields, _, rest = row.partition(" - ")
        point = fields.split(" ")[4].encode().decode("unicode_escape")
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, rest.split(" ")[0]
    return kind


def _nearest(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(folder for folder in (path, *path.parents) if os.path.isdir(folder))


def _open_to_others(found: os.stat_result) -> bool:
    return bool(stat.S_IMODE(found.st_mode) & 0o077)


def _mode(found: os.stat_result) -> str:
    return f"{stat.S_IMODE(found.st_mode):04o}"
