"""Entry of `ctx`: the table of commands, loaded one at a time, and what an error becomes.

Every failure leaves as one line on stderr and one of the exit codes in `failures`.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword

import click

from contextinfinity.clients.cli.base import Group

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Conversation": {
        "ask": ("ask", "Ask once; the answer streams to stdout."),
        "chat": ("chat", "Talk in a loop."),
        "retry": ("retry", "Ask a failed turn again."),
        "sessions": ("sessions", "List conversations."),
        "log": ("sessions", "Print the turns of a conversation."),
        "show": ("sessions", "Show one turn, session or branch."),
        "fork": ("branches", "Branch off a conversation, at any turn."),
        "rollback": ("branches", "Go back to an earlier turn; nothing is deleted."),
        "pin": ("pins", "Keep sentences word for word in every prompt."),
        "pins": ("pins", "List the pins of a conversation."),
    },
    "Memory": {
        "search": ("search", "Find what was said, by words and by meaning."),
        "expand": ("expand", "Show what stood around something that was found."),
        "timeline": ("timeline", "Show what was said when, a line each."),
        "chunks": ("chunks", "Browse the pieces that search looks through."),
        "import": ("imports", "Take over conversations of other programs."),
        "embedder": ("embedder", "Choose and install what search by meaning needs."),
        "reindex": ("reindex", "Make the index anew, in the background."),
    },
    "Safety": {
        "verify": ("verify", "Prove that nothing is lost or changed."),
        "backup": ("backups", "Copy everything to a file, while work goes on."),
        "restore": ("backups", "Put a backup back; what is there is kept."),
        "doctor": ("doctor", "Find what is wrong, and print the fix."),
    },
    "Daemon": {
        "status": ("status", "Show how the daemon is doing."),
        "models": ("models", "List the models that are configured."),
        "daemon": ("daemon", "Start, stop and watch the daemon."),
        "service": ("service", "Run the daemon as a service of your login."),
        "auth": ("auth", "Keep providers' keys in the system's key store."),
        "rpc": ("rpc", "Call any method of the daemon."),
        "completion": ("completion", "Print a completion script for your shell."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class Lazy(Group):
    """Knows names and summaries by heart and imports a command only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"contextinfinity.clients.cli.{COMMANDS[cmd_name][0]}")
        found = getattr(module, f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; ctx --help lists the commands"
            raise click.UsageError(f"no command {args[0]!r}{hint}", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, summary) for name, (_, summary) in section.items()])


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="contextinfinity", message="%(prog)s %(version)s")
def cli() -> None:
    """Conversations without end: durable, forkable, recoverable.

    ctx talks to the daemon ctxd and starts it when needed. Exit codes: 0 ok, 1 failure, 2 usage, 3 daemon unreachable,
    4 not found, 5 conflict, 6 provider error, 7 over budget, 130 interrupted.
    """


assert isinstance(cli, Lazy)
cli.examples = (
    "ctx ask 'What did we decide about the cache?'",
    "git diff | ctx ask 'Review this'",
    "ctx chat",
    "ctx rpc session.list '{\"limit\": 3}'",
)


def main(args: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    _make_output_unbreakable()
    try:
        result = cli.main(args, prog_name="ctx", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.UsageError as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # Whoever read us has gone; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - the last word of a command line is never a traceback
        from contextinfinity.clients.cli.failures import report

        return report(error, as_json="--json" in (sys.argv[1:] if args is None else args))


def _make_output_unbreakable() -> None:
    """A character that the terminal's encoding lacks is shown escaped instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
