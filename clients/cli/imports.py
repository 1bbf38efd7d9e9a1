"""`ctx import`: conversations of other programs become sessions here; `watching` goes on as they grow.

The daemon reads the files, remembers how far, and skips what it has, so an import can be repeated at any time.
"""

import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import click
import msgspec

from contextinfinity.clients.api import Client
from contextinfinity.clients.cli.base import Settings, command, settings
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.failures import FAILURE
from contextinfinity.clients.cli.output import can_draw, clean, counted, dump, line, note, one_line
from contextinfinity.clients.cli.progress import Sign, waiting
from contextinfinity.clients.errors import DaemonUnreachable
from contextinfinity.clients.groups import background
from contextinfinity.clients.subscription import Subscription
from contextinfinity.protocol.errors import InvalidParams, InvalidState, NotFound
from contextinfinity.protocol.events import ImportProgress
from contextinfinity.protocol.methods import Imported, TranscriptImport

FORMATS = ("jsonl", "chatgpt", "claude", "claude_code", "codex", "opencode", "llm")
DAMAGE_SHOWN = 20
_MORE = re.compile(r"and (\d+) more")
OF_A_PATH = (InvalidParams, InvalidState, NotFound)
"""Faults that say something of one path; with any other there is no use in trying the next."""


class Outcome(msgspec.Struct, frozen=True):
    """What came of a path: the daemon's answer, or why there is none."""

    path: str
    imported: Imported | None = None
    error: str | None = None

    def document(self) -> dict[str, Any]:
        if self.imported is None:
            return {"path": self.path, "error": self.error}
        return {"path": self.path, **msgspec.to_builtins(self.imported)}


class Total(msgspec.Struct):
    """Of several answers."""

    sessions: set[str] = msgspec.field(default_factory=set)
    turns: int = 0
    messages: int = 0
    skipped: int = 0
    damaged: int = 0

    def add(self, imported: Imported) -> None:
        self.sessions.update(_sessions(imported))
        self.turns += imported.turns
        self.messages += imported.messages
        self.skipped += imported.skipped
        self.damaged += _count(imported.damaged)

    @property
    def nothing(self) -> bool:
        """Whether all that there was is damaged; what was read before and has not grown brings nothing new either."""
        return bool(self.damaged and not (self.sessions or self.turns))

    def document(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__struct_fields__} | {"sessions": len(self.sessions)}

    def sentence(self) -> str:
        return _sentence(len(self.sessions), self.turns, self.messages, self.skipped)


@command(
    "ctx import conversations.zip",
    "ctx import ~/.claude/projects --format claude_code",
    "ctx import notes.jsonl --title 'Old notes' --json | jq '.total.turns'",
    "ctx import --watch ~/.codex/sessions",
    name="import",
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path())
@click.option("--format", "-f", "kind", type=click.Choice(FORMATS), help="What the files are [default: what they look like].")
@click.option("--session", "-s", metavar="ID", help="Put everything into this session.")
@click.option("--title", "-t", metavar="TEXT", help="Title of what is made, where the source has none.")
@click.option("--watch", "-w", is_flag=True, help="Go on as the files grow; Ctrl-C ends it.")
def import_(paths: tuple[str, ...], kind: str | None, session: str | None, title: str | None, watch: bool) -> int:
    """Take over conversations from files and folders of other programs.

    What is there already is skipped, and nothing is ever written to the source. Exits with 1 if a path cannot be used or
    nothing in any of them can be imported; damaged places are listed, and the rest is taken.
    """
    shared = settings()
    asked = [TranscriptImport(format=kind, path=_absolute(path), session_id=session, title=title) for path in paths]
    if watch and not all(unusable(str(params.path)) for params in asked):
        from contextinfinity.clients.cli import watching

        return watching.watch(shared, asked)
    outcomes = _all(shared, asked)
    total = Total()
    for outcome in outcomes:
        if outcome.imported is not None:
            total.add(outcome.imported)
    if shared.json:
        dump({"imports": [outcome.document() for outcome in outcomes], "total": total.document()})
    elif len(outcomes) > 1:
        line(f"Together: {total.sentence()}.")
    failed = any(outcome.error for outcome in outcomes)
    if total.nothing and not shared.json:
        note("there was nothing that could be imported")
    return FAILURE if failed or total.nothing else 0


def _absolute(path: str) -> str:
    """As the daemon needs it, which has another working directory."""
    path.encode()  # a name that is no UTF-8 cannot be sent
    return os.path.abspath(os.path.expanduser(path))


def _all(shared: Settings, asked: list[TranscriptImport]) -> list[Outcome]:
    """One after another; what is not there at all needs no daemon to say so."""
    found: list[Outcome] = []

    def take(outcome: Outcome) -> None:
        found.append(outcome)
        if not shared.json:
            show(outcome)

    async def work(client: Client) -> None:
        try:
            for params in asked:
                take(await one(client, params))
        except DaemonUnreachable as error:
            raise DaemonUnreachable(f"{error}; what came so far is kept, and the same command goes on from there") from None

    reasons = {str(params.path): unusable(str(params.path)) for params in asked}
    if all(reasons.values()):
        for path, reason in reasons.items():
            take(Outcome(path, error=reason))
    else:
        run(shared, work)
    return found


async def one(client: Client, params: TranscriptImport) -> Outcome:
    """Import a path, with progress where somebody looks."""
    path = str(params.path)
    reason = unusable(path)
    if reason is not None:
        return Outcome(path, error=reason)
    try:
        async with _followed(client, path):
            imported = await client.call(params, timeout=None)
            return Outcome(path, imported)
    except OF_A_PATH as fault:
        return Outcome(path, error=fault.message)


def unusable(path: str) -> str | None:
    """Why there is nothing to read, as far as it can be told from here."""
    try:
        os.stat(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return None


@asynccontextmanager
async def _followed(client: Client, path: str) -> AsyncIterator[None]:
    async with waiting(f"importing {path}") as sign:
        if not can_draw(sys.stderr):
            yield
            return
        async with client.subscribe() as events, background() as tasks:
            tasks.start_soon(_tell, events, _roots(path), sign)
            yield


def _roots(path: str) -> tuple[str, str]:
    """As it was named, and as it is without links: progress may speak of either."""
    return path, os.path.realpath(path)


async def _tell(events: Subscription, roots: tuple[str, ...], sign: Sign) -> None:
    async for event in events:
        if event.type != "import.progress":
            continue
        with suppress(msgspec.ValidationError):
            progress = msgspec.convert(event.data, ImportProgress)
            if any(progress.path == root or progress.path.startswith(f"{root.rstrip('/')}/") for root in roots):
                percent = f", {min(100, progress.done * 100 // progress.total)} %" if progress.total > 0 else ""
                sign.tell(f"importing {progress.path}{percent}, {counted(progress.turns, 'turn')}")


def show(outcome: Outcome) -> None:
    """For people: what came of a path."""
    imported = outcome.imported
    if imported is None:
        note(one_line(str(outcome.error)))
        return
    kind = f" ({clean(imported.format)})" if imported.format else ""
    sessions = _sessions(imported)
    line(f"{clean(outcome.path)}{kind}: {_sentence(len(sessions), imported.turns, imported.messages, imported.skipped)}.")
    show_damage(imported.damaged)
    if imported.turns:
        line(
            f"To read it: ctx log {clean(sessions[0])}"
            if len(sessions) == 1
            else "To see them: ctx sessions; to find something: ctx search"
        )


def show_damage(places: tuple[str, ...]) -> None:
    if not places:
        return
    count, named = _count(places), [place for place in places if not _MORE.fullmatch(place)][:DAMAGE_SHOWN]
    line(f"{counted(count, 'place')} could not be read:")
    for place in named:
        line(f"  {one_line(place)}")
    if count > len(named):
        line(f"  and {count - len(named):,} more")


def _count(places: tuple[str, ...]) -> int:
    """The daemon names so many and then says how many more there are."""
    return sum(int(more[1]) if (more := _MORE.fullmatch(place)) else 1 for place in places)


def _sessions(imported: Imported) -> tuple[str, ...]:
    return imported.sessions or ((imported.session_id,) if imported.session_id else ())


def _sentence(sessions: int, turns: int, messages: int, skipped: int) -> str:
    there = f"; {skipped:,} skipped (there already, or no message)" if skipped else ""
    if not turns:
        return f"nothing new{there}"
    return f"{counted(sessions, 'conversation')}, {counted(turns, 'turn')}, {counted(messages, 'message')}{there}"
