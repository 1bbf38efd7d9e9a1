"""How fast a history is taken over, how fast it gets its vectors, and whether anybody notices meanwhile.

Messages per second of an import by path; texts per second of the embedding in the background against the bare embedder on
the same texts; a ping on another connection all the while; and how long after an answer its turn can be found.
"""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import trio

from bench.corpus import Corpus, save
from bench.memory import MODELS, WITHOUT, embedder
from bench.process import PING, Daemon, daemon
from bench.table import Row
from bench.wire import Wire, connect
from contextinfinity.daemon.core.indexing import in_context, spoken
from contextinfinity.daemon.core.when import posix
from contextinfinity.daemon.embedders.local import LocalEmbedder

MESSAGES = int(os.environ.get("BENCH_MESSAGES", "20000"))
EMBEDDED, ROUNDS = 600, 3
"""Messages that a round embeds; one more round warms up."""
TURNS = 20
BATCH = 128
PAUSE_S = 0.002
POLL_S = 0.005
WITH = '[retrieval]\nembedder = "local"\n'


def measure() -> list[Row]:
    with daemon(WITHOUT) as running:
        rate, pings = trio.run(_take_over, running)
    with daemon(WITH, MODELS) as running:
        ours, bare, busy = trio.run(_embed, running)
        words, meaning = trio.run(_talk, running)
    return [
        Row(f"durable import, {MESSAGES:,} messages", rate, "/s", target=2000.0, sense=">="),
        Row("  ping meanwhile, p99", _late(pings), "ms", target=10.0, sense="<"),
        Row("texts embedded in the background / bare", median(ours), "/s", median(bare), 0.8, ">="),
        Row("  ping meanwhile, p99", _late(busy), "ms", target=10.0, sense="<"),
        Row("found by its words after an answer, p50", median(words) * 1e3, "ms", target=200.0, sense="<"),
        Row("  the latest", max(words) * 1e3, "ms"),
        Row("found by its meaning after an answer, p50", median(meaning) * 1e3, "ms", target=1000.0, sense="<"),
        Row("  the latest", max(meaning) * 1e3, "ms"),
    ]


async def _take_over(running: Daemon) -> tuple[float, list[float]]:
    file = running.home / "messages.jsonl"
    save(Corpus().messages(MESSAGES), file)
    async with connect(running.socket) as wire, pinging(running.socket) as pings:
        begin = time.perf_counter()
        made = await wire.call("transcript.import", format="jsonl", path=str(file))
        rate = MESSAGES / (time.perf_counter() - begin)
        await _quiet(wire)
        assert made["messages"] == MESSAGES, made
    return rate, pings


async def _embed(running: Daemon) -> tuple[list[float], list[float], list[float]]:
    bare = embedder()
    corpus = Corpus()
    ours: list[float] = []
    alone: list[float] = []
    pings: list[float] = []
    async with connect(running.socket) as wire:
        for number in range(ROUNDS + 1):
            messages = corpus.messages(EMBEDDED)
            texts = _texts(messages)
            alone.append(len(texts) / await _bare(bare, texts))
            async with pinging(running.socket) as busy:
                ours.append(len(texts) / await _in_background(wire, messages))
            if number:
                pings += busy
    return ours[1:], alone[1:], pings


def _texts(messages: list[dict[str, Any]]) -> list[str]:
    """What the daemon embeds: each message alone, and all but a conversation's first also with the end of the one before."""
    alone = [spoken(m["speaker"], posix(m["created_at"]) or 0.0, m["text"]) for m in messages]
    both = [
        in_context(before["text"], text)
        for (before, one), text in zip(pairwise(messages), alone[1:], strict=True)
        if before["session"] == one["session"]
    ]
    return alone + both


async def _bare(bare: LocalEmbedder, texts: list[str]) -> float:
    begin = time.perf_counter()
    for start in range(0, len(texts), BATCH):
        await bare.documents(texts[start : start + BATCH])
    return time.perf_counter() - begin


async def _in_background(wire: Wire, messages: list[dict[str, Any]]) -> float:
    """From the import's answer until everything has vectors; what was embedded before it is the import's own time."""
    names = ("role", "speaker", "external_id", "created_at", "text")
    sessions = dict.fromkeys(m["session"] for m in messages)
    begin = time.perf_counter()
    for session in sessions:
        own = [{name: m[name] for name in names} for m in messages if m["session"] == session]
        await wire.call("transcript.import", messages=own)
    await _quiet(wire)
    return time.perf_counter() - begin


async def _quiet(wire: Wire) -> None:
    while True:
        state = await wire.call("daemon.status")
        if not state["jobs"]["pending"] and not state["jobs"]["running"] and not state["memory"].get("unembedded"):
            return
        await trio.sleep(POLL_S)


async def _talk(running: Daemon) -> tuple[list[float], list[float]]:
    """Seconds from the end of an answer until its turn is found by a word, and until it has a similarity."""
    words: list[float] = []
    meaning: list[float] = []
    async with connect(running.socket) as wire:
        branch = (await wire.call("session.create"))["branch"]["id"]
        for number in range(TURNS + 1):
            name = f"Quasar{number}x{time.monotonic_ns()}"
            turn = await wire.call("turn.submit", branch_id=branch, content=f"The new cluster is called {name}.")
            await wire.call("turn.wait", turn_id=turn["turn_id"], phase="response_finalized")
            begin = time.perf_counter()
            found = [await _until(wire, turn["turn_id"], name, begin, mode) for mode in ("text", "hybrid")]
            if number:
                words.append(found[0])
                meaning.append(found[1])
    return words, meaning


async def _until(wire: Wire, turn: str, name: str, begin: float, mode: str) -> float:
    while True:
        answer = await wire.call("memory.search", query=f"Which cluster is {name}?", mode=mode, top_k=3)
        for hit in answer["results"]:
            if hit["turn_id"] == turn and (mode == "text" or hit.get("similarity") is not None):
                return time.perf_counter() - begin
        await trio.sleep(POLL_S)


@asynccontextmanager
async def pinging(path: Path) -> AsyncIterator[list[float]]:
    """Round trips of somebody else, one after the other, until the end of the block."""
    taken: list[float] = []

    async def ping(wire: Wire) -> None:
        while True:
            begin = time.perf_counter()
            await wire.exchange(PING)
            taken.append(time.perf_counter() - begin)
            await trio.sleep(PAUSE_S)

    async with connect(path) as wire, trio.open_nursery() as nursery:
        nursery.start_soon(ping, wire)
        yield taken
        nursery.cancel_scope.cancel()


def _late(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)] * 1e3
