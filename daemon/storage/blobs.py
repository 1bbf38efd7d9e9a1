"""Content-addressed parts, compressed: large messages and the pieces that requests are made of, each stored once.

A column holds small documents as text and a large one as the hash of its blob; `put` and `get` hide which.
"""

import hashlib
import threading

import zstandard

from contextinfinity.daemon.storage.connection import Tx

INLINE_BYTES = 16 * 1024
LEVEL = 3


class _Codecs(threading.local):
    """One pair per thread: they must not be shared."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress
        self.expand = zstandard.ZstdDecompressor().decompress


_codecs = _Codecs()


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def compress(data: bytes) -> bytes:
    return _codecs.compress(data)


def expand(data: bytes) -> bytes:
    return _codecs.expand(data)


def keep(tx: Tx, hashed: bytes, data: bytes) -> None:
    if tx.row("SELECT 1 FROM blobs WHERE hash = ?", hashed) is None:
        tx.run("INSERT INTO blobs(hash, data) VALUES (?, ?)", hashed, compress(data))


def fetch(tx: Tx, hashed: bytes) -> bytes:
    row = tx.row("SELECT data FROM blobs WHERE hash = ?", hashed)
    if row is None:
        raise LookupError(f"blob {hashed.hex()} is missing")
    return expand(row[0])


def put(tx: Tx, document: bytes) -> str | bytes:
    """What to store in the column."""
    if len(document) <= INLINE_BYTES:
        return document.decode()
    hashed = digest(document)
    keep(tx, hashed, document)
    return hashed


def get(tx: Tx, column: str | bytes) -> bytes:
    return column.encode() if isinstance(column, str) else fetch(tx, column)
