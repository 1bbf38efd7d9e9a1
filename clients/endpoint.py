"""Which daemon a client means: the home folder, and the socket that belongs to it.

A daemon writes its real socket to `run/endpoint.json` in its home, because `XDG_RUNTIME_DIR` differs under ssh, cron and
systemd; only when nothing is said there does the default count. `autostart` starts a daemon where this points.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Endpoint(NamedTuple):
    """A home and its socket; `explicit` when the user named the socket, which no file may overrule then."""

    home: Path
    unix: Path
    explicit: bool


def home_of(option: str | None, env: Mapping[str, str] | None = None) -> Path:
    """`--home`, then `CTX_HOME`, then `data_dir` in the config of the usual home, then the usual home itself."""
    env = os.environ if env is None else env
    named = option or env.get("CTX_HOME")
    return Path(os.path.abspath(Path(named).expanduser())) if named else _usual_home(env)


def _usual_home(env: Mapping[str, str]) -> Path:
    usual = Path(env.get("HOME") or os.path.expanduser("~")) / ".contextinfinity"
    config = usual / "config.toml"
    if config.exists():
        import tomllib  # only those who have a config pay for it

        try:
            data_dir = tomllib.loads(config.read_text(encoding="utf-8")).get("general", {}).get("data_dir")
        except (OSError, ValueError, AttributeError):
            data_dir = None  # the daemon says what is wrong with it
        if isinstance(data_dir, str):
            return Path(os.path.abspath(Path(data_dir).expanduser()))
    return usual


def find(home: str | None = None, socket: str | None = None, env: Mapping[str, str] | None = None) -> Endpoint:
    """`--socket`, then `CTX_SOCKET`, then what the daemon of this home wrote down, then the default."""
    env = os.environ if env is None else env
    base = home_of(home, env)
    named = socket or env.get("CTX_SOCKET")
    if named:
        return Endpoint(base, Path(os.path.abspath(Path(named).expanduser())), True)
    return Endpoint(base, written_down(base) or default_socket(base, env), False)


def written_down(home: Path) -> Path | None:
    """The socket in `run/endpoint.json`; a missing or damaged file says nothing."""
    unix = announced(home).get("unix")
    return Path(unix) if isinstance(unix, str) and os.path.isabs(unix) else None


def daemon_pid(home: Path) -> int | None:
    """The process that wrote `run/endpoint.json`; it may have ended without taking that back."""
    pid = announced(home).get("pid")
    return pid if isinstance(pid, int) and pid > 0 else None


def announced(home: Path) -> dict[str, Any]:
    """All that `run/endpoint.json` says."""
    try:
        document = json.loads((home / "run" / "endpoint.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def default_socket(home: Path, env: Mapping[str, str]) -> Path:
    """The runtime folder holds one socket, so it belongs to the usual home; every other home keeps its own."""
    runtime = env.get("XDG_RUNTIME_DIR")
    if runtime and home == _usual_home(env):
        return Path(runtime) / "contextinfinity" / "ctxd.sock"
    return home / "run" / "ctxd.sock"
