"""`ctx status`: the daemon's health at a glance."""

from contextinfinity.clients.cli.base import command, settings
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.output import clean, dump, line, style
from contextinfinity.protocol.methods import DaemonStatus
from contextinfinity.protocol.model import Status


@command("ctx status", "ctx status --json | jq .storage", "ctx --no-autostart status")
def status() -> None:
    """Show how the daemon is doing: storage, jobs, actors, warnings."""
    shared = settings()
    found = run(shared, lambda client: client.call(DaemonStatus()))
    dump(found) if shared.json else print_status(found)


def print_status(status: Status) -> None:
    modes = [word for word, on in (("read-only", status.read_only), ("locked", status.locked)) if on]
    ready = ", ".join(["ready" if status.ready else "starting", *modes])
    _row("daemon", f"{clean(status.version)}, pid {status.pid}, {ready}, up {duration(status.uptime_s)}")
    _row("home", clean(status.home))
    _row("storage", f"{size(status.storage.bytes)}, {status.storage.turns} turns, {status.storage.chunks} chunks")
    _row("clients", str(status.clients))
    _row("jobs", f"{status.jobs.pending} pending, {status.jobs.running} running, {status.jobs.failed} failed")
    _row("model", clean(status.default_model))
    librarian = status.librarian
    spent = f"{librarian.tokens_today:,} of {librarian.tokens_limit:,} tokens today"
    _row("librarian", f"{clean(librarian.model)}, {spent}" if librarian.model else f"none, {spent}")
    for actor in status.actors:
        if actor.state != "running" or actor.restarts:
            _row("actor", f"{clean(actor.name)}: {clean(actor.state)}, {actor.restarts} restarts, {actor.mailbox} waiting")
    for warning in status.warnings:
        _row("warning", style(clean(warning), "33"))


def _row(name: str, value: str) -> None:
    line(f"{style(f'{name:<10}', '2')} {value}")


def duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, hours, days = whole // 60 % 60, whole // 3600 % 24, whole // 86400
    return f"{days} d {hours} h" if days else f"{hours} h {minutes} min" if hours else f"{minutes} min"


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
