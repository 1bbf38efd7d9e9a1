"""The hot index: every passage's terms, place and vector as flat arrays in memory, filled from storage and rebuilt at will.

It only grows; `scope` chooses the passages of one search and puts them in the order in which neighbours stand together.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from contextinfinity.daemon.core.words import END, terms

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]

SITTING_GAP = 3 * 3600.0
CLOSED = END.to_bytes(4, "little")
CLOSED_BYTES = len(CLOSED)
REACH = 4
MOST_TAIL = 4096
TAIL_SHARE = 0.05


class Passage(msgspec.Struct, frozen=True):
    """One passage as storage tells it; `n` numbers only ever increase, and a message's passages come together."""

    n: int
    chunk: int
    message: int
    session: str
    branch: str
    turn_seq: int
    at: float
    speaker: str
    asks: bool
    chunk_type: str
    terms: bytes


class Names:
    """Gives each name a number."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def add(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.all)
            self.all.append(name)
        return number

    def number(self, name: str) -> int:
        """-1 for one that is not known."""
        return self._numbers.get(name, -1)


class Column:
    """An array that grows by doubling."""

    def __init__(self, kind: Any, width: int | None = None) -> None:
        self._data: NDArray[Any] = np.zeros((16,) if width is None else (16, width), kind)
        self.size = 0

    @property
    def values(self) -> NDArray[Any]:
        return self._data[: self.size]

    def extend(self, values: NDArray[Any]) -> None:
        needed = self.size + len(values)
        if needed > len(self._data):
            room = max(needed, len(self._data) + len(self._data) // 2)
            grown = np.zeros((room, *self._data.shape[1:]), self._data.dtype)
            grown[: self.size] = self._data[: self.size]
            self._data = grown
        self._data[self.size : needed] = values
        self.size = needed


class Scope(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """The passages of one search, sittings together and in order; positions in all of these arrays are local to it."""

    members: Ints
    local: NDArray[np.int32]
    sitting: NDArray[np.int32]
    sitting_starts: Ints
    message: NDArray[np.int32]
    message_starts: Ints
    length: Floats
    weight: Floats
    together: tuple[Floats, ...]
    """For each distance from 1 on: 1.0 where a passage and the one so far behind it are of one sitting."""


def pack(text: str) -> bytes:
    """The terms of a passage as they are stored: the flow, its end, then the compounds."""
    found = terms(text)
    return np.array([*found.flow, END, *found.wholes], np.uint32).tobytes()


class HotIndex:
    def __init__(self, width: int | None = None) -> None:
        self.newest = 0
        self.numbers = Column(np.int64)
        self.chunks = Column(np.int64)
        self.messages = Column(np.int64)
        self.sessions = Column(np.int32)
        self.branches = Column(np.int32)
        self.turns = Column(np.int64)
        self.times = Column(np.float64)
        self.speakers = Column(np.int32)
        self.kinds = Column(np.int32)
        self.asks = Column(np.bool_)
        self.lengths = Column(np.float32)
        self.message_lengths = Column(np.float32)
        self.sittings = Column(np.int32)
        self.names = {what: Names() for what in ("session", "branch", "speaker", "kind")}
        self.vectors = Column(np.float32, width) if width else None
        self.has_vector = Column(np.bool_)
        self._mean: Floats | None = None
        self._drift = Column(np.float32)
        self._stretch = Column(np.float32)
        self._averaged = 0
        self._embedded = 0
        self._last_sitting: dict[str, tuple[int, float]] = {}
        self._sitting_count = 0
        self._tokens = Column(np.uint32)
        self._doc_of = Column(np.int32)
        self._sorted: tuple[NDArray[np.uint32], NDArray[np.int32]] = (np.zeros(0, np.uint32), np.zeros(0, np.int32))
        self._everything: Scope | None = None

    def __len__(self) -> int:
        return self.chunks.size

    # filling

    def append(self, rows: Sequence[Passage]) -> None:
        if not rows:
            return
        first = len(self)
        flat = np.frombuffer(b"".join(row.terms + CLOSED for row in rows), np.uint32)
        sizes = np.array([len(row.terms) // CLOSED_BYTES + 1 for row in rows])
        self._tokens.extend(flat)
        self._doc_of.extend(np.repeat(np.arange(first, first + len(rows), dtype=np.int32), sizes))
        lengths = _flow_lengths(flat, sizes)
        messages = np.array([row.message for row in rows])
        self.lengths.extend(lengths)
        self.messages.extend(messages)
        self.message_lengths.extend(lengths)
        begun = first  # the first of these messages may have begun before
        while begun and self.messages.values[begun - 1] == rows[0].message:
            begun -= 1
        self.message_lengths.values[begun:] = _per_message(self.messages.values[begun:], self.lengths.values[begun:])
        self.numbers.extend(np.array([row.n for row in rows]))
        self.chunks.extend(np.array([row.chunk for row in rows]))
        self.sessions.extend(self._numbered("session", [row.session for row in rows]))
        self.branches.extend(self._numbered("branch", [row.branch for row in rows]))
        self.speakers.extend(self._numbered("speaker", [row.speaker for row in rows]))
        self.kinds.extend(self._numbered("kind", [row.chunk_type for row in rows]))
        self.turns.extend(np.array([row.turn_seq for row in rows]))
        self.times.extend(np.array([row.at for row in rows]))
        self.asks.extend(np.array([row.asks for row in rows]))
        self.sittings.extend(np.array([self._sitting(row) for row in rows]))
        self.has_vector.extend(np.zeros(len(rows), np.bool_))
        if self.vectors is not None:
            self.vectors.extend(np.zeros((len(rows), self.vectors.values.shape[1]), np.float32))
            self._drift.extend(np.zeros(len(rows), np.float32))
            self._stretch.extend(np.ones(len(rows), np.float32))
        self.newest = rows[-1].n
        self._everything = None

    def put_vectors(self, passages: Sequence[int], vectors: Floats) -> None:
        assert self.vectors is not None
        places = np.searchsorted(self.numbers.values, passages)
        self.vectors.values[places] = vectors
        self.has_vector.values[places] = True
        self._embedded += len(passages)
        if self._mean is not None:
            self._place(places, vectors @ self._mean)

    def without_vector(self) -> int:
        return len(self) - int(np.count_nonzero(self.has_vector.values))

    def forget_vectors(self) -> None:
        """Go on with words alone."""
        self.vectors = None
        self.has_vector.values[:] = False

    def centre(self) -> tuple[Floats, Floats, Floats]:
        """The mean of all vectors, how far each lies along it, and what brings the rest of it back to unit length.

        Taken anew when the store has grown by a tenth.
        """
        assert self.vectors is not None
        if self._mean is None or self._embedded > 1.1 * self._averaged:
            known = self.has_vector.values
            self._mean = np.asarray(known.astype(np.float32) @ self.vectors.values / max(1, int(known.sum())), np.float32)
            self._place(np.arange(len(self)), self.vectors.values @ self._mean)
            self._averaged = self._embedded
        return self._mean, self._drift.values, self._stretch.values

    def _place(self, places: Ints, drift: Floats) -> None:
        assert self._mean is not None
        self._drift.values[places] = drift
        left = 1 - 2 * drift + float(self._mean @ self._mean)
        self._stretch.values[places] = 1 / np.sqrt(np.maximum(left, 1e-6))

    def _numbered(self, what: str, names: list[str]) -> NDArray[np.int32]:
        return np.array(list(map(self.names[what].add, names)), np.int32)

    def _sitting(self, row: Passage) -> int:
        last = self._last_sitting.get(row.branch)
        if last is None or abs(row.at - last[1]) > SITTING_GAP:
            self._sitting_count += 1
            last = (self._sitting_count, row.at)
        self._last_sitting[row.branch] = (last[0], row.at)
        return last[0]

    # searching

    def everything(self) -> Scope:
        if self._everything is None:
            self._everything = self.scope(np.arange(len(self)))
        return self._everything

    def chosen(self, mask: Mask) -> Scope:
        """The scope of those passages for which the mask holds."""
        if mask.all():
            return self.everything()
        few = np.flatnonzero(mask)
        if len(few) * 8 < len(self):
            return self.scope(few)
        ordered = self.everything().members
        return self._scope(ordered[mask[ordered]])

    def scope(self, members: Ints) -> Scope:
        return self._scope(members[np.lexsort((members, self.sittings.values[members]))])

    def _scope(self, members: Ints) -> Scope:
        local = np.full(len(self), -1, np.int32)
        local[members] = np.arange(len(members), dtype=np.int32)
        sitting, sitting_starts = _runs(self.sittings.values[members])
        message, message_starts = _runs(self.messages.values[members])
        return Scope(
            members,
            local,
            sitting,
            sitting_starts,
            message,
            message_starts,
            self.lengths.values[members],
            self.message_lengths.values[members],
            tuple((sitting[d:] == sitting[:-d]).astype(np.float32) for d in range(1, REACH + 1)),
        )

    def occurrences(self, term: int) -> NDArray[np.int32]:
        """Where a term stands in the flow of all texts, in order."""
        self._settle()
        order, places = self._sorted
        wanted = np.uint32(term)  # of another type the whole array would be converted
        low, high = np.searchsorted(order, wanted, "left"), np.searchsorted(order, wanted, "right")
        tail = np.flatnonzero(self._tokens.values[len(places) :] == term).astype(np.int32) + np.int32(len(places))
        return np.concatenate((places[low:high], tail)) if len(tail) else places[low:high]

    def count(self, term: int) -> int:
        """How often a term stands anywhere."""
        return len(self.occurrences(term))

    def documents(self, places: NDArray[np.int32]) -> NDArray[np.int32]:
        """The passages that these places lie in."""
        return self._doc_of.values[places]

    def terms_of(self, position: int) -> list[int]:
        """The terms of one passage."""
        # Numbers of the same kind as the array: others would make it convert itself first.
        low, high = np.searchsorted(self._doc_of.values, np.array([position, position + 1], np.int32))
        found: list[int] = self._tokens.values[low:high].tolist()
        return [term for term in found if term != END]

    def _settle(self) -> None:
        """Sort what has come since the last time, once it is too much to be looked through for every term."""
        tail = self._tokens.size - len(self._sorted[1])
        if tail > max(MOST_TAIL * 30, TAIL_SHARE * self._tokens.size):
            tokens = self._tokens.values
            order = np.argsort(tokens, kind="stable").astype(np.int32)
            self._sorted = (tokens[order], order)


def _flow_lengths(flat: NDArray[np.uint32], sizes: Ints) -> Floats:
    """How many terms stand before the first end of each text."""
    starts = np.cumsum(sizes) - sizes
    ends = np.flatnonzero(flat == END)
    return (ends[np.searchsorted(ends, starts)] - starts).astype(np.float32)


def _per_message(messages: Ints, lengths: Floats) -> Floats:
    """For each passage the length of its whole message."""
    number, starts = _runs(messages)
    sums: Floats = np.add.reduceat(lengths, starts)[number]
    return sums


def _runs(keys: NDArray[Any]) -> tuple[NDArray[np.int32], Ints]:
    """Neighbours with the same key get one number; and where each number begins."""
    if not len(keys):
        return np.zeros(0, np.int32), np.zeros(0, np.int64)
    begins = np.concatenate(([True], keys[1:] != keys[:-1]))
    return (np.cumsum(begins) - 1).astype(np.int32), np.flatnonzero(begins)
