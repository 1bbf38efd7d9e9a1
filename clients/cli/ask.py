"""`ctx ask`: one message, one answer, streamed; made for pipes as much as for people."""

import sys

import click

from contextinfinity.clients.api import Client
from contextinfinity.clients.cli import keys, stdin
from contextinfinity.clients.cli.answer import Shown, say, say_again
from contextinfinity.clients.cli.base import command, settings
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.failures import sentence, turn_exit_code
from contextinfinity.clients.cli.output import clean, dump, write
from contextinfinity.clients.cli.progress import waiting
from contextinfinity.clients.cli.targets import choice, find_branch, new_branch
from contextinfinity.protocol.errors import Fault
from contextinfinity.protocol.model import Branch, Turn


@command(
    "ctx ask 'How do we name migrations here?'",
    "git diff | ctx ask 'Review this'",
    "ctx ask --new --model sonnet 'A fresh start'",
    "ctx ask --json 'hello' | jq -r .final_assistant_message.rendered_text",
)
@click.argument("text", nargs=-1)
@choice
@click.option("--new", is_flag=True, help="Start a new session.")
@click.option("--model", "-m", metavar="NAME", help="Use this model for this turn; ctx models lists them.")
@click.option("--provide-keys", is_flag=True, help="Hand the daemon a missing key from your environment, unasked.")
def ask(
    text: tuple[str, ...], session: str | None, branch: str | None, new: bool, model: str | None, provide_keys: bool
) -> int:
    """Ask once. TEXT and what is piped in make the message; the answer streams to stdout.

    Goes on with the session last used in this directory, unless --new, --session or --branch says otherwise. Behind a
    turn that is still running it waits in line. - as TEXT reads standard input even where it is inherited.
    """
    if new and (session or branch):
        raise click.UsageError("--new starts a session; it cannot go with --session or --branch")
    message = _message(text)
    shared = settings()

    async def work(client: Client) -> int:
        target = None if new else await find_branch(client, session, branch)
        target = target or await new_branch(client, message, model)
        turn = await _ask(client, target, message, model, provide_keys, quiet=shared.json)
        if shared.json:
            dump(turn)
        elif turn.error is not None:
            complain(turn)
        return turn_exit_code(turn.error)

    return run(shared, work)


def _message(words: tuple[str, ...]) -> str:
    said = " ".join(word for word in words if word != "-").strip()
    given = stdin.read_all() if "-" in words else stdin.piped(needed=not said)
    message = "\n\n".join(part for part in (said, given.strip("\n")) if part.strip())
    if not message:
        raise click.UsageError("nothing to ask: give TEXT, or pipe it in")
    message.encode()  # undecodable arguments fail here, before anything is started
    return message


async def _ask(client: Client, branch: Branch, text: str, model: str | None, provide: bool, *, quiet: bool) -> Turn:
    turn = await shown(client, branch.id, text, model, None, quiet)
    if await keys.offer(client, turn.error, provide=provide):
        turn = await shown(client, branch.id, text, model, turn, quiet)
    return turn


async def shown(client: Client, branch: str, text: str, model: str | None, failed: Turn | None, quiet: bool) -> Turn:
    """Say it, or say a failed turn again, and write the answer as it comes."""
    async with waiting("waiting for the answer") as sign:

        def out(piece: str) -> None:
            sign.hide()
            if not quiet:
                write(piece)

        text_seen = Shown(out)

        if failed is None:
            turn = await say(client, branch, text, text_seen.see, model=model)
        else:
            turn = await say_again(client, failed, text_seen.see, model=model)
        text_seen.finish(turn)
        if text_seen.anything:
            out("\n")
        return turn


def complain(turn: Turn) -> None:
    """Why a turn failed, in one line; its text stays where it was printed."""
    if turn.error is not None:
        kept = " (what was said so far is kept)" if turn.incomplete else ""
        message = " ".join(sentence(Fault.from_error(turn.error)).split())
        print(f"ctx: {clean(message)}{kept}", file=sys.stderr)
