"""`ctx status`: the daemon's health at a glance."""

from contextinfinity.clients.cli.base import command, settings
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.output import clean, counted, dump, line, one_line, style
from contextinfinity.protocol.methods import DaemonStatus
from contextinfinity.protocol.model import MemoryStatus, Status

NO_EMBEDDER = "none"


@command("ctx status", "ctx status --json | jq .storage", "ctx --no-autostart status")
def status() -> None:
    """Show how the daemon is doing: storage, memory, jobs, actors, warnings."""
    shared = settings()
    found = run(shared, lambda client: client.call(DaemonStatus()))
    dump(found) if shared.json else print_status(found)


def print_status(status: Status) -> None:
    modes = [word for word, on in (("read-only", status.read_only), ("locked", status.locked)) if on]
    ready = ", ".join(["ready" if status.ready else "starting", *modes])
    _row("daemon", f"{clean(status.version)}, pid {status.pid}, {ready}, up {duration(status.uptime_s)}")
    _row("home", clean(status.home))
    _row("storage", f"{size(status.storage.bytes)}, {status.storage.turns} turns, {status.storage.chunks} chunks")
    if status.memory is not None:
        print_memory(status.memory)
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


def print_memory(memory: MemoryStatus) -> None:
    active = memory.embedder if memory.target != NO_EMBEDDER else None
    parts = [clean(active) if active else "by words alone", counted(memory.passages, "passage")]
    if memory.target not in (None, NO_EMBEDDER, active):
        parts.insert(1, f"soon {clean(str(memory.target))}")
    if memory.index_age_s is not None:
        parts.append(f"last indexed {duration(memory.index_age_s)} ago")
    _row("memory", ", ".join(parts))
    waiting = [
        f"{counted(count, word)} waiting to be {what}"
        for count, word, what in ((memory.unindexed_turns, "turn", "indexed"), (memory.unembedded, "passage", "embedded"))
        if count
    ]
    if waiting:
        _row("", ", ".join(waiting))
    if memory.degraded is not None:
        _row("", style(one_line(memory.degraded), "33"))
    for folder in memory.watching:
        _row("watching", clean(folder))


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
