"""`ctx retry`: ask a failed or interrupted turn again, with the same words."""

import click

from contextinfinity.clients.api import Client
from contextinfinity.clients.cli.ask import complain, shown
from contextinfinity.clients.cli.base import command, settings
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.failures import turn_exit_code
from contextinfinity.clients.cli.output import dump
from contextinfinity.clients.cli.targets import choice, find_branch
from contextinfinity.protocol.methods import TurnGet, TurnList
from contextinfinity.protocol.model import Turn


@command("ctx retry", "ctx retry --model sonnet", "ctx retry 01M7QA5MBHXEP6DKVSP9FSPV09")
@click.argument("turn", required=False)
@choice
@click.option("--model", "-m", metavar="NAME", help="Ask this model; by default the one that was asked before.")
def retry(turn: str | None, session: str | None, branch: str | None, model: str | None) -> int:
    """Ask again what failed: TURN, or the last turn of this conversation. The failed one leaves the prompt."""
    shared = settings()

    async def work(client: Client) -> int:
        failed = await client.call(TurnGet(turn_id=turn)) if turn else await _last(client, session, branch)
        again = await shown(client, failed.branch_id, "", model, failed, shared.json)
        dump(again) if shared.json else complain(again)
        return turn_exit_code(again.error)

    return run(shared, work)


async def _last(client: Client, session: str | None, branch: str | None) -> Turn:
    target = await find_branch(client, session, branch)
    page = TurnList(branch_id=target.id, after_seq=max(0, target.turn_seq - 1), limit=1) if target else None
    turns = (await client.call(page)).turns if page else ()
    if not turns:
        raise click.ClickException("nothing was said here yet")
    return turns[0]
