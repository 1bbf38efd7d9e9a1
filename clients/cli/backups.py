"""`ctx backup` and `ctx restore`: a copy of everything while work goes on, and the way back.

The running daemon makes a backup; putting one back is done by a `ctxd` of its own, while no daemon has the home.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import click

from contextinfinity.clients import services
from contextinfinity.clients.api import Client, connect
from contextinfinity.clients.autostart import LOCK_HELD, NOT_INHERITED, find_ctxd
from contextinfinity.clients.cli import dbfile
from contextinfinity.clients.cli.base import Settings, command, settings
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.daemon import stop_running
from contextinfinity.clients.cli.failures import FAILURE
from contextinfinity.clients.cli.output import clean, dump, line, note
from contextinfinity.clients.cli.processes import complaint
from contextinfinity.clients.cli.progress import waiting
from contextinfinity.clients.cli.status import size
from contextinfinity.clients.endpoint import find, home_of
from contextinfinity.clients.errors import ClientError
from contextinfinity.protocol.errors import Fault
from contextinfinity.protocol.methods import BackupMade, DaemonStatus, StoreBackup

DATABASE = "contextinfinity.db"
MANAGER_TIMEOUT, STATUS_TIMEOUT = 90.0, 10.0


@command("ctx backup", "ctx backup /mnt/usb/monday.db", "ctx backup --json | jq -r .path")
@click.argument("file", required=False, metavar="[FILE]", type=click.Path())
def backup(file: str | None) -> None:
    """Copy everything to FILE, or to a new file in the home, while conversations go on.

    The copy is verified before it gets its name, and it records the head link of every branch: ctx verify --against FILE
    shows later whether anything in it is missing. A file that exists is never overwritten.
    """
    shared = settings()
    target = _target(file) if file is not None else None

    async def work(client: Client) -> BackupMade:
        async with waiting("writing the backup"):
            return await client.call(StoreBackup(path=target), timeout=None)

    made = run(shared, work)
    if shared.json:
        dump(made)
        return
    line(f"Wrote {clean(made.path)}, {size(made.bytes)}; the copy was verified.")
    line(f"To put it back: ctx restore {clean(made.path)}")


def _target(file: str) -> str:
    """As the daemon needs it, which has another working directory."""
    file.encode()  # a name that is no UTF-8 cannot be sent
    path = os.path.abspath(os.path.expanduser(file))
    if os.path.isdir(path):
        raise click.UsageError(f"{path} is a folder; name a file in it")
    if os.path.lexists(path):
        raise click.UsageError(f"{path} exists already, and a backup never overwrites anything; choose another name")
    return path


@command("ctx restore ~/.contextinfinity/backups/backup-2025-11-18T120000.000Z.db", "ctx restore monday.db --yes")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def restore(file: Path, yes: bool) -> int:
    """Put the backup FILE in the place of the database; what is there now is kept beside it.

    The backup is verified first. The daemon is stopped meanwhile, answers under way end as interrupted, and the next
    command starts it again. On any failure nothing is changed.
    """
    shared = settings()
    home = home_of(shared.home)
    source = file.absolute()
    _check_source(source, home)
    _check_daemon(shared, home)
    managed = services.serves(home)
    if not yes and not _agreed(source, home, managed):
        note("nothing was changed")
        return FAILURE
    stopped = _stop(shared, managed)
    try:
        kept = _put_back(source, home)
    finally:
        if managed:
            _manage(services.listen_command())
    if shared.json:
        dump({"restored": str(source), "home": str(home), "kept": str(kept) if kept else None, "stopped": stopped})
        return 0
    line(f"Restored {clean(str(source))}.")
    line(f"What was there before is kept in {clean(str(kept))}" if kept else "There was nothing here before.")
    line("The next command starts the daemon.")
    return 0


def _check_source(source: Path, home: Path) -> None:
    """What can be refused while the daemon still runs."""
    database = home / DATABASE
    if not dbfile.is_database(source):
        raise click.ClickException(f"{source} is no backup: it does not begin like a database; nothing was changed")
    if database.exists() and source.samefile(database):
        raise click.ClickException(f"{source} is the database itself; nothing was changed")
    wal = source.with_name(f"{source.name}-wal")
    if wal.exists() and wal.stat().st_size:
        way = f"ctx --home {source.parent} backup NEW.db" if source.name == DATABASE else "a backup of the home it is from"
        raise click.ClickException(
            f"{source} is not all: the newest turns are in {wal.name} beside it and would be lost. "
            f"Make one file of both first ({way}), then restore that; nothing was changed"
        )


def _check_daemon(shared: Settings, home: Path) -> None:
    """A socket that was named may lead to the daemon of another home, which is not to be stopped for this."""

    async def ask() -> str:
        async with connect(find(shared.home, shared.socket).unix, call_timeout=STATUS_TIMEOUT) as client:
            return (await client.call(DaemonStatus())).home

    try:
        served = anyio.run(ask)
    except (ClientError, Fault):
        return  # none, or one that cannot say; the lock still keeps two from having the home
    if os.path.realpath(served) != os.path.realpath(home):
        raise click.UsageError(f"the daemon that answers serves {served}, not {home}; name its home with --home")


def _agreed(source: Path, home: Path, managed: bool) -> bool:
    """Explain and ask; where nobody can be asked, that is an error."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError("this replaces the database, and there is no terminal to ask on: add --yes")
    known = dbfile.recorded(source)
    made = f", made {known.made_at:%Y-%m-%d %H:%M}" if known and known.made_at else ""
    texts = [f"This puts {source} ({size(source.stat().st_size)}{made}) in the place of the database in {home}."]
    if (home / DATABASE).exists():
        texts.append("What was said after the backup will be missing.")
        texts.append(f"What is there now is kept in {home / 'backups'}; nothing is deleted.")
    else:
        texts.append("There is no database there now.")
    texts.append("The daemon is stopped, and answers under way end as interrupted.")
    if managed:
        texts.append(
            f"It is the service {services.unit_file().name}, which is stopped as well, so that it stays away meanwhile."
        )
    for text in texts:
        click.echo(clean(text), err=True)
    return click.confirm("Go on?", default=False, err=True)


def _stop(shared: Settings, managed: bool) -> int | None:
    """Stop whatever has the home, and what would start it again; the process id, if it was ours to stop."""
    if managed and services.stop_command() is not None:
        note(
            f"stopping the service {services.unit_file().name} with its socket, which would bring it back; the next client may"
        )
        failed = _manage(services.stop_command())
        if failed:
            note(f"the service manager did not do it ({failed}); asking the daemon itself")
    return stop_running(shared)


def _manage(arguments: list[str] | None) -> str | None:
    """Ask the service manager; why it did not work, if so."""
    if arguments is None:
        return None
    try:
        result = subprocess.run(arguments, capture_output=True, text=True, timeout=MANAGER_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return " ".join((result.stderr or result.stdout).split()) or "failed" if result.returncode else None


class _State(NamedTuple):
    """What tells whether anything was changed: the file in place, and the folders of what was replaced."""

    database: tuple[int, int] | None
    replaced: frozenset[Path]


def _state(home: Path) -> _State:
    database = home / DATABASE
    found = database.stat() if database.exists() else None
    return _State((found.st_dev, found.st_ino) if found else None, frozenset((home / "backups").glob("replaced-*")))


def _put_back(source: Path, home: Path) -> Path | None:
    """Run the daemon's own restore; returns where the old data went, or raises saying whether anything changed."""
    before = _state(home)
    with _not_interrupted():
        code, words = anyio.run(_run_ctxd, [find_ctxd(), "--home", str(home), "--restore", str(source)])
    after = _state(home)
    kept = max(after.replaced - before.replaced, default=None)
    if code == 0:
        return kept
    reason = complaint(words)
    if code == LOCK_HELD:
        reason = f"a daemon has the home again, so something restarts it, a service manager perhaps; stop that first ({reason})"
    if after == before:
        raise click.ClickException(f"{source} was not restored, and nothing was changed: {reason}")
    where = f"; what was there is in {kept}" if kept else ""
    raise click.ClickException(f"{source} was not restored completely{where}: {reason}")


async def _run_ctxd(arguments: list[str]) -> tuple[int, str]:
    env = {k: v for k, v in os.environ.items() if k not in NOT_INHERITED}
    async with waiting("restoring"):
        # In a session of its own, so that Ctrl-C at the wrong moment does not stop it half way.
        result = await anyio.run_process(arguments, check=False, env=env, start_new_session=True)
    return result.returncode, (result.stdout + result.stderr).decode(errors="replace")


@contextmanager
def _not_interrupted() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, lambda *_: note("one moment: what is half restored cannot be left"))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
