"""`ctx chat`: the command and its loop of reading a line and streaming an answer.

Lines are read on the main thread, where readline and Ctrl-C belong; the connection lives in a thread of its own, reached
through a portal. `talk` holds the conversation, `slash` the commands, `screen` the status line.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress

import click

from contextinfinity.clients.cli import slash
from contextinfinity.clients.cli.base import command, settings
from contextinfinity.clients.cli.failures import exit_code, sentence
from contextinfinity.clients.cli.output import clean, in_colour, line, note, style
from contextinfinity.clients.cli.talk import Talk
from contextinfinity.clients.cli.targets import choice
from contextinfinity.clients.errors import ClientError, DaemonUnreachable
from contextinfinity.protocol.errors import Fault

HISTORY = 200


@command("ctx chat", "ctx chat --new --model sonnet", "printf 'hello\\nand again\\n' | ctx chat", "ctx chat --json < questions")
@choice
@click.option("--new", is_flag=True, help="Start a new session.")
@click.option("--model", "-m", metavar="NAME", help="Use this model in this chat; ctx models lists them.")
@click.option("--provide-keys", is_flag=True, help="Hand the daemon a missing key from your environment, unasked.")
def chat(session: str | None, branch: str | None, new: bool, model: str | None, provide_keys: bool) -> int:
    """Talk in a loop. Goes on with the session last used in this directory, unless told otherwise.

    On a terminal Ctrl-C stops an answer, Ctrl-D leaves, /help lists commands. Piped input is taken line by line; with
    --json every turn is one line of JSON.
    """
    if new and (session or branch):
        raise click.UsageError("--new starts a session; it cannot go with --session or --branch")
    shared = settings()
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not shared.json
    with Talk(shared, model=model, provide=provide_keys, interactive=interactive) as talk:
        if not new:
            talk.go_on(session, branch)
        return _at_terminal(talk) if interactive else _piped(talk)


def _at_terminal(talk: Talk) -> int:
    known = f"{talk.branch.turn_seq} turns so far" if talk.branch else "a new session"
    line(style(f"{clean(talk.title or '')}{': ' if talk.title else ''}{known}. /help lists commands, Ctrl-D leaves.", "2"))
    for text in _typed(talk):
        if not text.strip():
            continue
        try:
            if not slash.is_command(text):
                talk.say(text)
            elif not slash.perform(talk, text):
                break
        except (Fault, ClientError) as error:
            note(sentence(error))
            talk.recover(error)
    return 0


def _typed(talk: Talk) -> Iterator[str]:
    """Lines from the keyboard until Ctrl-D, with the conversation itself as history."""
    with suppress(ImportError):
        import readline

        readline.clear_history()
        for said in talk.said(HISTORY):
            readline.add_history(said)
    prompt = "\x01\x1b[1m\x02> \x01\x1b[0m\x02" if in_colour(sys.stdout) else "> "
    while True:
        try:
            talk.refresh()
        except DaemonUnreachable as error:
            talk.recover(error)
            continue
        try:
            text = input(prompt)
        except EOFError:
            line()
            return
        except KeyboardInterrupt:
            line()
            continue
        yield text


def _piped(talk: Talk) -> int:
    code = 0
    for text in sys.stdin:
        if not text.strip():
            continue
        try:
            if not slash.is_command(text):
                code = talk.say(text.strip()) or code
            elif not slash.perform(talk, text.strip()):
                break
        except DaemonUnreachable:
            raise
        except (Fault, ClientError) as error:
            note(sentence(error))
            code = exit_code(error)
    return code
