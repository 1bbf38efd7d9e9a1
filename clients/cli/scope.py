"""Where a command of the memory looks: everywhere, in one session, on one branch, or in the conversation of this directory.

`targets` finds that conversation; without any of the options a command looks at everything there is.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import click

from contextinfinity.clients.api import Client
from contextinfinity.clients.cli.targets import need_branch


class Scope(NamedTuple):
    """The fields that say it to the daemon; both are None for everything."""

    session_id: str | None = None
    branch_id: str | None = None


class Where(NamedTuple):
    """What the options say; `here` means the conversation that `ctx ask` would go on with."""

    session: str | None
    branch: str | None
    here: bool

    @property
    def everywhere(self) -> bool:
        return not (self.session or self.branch or self.here)

    async def scope(self, client: Client) -> Scope:
        if self.here:
            return Scope(branch_id=(await need_branch(client, None, None)).id)
        return Scope(self.session, self.branch)


def scoped(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--session`, `--branch` and `--here`, of which one can be given; the command gets them as `where`."""

    @wraps(function)
    def command(*args: Any, session: str | None, branch: str | None, here: bool, **options: Any) -> Any:
        if (session is not None) + (branch is not None) + here > 1:
            raise click.UsageError("--session, --branch and --here exclude each other: give one of them")
        return function(*args, where=Where(session, branch, here), **options)

    for option in (
        click.option("--here", is_flag=True, help="Look in the conversation that ctx ask would go on with."),
        click.option("--branch", "-b", metavar="ID", help="Look in the history of this branch."),
        click.option("--session", "-s", metavar="ID", help="Look in this session."),
    ):
        command = option(command)
    return command
