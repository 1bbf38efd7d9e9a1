"""Valid frames and ways to spoil them: a seeded generator for fuzzing the codec, the decoder and a live daemon."""

import json
import random
from collections.abc import Iterator, Mapping

import msgspec

from contextinfinity.protocol import jsonrpc
from contextinfinity.protocol.codec import Framing, frame
from contextinfinity.protocol.methods import METHODS
from tests.protocol.samples import full, least

UNSAFE = {"daemon.shutdown", "config.reload", "credential.provide", "store.backup"}
"""Methods that no frame sent to a live daemon may name: they stop it, change it, or write files and take their time."""

SPICE = [
    b"\n", b"\r\n\r\n", b"Content-Length: 5\r\n\r\n", b"{", b"}", b"[" * 2000, b'{"a":' * 500, b'"', b"\\", b"\\ud800",
    b"\\u0000", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"1e999", b"-", b"9" * 400, b"null", b'"jsonrpc"', b'"2.0"', b'"id":',
    b'"params":[]', "ü🌍".encode(),
]  # fmt: skip


def documents(ids: Mapping[str, str] | None = None) -> list[bytes]:
    """Requests for every safe method, notifications, batches and cancellations, all of them valid.

    `ids` gives real values to fields such as `branch_id`, so that a live daemon has something to do.
    """
    found = []
    for number, (name, method) in enumerate(METHODS.items()):
        if name not in UNSAFE:
            found += [jsonrpc.request(number, name, sample(method.params)) for sample in (full, least)]
            found.append(jsonrpc.notification(name, least(method.params)))
    found.append(jsonrpc.notification("$/cancelRequest", {"id": 3}))
    found.append(json.dumps({"jsonrpc": "2.0", "method": "no.such.method", "params": [1, "ü🌍", None], "id": "a"}).encode())
    found.append(msgspec.json.encode([msgspec.Raw(document) for document in found[:9]]))
    for field, value in (ids or {}).items():
        found = [document.replace(f'"{field}":"{field}"'.encode(), f'"{field}":"{value}"'.encode()) for document in found]
    return found


def spoilt(rng: random.Random, framing: Framing, ids: Mapping[str, str] | None = None) -> Iterator[bytes]:
    """Without end: as often the frame is spoilt as only the document in it; each with one to three mutations."""
    bare = documents(ids)
    framed = [frame(framing, document) for document in bare]
    while True:
        if rng.random() < 0.5:
            yield _mutated(rng, framed)
        else:
            yield frame(framing, _mutated(rng, bare))


def _mutated(rng: random.Random, corpus: list[bytes]) -> bytes:
    data = rng.choice(corpus)
    for _ in range(rng.randint(1, 3)):
        data = rng.choice((_flip, _truncate, _duplicate, _splice, _insert, _remove))(rng, data, corpus)
    return data


def _slice(rng: random.Random, data: bytes) -> tuple[int, int]:
    begin = rng.randrange(len(data) + 1)
    return begin, begin + rng.randrange(min(60, len(data) - begin) + 1)


def _flip(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    flipped = bytearray(data)
    for _ in range(rng.randint(1, 4) if flipped else 0):
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def _truncate(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _duplicate(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    begin, end = _slice(rng, data)
    return data[:end] + data[begin:end] * rng.randint(1, 3) + data[end:]


def _splice(rng: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    other = rng.choice(corpus)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other)) :]


def _insert(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(SPICE) + data[at:]


def _remove(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    begin, end = _slice(rng, data)
    return data[:begin] + data[end:]
