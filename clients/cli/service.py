"""`ctx service`: the daemon as a service of the user's login, by systemd on Linux and launchd on macOS.

The unit files are templates beside this package (or at the root of a source checkout); `services` knows where they go.
"""

import os
import subprocess
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from xml.sax.saxutils import escape

import click

from contextinfinity.clients import services
from contextinfinity.clients.autostart import find_ctxd, prepare_log
from contextinfinity.clients.cli.base import group, settings, under
from contextinfinity.clients.cli.daemon import stop_running
from contextinfinity.clients.cli.output import dump, line
from contextinfinity.clients.endpoint import home_of

TIMEOUT = 60.0
DEFAULT_LISTEN = "%t/contextinfinity/ctxd.sock"


def templates(kind: str) -> Traversable:
    """The folder of templates: in the installed package, or in the source tree."""
    packaged = files("contextinfinity.clients.cli") / "service_files" / kind
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / kind


def rendered(home: Path, ctxd: str) -> dict[Path, str]:
    """The files of a service for this home, by where they belong."""
    folder = services.unit_folder()
    if services.is_macos():
        name = f"{services.LABEL}.plist"
        text = (templates("launchd") / name).read_text(encoding="utf-8")
        return {folder / name: text.replace("@CTXD@", escape(ctxd)).replace("@HOME@", escape(str(home)))}
    result = {}
    for name in (services.UNIT, services.SOCKET_UNIT):
        text = (templates("systemd") / name).read_text(encoding="utf-8")
        text = text.replace("@CTXD@", _word(ctxd)).replace("@HOME@", _word(str(home)))
        if home != home_of(None, {"HOME": os.environ.get("HOME", "")}):
            # The runtime folder's socket belongs to the usual home; any other keeps its own.
            text = text.replace(DEFAULT_LISTEN, str(home / "run" / "ctxd.sock").replace("%", "%%"))
        result[folder / name] = text
    return result


def _word(text: str) -> str:
    """One word of an ExecStart line."""
    escaped = text.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$").replace('"', '\\"')
    return f'"{escaped}"' if escaped != text or set(text) & set(" \t'") else text


def _reload_commands() -> list[list[str]]:
    return [] if services.is_macos() else [["systemctl", "--user", "daemon-reload"]]


def _enable_commands() -> list[list[str]]:
    if services.is_macos():
        return [["launchctl", "bootstrap", f"gui/{os.getuid()}", str(services.unit_file())]]
    return [["systemctl", "--user", "enable", "--now", services.SOCKET_UNIT, services.UNIT]]


def _disable_commands() -> list[list[str]]:
    if services.is_macos():
        return [["launchctl", "bootout", f"gui/{os.getuid()}/{services.LABEL}"]]
    return [["systemctl", "--user", "disable", "--now", services.SOCKET_UNIT, services.UNIT]]


@group("ctx service install", "ctx service install --dry-run", "ctx service print")
def service() -> None:
    """Run the daemon as a service of your login."""


@under(service, "ctx service install", "ctx service install --dry-run", "ctx --home /srv/notes service install")
@click.option("--dry-run", "--print", "dry_run", is_flag=True, help="Only print what would be written and run.")
@click.option("--no-start", is_flag=True, help="Write the files, but do not enable or start anything.")
def install(dry_run: bool, no_start: bool) -> None:
    """Write the unit files, enable the service and start it; it starts with every login from then on."""
    shared = settings()
    home = home_of(shared.home)
    contents = rendered(home, find_ctxd())
    first, commands = ([], []) if no_start else (_reload_commands(), _enable_commands())
    if dry_run:
        _print(contents, first + commands)
        return
    prepare_log(home / "logs" / "ctxd.log")
    for path, text in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    done = f"wrote {', '.join(map(str, contents))}"
    _run(first, done)
    if commands:
        stop_running(shared)  # a daemon of its own would hold the home, and its socket's place
    _run(commands, done)
    if shared.json:
        dump({"files": [str(path) for path in contents], "started": bool(commands)})
        return
    for path in contents:
        line(f"Wrote {path}")
    line("The service is enabled and runs." if commands else "Not started, as you asked.")
    if not services.is_macos():
        line("To keep it running after you log out: loginctl enable-linger")


@under(service, "ctx service uninstall", "ctx service uninstall --dry-run")
@click.option("--dry-run", "--print", "dry_run", is_flag=True, help="Only print what would be removed and run.")
def uninstall(dry_run: bool) -> None:
    """Stop the service and remove its unit files; conversations stay."""
    folder = services.unit_folder()
    names = [services.unit_file().name] if services.is_macos() else [services.UNIT, services.SOCKET_UNIT]
    paths = [folder / name for name in names if (folder / name).exists()]
    commands = _disable_commands() if paths else []
    if dry_run:
        for path in paths:
            line(f"rm {path}")
        _print({}, commands)
        return
    failed = _try(commands)
    for path in paths:
        path.unlink()
    if paths:
        failed = failed or _try(_reload_commands())
    if settings().json:
        dump({"removed": [str(path) for path in paths], "problem": failed})
        return
    for path in paths:
        line(f"Removed {path}")
    if not paths:
        line("No service is installed.")
    elif failed:
        line(f"Could not be stopped, though: {failed}")


@under(service, "ctx service print", "ctx service print --json", name="print")
def print_files() -> None:
    """Print the unit files as they would be installed."""
    contents = rendered(home_of(settings().home), find_ctxd())
    dump({str(path): text for path, text in contents.items()}) if settings().json else _print(contents, [])


def _print(contents: dict[Path, str], commands: list[list[str]]) -> None:
    for path, text in contents.items():
        line(f"# {path}")
        line(text)
    for command in commands:
        line(f"$ {' '.join(command)}")


def _run(commands: list[list[str]], done: str) -> None:
    failed = _try(commands)
    if failed:
        raise click.ClickException(f"{done}, but could not start the service: {failed}")


def _try(commands: list[list[str]]) -> str | None:
    """Run them in turn; the first failure as a sentence."""
    for command in commands:
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{' '.join(command)}: {error}"
        if result.returncode:
            return f"{' '.join(command)}: {' '.join((result.stderr or result.stdout).split())}"
    return None
