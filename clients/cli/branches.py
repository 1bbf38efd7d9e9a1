"""`ctx fork` and `ctx rollback`: other ways a conversation can go on."""

import click

from contextinfinity.clients.api import Client
from contextinfinity.clients.cli.base import command, settings
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.output import clean, dump, line
from contextinfinity.clients.cli.targets import branch_of, choice, need_branch
from contextinfinity.protocol.methods import BranchActivate, BranchFork, BranchRollback
from contextinfinity.protocol.model import Branch


@command(
    "ctx fork",
    "ctx fork --at 3 --label 'other idea' --activate",
    "ctx ask -b $(ctx fork --at 3 --json | jq -r .id) 'Instead …'",
)
@click.argument("target", metavar="[SESSION|BRANCH]", required=False)
@choice
@click.option("--at", type=click.IntRange(0), metavar="TURN", help="Share the history up to this turn [default: all].")
@click.option("--label", "-l", metavar="TEXT", help="Name the new branch.")
@click.option("--activate", is_flag=True, help="Go on with the new branch from now on.")
def fork(
    target: str | None, session: str | None, branch: str | None, at: int | None, label: str | None, activate: bool
) -> None:
    """Branch off a conversation; both ways share what was said up to the fork, and nothing is copied."""
    shared = settings()

    async def work(client: Client) -> Branch:
        source = await branch_of(client, target, session, branch)
        made = await client.call(BranchFork(branch_id=source.id, at_turn_seq=at, label=label))
        return await client.call(BranchActivate(branch_id=made.id)) if activate else made

    made = run(shared, work)
    if shared.json:
        dump(made)
        return
    name = f" {clean(made.label)!r}" if made.label else ""
    line(f"Branch {made.id}{name} at turn {made.forked_at_turn_seq}.")
    line("It is active now." if made.active else f"Go on there with: ctx ask --branch {made.id} …")


@command("ctx rollback 3", "ctx rollback 0 --session 01JCZX5W8GQ0M3V6Y2R4T7B9KD")
@click.argument("turn", type=click.IntRange(0), metavar="TURN")
@choice
def rollback(turn: int, session: str | None, branch: str | None) -> None:
    """Go back to TURN, the last that still counts; what came after stays readable on the old branch."""
    shared = settings()

    async def work(client: Client) -> tuple[Branch, Branch]:
        source = await need_branch(client, session, branch)
        return source, await client.call(BranchRollback(branch_id=source.id, to_turn_seq=turn))

    old, made = run(shared, work)
    if shared.json:
        dump(made)
        return
    line(f"Back at turn {turn}, on the new branch {made.id}.")
    line(f"The turns after it are kept: ctx log {old.id}")
