"""`ctx chunks`: the pieces that messages are cut into, as search looks through them."""

from typing import get_args

import click

from contextinfinity.clients.api import Client
from contextinfinity.clients.cli.base import command, settings
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.output import columns, dump, line, note, one_line
from contextinfinity.clients.cli.scope import Where, scoped
from contextinfinity.protocol.methods import ChunkPage, MemoryChunks
from contextinfinity.protocol.model import Chunk, ChunkType

PAGE = 1000


@command("ctx chunks --here", "ctx chunks --type decision -n 500", "ctx chunks --turn 01JCZX5W8GQ0M3V6Y2R4T7B9KD --json")
@scoped
@click.option("--turn", metavar="ID", help="Only those of this turn.")
@click.option("--type", "-t", "kind", type=click.Choice(get_args(ChunkType)), help="Only those of this type.")
@click.option("--limit", "-n", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
def chunks(where: Where, turn: str | None, kind: ChunkType | None, limit: int) -> None:
    """Browse the chunks that there are, in the order they were made."""
    shared = settings()

    async def work(client: Client) -> ChunkPage:
        scope = await where.scope(client)
        found: list[Chunk] = []
        cursor = None
        while True:
            page = await client.call(
                MemoryChunks(
                    session_id=scope.session_id,
                    branch_id=scope.branch_id,
                    turn_id=turn,
                    chunk_type=kind,
                    limit=min(PAGE, limit - len(found)),
                    cursor=cursor,
                )
            )
            found += page.chunks
            cursor = page.next_cursor
            if cursor is None or not page.chunks or len(found) >= limit:
                return ChunkPage(tuple(found), cursor)

    page = run(shared, work)
    if shared.json:
        dump(page)
        return
    if not page.chunks:
        line("No chunks there; ctx status shows what is not indexed yet.")
        return
    columns(
        [(c.id, c.chunk_type, f"{c.token_est:,}", one_line(c.summary)) for c in page.chunks],
        ("CHUNK", "TYPE", "TOKENS", "SUMMARY"),
    )
    if page.next_cursor is not None:
        note(f"there are more than these {limit:,}; -n shows more")
