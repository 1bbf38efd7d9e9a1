"""The support file of `ctx doctor --bundle`: what helps to find a fault, and nothing that was said or is secret.

Everything in it went through `redaction`; conversations, titles, journals and the token are never read for it.
"""

import io
import json
import os
import platform
import sqlite3
import tarfile
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from contextinfinity.clients.autostart import log_file
from contextinfinity.clients.cli.checkup import Finding
from contextinfinity.clients.cli.connection import own_version
from contextinfinity.clients.cli.daemon import tail
from contextinfinity.clients.cli.redaction import Redactor, as_toml, is_secret, secrets_in
from contextinfinity.clients.cli.vitals import Vitals, installed

FOLDER = "contextinfinity-support"
LOG_LINES = 200


class Member(NamedTuple):
    """A file of the bundle, with a word on what it is."""

    name: str
    about: str
    content: bytes


def write(path: Path, members: list[Member]) -> None:
    """A .tar.gz for its owner alone; one that exists is never overwritten."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for member in members:
                entry = tarfile.TarInfo(f"{FOLDER}/{member.name}")
                entry.size, entry.mode, entry.mtime = len(member.content), 0o600, int(time.time())
                archive.addfile(entry, io.BytesIO(member.content))
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def gather(home: Path, findings: list[Finding], vitals: Vitals) -> list[Member]:
    tree, complaint = _config(home)
    redactor = Redactor(home, _known_secrets(home, tree))

    def document(name: str, about: str, value: Any) -> Member:
        plain = redactor.value(msgspec.to_builtins(value))
        return Member(name, about, json.dumps(plain, indent=2, ensure_ascii=False).encode() + b"\n")

    members = [
        document("report.json", "what ctx doctor found", findings),
        document("versions.json", "versions of ctx, the daemon, Python and the system", _versions(vitals)),
    ]
    if vitals.status is not None:
        members.append(document("status.json", "the daemon's status: counts and states", vitals.status))
    if vitals.models is not None:
        members.append(document("models.json", "the models that are configured", {"models": vitals.models}))
    if tree is not None:
        content = as_toml(redactor.value(tree)).encode()
        members.append(Member("config.toml", "your settings, without comments and whatever may be secret", content))
    elif complaint:
        about = "why your config.toml is not here"
        members.append(Member("config.txt", about, f"{redactor.text(complaint)}\n".encode()))
    lines = _log(home)
    if lines:
        content = "".join(f"{redactor.text(row)}\n" for row in lines).encode()
        members.append(Member("ctxd.log", f"the last {len(lines)} lines of the daemon's log", content))
    return members


def _config(home: Path) -> tuple[dict[str, Any] | None, str]:
    """The settings, or why there are none; of a file that is not understood nothing can be judged, so nothing is taken."""
    try:
        return tomllib.loads((home / "config.toml").read_text(encoding="utf-8")), ""
    except FileNotFoundError:
        return None, ""
    except tomllib.TOMLDecodeError as error:
        return None, f"not valid TOML: {error}"
    except (OSError, UnicodeDecodeError) as error:
        return None, f"not readable: {type(error).__name__}"


def _known_secrets(home: Path, tree: dict[str, Any] | None) -> list[str]:
    """Secrets by value: wherever one of them turns up, it goes."""
    known = [value for name, value in os.environ.items() if is_secret(name, value)]
    known += secrets_in(tree or {})
    with suppress(OSError, UnicodeDecodeError):  # no websocket, no token
        known.append((home / "run" / "token").read_text(encoding="utf-8").strip())
    return known


def _log(home: Path) -> list[str]:
    try:
        return tail(log_file(home), LOG_LINES)[0]
    except OSError:
        return []


def _versions(vitals: Vitals) -> dict[str, Any]:
    return {
        "ctx": own_version(),
        "daemon": vitals.pong.version if vitals.pong else None,
        "protocol": vitals.pong.protocol if vitals.pong else None,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "sqlite_of_python": sqlite3.sqlite_version,
        "apsw": installed("apsw-sqlite3mc"),
    }
