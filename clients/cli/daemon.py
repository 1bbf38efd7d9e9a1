"""`ctx daemon`: start it, stop it, see whether it runs and what it logged."""

import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import click

from contextinfinity.clients import services
from contextinfinity.clients.api import Client
from contextinfinity.clients.autostart import answers, log_file
from contextinfinity.clients.cli.base import Settings, group, settings, under
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.output import dump, line
from contextinfinity.clients.cli.processes import alive as _alive
from contextinfinity.clients.cli.progress import waiting
from contextinfinity.clients.cli.status import print_status
from contextinfinity.clients.endpoint import daemon_pid, find, home_of
from contextinfinity.clients.errors import DaemonUnreachable
from contextinfinity.protocol.errors import Fault
from contextinfinity.protocol.methods import DaemonShutdown, DaemonStatus
from contextinfinity.protocol.model import Status

STOP_DEADLINE = 30.0


@group("ctx daemon start", "ctx daemon stop", "ctx daemon logs --follow")
def daemon() -> None:
    """Start, stop and watch the daemon."""


@under(daemon, "ctx daemon start", "ctx --home /srv/notes daemon start")
def start() -> None:
    """Start the daemon, unless it runs already: the installed service, or else a process of its own."""
    shared = settings()
    found = run(shared, lambda client: client.call(DaemonStatus()))
    where = find(shared.home, shared.socket).unix
    dump(found) if shared.json else line(f"The daemon runs: pid {found.pid}, socket {where}.")


@under(daemon, "ctx daemon stop")
def stop() -> None:
    """Stop the daemon in order; running turns are kept as interrupted. No daemon is no error."""
    shared = settings()
    stopped = stop_running(shared)
    if shared.json:
        dump({"stopped": stopped is not None, "pid": stopped})
    else:
        line("No daemon was running." if stopped is None else f"Stopped the daemon, pid {stopped}.")


def stop_running(shared: Settings) -> int | None:
    """The process id of the daemon that was stopped and has gone, or None if there was none."""

    async def work(client: Client) -> int:
        pid = await _pid(client, shared)
        await client.call(DaemonShutdown())
        async with waiting("stopping the daemon"):
            until = anyio.current_time() + STOP_DEADLINE
            while _alive(pid):
                if anyio.current_time() > until:
                    raise click.ClickException(f"the daemon, pid {pid}, still runs after {STOP_DEADLINE:g} s")
                await anyio.sleep(0.02)
        return pid

    try:
        return run(shared._replace(autostart=False), work)
    except DaemonUnreachable:
        if anyio.run(answers, find(shared.home, shared.socket).unix):
            raise
        return None


async def _pid(client: Client, shared: Settings) -> int:
    """The daemon's own word, or what it wrote down: one whose database is damaged may have no status to give."""
    try:
        return (await client.call(DaemonStatus())).pid
    except Fault:
        known = daemon_pid(home_of(shared.home))
        if known is None:
            raise
        return known


@under(daemon, "ctx daemon status", "ctx daemon status --json", name="status")
def show_status() -> None:
    """Show the daemon's health; unlike ctx status this never starts one, and exits with 3 if none runs."""
    shared = settings()

    async def work(client: Client) -> Status:
        return await client.call(DaemonStatus())

    found = run(shared._replace(autostart=False), work)
    dump(found) if shared.json else print_status(found)


@under(daemon, "ctx daemon logs", "ctx daemon logs -n 200 --follow")
@click.option("--lines", "-n", type=click.IntRange(0), default=50, show_default=True, help="How many lines.")
@click.option("--follow", "-f", is_flag=True, help="Go on as it grows; Ctrl-C ends it.")
def logs(lines: int, follow: bool) -> None:
    """Print the end of the log that an autostarted daemon writes."""
    shared = settings()
    file = log_file(home_of(shared.home))
    if not file.exists():
        hint = "" if services.is_macos() else "; a service logs to the journal: journalctl --user -u ctxd"
        raise click.ClickException(f"there is no {file}{hint}")
    last, offset = tail(file, lines)
    if shared.json:
        dump({"file": str(file), "lines": last})
        return
    for text in last:
        click.echo(text)
    if follow:
        for text in _grow(file, offset):
            click.echo(text)


def tail(file: Path, lines: int) -> tuple[list[str], int]:
    with file.open("rb") as log:
        log.seek(max(0, file.stat().st_size - 1024 * max(lines, 1)))
        content = log.read()
        return content.decode(errors="replace").splitlines()[-lines:] if lines else [], log.tell()


def _grow(file: Path, offset: int) -> Iterator[str]:
    rest = b""
    while True:
        if file.exists() and file.stat().st_size < offset:
            offset = 0  # put aside, and begun again
        if file.exists() and file.stat().st_size > offset:
            with file.open("rb") as log:
                log.seek(offset)
                content = log.read()
            offset += len(content)
            *whole, rest = (rest + content).split(b"\n")
            yield from (text.decode(errors="replace") for text in whole)
        time.sleep(0.2)
