"""Remembers what a keyed call answered, in the same transaction as its effect, so that repeating it changes nothing.

A key belongs to a branch, or to a method where there is no branch; with other content it is a conflict.
"""

import hashlib
from collections.abc import Callable
from typing import TypeVar

import msgspec

from contextinfinity.daemon.storage.connection import Tx
from contextinfinity.protocol.errors import Conflict

T = TypeVar("T")


class Once(msgspec.Struct, frozen=True):
    """A keyed call: where the key counts, and what was asked."""

    scope: str
    key: str
    call: bytes

    @staticmethod
    def of(scope: str, key: str | None, method: str, params: object) -> "Once | None":
        if key is None:
            return None
        call = method.encode() + b"\0" + msgspec.json.encode(params)
        return Once(scope, key, hashlib.sha256(call).digest())


def answered_before(tx: Tx, keyed: Once | None, kind: type[T]) -> T | None:
    """What a call with this key answered the first time, if there was one."""
    if keyed is None:
        return None
    row = tx.row(
        "SELECT call_hash, result FROM idempotency WHERE owner = ? AND scope = ? AND key = ?", tx.owner, keyed.scope, keyed.key
    )
    if row is None:
        return None
    if row[0] != keyed.call:
        raise Conflict(f"idempotency key {keyed.key!r} was used before with other content", key=keyed.key)
    return msgspec.json.decode(row[1], type=kind)


def once(tx: Tx, keyed: Once | None, at: str, kind: type[T], effect: Callable[[], T]) -> T:
    """Do it, or answer as the first time."""
    before = answered_before(tx, keyed, kind)
    if before is not None:
        return before
    result = effect()
    if keyed is not None:
        tx.run(
            "INSERT INTO idempotency(owner, scope, key, call_hash, result, created_at) VALUES (?,?,?,?,?,?)",
            tx.owner,
            keyed.scope,
            keyed.key,
            keyed.call,
            msgspec.json.encode(result).decode(),
            at,
        )
    return result
