"""`ctx sessions`, `ctx log` and `ctx show`: reading what was said."""

import click

from contextinfinity.clients.api import Client
from contextinfinity.clients.cli.base import command, settings
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.output import clean, columns, dump, line, one_line, style, when, write
from contextinfinity.clients.cli.targets import branch_of, choice, here, look_up
from contextinfinity.protocol.methods import BranchList, SessionList, SessionPage, TurnList, TurnPage
from contextinfinity.protocol.model import Branch, Session, Turn

PAGE = 200


@command("ctx sessions", "ctx sessions --here", "ctx sessions --query cache --json")
@click.option("--limit", "-n", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
@click.option("--query", "-q", metavar="WORDS", help="Only titles that hold these words.")
@click.option("--here", "only_here", is_flag=True, help="Only those begun in this directory.")
def sessions(limit: int, query: str | None, only_here: bool) -> None:
    """List conversations, the last used first."""
    shared, directory = settings(), here()

    async def work(client: Client) -> SessionPage:
        page = await client.call(SessionList(limit=10_000 if only_here else limit, query=query))
        if not only_here:
            return page
        return SessionPage(tuple(s for s in page.sessions if s.cwd == directory)[:limit])

    page = run(shared, work)
    if shared.json:
        dump(page)
        return
    if not page.sessions:
        line("No conversations yet; begin with: ctx ask 'hello'")
        return
    rows = [(s.id, when(s.updated_at or s.created_at), str(s.turns), one_line(s.title or "", 80)) for s in page.sessions]
    columns(rows, ("SESSION", "LAST USED", "TURNS", "TITLE"))


@command("ctx log", "ctx log -n 5", "ctx log 01JCZX5W8GQ0M3V6Y2R4T7B9KD --json")
@click.argument("target", metavar="[SESSION|BRANCH]", required=False)
@choice
@click.option("--last", "-n", type=click.IntRange(1), metavar="N", help="Only the last N turns.")
def log(target: str | None, session: str | None, branch: str | None, last: int | None) -> None:
    """Print the turns of a conversation, oldest first; by default of the one last used here."""
    shared = settings()

    async def work(client: Client) -> None:
        chosen = await branch_of(client, target, session, branch)
        after = max(0, chosen.turn_seq - last) if last else 0
        turns: list[Turn] = []
        while True:
            page = await client.call(TurnList(branch_id=chosen.id, after_seq=after, limit=PAGE))
            if shared.json:
                turns += page.turns
            else:
                for turn in page.turns:
                    print_turn(turn)
            if page.next_cursor is None or not page.turns:
                break
            after = page.turns[-1].turn_seq
        if shared.json:
            dump(TurnPage(tuple(turns)))

    run(shared, work)


@command("ctx show 01JCZX5W8GQ0M3V6Y2R4T7B9KD", "ctx show 01JCZX5W8GQ0M3V6Y2R4T7B9KD --json")
@click.argument("ident", metavar="ID")
def show(ident: str) -> None:
    """Show one turn, session or branch."""
    shared = settings()

    async def work(client: Client) -> tuple[Turn | Session | Branch, tuple[Branch, ...]]:
        found = await look_up(client, ident)
        if isinstance(found, Session):
            return found, (await client.call(BranchList(session_id=found.id))).branches
        return found, ()

    found, branches = run(shared, work)
    if shared.json:
        dump(found)
    elif isinstance(found, Turn):
        print_turn(found)
        _fields(found, "session_id", "branch_id", "state_before", "state_after", "retry_of", "updated_at")
        for step in found.steps:
            outcome = type(step.outcome).__name__.removesuffix("Outcome").lower() if step.outcome else "running"
            line(f"step {step.id}: {clean(step.provider)} {clean(step.model_id)}, {outcome}")
    elif isinstance(found, Session):
        _fields(found, "id", "title", "turns", "active_branch", "cwd", "agent", "created_at", "updated_at")
        for branch in branches:
            print_branch(branch)
    else:
        print_branch(found)
        _fields(found, "session_id", "parent_id", "head_state", "pending_turns", "phase", "model", "created_at")


def print_turn(turn: Turn) -> None:
    head = f"── {turn.turn_seq} · {turn.id} · {when(turn.created_at)} · {clean(turn.model)} · {turn.phase}"
    line(style(head, "2"))
    line(style("you", "1"))
    write(turn.user_message.rendered_text.rstrip("\n") + "\n")
    answer = turn.final_assistant_message.rendered_text if turn.final_assistant_message else turn.partial_text
    if answer is not None:
        line(style("answer (incomplete)" if turn.incomplete else "answer", "1"))
        write(answer.rstrip("\n") + "\n")
    if turn.error is not None:
        line(style(f"failed: {one_line(turn.error.message)}", "31"))
    line()


def print_branch(branch: Branch) -> None:
    origin = f", from {branch.parent_id} at turn {branch.forked_at_turn_seq}" if branch.parent_id else ""
    label = f" {clean(branch.label)}" if branch.label else ""
    active = " (active)" if branch.active else ""
    line(f"branch {branch.id}{label}{active}: {branch.turn_seq} turns{origin}")


def _fields(value: Turn | Session | Branch, *names: str) -> None:
    for name in names:
        content = getattr(value, name)
        if content is not None:
            line(f"{style(f'{name:<14}', '2')} {one_line(str(content))}")
