"""Chunks and passages: what search finds, written with the turn's milestone (TX-C) and read back as words in their place.

Texts are not stored again: a chunk knows its message and offsets. Everything here can be made anew from the transcript.
"""

from collections.abc import Collection, Sequence
from typing import Any

import apsw
import msgspec

from contextinfinity.daemon.core.content import searchable
from contextinfinity.daemon.core.hot_index import Passage
from contextinfinity.daemon.core.indexing import NewChunk, index
from contextinfinity.daemon.core.untrusted import Artifact
from contextinfinity.daemon.storage import blobs, branches, jobs, messages
from contextinfinity.daemon.storage.connection import DAMAGE, Row, Tx
from contextinfinity.daemon.storage.jobs import Job
from contextinfinity.protocol.blocks import Message, message
from contextinfinity.protocol.errors import InvalidState, NotFound
from contextinfinity.protocol.model import Chunk

_CHUNK = (
    "c.id, c.session_id, c.branch_id, c.source_turn, c.role, c.start, c.end, c.summary, c.chunk_type, c.token_est, "
    "c.content_hash, t.turn_seq, t.created_at, t.user_message, t.final_assistant_message, t.partial_text, c.n "
)
QUOTING_PROVIDER = "recall"
_FROM = "FROM chunks c JOIN turns t ON t.id = c.source_turn "


class IndexedTurn(msgspec.Struct, frozen=True):
    """The chunks of a turn with their ids; `degraded` says why they are fewer or poorer than they should be."""

    turn_id: str
    chunks: tuple[tuple[str, NewChunk], ...]
    degraded: str | None = None


class Located(msgspec.Struct, frozen=True):
    """A chunk that was found by one of its passages (offsets within its text), with the title of its session.

    And the external ids of its message and of the neighbours.
    """

    found: "Found"
    best: tuple[int, int]
    title: str | None
    external_ids: tuple[str, ...]


class Found(msgspec.Struct, frozen=True):
    """A chunk with its text and the message it is a part of."""

    n: int
    chunk: Chunk
    turn_seq: int
    said: Message
    start: int


def index_turn(tx: Tx, indexed: IndexedTurn, at: str, job: Job | None = None, *, embed: bool = False) -> int:
    """TX-C: chunks, passages and the milestone together. Again it changes nothing, unless something was not as it should be.

    The number of new chunks.
    """
    jobs.finish(tx, job, at)
    try:
        return _index_turn(tx, indexed, at, embed=embed)
    except DAMAGE as error:  # of the index only: conversations go on
        raise InvalidState(f"the index is damaged ({error}): restart the daemon, which makes it anew", damaged=True) from None


def index_turns(tx: Tx, many: Sequence[IndexedTurn], job: Job, clock: float, at: str, *, embed: bool) -> int:
    """The same for many at once, by a job that goes on."""
    jobs.extend(tx, job, clock, at)
    return sum(_index_turn(tx, indexed, at, embed=embed) for indexed in many)


def _index_turn(tx: Tx, indexed: IndexedTurn, at: str, *, embed: bool) -> int:
    row = tx.row("SELECT session_id, branch_id, indexed_at FROM turns WHERE id = ?", indexed.turn_id)
    assert row is not None
    wanted = [new for _, new in indexed.chunks]
    if not _is_as(tx, indexed.turn_id, wanted):
        _remove(tx, indexed.turn_id)
    made = sum(_insert(tx, row[0], row[1], indexed.turn_id, *new) for new in indexed.chunks)
    if made or row[2] is None:
        tx.run("UPDATE turns SET chunk_count = ? WHERE id = ?", count_of(indexed), indexed.turn_id)
    if row[2] is None:
        tx.run("UPDATE turns SET indexed_at = ? WHERE id = ?", at, indexed.turn_id)
        _tell(tx, row[0], row[1], indexed, at)
    if embed and made:
        jobs.enqueue(tx, "embed", "", None, at)
    return made


def count_of(indexed: IndexedTurn) -> int:
    """How many rows these chunks are: the same words of the same kind are one."""
    return len({(new.chunk_type, new.content_hash) for _, new in indexed.chunks})


def _is_as(tx: Tx, turn_id: str, wanted: Sequence[NewChunk]) -> bool:
    """Whether what is there, if anything, is what there should be."""
    found = tx.rows("SELECT n, chunk_type, content_hash, role, start, end, recipe FROM chunks WHERE source_turn = ?", turn_id)
    if not found:
        return True
    should: dict[tuple[str, bytes], object] = {}
    for c in wanted:
        places = tuple((p.start, p.end, p.terms) for p in c.passages)
        should.setdefault((c.chunk_type, c.content_hash), ((c.role, c.start, c.end, c.recipe), places))
    for n, kind, hashed, *rest in found:
        passages = tuple(tx.rows("SELECT start, end, terms FROM passages WHERE chunk = ? ORDER BY n", n))
        if should.pop((kind, hashed), None) != (tuple(rest), passages):
            return False
    return not should


def _remove(tx: Tx, turn_id: str) -> None:
    """Whoever holds the index in memory is told by its generation that something went."""
    passages = "SELECT p.n FROM passages p JOIN chunks c ON c.n = p.chunk WHERE c.source_turn = ?"
    tx.run(f"DELETE FROM passage_vectors WHERE passage IN ({passages})", turn_id)
    tx.run("DELETE FROM passages WHERE chunk IN (SELECT n FROM chunks WHERE source_turn = ?)", turn_id)
    tx.run("DELETE FROM chunks WHERE source_turn = ?", turn_id)
    tx.run("UPDATE meta SET value = value + 1 WHERE key = 'index_generation'")


def generation(tx: Tx) -> int:
    row = tx.row("SELECT value FROM meta WHERE key = 'index_generation'")
    return int(row[0]) if row is not None else 0


def index_new(tx: Tx, session_id: str, branch_id: str, indexed: IndexedTurn, at: str) -> None:
    """The same for a turn that was written in this transaction with its milestone."""
    for new in indexed.chunks:
        _insert(tx, session_id, branch_id, indexed.turn_id, *new)
    _tell(tx, session_id, branch_id, indexed, at)


def _tell(tx: Tx, session_id: str, branch_id: str, indexed: IndexedTurn, at: str) -> None:
    tx.emit("turn.indexed", at, session_id=session_id, branch_id=branch_id, turn_id=indexed.turn_id,
            chunks=len(indexed.chunks), degraded=indexed.degraded)  # fmt: skip


def _insert(tx: Tx, session_id: str, branch_id: str, turn_id: str, chunk_id: str, new: NewChunk) -> bool:
    known = tx.row(
        "SELECT 1 FROM chunks WHERE source_turn = ? AND chunk_type = ? AND content_hash = ?",
        turn_id,
        new.chunk_type,
        new.content_hash,
    )
    if known is not None:
        return False
    number = tx.insert(
        "INSERT INTO chunks(id, owner, session_id, branch_id, source_turn, role, start, end, summary, chunk_type, token_est, "
        "content_hash, speaker, asks, at, recipe) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        chunk_id,
        tx.owner,
        session_id,
        branch_id,
        turn_id,
        new.role,
        new.start,
        new.end,
        new.summary,
        new.chunk_type,
        new.token_est,
        new.content_hash,
        new.speaker,
        new.asks,
        new.at,
        new.recipe,
    )
    for piece in new.passages:
        tx.insert(
            "INSERT INTO passages(chunk, start, end, terms) VALUES (?,?,?,?)", number, piece.start, piece.end, piece.terms
        )
    return True


def said_in(tx: Tx, turn_id: str) -> tuple[list[Message], str]:
    """What of a turn is indexed, and when it was said; an answer that only quotes memory is left out."""
    row = tx.row(
        "SELECT user_message, final_assistant_message, partial_text, created_at, "
        "EXISTS (SELECT 1 FROM steps s WHERE s.turn_id = turns.id AND s.provider = ?) FROM turns WHERE id = ?",
        QUOTING_PROVIDER,
        turn_id,
    )
    assert row is not None
    said = both_sides(tx, row[0], row[1], row[2], row[3])
    return (said[:1] if row[4] else said), row[3]


def of_transcript(tx: Tx, turn_id: str, overlap_tokens: int) -> list[NewChunk]:
    """The chunks that a turn should have."""
    said, at = said_in(tx, turn_id)
    return [chunk for one in said for chunk in index(one, at, overlap_tokens)]


_LACKING = (
    "(t.indexed_at IS NULL OR (SELECT count(*) FROM chunks c WHERE c.source_turn = t.id) IS NOT t.chunk_count OR EXISTS ("
    "SELECT 1 FROM chunks c WHERE c.source_turn = t.id AND NOT EXISTS (SELECT 1 FROM passages p WHERE p.chunk = c.n)))"
)
_OVER = "(t.finalized_at IS NOT NULL OR t.failed_at IS NOT NULL)"


def to_index(tx: Tx, after: int, limit: int, *, everything: bool) -> list[tuple[int, str]]:
    """Turns that are over, by number: all, or those that lack some of their index."""
    lacking = "" if everything else f" AND {_LACKING}"
    rows = tx.rows(
        f"SELECT t.n, t.id FROM turns t WHERE t.owner = ? AND t.n > ? AND {_OVER}{lacking} ORDER BY t.n LIMIT ?",
        tx.owner,
        after,
        limit,
    )
    return [(row[0], row[1]) for row in rows]


def mend(tx: Tx, at: str) -> bool:
    """At start: ask for what is missing of the index. Whether there is anything."""
    tx.run("DELETE FROM passage_vectors WHERE passage NOT IN (SELECT n FROM passages WHERE chunk IN (SELECT n FROM chunks))")
    tx.run("DELETE FROM passages WHERE chunk NOT IN (SELECT n FROM chunks)")
    lacking = bool(to_index(tx, 0, 1, everything=False))
    if lacking:
        jobs.enqueue(tx, "mend_index", "", None, at)
    return vectors_lack(tx) or lacking


def vectors_lack(tx: Tx) -> bool:
    """A space is filled again from where its first vector is missing."""
    found = False
    for n, done_to in tx.rows("SELECT n, done_to FROM vector_spaces"):
        row = tx.row(
            "SELECT min(p.n) FROM passages p LEFT JOIN passage_vectors v ON v.space = ? AND v.passage = p.n "
            "WHERE p.n <= ? AND v.passage IS NULL",
            n,
            done_to,
        )
        if row is not None and row[0] is not None:
            tx.run("UPDATE vector_spaces SET done_to = ? WHERE n = ?", row[0] - 1, n)
            found = True
    return found


def passages_after(tx: Tx, n: int, limit: int) -> list[Passage]:
    """Passages in the order of their numbers, for the hot index."""
    rows = tx.rows(
        "SELECT p.n, c.n, t.n * 2 + (c.role = 'assistant'), c.session_id, c.branch_id, t.turn_seq, c.at, c.speaker, c.asks, "
        "c.chunk_type, p.terms FROM passages p JOIN chunks c ON c.n = p.chunk JOIN turns t ON t.id = c.source_turn "
        "WHERE p.n > ? AND c.owner = ? ORDER BY p.n LIMIT ?",
        n,
        tx.owner,
        limit,
    )
    return [Passage(*row) for row in rows]


def found(tx: Tx, numbers: Sequence[int]) -> list[Found]:
    """These chunks with their texts, in the order asked for."""
    marks = ",".join("?" * len(numbers))
    rows = {
        row[16]: row for row in tx.rows(f"SELECT {_CHUNK}{_FROM}WHERE c.n IN ({marks}) AND c.owner = ?", *numbers, tx.owner)
    }
    return [_found(tx, rows[n]) for n in numbers if n in rows]


def located(tx: Tx, passages: Sequence[int]) -> list[Located | None]:
    """The chunks that these passages are of, in the order asked for; None for one that is gone."""
    marks = ",".join("?" * len(passages))
    rows = tx.rows(
        "SELECT p.n, c.n, p.start - c.start, p.end - c.start FROM passages p JOIN chunks c ON c.n = p.chunk "
        f"WHERE p.n IN ({marks})",
        *passages,
    )
    places = {row[0]: row[1:] for row in rows}
    known = {one.n: one for one in found(tx, sorted({row[1] for row in rows}))}
    return [
        _located(tx, known[places[n][0]], (places[n][1], places[n][2])) if n in places and places[n][0] in known else None
        for n in passages
    ]


def _located(tx: Tx, one: Found, best: tuple[int, int]) -> Located:
    row = tx.row("SELECT title FROM sessions WHERE id = ?", one.chunk.session_id)
    assert row is not None
    own = one.said.external_id
    if own is None:
        return Located(one, best, row[0], ())
    around = [said.external_id for _, _, said in neighbours(tx, one.chunk.turn_id, 1, 1) if said.external_id is not None]
    at = around.index(own) if own in around else 0
    return Located(one, best, row[0], (own, *(e for e in around[max(0, at - 1) : at + 2] if e != own)))


def by_id(tx: Tx, chunk_id: str) -> Found:
    row = tx.row(f"SELECT {_CHUNK}{_FROM}WHERE c.id = ? AND c.owner = ?", chunk_id, tx.owner)
    if row is None:
        raise NotFound(f"no chunk with id {chunk_id!r}; `ctx search` (memory.search) finds them", kind="chunk", id=chunk_id)
    return _found(tx, row)


def page(tx: Tx, where: dict[str, Any], after: int, limit: int) -> tuple[list[Found], int | None]:
    """Chunks in the order they were made, for browsing; the number to go on after."""
    conditions = "".join(f" AND c.{column} = ?" for column in where)
    rows = tx.rows(
        f"SELECT {_CHUNK}{_FROM}WHERE c.owner = ? AND c.n > ?{conditions} ORDER BY c.n LIMIT ?",
        tx.owner,
        after,
        *where.values(),
        limit + 1,
    )
    return [_found(tx, row) for row in rows[:limit]], rows[limit - 1][16] if len(rows) > limit else None


class Line(msgspec.Struct, frozen=True):
    """A message as a dated line."""

    turn_id: str
    turn_seq: int
    session_id: str
    branch_id: str
    chunk_id: str
    role: str
    speaker: str
    summary: str
    at: float


def timeline(tx: Tx, session_id: str | None, branch_id: str | None, around: float | None, limit: int) -> list[Line]:
    """The first chunk of each message in order of time: the latest, or half before and half after a moment."""
    where, values = "c.owner = ?", [tx.owner]
    if branch_id is not None:
        line = branches.lineage_of(tx, branch_id)
        inside = [f"(c.branch_id = ? AND t.turn_seq > {s.after} AND t.turn_seq <= {s.upto})" for s in line]
        where += f" AND ({' OR '.join(inside)})"
        values += [s.branch_id for s in line]
    elif session_id is not None:
        where += " AND c.session_id = ?"
        values.append(session_id)
    select = (
        "SELECT c.source_turn, t.turn_seq, c.session_id, c.branch_id, c.id, c.role, c.speaker, c.summary, c.at, min(c.n) "
        f"{_FROM}WHERE {where}"
    )
    group = "GROUP BY c.source_turn, c.role ORDER BY c.at"
    if around is None:
        rows = tx.rows(f"{select} {group} DESC, t.n DESC, c.n DESC LIMIT ?", *values, limit)
        return [Line(*row[:9]) for row in rows[::-1]]
    before = tx.rows(f"{select} AND c.at < ? {group} DESC, t.n DESC, c.n DESC LIMIT ?", *values, around, limit // 2)
    after = tx.rows(f"{select} AND c.at >= ? {group}, t.n, c.n LIMIT ?", *values, around, limit - limit // 2)
    return [Line(*row[:9]) for row in (*before[::-1], *after)]


def moment(tx: Tx, ident: str) -> float | None:
    """When a turn or a chunk was said, if this is the id of one."""
    row = tx.row("SELECT min(at) FROM chunks WHERE owner = ? AND (id = ? OR source_turn = ?)", tx.owner, ident, ident)
    return float(row[0]) if row is not None and row[0] is not None else None


class IndexState(msgspec.Struct, frozen=True):
    indexed_at: str | None
    unindexed: int
    passages: int
    chunks: int


def state(tx: Tx) -> IndexState:
    row = tx.row(
        "SELECT (SELECT max(indexed_at) FROM turns), (SELECT count(*) FROM turns WHERE indexed_at IS NULL AND "
        "(finalized_at IS NOT NULL OR failed_at IS NOT NULL)), (SELECT count(*) FROM passages), (SELECT count(*) FROM chunks)"
    )
    assert row is not None
    return IndexState(*row)


def left_out(tx: Tx, turn_ids: Collection[str]) -> list[int]:
    """The numbers by which the hot index knows these turns, and all that were asked again: those left the prompt."""
    marks = ",".join("?" * len(turn_ids))
    rows = tx.rows(f"SELECT n FROM turns WHERE id IN ({marks})", *turn_ids)
    again = tx.rows("SELECT o.n FROM turns r JOIN turns o ON o.id = r.retry_of WHERE r.retry_of IS NOT NULL")
    return [row[0] for row in (*rows, *again)]


def of_turn(tx: Tx, turn_id: str) -> tuple[str, ...]:
    """A turn can be read whatever has become of the index."""
    try:
        return tuple(row[0] for row in tx.rows("SELECT id FROM chunks WHERE source_turn = ? ORDER BY n", turn_id))
    except (apsw.CorruptError, apsw.SQLError):
        return ()


def neighbours(tx: Tx, turn_id: str, before: int, after: int) -> list[tuple[str, int, Message]]:
    """The messages of a branch around a turn, its ancestors' included: (turn, sequence, message), in order."""
    row = tx.row("SELECT branch_id, turn_seq FROM turns WHERE id = ?", turn_id)
    if row is None:
        raise NotFound(f"no turn with id {turn_id!r}", kind="turn", id=turn_id)
    said: list[tuple[str, int, Message]] = []
    for segment in branches.lineage(tx, row[0]):
        rows = tx.rows(
            "SELECT t.id, t.turn_seq, t.user_message, t.final_assistant_message, t.partial_text, t.created_at FROM turns t "
            "WHERE t.branch_id = ? AND t.turn_seq BETWEEN ? AND ? ORDER BY t.turn_seq",
            segment.branch_id,
            max(segment.after + 1, row[1] - before),
            min(segment.upto, row[1] + after),
        )
        said += [(r[0], r[1], one) for r in rows for one in both_sides(tx, r[2], r[3], r[4], r[5]) if one.blocks]
    return said


def both_sides(tx: Tx, user: Any, answer: Any, partial: Any, created_at: str) -> list[Message]:
    """What each side said in a turn; an answer that was cut off counts as far as it came."""
    said = [messages.decode(blobs.get(tx, user))]
    if answer is not None:
        said.append(messages.decode(blobs.get(tx, answer)))
    elif partial is not None:
        said.append(message("assistant", blobs.get(tx, partial).decode(), created_at=created_at))
    return said


def artifact(found: Found) -> Artifact:
    """A chunk as it is quoted, whole."""
    c, said = found.chunk, found.said
    return Artifact(c.id, c.turn_id, c.session_id, c.role, said.speaker or said.role, c.created_at, c.text)


def _found(tx: Tx, row: Row) -> Found:
    said = next((m for m in both_sides(tx, row[13], row[14], row[15], row[12]) if m.role == row[4]), message("user", ""))
    chunk = Chunk(
        id=row[0],
        session_id=row[1],
        branch_id=row[2],
        turn_id=row[3],
        role=row[4],
        text=searchable(said)[row[5] : row[6]],
        summary=row[7],
        chunk_type=row[8],
        token_est=row[9],
        content_hash=row[10].hex(),
        created_at=said.created_at or row[12],
    )
    return Found(row[16], chunk, row[11], said, row[5])
