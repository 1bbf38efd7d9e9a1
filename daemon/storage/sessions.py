"""Sessions: a conversation's title, its client's world, and which of its branches is active."""

import msgspec

from contextinfinity.daemon.core import chain
from contextinfinity.daemon.storage import branches
from contextinfinity.daemon.storage.connection import Row, Tx
from contextinfinity.daemon.storage.idempotency import Once, once
from contextinfinity.protocol.errors import InvalidParams, NotFound
from contextinfinity.protocol.methods import SessionCreated, SessionPage
from contextinfinity.protocol.model import Session

_SELECT = (
    "SELECT s.id, s.title, s.created_at, s.active_branch, s.cwd, s.project, s.agent, s.updated_at, "
    "(SELECT b.turn_seq FROM branches b WHERE b.id = s.active_branch), s.n, s.used FROM sessions s "
)


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    branch_id: str
    state_id: str
    model: str
    at: str
    title: str | None = None
    system: str | None = None
    cwd: str | None = None
    project: str | None = None
    agent: str | None = None


def create(tx: Tx, new: NewSession, keyed: Once | None) -> SessionCreated:
    return once(tx, keyed, new.at, SessionCreated, lambda: _create(tx, new))


def _create(tx: Tx, new: NewSession) -> SessionCreated:
    tx.run(
        "INSERT INTO sessions(id, owner, title, active_branch, system, cwd, project, agent, created_at, updated_at, used) "
        "VALUES (?,?,?,?,?,?,?,?,?,?,(SELECT coalesce(max(id), 0) + 1 FROM events))",
        new.id,
        tx.owner,
        new.title,
        new.branch_id,
        new.system,
        new.cwd,
        new.project,
        new.agent,
        new.at,
        new.at,
    )
    row = branches.NewBranch(
        id=new.branch_id, session_id=new.id, state_id=new.state_id, model=new.model, link=chain.GENESIS, at=new.at
    )
    branches.insert(tx, row)
    tx.run(
        "INSERT INTO states(id, owner, session_id, branch_id, state_seq, covers_to_turn_seq, summary, pinned_facts, "
        "token_count_est, made_by, schema_version, created_at) VALUES (?,?,?,?,0,0,'','[]',0,'empty',1,?)",
        new.state_id,
        tx.owner,
        new.id,
        new.branch_id,
        new.at,
    )
    return SessionCreated(get(tx, new.id), branches.get(tx, new.branch_id))


def get(tx: Tx, session_id: str) -> Session:
    row = tx.row(_SELECT + "WHERE s.id = ? AND s.owner = ?", session_id, tx.owner)
    if row is None:
        raise NotFound(
            f"no session with id {session_id!r}; `ctx sessions` (session.list) shows them", kind="session", id=session_id
        )
    return _session(row)


def system_text(tx: Tx, session_id: str) -> str:
    row = tx.row("SELECT system FROM sessions WHERE id = ?", session_id)
    return str(row[0]) if row and row[0] else ""


def page(tx: Tx, limit: int, cursor: str | None, query: str | None) -> SessionPage:
    where, values = "WHERE s.owner = ?", [tx.owner]
    if query:
        where += " AND instr(lower(coalesce(s.title, '')), lower(?))"
        values.append(query)
    if cursor:
        used, _, n = cursor.partition("/")
        if not (used.isdecimal() and n.isdecimal()):
            raise InvalidParams("cursor is not one that session.list gave out")
        where += " AND (s.used, s.n) < (CAST(? AS INTEGER), CAST(? AS INTEGER))"
        values += [used, n]
    rows = tx.rows(_SELECT + where + " ORDER BY s.used DESC, s.n DESC LIMIT ?", *values, limit + 1)
    more = f"{rows[limit - 1][10]}/{rows[limit - 1][9]}" if len(rows) > limit else None
    return SessionPage(tuple(_session(row) for row in rows[:limit]), more)


def rename(tx: Tx, session_id: str, title: str, keyed: Once | None, at: str) -> Session:
    def effect() -> Session:
        get(tx, session_id)
        tx.run("UPDATE sessions SET title = ?, updated_at = ? WHERE id = ?", title, at, session_id)
        return get(tx, session_id)

    return once(tx, keyed, at, Session, effect)


def touch(tx: Tx, session_id: str, at: str) -> None:
    """It was used last: by the number of the newest event, because clocks can step back."""
    tx.run("UPDATE sessions SET updated_at = ?, used = (SELECT coalesce(max(id), 0) FROM events) WHERE id = ?", at, session_id)


def _session(row: Row) -> Session:
    return Session(
        id=row[0],
        title=row[1],
        created_at=row[2],
        active_branch=row[3],
        cwd=row[4],
        project=row[5],
        agent=row[6],
        updated_at=row[7],
        turns=row[8],
    )
