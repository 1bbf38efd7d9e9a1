"""The service manager's view of the daemon: where its unit files live and how to ask for a start.

`autostart` prefers an installed service to a process of its own; `cli.service` writes and removes the files.
"""

import os
import plistlib
import shlex
import sys
from pathlib import Path

LABEL = "com.contextinfinity.ctxd"
UNIT = "ctxd.service"
SOCKET_UNIT = "ctxd.socket"


def is_macos() -> bool:
    return sys.platform == "darwin"


def unit_folder() -> Path:
    """Where this user's own unit files go."""
    if is_macos():
        return Path.home() / "Library" / "LaunchAgents"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"


def unit_file() -> Path:
    return unit_folder() / (f"{LABEL}.plist" if is_macos() else UNIT)


def serves(home: Path) -> bool:
    """Whether a service is installed for this home: one for another home must not answer in its place."""
    try:
        content = unit_file().read_bytes()
        command = _plist_command(content) if is_macos() else _systemd_command(content.decode())
    except (OSError, ValueError, plistlib.InvalidFileException):
        return False
    return "--home" in command[:-1] and Path(command[command.index("--home") + 1]) == home


def _systemd_command(text: str) -> list[str]:
    line = next((line for line in text.splitlines() if line.startswith("ExecStart=")), "ExecStart=")
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line.partition("=")[2])]


def _plist_command(content: bytes) -> list[str]:
    document = plistlib.loads(content)
    return [str(word) for word in document.get("ProgramArguments", ())]


def start_command() -> list[str]:
    if is_macos():
        return ["launchctl", "kickstart", f"gui/{os.getuid()}/{LABEL}"]
    return ["systemctl", "--user", "start", UNIT]


def stop_command() -> list[str] | None:
    """Stops the service and the socket that would start it again; None where a stopped daemon stays stopped by itself."""
    return None if is_macos() else ["systemctl", "--user", "stop", SOCKET_UNIT, UNIT]


def listen_command() -> list[str] | None:
    """Lets clients start the service again, without starting it."""
    return None if is_macos() else ["systemctl", "--user", "start", SOCKET_UNIT]
