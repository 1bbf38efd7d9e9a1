"""`ctx timeline`: what was said when, a dated line for each message."""

import click

from contextinfinity.clients.api import Client
from contextinfinity.clients.cli.base import command, settings
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.output import columns, dump, line, one_line, when, who
from contextinfinity.clients.cli.scope import Where, scoped
from contextinfinity.clients.cli.zone import local_zone
from contextinfinity.protocol.methods import MemoryTimeline, Timeline


@command(
    "ctx timeline --here",
    "ctx timeline --around yesterday -n 50",
    "ctx timeline --around 01JCZX5W8GQ0M3V6Y2R4T7B9KD --json",
)
@scoped
@click.option("--around", metavar="WHEN|TURN|CHUNK", help="Those next to a time, a turn or a chunk, not the latest.")
@click.option("--limit", "-n", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
def timeline(where: Where, around: str | None, limit: int) -> None:
    """Show what was said when, oldest first: the latest of everything, or of one session, branch, or this conversation."""
    shared = settings()

    async def work(client: Client) -> Timeline:
        scope = await where.scope(client)
        asked = MemoryTimeline(
            session_id=scope.session_id, branch_id=scope.branch_id, around=around, limit=limit, tz=local_zone()
        )
        return await client.call(asked)

    found = run(shared, work)
    if shared.json:
        dump(found)
    elif not found.entries:
        line("Nothing was said there, or nothing is indexed yet; ctx status shows what waits.")
    else:
        rows = [(when(e.created_at), e.chunk_id, who(e.role, e.speaker), one_line(e.line)) for e in found.entries]
        columns(rows, ("WHEN", "CHUNK", "WHO", "WHAT"))
