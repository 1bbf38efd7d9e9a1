"""A search as a whole against the sum of what it cannot do without: scanning vectors, scoring words, embedding the question.

All in one run, question by question; vectors are random, so that no hour of embedding is needed. The same daemon tells what
it holds in memory: at start, while searching, and after it has been idle. BENCH_PASSAGES=10000,100000,1000000 for more.
"""

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import trio

from bench.corpus import Corpus, save
from bench.process import Daemon, daemon_in, folder
from bench.table import Row
from bench.wire import Wire, connect
from contextinfinity.daemon.config import BUILT_IN_EMBEDDERS
from contextinfinity.daemon.core.hot_index import HotIndex, Scope
from contextinfinity.daemon.core.ranking import question
from contextinfinity.daemon.core.scoring import lexical
from contextinfinity.daemon.embedders import models
from contextinfinity.daemon.embedders.local import LocalEmbedder
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage import chunks, vectors
from contextinfinity.daemon.storage.connection import Tx, open_writer

SIZES = tuple(map(int, os.environ.get("BENCH_PASSAGES", "10000").split(",")))
MEASURED = 100_000
"""The size for which the targets of memory hold."""
LATE_MS, MOST_MB = 40.0, 450.0
WARM, QUESTIONS = 10, 200
WIDTH = 384
LEANING = 0.6
"""Vectors of real texts all lean into one direction."""
PAGE = 20_000
IDLE_S, LARGE_IDLE_S = 4, 60
"""To fill the index of a large store takes longer than the shorter of these."""
WITHOUT = '[retrieval]\nembedder = "none"\n'
MODELS = {"CTX_MODELS": str(models.folder(os.environ))}


@dataclass
class Times:
    """Seconds by question: of the search, and of its three parts."""

    whole: list[float]
    product: list[float]
    words: list[float]
    embedding: list[float]

    def rows(self, where: str, late_ms: float | None) -> list[Row]:
        whole = median(self.whole) * 1e3
        parts = median(map(sum, zip(self.product, self.words, self.embedding, strict=True))) * 1e3
        late = sorted(self.whole)[int(len(self.whole) * 0.95)] * 1e3
        return [
            Row(f"search in {where} / its parts", whole, "ms", parts, 1.5),
            Row("  p95", late, "ms", target=late_ms, sense="<"),
            Row("  the product of matrix and vector", median(self.product) * 1e3, "ms"),
            Row("  the words", median(self.words) * 1e3, "ms"),
            Row("  the question's vector", median(self.embedding) * 1e3, "ms"),
        ]


def measure() -> list[Row]:
    rows: list[Row] = []
    typical: dict[int, float] = {}
    for size in SIZES:
        made = _at(size)
        typical[size] = made[0].value
        rows += made
    for small, large in pairwise(SIZES):
        rows.append(Row(f"search, {large:,} passages / {small:,}", typical[large], "ms", typical[small]))
    return rows


def _at(size: int) -> list[Row]:
    corpus = Corpus()
    messages = corpus.messages(size)
    large = size > 2 * MEASURED
    asked = [corpus.question(messages) for _ in range(WARM + (QUESTIONS // 4 if large else QUESTIONS))]
    idle = LARGE_IDLE_S if large else IDLE_S
    with folder() as home:
        save(messages, home / "messages.jsonl")
        with daemon_in(home, WITHOUT) as running:
            session = trio.run(_import, running.socket, home / "messages.jsonl")
        put_vectors(home / "contextinfinity.db")
        index = load(home / "contextinfinity.db")
        del messages
        with daemon_in(home, f"[retrieval]\nidle_seconds = {idle}\n", MODELS) as running:
            return trio.run(_measure, running, index, session, asked, idle)


async def _import(path: Path, file: Path) -> str:
    """One of the sessions that come of it."""
    async with connect(path) as wire:
        made = await wire.call("transcript.import", format="jsonl", path=str(file))
        assert not made.get("damaged"), made
        return str(made["sessions"][len(made["sessions"]) // 2])


def put_vectors(path: Path) -> None:
    """A whole space of random unit vectors, as if the local embedder had made them."""
    random = np.random.default_rng(7)
    centre = random.standard_normal(WIDTH)
    db = open_writer(path)
    try:
        db.execute("BEGIN IMMEDIATE").fetchall()
        tx = Tx(db)
        space = vectors.ensure(tx, embedder().space, "local", WIDTH, now())
        numbers = [n for (n,) in tx.rows("SELECT n FROM passages ORDER BY n")]
        for start in range(0, len(numbers), PAGE):
            some = numbers[start : start + PAGE]
            drawn = random.standard_normal((len(some), WIDTH)) + LEANING * centre
            drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
            rows = ((space.n, n, row.tobytes()) for n, row in zip(some, drawn.astype(np.float16), strict=True))
            db.executemany("INSERT INTO passage_vectors(space, passage, vector) VALUES (?,?,?)", rows)
        tx.run("UPDATE vector_spaces SET done_to = ?, ready_at = ? WHERE n = ?", numbers[-1], now(), space.n)
        db.execute("COMMIT").fetchall()
    finally:
        db.close()


def embedder() -> LocalEmbedder:
    return LocalEmbedder("local", BUILT_IN_EMBEDDERS["local"], os.environ)


def load(path: Path) -> HotIndex:
    """The same rows in the same arrays, in this process."""
    index = HotIndex(WIDTH)
    db = open_writer(path)
    try:
        tx = Tx(db)
        while rows := chunks.passages_after(tx, index.newest, PAGE):
            index.append(rows)
        (space,) = vectors.spaces(tx)
        last = 0
        while (found := vectors.after(tx, space.n, last, PAGE))[0]:
            numbers, raw = found
            index.put_vectors(numbers, np.frombuffer(raw, np.float16).reshape(-1, WIDTH).astype(np.float32))
            last = numbers[-1]
    finally:
        db.close()
    return index


async def _measure(running: Daemon, index: HotIndex, session: str, asked: Sequence[str], idle_s: int) -> list[Row]:
    count = len(index)
    bare = embedder()
    inside = index.sessions.values == index.names["session"].number(session)
    async with connect(running.socket) as wire:
        at_start = resident(running.pid)
        begin = time.perf_counter()
        await wire.call("memory.search", query=asked[0])
        first = time.perf_counter() - begin
        everywhere = await _times(wire, bare, index, index.everything(), asked)
        within = await _times(wire, bare, index, index.chosen(inside), asked, session_id=session)
        searching = resident(running.pid)
        await trio.sleep(idle_s * 2)
    idle = resident(running.pid)
    large = count > 2 * MEASURED
    late = None if large else LATE_MS
    most = MOST_MB if count >= MEASURED and not large else None
    return [
        *everywhere.rows(f"{count:,} passages", late),
        *within.rows(f"one session among {count:,} passages", LATE_MS),
        Row("  the first search, which fills the index", first * 1e3, "ms"),
        Row(f"memory of the daemon, {count:,} passages, at start", at_start, "MB"),
        Row("  while searching", searching, "MB", target=most, sense="<"),
        Row(f"  idle for {idle_s} s and more", idle, "MB", target=150.0, sense="<"),
    ]


async def _times(wire: Wire, bare: LocalEmbedder, index: HotIndex, scope: Scope, asked: Sequence[str], **where: Any) -> Times:
    assert index.vectors is not None
    matrix = index.vectors.values
    if len(scope.members) < len(index):
        matrix = np.ascontiguousarray(matrix[scope.members])
    times = Times([], [], [], [])
    for number, text in enumerate(asked):
        found = question(index, text)
        marks = [time.perf_counter()]
        answer = await wire.call("memory.search", query=text, **where)
        marks.append(time.perf_counter())
        vector = await bare.query(text)
        marks.append(time.perf_counter())
        matrix @ vector
        marks.append(time.perf_counter())
        lexical(index, scope, found.flow, found.wholes)
        marks.append(time.perf_counter())
        assert answer["stats"]["mode"] == "hybrid", answer
        if number >= WARM:
            taken = [end - begin for begin, end in pairwise(marks)]
            for kind, seconds in zip((times.whole, times.embedding, times.product, times.words), taken, strict=True):
                kind.append(seconds)
    return times


def resident(pid: int) -> float:
    """MB that a process has in memory."""
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(shown.stdout) * 1024 / 1e6
