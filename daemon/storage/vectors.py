"""Vectors, each in a space that one embedding model spans: a new model fills a space of its own, and then takes over.

Spaces are filled in the order of the passages, so `done_to` says how far; vectors are half-precision floats.
"""

from collections.abc import Sequence

import msgspec

from contextinfinity.daemon.core.content import searchable
from contextinfinity.daemon.storage import chunks, jobs
from contextinfinity.daemon.storage.connection import Tx
from contextinfinity.daemon.storage.jobs import Job


class Space(msgspec.Struct, frozen=True):
    """A space of vectors; before it is ready another may still answer."""

    n: int
    name: str
    embedder: str
    dim: int
    done_to: int
    ready: bool


class Unembedded(msgspec.Struct, frozen=True):
    """A passage that has no vector yet, with what was said before it if it is a whole short message."""

    n: int
    speaker: str
    at: float
    text: str
    before: str


def spaces(tx: Tx) -> list[Space]:
    rows = tx.rows("SELECT n, name, embedder, dim, done_to, ready_at IS NOT NULL FROM vector_spaces ORDER BY n")
    return [Space(*row) for row in rows]


def ensure(tx: Tx, name: str, embedder: str, dim: int, at: str) -> Space:
    """The space of this name; a model that has changed its dimension under the same name gets a new one."""
    known = next((s for s in spaces(tx) if s.name == name), None)
    if known is not None and known.dim != dim:
        _remove(tx, known.n)
        known = None
    if known is None:
        tx.run(
            "INSERT INTO vector_spaces(name, embedder, dim, done_to, created_at) VALUES (?,?,?,0,?)", name, embedder, dim, at
        )
        known = next(s for s in spaces(tx) if s.name == name)
    return known


def backlog(tx: Tx, done_to: int) -> int:
    row = tx.row("SELECT count(*) FROM passages WHERE n > ?", done_to)
    assert row is not None
    return int(row[0])


def unembedded(tx: Tx, done_to: int, limit: int) -> list[Unembedded]:
    rows = tx.rows(
        "SELECT p.n, p.start, p.end, c.speaker, c.at, c.n, "
        "(SELECT count(*) FROM passages q JOIN chunks d ON d.n = q.chunk "
        "WHERE d.source_turn = c.source_turn AND d.role = c.role) "
        "FROM passages p JOIN chunks c ON c.n = p.chunk WHERE p.n > ? ORDER BY p.n LIMIT ?",
        done_to,
        limit,
    )
    known = {f.n: f for f in chunks.found(tx, sorted({row[5] for row in rows}))}
    found = []
    for n, start, end, speaker, at, chunk, together in rows:
        one = known[chunk]
        before = _before(tx, one) if together == 1 else ""
        found.append(Unembedded(n, speaker, at, searchable(one.said)[start:end], before))
    return found


def _before(tx: Tx, found: chunks.Found) -> str:
    """The text of the message before."""
    around = chunks.neighbours(tx, found.chunk.turn_id, 1, 0)
    at = next(i for i, (turn, _, said) in enumerate(around) if turn == found.chunk.turn_id and said.role == found.chunk.role)
    return searchable(around[at - 1][2]) if at else ""


def add(tx: Tx, space: Space, vectors: Sequence[tuple[int, bytes]], job: Job | None, clock: float, at: str) -> None:
    """The next vectors of a space, in order."""
    if job is not None:
        jobs.extend(tx, job, clock, at)
    for passage, vector in vectors:
        tx.run("INSERT OR IGNORE INTO passage_vectors(space, passage, vector) VALUES (?,?,?)", space.n, passage, vector)
    tx.run("UPDATE vector_spaces SET done_to = max(done_to, ?) WHERE n = ?", vectors[-1][0], space.n)


def finish(tx: Tx, space: Space | None, job: Job, at: str) -> bool:
    """Nothing is left to embed: the space takes over from every other. False if something has come in meanwhile."""
    if space is not None:
        row = tx.row("SELECT done_to FROM vector_spaces WHERE n = ?", space.n)
        if row is None or backlog(tx, row[0]):
            return False
        tx.run("UPDATE vector_spaces SET ready_at = ? WHERE n = ? AND ready_at IS NULL", at, space.n)
        for other in spaces(tx):
            if other.n != space.n:
                _remove(tx, other.n)
    jobs.finish(tx, job, at)
    return True


def after(tx: Tx, space: int, passage: int, limit: int) -> tuple[list[int], bytes]:
    """Vectors in the order of their passages, for the hot index."""
    rows = tx.rows(
        "SELECT passage, vector FROM passage_vectors WHERE space = ? AND passage > ? ORDER BY passage LIMIT ?",
        space,
        passage,
        limit,
    )
    return [row[0] for row in rows], b"".join(row[1] for row in rows)


def forget(tx: Tx, name: str) -> None:
    """Drop a space, so that it is filled anew."""
    for space in spaces(tx):
        if space.name == name:
            _remove(tx, space.n)


def _remove(tx: Tx, space: int) -> None:
    tx.run("DELETE FROM passage_vectors WHERE space = ?", space)
    tx.run("DELETE FROM vector_spaces WHERE n = ?", space)
