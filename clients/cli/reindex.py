"""`ctx reindex`: make what search needs anew from the transcript, in the background."""

import click

from contextinfinity.clients.api import Client
from contextinfinity.clients.cli.base import command, settings
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.output import counted, dump, line
from contextinfinity.clients.cli.progress import waiting
from contextinfinity.protocol.methods import Reindexing, StoreReindex


@command("ctx reindex", "ctx reindex --embedder local")
@click.option("--embedder", "-e", metavar="NAME", help="Make all vectors anew, by this one; ctx embedder list shows them.")
def reindex(embedder: str | None) -> None:
    """Make what is missing of the index, while search goes on; with --embedder all vectors."""
    shared = settings()

    async def work(client: Client) -> Reindexing:
        async with waiting("looking for what is missing"):
            return await client.call(StoreReindex(embedder=embedder), timeout=None)

    made = run(shared, work)
    if shared.json:
        dump(made)
    elif not (made.turns or made.passages):
        line("Nothing is missing from the index.")
    else:
        line(f"{counted(made.turns, 'turn')} to index, {counted(made.passages, 'passage')} to embed: that happens by itself.")
        line("Search answers meanwhile. To see what is left: ctx status")
