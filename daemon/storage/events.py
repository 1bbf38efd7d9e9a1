"""The outbox of durable events; its increasing id is the cursor that subscribers resume from."""

import msgspec

from contextinfinity.daemon.storage.connection import Tx
from contextinfinity.protocol.events import Event


def after(tx: Tx, cursor: int, upto: int, limit: int, branch_id: str | None, session_id: str | None) -> list[Event]:
    where, values = "id > ? AND id <= ? AND owner = ?", [cursor, upto, tx.owner]
    if branch_id is not None:
        where += " AND branch_id = ?"
        values.append(branch_id)
    if session_id is not None:
        where += " AND session_id = ?"
        values.append(session_id)
    rows = tx.rows(
        f"SELECT id, type, branch_id, data, turn_id, session_id FROM events WHERE {where} ORDER BY id LIMIT ?", *values, limit
    )
    return [Event(r[0], r[1], r[2], msgspec.json.decode(r[3]), r[4], r[5]) for r in rows]
