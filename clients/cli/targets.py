"""Which conversation a command means: the one that was named, else the last one used in this directory.

"Used in this directory" is what the daemon knows: a session's `cwd`, and sessions are listed by their last use.
"""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from contextinfinity.clients.api import Client
from contextinfinity.protocol.errors import InvalidParams, NotFound
from contextinfinity.protocol.methods import (
    BranchGet,
    SessionCreate,
    SessionGet,
    SessionList,
    TurnGet,
)
from contextinfinity.protocol.model import Branch, Session, Turn

F = TypeVar("F", bound=Callable[..., Any])
FIRST_PAGE, PAGE, PAGES = 50, 500, 10


def choice(function: F) -> F:
    """`--session` and `--branch`."""
    function = click.option("--branch", "-b", metavar="ID", help="Use this branch.")(function)
    return click.option("--session", "-s", metavar="ID", help="Use the active branch of this session.")(function)


def here() -> str | None:
    """This directory, as text that JSON can carry."""
    try:
        return os.fsencode(os.getcwd()).decode(errors="replace")
    except FileNotFoundError:
        return None


async def last_session(client: Client) -> Session | None:
    """The session last used in this directory, looked for among the newest few thousand."""
    directory, cursor, limit = here(), None, FIRST_PAGE
    for _ in range(PAGES):
        page = await client.call(SessionList(limit=limit, cursor=cursor))
        for session in page.sessions:
            if session.cwd == directory:
                return session
        if page.next_cursor is None:
            return None
        cursor, limit = page.next_cursor, PAGE
    return None


async def find_branch(client: Client, session: str | None, branch: str | None) -> Branch | None:
    """The branch meant by the options, or None if nothing is named and nothing was said here yet."""
    if branch is None:
        chosen = await named_session(client, session) if session else await last_session(client)
        branch = chosen.active_branch if chosen else None
    if branch is None:
        return None
    return await _get_branch(client, branch)


async def _get_branch(client: Client, ident: str) -> Branch:
    return await client.call(BranchGet(branch_id=ident))


async def named_session(client: Client, ident: str) -> Session:
    return await client.call(SessionGet(session_id=ident))


async def need_branch(client: Client, session: str | None, branch: str | None) -> Branch:
    found = await find_branch(client, session, branch)
    if found is None:
        raise NotFound("no conversation in this directory yet; begin with ctx ask, or name one that ctx sessions lists")
    return found


async def new_branch(client: Client, text: str, model: str | None) -> Branch:
    """A fresh session of this directory, titled after its first words."""
    words = " ".join(text.split())
    title = words if len(words) <= 60 else f"{words[:59]}…"
    created = await client.call(SessionCreate(title=title or None, cwd=here(), agent="ctx", model=model))
    return created.branch


async def look_up(client: Client, ident: str) -> Turn | Session | Branch:
    """Whatever has this id."""
    for params in (TurnGet(turn_id=ident), SessionGet(session_id=ident), BranchGet(branch_id=ident)):
        try:
            return await client.call(params)  # type: ignore[arg-type]  # one of three kinds of Params
        except (NotFound, InvalidParams):
            continue
    raise NotFound(f"no turn, session or branch with id {ident!r}; ctx sessions and ctx log show ids")


async def branch_of(client: Client, ident: str | None, session: str | None, branch: str | None) -> Branch:
    """From one positional id of either kind, or from the options."""
    if ident is None:
        return await need_branch(client, session, branch)
    found = await look_up(client, ident)
    if isinstance(found, Branch):
        return found
    return await _get_branch(client, found.active_branch if isinstance(found, Session) else found.branch_id)
