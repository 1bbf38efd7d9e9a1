"""Appends to the hash chain of a branch; `core.chain` says what a link is."""

import secrets

import msgspec

from contextinfinity.daemon.core import chain
from contextinfinity.daemon.storage.connection import Tx


class Head(msgspec.Struct, frozen=True):
    """Where the chain of a branch ends now."""

    seq: int
    link: bytes


def head(tx: Tx, branch_id: str) -> Head:
    row = tx.row("SELECT link_seq, link FROM branches WHERE id = ?", branch_id)
    assert row is not None
    return Head(*row)


def append(tx: Tx, branch_id: str, at: Head, kind: str, turn_id: str, content: bytes, turn_seq: int | None = None) -> None:
    """One more link; with `turn_seq` the branch's turn counter moves in the same statement."""
    new = insert(tx, branch_id, at, kind, turn_id, content)
    tx.run(
        "UPDATE branches SET link_seq = ?, link = ?, turn_seq = coalesce(?, turn_seq) WHERE id = ?",
        new.seq,
        new.link,
        turn_seq,
        branch_id,
    )


def insert(tx: Tx, branch_id: str, at: Head, kind: str, turn_id: str, content: bytes) -> Head:
    """One more link, of which the branch does not know yet: whoever adds many tells it once, at the end."""
    salt = secrets.token_bytes(16)
    hashed = chain.content_hash(salt, content)
    link = chain.link(at.link, kind, turn_id, hashed)
    tx.run("INSERT INTO chain VALUES (?,?,?,?,?,?,?)", branch_id, at.seq + 1, kind, turn_id, salt, hashed, link)
    return Head(at.seq + 1, link)


def at_turn(tx: Tx, branch_id: str, turn_seq: int) -> bytes:
    """The link from which a fork after this turn goes on."""
    row = tx.row(
        "SELECT c.link FROM chain c JOIN turns t ON t.id = c.turn_id "
        "WHERE c.branch_id = ? AND t.turn_seq <= ? ORDER BY c.seq DESC LIMIT 1",
        branch_id,
        turn_seq,
    )
    if row is not None:
        return bytes(row[0])
    base = tx.row("SELECT base_link FROM branches WHERE id = ?", branch_id)
    return bytes(base[0]) if base else chain.GENESIS
