"""The home's `config.toml` as a file: read it, have the daemon judge it, and replace it whole or not at all.

`tomledit` makes the text that is written here.
"""

import os
import stat
import subprocess
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import click

from contextinfinity.clients.autostart import NOT_INHERITED, find_ctxd
from contextinfinity.clients.cli.processes import complaint
from contextinfinity.clients.cli.tomledit import NotEditable, quoted, with_text

NAME = "config.toml"
CHECK_TIMEOUT = 30.0
PRIVATE = 0o600


class _File(NamedTuple):
    """The real file behind a link, and what it held; `found` is None where there is none yet."""

    path: Path
    content: bytes = b""
    found: os.stat_result | None = None


def refusal(home: Path, path: Path, *, without: str | None = None) -> str | None:
    """Why the daemon would not take this configuration; it reads the file and starts nothing.

    `without` names a variable that is to have no say in it.
    """
    env = {k: v for k, v in os.environ.items() if k not in NOT_INHERITED and k != without}
    asked = subprocess.run(
        [find_ctxd(), "--home", home, "--config", path, "--check-config"],
        capture_output=True,
        text=True,
        timeout=CHECK_TIMEOUT,
        env=env,
        check=False,
    )
    return complaint(asked.stderr) if asked.returncode else None


def set_text(home: Path, section: str, key: str, value: str) -> bool:
    """Whether anything had to be changed. The daemon judges the new file before it takes the old one's place."""
    path = home / NAME
    by_hand = f"by hand: {key} = {quoted(value)} under [{section}] in {path}"
    try:
        file = _read(path)
        changed = _changed(file, section, key, value)
        if changed == file.content and file.found is not None:
            return False
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(home, file, changed, without=f"CTX_{section}_{key}".upper())
    except _Refused as refused:
        raise click.ClickException(f"{refused}; nothing was changed") from None
    except _NotHere as reason:
        raise click.ClickException(f"{reason}; nothing was changed; {by_hand}") from None
    except OSError as error:
        words = f"{error.filename or path}: {error.strerror or error}"
        raise click.ClickException(f"{words}; nothing was changed; {by_hand}") from None
    return True


class _Refused(Exception):
    """The daemon's reason, or another that would hold for an edit by hand as well."""


class _NotHere(Exception):
    """Why a person has to do it."""


def _read(path: Path) -> _File:
    if not os.path.lexists(path):
        return _File(path)
    try:
        real = Path(os.path.realpath(path, strict=True))
    except FileNotFoundError:
        raise _NotHere(f"{path} is a link to a file that does not exist") from None
    # Opening a pipe would wait for somebody to write into it.
    with open(real, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise _NotHere(f"{path} is no file")
        return _File(real, file.read(), found)


def _changed(file: _File, section: str, key: str, value: str) -> bytes:
    try:
        return with_text(file.content.decode(), section, key, value).encode()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _NotHere(f"{file.path} is not valid TOML: {error}") from None
    except NotEditable as error:
        raise _NotHere(f"{file.path} cannot be edited: {error}") from None


def _replace(home: Path, file: _File, content: bytes, *, without: str) -> None:
    draft = file.path.with_name(f".{file.path.name}.{os.getpid()}.new")
    mode = stat.S_IMODE(file.found.st_mode) if file.found else PRIVATE
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(content)
            out.flush()
            if file.found and (file.found.st_uid, file.found.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(PermissionError):
                    os.fchown(fd, file.found.st_uid, file.found.st_gid)
            os.fchmod(fd, mode)
            os.fsync(fd)
        reason = refusal(home, draft, without=without)
        if reason is not None:
            raise _Refused(f"the daemon refuses it: {reason.replace(str(draft), str(file.path)).replace(draft.name, NAME)}")
        if _state(file.path) != (file.found and _identity(file.found)):
            raise _Refused(f"{file.path} was changed by somebody else meanwhile")
        os.replace(draft, file.path)
    finally:
        draft.unlink(missing_ok=True)
    folder = os.open(file.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        return _identity(os.stat(path))
    except FileNotFoundError:
        return None


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
