"""Branches: a fork copies nothing, it knows its parent and where it left; `lineage` walks back through both."""

import msgspec

from contextinfinity.daemon.core.milestones import phase_of
from contextinfinity.daemon.storage import links, pins
from contextinfinity.daemon.storage.connection import Row, Tx
from contextinfinity.daemon.storage.idempotency import Once, once
from contextinfinity.daemon.storage.rows import FACTS, facts
from contextinfinity.protocol.errors import Conflict, InvalidParams, NotFound
from contextinfinity.protocol.methods import BranchPage
from contextinfinity.protocol.model import Branch, State, StreamBytes

_SELECT = (
    "SELECT b.id, b.session_id, b.label, b.parent_id, b.forked_at_turn_seq, b.base_state, b.head_state, b.head_seq, "
    "b.turn_seq, b.model, b.created_at, s.active_branch = b.id, st.covers_to_turn_seq "
    "FROM branches b JOIN sessions s ON s.id = b.session_id LEFT JOIN states st ON st.id = b.head_state "
)
_STATE = (
    "st.id, st.branch_id, st.state_seq, st.covers_to_turn_seq, st.parent_id, st.summary, st.pinned_facts, "
    "st.token_count_est, st.made_by, st.schema_version, st.created_at"
)


class NewBranch(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    session_id: str
    state_id: str
    model: str
    link: bytes
    at: str
    state_seq: int = 0
    turn_seq: int = 0
    parent_id: str | None = None
    label: str | None = None


class Segment(msgspec.Struct, frozen=True):
    """A run of turns that one branch of a lineage contributes: those with `after` < turn_seq <= `upto`."""

    branch_id: str
    after: int
    upto: int


def insert(tx: Tx, new: NewBranch) -> None:
    forked_at = None if new.parent_id is None else new.turn_seq
    tx.run(
        "INSERT INTO branches(id, owner, session_id, parent_id, forked_at_turn_seq, label, base_state, head_state, head_seq, "
        "turn_seq, model, base_link, link_seq, link, created_at) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,0,?,?)",
        new.id,
        tx.owner,
        new.session_id,
        new.parent_id,
        forked_at,
        new.label,
        new.state_id,
        new.state_id,
        new.state_seq,
        new.turn_seq,
        new.model,
        new.link,
        new.link,
        new.at,
    )
    tx.emit(
        "branch.created",
        new.at,
        session_id=new.session_id,
        branch_id=new.id,
        parent_id=new.parent_id,
        forked_at_turn_seq=forked_at,
        label=new.label,
    )


def get(tx: Tx, branch_id: str) -> Branch:
    row = tx.row(_SELECT + "WHERE b.id = ? AND b.owner = ?", branch_id, tx.owner)
    if row is None:
        raise NotFound(
            f"no branch with id {branch_id!r}; `ctx show SESSION` (branch.list) shows them", kind="branch", id=branch_id
        )
    return _branch(tx, row)


def of_session(tx: Tx, session_id: str, limit: int) -> BranchPage:
    if tx.row("SELECT 1 FROM sessions WHERE id = ? AND owner = ?", session_id, tx.owner) is None:
        raise NotFound(
            f"no session with id {session_id!r}; `ctx sessions` (session.list) shows them", kind="session", id=session_id
        )
    rows = tx.rows(_SELECT + "WHERE b.session_id = ? ORDER BY b.n LIMIT ?", session_id, limit)
    return BranchPage(tuple(_branch(tx, row) for row in rows))


def lineage(tx: Tx, branch_id: str) -> list[Segment]:
    """Where the turns of a branch live, oldest first."""
    segments: list[Segment] = []
    at: str | None = branch_id
    upto = 1 << 62
    while at is not None:
        row = tx.row("SELECT parent_id, forked_at_turn_seq FROM branches WHERE id = ?", at)
        assert row is not None
        after = row[1] or 0
        if after < upto:
            segments.append(Segment(at, after, upto))
        upto = min(upto, after)
        at = row[0]
    return segments[::-1]


def lineage_of(tx: Tx, branch_id: str) -> list[Segment]:
    """The same for a branch that may not exist."""
    get(tx, branch_id)
    return lineage(tx, branch_id)


def active_lineages(tx: Tx) -> list[Segment]:
    """The turns of every session that were not rolled back: those on the way to its active branch."""
    rows = tx.rows(
        "WITH RECURSIVE line(id, parent, after, upto) AS ("
        "SELECT b.id, b.parent_id, coalesce(b.forked_at_turn_seq, 0), 1 << 62 FROM sessions s "
        "JOIN branches b ON b.id = s.active_branch WHERE s.owner = ? "
        "UNION ALL SELECT b.id, b.parent_id, coalesce(b.forked_at_turn_seq, 0), min(line.after, line.upto) "
        "FROM line JOIN branches b ON b.id = line.parent) SELECT id, after, upto FROM line WHERE after < upto",
        tx.owner,
    )
    return [Segment(*row) for row in rows]


def link_at(tx: Tx, branch_id: str, turn_seq: int) -> bytes:
    """The link from which a fork of this branch after this turn goes on, whichever branch of the lineage has the turn."""
    holder = next((s.branch_id for s in lineage(tx, branch_id) if s.after < turn_seq <= s.upto), branch_id)
    return links.at_turn(tx, holder, turn_seq)


def fork(tx: Tx, source_id: str, at_turn_seq: int | None, label: str | None, new_id: str, at: str, *,
         activate: bool, keyed: Once | None) -> Branch:  # fmt: skip
    def effect() -> Branch:
        source = get(tx, source_id)
        unfinished = _first_unfinished(tx, source_id)
        last = source.turn_seq if unfinished is None else unfinished[0] - 1
        seq = last if at_turn_seq is None else at_turn_seq
        if seq > source.turn_seq:
            raise InvalidParams(f"the branch has {source.turn_seq} turns; there is no turn {seq}")
        if seq > last and unfinished is not None:
            raise Conflict(f"turn {unfinished[0]} is not finished yet: wait for it, or cancel it", active_turn_id=unfinished[1])
        state = _state_for(tx, source_id, seq)
        insert(
            tx,
            NewBranch(
                id=new_id,
                session_id=source.session_id,
                state_id=state[0],
                state_seq=state[1],
                model=source.model,
                link=link_at(tx, source_id, seq),
                at=at,
                turn_seq=seq,
                parent_id=source_id,
                label=label,
            ),
        )
        pins.inherit(tx, source_id, new_id, at)
        if activate:
            tx.run("UPDATE sessions SET active_branch = ?, updated_at = ? WHERE id = ?", new_id, at, source.session_id)
        return get(tx, new_id)

    return once(tx, keyed, at, Branch, effect)


def _first_unfinished(tx: Tx, branch_id: str) -> Row | None:
    return tx.row(
        "SELECT turn_seq, id FROM turns WHERE branch_id = ? AND finalized_at IS NULL AND failed_at IS NULL "
        "ORDER BY turn_seq LIMIT 1",
        branch_id,
    )


def _state_for(tx: Tx, branch_id: str, turn_seq: int) -> Row:
    """The newest state of the lineage that covers no more than this turn."""
    row = tx.row(
        "WITH RECURSIVE line(id, parent) AS ("
        "SELECT st.id, st.parent_id FROM states st JOIN branches b ON b.head_state = st.id WHERE b.id = ? "
        "UNION ALL SELECT st.id, st.parent_id FROM states st JOIN line ON st.id = line.parent) "
        "SELECT st.id, st.state_seq FROM line JOIN states st ON st.id = line.id "
        "WHERE st.covers_to_turn_seq <= ? ORDER BY st.covers_to_turn_seq DESC, st.state_seq DESC LIMIT 1",
        branch_id,
        turn_seq,
    )
    assert row is not None, "state 0 covers nothing, so there is always one"
    return row


def activate(tx: Tx, branch_id: str, keyed: Once | None, at: str) -> Branch:
    def effect() -> Branch:
        branch = get(tx, branch_id)
        tx.run("UPDATE sessions SET active_branch = ?, updated_at = ? WHERE id = ?", branch_id, at, branch.session_id)
        return get(tx, branch_id)

    return once(tx, keyed, at, Branch, effect)


def select_model(tx: Tx, branch_id: str, model: str, keyed: Once | None, at: str) -> str:
    """The model that was selected before."""

    def effect() -> str:
        old = get(tx, branch_id).model
        tx.run("UPDATE branches SET model = ? WHERE id = ?", model, branch_id)
        return old

    return once(tx, keyed, at, str, effect)


def states(tx: Tx, branch_id: str, limit: int) -> list[State]:
    """The head state and its ancestors, newest first."""
    head = get(tx, branch_id).head_state
    rows = tx.rows(
        "WITH RECURSIVE line(id, depth) AS (SELECT ?, 0 UNION ALL "
        "SELECT st.parent_id, depth + 1 FROM states st JOIN line ON st.id = line.id WHERE st.parent_id IS NOT NULL) "
        f"SELECT {_STATE} FROM line JOIN states st ON st.id = line.id ORDER BY depth LIMIT ?",
        head,
        limit,
    )
    return [_state(row) for row in rows]


def state(tx: Tx, state_id: str) -> State:
    row = tx.row(f"SELECT {_STATE} FROM states st WHERE st.id = ? AND st.owner = ?", state_id, tx.owner)
    if row is None:
        raise NotFound(f"no state with id {state_id!r}", kind="state", id=state_id)
    return _state(row)


def _state(r: Row) -> State:
    return State(
        id=r[0],
        branch_id=r[1],
        state_seq=r[2],
        covers_to_turn_seq=r[3],
        parent_id=r[4],
        summary=r[5],
        pins=tuple(msgspec.json.decode(r[6], type=list[str])),
        token_count_est=r[7],
        made_by=r[8],
        schema_version=r[9],
        created_at=r[10],
    )


def _branch(tx: Tx, row: Row) -> Branch:
    last = tx.row(f"SELECT {FACTS}, t.id FROM turns t WHERE t.branch_id = ? ORDER BY t.turn_seq DESC LIMIT 1", row[0])
    return Branch(
        id=row[0],
        session_id=row[1],
        label=row[2],
        parent_id=row[3],
        forked_at_turn_seq=row[4],
        base_state=row[5],
        head_state=row[6],
        head_seq=row[7],
        turn_seq=row[8],
        pending_turns=row[8] - row[12],
        phase=phase_of(facts(last[:-1])) if last else None,
        stream=_last_stream(tx, last[-1]) if last else StreamBytes(),
        model=row[9],
        created_at=row[10],
        active=bool(row[11]),
    )


def _last_stream(tx: Tx, turn_id: str) -> StreamBytes:
    """What was shown and kept of the latest answer; a live one is counted by whoever streams it."""
    row = tx.row(
        "SELECT stream_displayed_bytes, stream_durable_bytes FROM steps WHERE turn_id = ? ORDER BY step_index DESC LIMIT 1",
        turn_id,
    )
    return StreamBytes(row[0] or 0, row[1] or 0) if row is not None else StreamBytes()
