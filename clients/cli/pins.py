"""`ctx pin` and `ctx pins`: sentences that every prompt of a conversation holds word for word."""

import click

from contextinfinity.clients.api import Client
from contextinfinity.clients.cli.base import command, group, settings, under
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.output import columns, dump, line, one_line, when
from contextinfinity.clients.cli.targets import choice, need_branch
from contextinfinity.protocol.methods import PinAdd, PinList, PinPage, PinRemove
from contextinfinity.protocol.model import Pin


@group("ctx pin add 'Answer in French.'", "ctx pin list")
def pin() -> None:
    """Keep sentences word for word in every prompt."""


@under(pin, "ctx pin add 'The API must stay compatible with v1.'")
@click.argument("text", nargs=-1, required=True)
@choice
def add(text: tuple[str, ...], session: str | None, branch: str | None) -> None:
    """Pin TEXT to the conversation; its forks inherit it."""
    shared = settings()

    async def work(client: Client) -> Pin:
        target = await need_branch(client, session, branch)
        return await client.call(PinAdd(branch_id=target.id, text=" ".join(text)))

    made = run(shared, work)
    dump(made) if shared.json else line(f"Pinned as {made.id}.")


@under(pin, "ctx pin remove 01JCZX5W8GQ0M3V6Y2R4T7B9KD")
@click.argument("ident", metavar="PIN")
@choice
def remove(ident: str, session: str | None, branch: str | None) -> None:
    """Let go of a pin."""
    shared = settings()

    async def work(client: Client) -> Pin:
        target = await need_branch(client, session, branch)
        return await client.call(PinRemove(branch_id=target.id, pin_id=ident))

    gone = run(shared, work)
    dump(gone) if shared.json else line(f"Removed {gone.id}.")


def _list(session: str | None, branch: str | None) -> None:
    shared = settings()

    async def work(client: Client) -> PinPage:
        target = await need_branch(client, session, branch)
        return await client.call(PinList(branch_id=target.id))

    page = run(shared, work)
    if shared.json:
        dump(page)
    elif not page.pins:
        line("No pins.")
    else:
        columns([(p.id, when(p.created_at), one_line(p.text)) for p in page.pins], ("PIN", "SINCE", "TEXT"))


@under(pin, "ctx pin list", "ctx pin list --json", name="list")
@choice
def list_pins(session: str | None, branch: str | None) -> None:
    """List the pins of the conversation."""
    _list(session, branch)


@command("ctx pins", "ctx pins --session 01JCZX5W8GQ0M3V6Y2R4T7B9KD")
@choice
def pins(session: str | None, branch: str | None) -> None:
    """List the pins of the conversation, like ctx pin list."""
    _list(session, branch)
