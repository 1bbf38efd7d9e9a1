"""Pins: append-only rows of what was added and removed, so that what was pinned when can always be told."""

from contextinfinity.daemon.storage.connection import Tx
from contextinfinity.daemon.storage.idempotency import Once, once
from contextinfinity.protocol.errors import NotFound
from contextinfinity.protocol.model import Pin

_ACTIVE = (
    "SELECT p.id, p.text, p.created_at FROM pins p JOIN ("
    "SELECT pin_id, max(n) AS last, min(n) AS first FROM pin_log WHERE branch_id = ? GROUP BY pin_id) l ON l.pin_id = p.id "
    "JOIN pin_log g ON g.n = l.last WHERE g.action = 'added' ORDER BY l.first"
)


def active(tx: Tx, branch_id: str) -> list[Pin]:
    return [Pin(id=r[0], branch_id=branch_id, text=r[1], created_at=r[2]) for r in tx.rows(_ACTIVE, branch_id)]


def add(tx: Tx, branch_id: str, session_id: str, pin_id: str, text: str, keyed: Once | None, at: str) -> Pin:
    def effect() -> Pin:
        tx.run(
            "INSERT INTO pins(id, owner, session_id, text, created_at) VALUES (?,?,?,?,?)",
            pin_id,
            tx.owner,
            session_id,
            text,
            at,
        )
        _log(tx, branch_id, session_id, pin_id, "added", at)
        return Pin(id=pin_id, branch_id=branch_id, text=text, created_at=at)

    return once(tx, keyed, at, Pin, effect)


def remove(tx: Tx, branch_id: str, session_id: str, pin_id: str, keyed: Once | None, at: str) -> Pin:
    def effect() -> Pin:
        for pin in active(tx, branch_id):
            if pin.id == pin_id:
                _log(tx, branch_id, session_id, pin_id, "removed", at)
                return pin
        raise NotFound(f"no active pin {pin_id!r} on this branch; `ctx pins` (pin.list) shows them", kind="pin", id=pin_id)

    return once(tx, keyed, at, Pin, effect)


def inherit(tx: Tx, source_id: str, fork_id: str, at: str) -> None:
    """A fork starts with the pins that are active now."""
    for pin in active(tx, source_id):
        tx.run("INSERT INTO pin_log(branch_id, pin_id, action, created_at) VALUES (?,?,'added',?)", fork_id, pin.id, at)


def _log(tx: Tx, branch_id: str, session_id: str, pin_id: str, action: str, at: str) -> None:
    tx.run("INSERT INTO pin_log(branch_id, pin_id, action, created_at) VALUES (?,?,?,?)", branch_id, pin_id, action, at)
    tx.emit("pin.changed", at, session_id=session_id, branch_id=branch_id, pin_id=pin_id, action=action)
