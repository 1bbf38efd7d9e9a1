"""Which chunks went into the prompt of a turn, in which order and how good they were."""

from collections.abc import Sequence

import apsw

from contextinfinity.daemon.core.packing import Quoted
from contextinfinity.daemon.storage.connection import Tx


def add(tx: Tx, turn_id: str, quoted: Sequence[Quoted]) -> None:
    for rank, one in enumerate(quoted, 1):
        tx.run(
            "INSERT OR IGNORE INTO retrievals(turn_id, chunk_id, rank, score, similarity) VALUES (?,?,?,?,?)",
            turn_id,
            one.chunk_id,
            rank,
            one.score,
            one.similarity,
        )


def of_turn(tx: Tx, turn_id: str) -> tuple[str, ...]:
    """A turn can be read whatever has become of the index."""
    try:
        return tuple(row[0] for row in tx.rows("SELECT chunk_id FROM retrievals WHERE turn_id = ? ORDER BY rank", turn_id))
    except (apsw.CorruptError, apsw.SQLError):
        return ()
