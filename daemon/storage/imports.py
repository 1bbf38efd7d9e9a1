"""Imported turns: written whole and searchable in one transaction, each message once per session by its external id.

Where a conversation went and how far a file was read is remembered here too, so that reading again goes on where it stopped.
"""

from collections.abc import Sequence

import msgspec

from contextinfinity.daemon.storage import blobs, chunks, jobs, links, messages, sessions
from contextinfinity.daemon.storage.chunks import IndexedTurn
from contextinfinity.daemon.storage.connection import Tx
from contextinfinity.protocol.blocks import Message, message
from contextinfinity.protocol.errors import NotFound

NOTHING_SAID = message("user", ())


class ImportedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn from elsewhere; a message with no partner makes one with one side. `at` is when it was said, or else now."""

    user: Message | None
    answer: Message | None
    external_ids: tuple[str, ...]
    at: str
    indexed: IndexedTurn


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Turns for one branch, in order."""

    format: str
    session_id: str
    branch_id: str
    model: str
    turns: tuple[ImportedTurn, ...]
    embed: bool


class Position(msgspec.Struct, frozen=True):
    """How far a file was read: hashes of its beginning and of what stands before the place tell whether it is still the same.

    `mark` tells whether it changed at all, `sessions` (with their branches) where its conversations went.
    """

    offset: int
    head: bytes
    mark: str
    tail: bytes = b""
    sessions: dict[str, str] = {}


def known_ids(tx: Tx, session_id: str, external_ids: Sequence[str]) -> set[str]:
    marks = ",".join("?" * len(external_ids))
    rows = tx.rows(
        f"SELECT external_id FROM external_ids WHERE session_id = ? AND external_id IN ({marks})", session_id, *external_ids
    )
    return {row[0] for row in rows}


def target(tx: Tx, kind: str, key: str) -> tuple[str, str] | None:
    """The session and branch that a conversation was imported into before."""
    row = tx.row(
        "SELECT session_id, branch_id FROM import_sessions WHERE owner = ? AND format = ? AND key = ?", tx.owner, kind, key
    )
    return (row[0], row[1]) if row is not None else None


def create_target(tx: Tx, kind: str, key: str | None, new: sessions.NewSession) -> tuple[str, str]:
    """A session for a conversation; it does not become the one that was used last."""
    if key is not None and (known := target(tx, kind, key)) is not None:
        return known
    sessions.create(tx, new, None)
    tx.run("UPDATE sessions SET used = 0 WHERE id = ?", new.id)
    if key is not None:
        tx.run("INSERT INTO import_sessions VALUES (?,?,?,?,?)", tx.owner, kind, key, new.id, new.branch_id)
    return new.id, new.branch_id


def add(tx: Tx, batch: Batch, at: str) -> int:
    """How many turns are new; one of whose messages any is known already is left out."""
    row = tx.row(
        "SELECT turn_seq, head_state, link_seq, link FROM branches WHERE id = ? AND owner = ?", batch.branch_id, tx.owner
    )
    if row is None:
        raise NotFound(f"no branch with id {batch.branch_id!r}", kind="branch", id=batch.branch_id)
    seq, state, head = row[0], row[1], links.Head(row[2], row[3])
    taken = known_ids(tx, batch.session_id, [e for turn in batch.turns for e in turn.external_ids])
    made = 0
    for turn in batch.turns:
        if taken.isdisjoint(turn.external_ids):
            taken.update(turn.external_ids)
            made += 1
            head = _insert(tx, batch, turn, seq + made, state, head, at)
    tx.run(
        "UPDATE branches SET link_seq = ?, link = ?, turn_seq = ? WHERE id = ?",
        head.seq,
        head.link,
        seq + made,
        batch.branch_id,
    )
    if batch.embed and made:
        jobs.enqueue(tx, "embed", "", None, at)
    return made


def _insert(tx: Tx, batch: Batch, turn: ImportedTurn, seq: int, state: str, head: links.Head, at: str) -> links.Head:
    turn_id = turn.indexed.turn_id
    user = messages.encode(turn.user or NOTHING_SAID)
    answer = messages.encode(turn.answer) if turn.answer is not None else None
    tx.run(
        "INSERT INTO turns(id, owner, session_id, branch_id, turn_seq, state_before, model, user_message, created_at, "
        "updated_at, context_at, responding_at, finalized_at, indexed_at, final_assistant_message, imported, chunk_count) "
        "VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        turn_id,
        tx.owner,
        batch.session_id,
        batch.branch_id,
        seq,
        state,
        batch.model,
        blobs.put(tx, user),
        turn.at,
        at,
        at,
        at,
        at,
        at,
        blobs.put(tx, answer) if answer is not None else None,
        batch.format,
        chunks.count_of(turn.indexed),
    )
    where = {"session_id": batch.session_id, "branch_id": batch.branch_id, "turn_id": turn_id}
    tx.emit("turn.accepted", at, **where, turn_seq=seq)
    tx.emit("turn.phase", at, **where, phase="response_finalized")
    head = links.insert(tx, batch.branch_id, head, "accepted", turn_id, user)
    head = links.insert(tx, batch.branch_id, head, "finalized", turn_id, answer or b"")
    for external_id in turn.external_ids:
        tx.run("INSERT INTO external_ids VALUES (?,?,?)", batch.session_id, external_id, turn_id)
    chunks.index_new(tx, batch.session_id, batch.branch_id, turn.indexed, at)
    return head


def position(tx: Tx, kind: str, path: str) -> Position | None:
    row = tx.row(
        "SELECT offset, head, mark, tail, sessions FROM import_files WHERE owner = ? AND format = ? AND path = ?",
        tx.owner,
        kind,
        path,
    )
    if row is None:
        return None
    return Position(row[0], bytes(row[1]), row[2], bytes(row[3]), msgspec.json.decode(row[4], type=dict[str, str]))


def sessions_of_file(tx: Tx, kind: str, path: str) -> dict[str, str]:
    """Where the conversations of a file went, each with the branch that is active there now."""
    known = position(tx, kind, path)
    found = {}
    for session_id in known.sessions if known is not None else {}:
        row = tx.row("SELECT active_branch FROM sessions WHERE id = ?", session_id)
        if row is not None:
            found[session_id] = str(row[0])
    return found


def set_position(tx: Tx, kind: str, path: str, reached: Position, at: str) -> None:
    tx.run(
        "INSERT OR REPLACE INTO import_files(owner, format, path, offset, head, mark, tail, sessions, updated_at) "
        "VALUES (?,?,?,?,?,?,?,?,?)",
        tx.owner,
        kind,
        path,
        reached.offset,
        reached.head,
        reached.mark,
        reached.tail,
        msgspec.json.encode(reached.sessions).decode(),
        at,
    )
