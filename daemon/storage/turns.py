"""Turns: accepted before they are acknowledged (TX-0), finalised with their answer (TX-A), or failed with what was said."""

from typing import Any

import msgspec

from contextinfinity.daemon.core.milestones import phase_of
from contextinfinity.daemon.storage import blobs, branches, chunks, jobs, links, messages, retrievals, sessions, steps
from contextinfinity.daemon.storage.connection import Row, Tx
from contextinfinity.daemon.storage.idempotency import Once, once
from contextinfinity.daemon.storage.jobs import Job
from contextinfinity.daemon.storage.rows import FACTS, facts
from contextinfinity.protocol.blocks import Message
from contextinfinity.protocol.errors import ErrorObject, NotFound
from contextinfinity.protocol.methods import Submitted, TurnPage
from contextinfinity.protocol.model import Turn

_COLUMNS = (
    "t.id, t.session_id, t.branch_id, t.turn_seq, t.user_message, t.final_assistant_message, t.partial_text, t.incomplete, "
    "t.state_before, t.context_state, t.state_after, t.retry_of, t.error, t.model, t.created_at, t.updated_at, t.indexed_at, "
    + FACTS
)
PAGE_BYTES = 4 * 1024 * 1024  # a page of large turns ends early, so that no answer grows without bound
_UNFINISHED = "t.finalized_at IS NULL AND t.failed_at IS NULL"


class NewTurn(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    branch_id: str
    message: Message
    model: str
    at: str
    retry_of: str | None = None
    tz: str | None = None


def accept(tx: Tx, new: NewTurn, keyed: Once | None) -> Submitted:
    """TX-0: after this commit the words cannot be lost."""
    return once(tx, keyed, new.at, Submitted, lambda: _accept(tx, new))


def _accept(tx: Tx, new: NewTurn) -> Submitted:
    row = tx.row(
        "SELECT session_id, turn_seq, head_state, link_seq, link FROM branches WHERE id = ? AND owner = ?",
        new.branch_id,
        tx.owner,
    )
    if row is None:
        raise NotFound(f"no branch with id {new.branch_id!r}", kind="branch", id=new.branch_id)
    session_id, seq, head = row[0], row[1] + 1, row[2]
    document = messages.encode(new.message)
    tx.run(
        "INSERT INTO turns(id, owner, session_id, branch_id, turn_seq, state_before, retry_of, model, tz, user_message, "
        "created_at, updated_at) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
        new.id,
        tx.owner,
        session_id,
        new.branch_id,
        seq,
        head,
        new.retry_of,
        new.model,
        new.tz,
        blobs.put(tx, document),
        new.at,
        new.at,
    )
    links.append(tx, new.branch_id, links.Head(row[3], row[4]), "accepted", new.id, document, turn_seq=seq)
    tx.emit("turn.accepted", new.at, session_id=session_id, branch_id=new.branch_id, turn_id=new.id, turn_seq=seq)
    return Submitted(new.id, seq)


def respond(tx: Tx, turn_id: str, step: steps.NewStep, context_state: str, at: str) -> None:
    """The context is prepared and the provider is about to be called."""
    session_id, branch_id = _where(tx, turn_id)
    steps.insert(tx, step)
    retrievals.add(tx, turn_id, step.recipe.memory)
    sessions.touch(tx, session_id, at)
    tx.run(
        "UPDATE turns SET context_state = ?, context_at = ?, responding_at = ?, updated_at = ? WHERE id = ?",
        context_state,
        at,
        at,
        at,
        turn_id,
    )
    for phase in ("context_prepared", "responding"):
        tx.emit("turn.phase", at, session_id=session_id, branch_id=branch_id, turn_id=turn_id, phase=phase)
    tx.emit(
        "step.started",
        at,
        session_id=session_id,
        branch_id=branch_id,
        turn_id=turn_id,
        step_id=step.id,
        provider=step.provider,
        model_id=step.model_id,
    )


def finalize(tx: Tx, turn_id: str, ended: steps.EndedStep, answer: Message, at: str, job: Job | None = None) -> bool:
    """TX-A: the answer is on disk, once; False if the turn was over already. A job that did it ends with it."""
    jobs.finish(tx, job, at)
    if _is_over(tx, turn_id):
        return False
    session_id, branch_id = _where(tx, turn_id)
    document = messages.encode(answer)
    if steps.end(tx, ended, at):
        _step_ended(tx, session_id, branch_id, turn_id, ended, at)
    tx.run(
        "UPDATE turns SET final_assistant_message = ?, finalized_at = ?, updated_at = ? WHERE id = ?",
        blobs.put(tx, document),
        at,
        at,
        turn_id,
    )
    links.append(tx, branch_id, links.head(tx, branch_id), "finalized", turn_id, document)
    sessions.touch(tx, session_id, at)
    tx.emit("turn.phase", at, session_id=session_id, branch_id=branch_id, turn_id=turn_id, phase="response_finalized")
    jobs.enqueue(tx, "index_turn", branch_id, turn_id, at)
    return True


def fail(tx: Tx, turn_id: str, error: ErrorObject, ended: steps.EndedStep | None, partial: str, at: str, *,
         recovered: bool = False, job: Job | None = None) -> bool:  # fmt: skip
    """The turn is over without a whole answer; what was said is kept. False if it was over already."""
    jobs.finish(tx, job, at)
    if _is_over(tx, turn_id):
        return False
    session_id, branch_id = _where(tx, turn_id)
    if ended is not None and steps.end(tx, ended, at):
        _step_ended(tx, session_id, branch_id, turn_id, ended, at)
    tx.run(
        "UPDATE turns SET failed_at = ?, updated_at = ?, error = ?, partial_text = ?, incomplete = ? WHERE id = ?",
        at,
        at,
        msgspec.json.encode(error).decode(),
        blobs.put(tx, partial.encode()) if partial else None,
        1 if partial else None,
        turn_id,
    )
    links.append(tx, branch_id, links.head(tx, branch_id), "failed", turn_id, partial.encode())
    sessions.touch(tx, session_id, at)
    if recovered and partial and ended is not None:
        tx.emit("recovery.partial", at, session_id=session_id, branch_id=branch_id, turn_id=turn_id,
                step_id=ended.id, bytes=len(partial.encode()))  # fmt: skip
    tx.emit(
        "turn.phase",
        at,
        session_id=session_id,
        branch_id=branch_id,
        turn_id=turn_id,
        phase="failed",
        error=msgspec.to_builtins(error),
    )
    jobs.enqueue(tx, "index_turn", branch_id, turn_id, at)
    return True


def get(tx: Tx, turn_id: str) -> Turn:
    row = tx.row(f"SELECT {_COLUMNS} FROM turns t WHERE t.id = ? AND t.owner = ?", turn_id, tx.owner)
    if row is None:
        raise NotFound(f"no turn with id {turn_id!r}", kind="turn", id=turn_id)
    return _turn(tx, row)


def page(tx: Tx, branch_id: str, after_seq: int, limit: int) -> TurnPage:
    """The turns of a lineage in order."""
    found = _collect(tx, branch_id, after_seq, 1 << 62, limit, newest_first=False)
    last = found[-1].turn_seq if found else after_seq
    more = str(last) if last < branches.get(tx, branch_id).turn_seq else None
    return TurnPage(tuple(found), more)


def latest(tx: Tx, branch_id: str, before_seq: int, limit: int) -> list[Turn]:
    """The turns of a lineage before a sequence number, newest first."""
    return _collect(tx, branch_id, 0, before_seq - 1, limit, newest_first=True)


def _collect(tx: Tx, branch_id: str, after: int, upto: int, limit: int, *, newest_first: bool) -> list[Turn]:
    branches.get(tx, branch_id)
    segments = branches.lineage(tx, branch_id)
    order = "DESC" if newest_first else "ASC"
    found: list[Turn] = []
    size = 0
    for segment in reversed(segments) if newest_first else segments:
        low, high = max(after, segment.after), min(upto, segment.upto)
        if low >= high or len(found) >= limit:
            continue
        for row in tx.rows(
            f"SELECT {_COLUMNS} FROM turns t WHERE t.branch_id = ? AND t.turn_seq > ? AND t.turn_seq <= ? "
            f"ORDER BY t.turn_seq {order} LIMIT ?",
            segment.branch_id,
            low,
            high,
            limit - len(found),
        ):
            found.append(_turn(tx, row))
            size += _size(found[-1])
            if size > PAGE_BYTES:
                return found
    return found


def _size(turn: Turn) -> int:
    answer = turn.final_assistant_message
    return len(turn.user_message.rendered_text) + len(answer.rendered_text if answer else turn.partial_text or "")


class Unfinished(msgspec.Struct, frozen=True):
    """A turn that was accepted but never ended, with its step if the provider had been called."""

    turn_id: str
    branch_id: str
    step_id: str | None
    provider: str | None


def unfinished(tx: Tx, branch_id: str | None = None) -> list[Unfinished]:
    where, values = ("", []) if branch_id is None else (" AND t.branch_id = ?", [branch_id])
    rows = tx.rows(
        "SELECT t.id, t.branch_id, s.id, s.provider FROM turns t LEFT JOIN steps s ON s.turn_id = t.id AND s.ended_at IS NULL "
        f"WHERE {_UNFINISHED}{where} ORDER BY t.n",
        *values,
    )
    return [Unfinished(*row) for row in rows]


def unfinished_step(tx: Tx, turn_id: str) -> Unfinished | None:
    """A turn that still waits for its outcome, if it does."""
    row = tx.row("SELECT branch_id FROM turns WHERE id = ?", turn_id)
    if row is None:
        return None
    return next((turn for turn in unfinished(tx, row[0]) if turn.turn_id == turn_id), None)


def retried(tx: Tx, branch_id: str, turn_ids: list[str]) -> set[str]:
    """Which of these were asked again since, on this lineage."""
    marks = ",".join("?" * len(turn_ids))
    rows = tx.rows(f"SELECT retry_of, branch_id, turn_seq FROM turns WHERE retry_of IN ({marks})", *turn_ids)
    line = {s.branch_id: s for s in branches.lineage(tx, branch_id)}
    return {turn for turn, where, seq in rows if where in line and line[where].after < seq <= line[where].upto}


def counts(tx: Tx) -> tuple[int, int]:
    """How many turns there are, and how many bytes the database takes."""
    turns = tx.row("SELECT count(*) FROM turns")
    size = tx.row("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
    assert turns is not None
    assert size is not None
    return turns[0], size[0]


def _where(tx: Tx, turn_id: str) -> tuple[str, str]:
    row = tx.row("SELECT session_id, branch_id FROM turns WHERE id = ?", turn_id)
    assert row is not None
    return row[0], row[1]


def _is_over(tx: Tx, turn_id: str) -> bool:
    return tx.row(f"SELECT 1 FROM turns t WHERE t.id = ? AND {_UNFINISHED}", turn_id) is None


def _step_ended(tx: Tx, session_id: str, branch_id: str, turn_id: str, ended: steps.EndedStep, at: str) -> None:
    outcome: Any = msgspec.to_builtins(ended.outcome)
    tx.emit("step.ended", at, session_id=session_id, branch_id=branch_id, turn_id=turn_id, step_id=ended.id, outcome=outcome)


def _turn(tx: Tx, row: Row) -> Turn:
    collected = facts(row[17:])
    return Turn(
        id=row[0],
        session_id=row[1],
        branch_id=row[2],
        turn_seq=row[3],
        phase=phase_of(collected),
        indexed=row[16] is not None,
        user_message=messages.decode(blobs.get(tx, row[4])),
        final_assistant_message=messages.decode(blobs.get(tx, row[5])) if row[5] is not None else None,
        partial_text=blobs.get(tx, row[6]).decode() if row[6] is not None else None,
        incomplete=bool(row[7]),
        state_before=row[8],
        context_state=row[9],
        state_after=row[10],
        steps=steps.summaries(tx, row[0]),
        retrieved=retrievals.of_turn(tx, row[0]),
        created_chunks=chunks.of_turn(tx, row[0]),
        retry_of=row[11],
        error=msgspec.json.decode(row[12], type=ErrorObject) if row[12] is not None else None,
        model=row[13],
        created_at=row[14],
        updated_at=row[15],
    )
