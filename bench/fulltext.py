"""Plain full-text search as SQLite brings it, the baseline of `recall`: one row per message, the question's words with OR.

Porter stems, bm25, nothing else; the standard library's SQLite if it has FTS5, else the one that the daemon uses.
"""

import re
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import apsw

TABLE = "CREATE VIRTUAL TABLE said USING fts5(text, speaker, tokenize='porter unicode61')"
SEARCH = "SELECT rowid FROM said WHERE said MATCH ? ORDER BY bm25(said) LIMIT ?"

_word = re.compile(r"\w+")


class FullText:
    """One conversation, in memory."""

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self._db = _connection()
        self._ids = [m["external_id"] for m in messages]
        rows = [(i, m["text"], m.get("speaker") or m["role"]) for i, m in enumerate(messages)]
        self._db.executemany("INSERT INTO said(rowid, text, speaker) VALUES (?,?,?)", rows)

    def search(self, question: str, most: int) -> list[str]:
        """The ids of messages, best first."""
        words = " OR ".join(f'"{word}"' for word in dict.fromkeys(_word.findall(question)))
        return [self._ids[number] for (number,) in self._db.execute(SEARCH, (words, most))] if words else []


def _connection() -> Any:
    try:
        plain = sqlite3.connect(":memory:")
        plain.execute(TABLE)
    except sqlite3.OperationalError:
        own = apsw.Connection(":memory:")
        own.execute(TABLE)
        return own
    return plain
