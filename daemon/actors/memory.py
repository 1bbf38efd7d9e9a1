"""Search: keeps the hot index in step with storage, asks the embedder about the question, ranks, and reads what was found.

Anybody may call it; the arrays are touched by one thread at a time, and when nobody has searched for a while they go.
"""

import logging
import time
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from functools import partial

import msgspec
import numpy as np
import trio

from contextinfinity.daemon.actors.embedding import QUERY_DEADLINE, Embedding, Meaning
from contextinfinity.daemon.config import Config
from contextinfinity.daemon.core import ranking
from contextinfinity.daemon.core.hot_index import HotIndex, Mask, Scope
from contextinfinity.daemon.core.packing import Hit, Packed, pack
from contextinfinity.daemon.core.ranking import Mode, Ranked, Wanted
from contextinfinity.daemon.core.when import Span, mentions, zone
from contextinfinity.daemon.core.words import spelled
from contextinfinity.daemon.storage.branches import Segment
from contextinfinity.daemon.storage.chunks import Located, artifact
from contextinfinity.daemon.storage.storage import Storage
from contextinfinity.protocol.methods import MemoryFound
from contextinfinity.protocol.model import ChunkType, MemoryHit, RetrievalStats, SearchStats

log = logging.getLogger(__name__)

PAGE, FEW = 5000, 20
MOST_WORDS = 6
PROMPT_DEADLINE, PROMPT_PATIENCE = 3.0, 0.8
"""How long a turn waits for memory at most, and of that for the embedder: without it words have to do."""
CONTEXT_CHARACTERS = 400


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """A question and where to look. `segments` limits it to stretches of branches, `session_id` to a whole session."""

    text: str
    context: str = ""
    session_id: str | None = None
    segments: tuple[Segment, ...] | None = None
    most: int = 6
    mode: Mode = "hybrid"
    chunk_types: tuple[ChunkType, ...] | None = None
    since: float = -np.inf
    until: float = np.inf
    tz: str | None = None
    diverse: bool = False


class Recalled(msgspec.Struct, frozen=True):
    """What memory has for a prompt, and how the search for it went."""

    packed: Packed = Packed()
    stats: RetrievalStats = RetrievalStats()


class _Order(msgspec.Struct, frozen=True):
    """What ranking found, while the passages' numbers and the matching words can still be told."""

    ranked: list[Ranked]
    passages: list[int]
    words: list[list[str]]
    searched: int
    answering: int


class Memory:
    def __init__(self, storage: Storage, embedding: Embedding, config: Config) -> None:
        self.config = config
        self.used = trio.current_time()
        self._storage = storage
        self._embedding = embedding
        self._index: HotIndex | None = None
        self._space: int | None = None
        self._vectors_to = 0
        self._generation = 0
        self._broken: int | None = None
        self._filling = trio.Lock()
        self._one = trio.CapacityLimiter(1)

    async def search(self, wanted: Search) -> MemoryFound:
        """What a person or a script asks for: no threshold, best first."""
        begun = time.perf_counter()
        meaning = await self._meaning(wanted, QUERY_DEADLINE)
        most = self.config.retrieval.overfetch_k + wanted.most if wanted.diverse else wanted.most
        index, meaning, order = await self._order(wanted, meaning, most, None)
        chosen = await self._diverse(index, order, wanted.most) if wanted.diverse else order
        located = await self._storage.located_chunks(chosen.passages)
        hits = tuple(_hit(one, chosen.ranked[i], chosen.words[i]) for i, one in self._present(located))
        stats = SearchStats(
            candidates=order.answering,
            searched=order.searched,
            took_ms=round((time.perf_counter() - begun) * 1e3, 2),
            mode="text" if meaning.vector is None else wanted.mode,
            embedder=meaning.embedder,
            degraded=(meaning.degraded or _lacking(index)) if wanted.mode != "text" else None,
        )
        return MemoryFound(hits, stats)

    async def for_prompt(
        self, wanted: Awaitable[Search], budget: int, exclude: frozenset[str], shown: Sequence[str]
    ) -> Recalled:
        """What belongs into a prompt unasked, where `shown` stands already; it never raises, and says what was missing."""
        begun = time.perf_counter()
        try:
            with trio.fail_after(PROMPT_DEADLINE):
                return await self._for_prompt(await wanted, budget, exclude, shown, begun)
        except trio.TooSlowError:
            degraded = f"search took longer than {PROMPT_DEADLINE:g} s"
        except Exception as error:
            log.exception("search for a prompt failed")
            degraded = f"search failed: {type(error).__name__}"
        return Recalled(Packed(), RetrievalStats(took_ms=round((time.perf_counter() - begun) * 1e3, 2), degraded=degraded))

    async def _for_prompt(
        self, wanted: Search, budget: int, exclude: frozenset[str], shown: Sequence[str], begun: float
    ) -> Recalled:
        settings = self.config.retrieval
        meaning = await self._meaning(wanted, PROMPT_PATIENCE)
        embedded = time.perf_counter()
        index, meaning, order = await self._order(wanted, meaning, settings.overfetch_k, exclude)
        threshold = meaning.threshold if settings.similarity_threshold is None else settings.similarity_threshold
        fitting = ranking.relevant(order.ranked, threshold)
        kept = _only(order, fitting)
        if settings.enable_mmr:
            kept = await self._diverse(index, kept, settings.top_k)
        located = await self._storage.located_chunks(kept.passages)
        hits = [
            Hit(
                artifact(one.found),
                one.found.start,
                one.found.chunk.summary,
                one.best,
                kept.ranked[i].score,
                kept.ranked[i].similarity,
            )
            for i, one in self._present(located)
        ]
        packed = pack(hits, budget, settings.top_k, shown)
        near = [q.similarity for q in packed.quoted if q.similarity is not None]
        stats = RetrievalStats(
            candidates=len(order.ranked),
            selected=len(packed.quoted),
            tokens=packed.tokens,
            took_ms=round((time.perf_counter() - begun) * 1e3, 2),
            embed_ms=round((embedded - begun) * 1e3, 2),
            similarity_low=min(near, default=None),
            similarity_high=max(near, default=None),
            degraded=meaning.degraded,
        )
        return Recalled(packed, stats)

    async def _meaning(self, wanted: Search, patience: float) -> Meaning:
        if wanted.mode == "text" or not wanted.text.strip():
            return Meaning()
        text = f"{wanted.context[-CONTEXT_CHARACTERS:]}\n{wanted.text}" if wanted.context else wanted.text
        return await self._embedding.meaning(ranking.gist(text), patience)

    async def _order(
        self, wanted: Search, meaning: Meaning, most: int, exclude: frozenset[str] | None
    ) -> tuple[HotIndex, Meaning, _Order]:
        """The order of what was found; with `exclude`, without these turns and those that were asked again."""
        self.used = trio.current_time()
        index = await self._fresh()
        self.used = trio.current_time()
        excluded = await self._storage.turns_left_out(exclude) if exclude is not None else []
        if meaning.vector is not None and (index.vectors is None or meaning.space != self._space):
            why = "the vectors cannot be read" if self._broken is not None else "another embedder is taking over"
            meaning = Meaning(degraded=f"{why}: search is lexical")
        rank = partial(self._rank, index, wanted, meaning, most, excluded)
        return index, meaning, await trio.to_thread.run_sync(rank, limiter=self._one)

    def _rank(self, index: HotIndex, wanted: Search, meaning: Meaning, most: int, excluded: list[int]) -> _Order:
        now = datetime.now(UTC)
        scope = self._scope(index, wanted)
        dates: Sequence[Span] = mentions(wanted.text, now, zone(wanted.tz))
        asked = ranking.question(index, wanted.text, wanted.context, dates)
        rules = Wanted(
            mode=wanted.mode,
            allowed=_allowed(index, scope, wanted, excluded),
            now=now.timestamp(),
            recency=self.config.retrieval.recency_boost,
        )
        found = ranking.rank(index, scope, asked, meaning.vector, rules, most)
        ranked = found.best
        return _Order(
            ranked,
            [int(index.numbers.values[r.position]) for r in ranked],
            [_matching(index, r.position, wanted.text) for r in ranked],
            len(scope.message_starts),
            found.answering,
        )

    @staticmethod
    def _scope(index: HotIndex, wanted: Search) -> Scope:
        if wanted.segments is not None:
            return index.chosen(_within(index, wanted.segments))
        if wanted.session_id is not None:
            return index.chosen(index.sessions.values == index.names["session"].number(wanted.session_id))
        return index.everything()

    def _present(self, located: Sequence[Located | None]) -> list[tuple[int, Located]]:
        """Those that are still there; if rows have gone, the arrays are made anew."""
        if None in located:
            self._index = None
        return [(i, one) for i, one in enumerate(located) if one is not None]

    async def _diverse(self, index: HotIndex, order: _Order, most: int) -> _Order:
        chosen = await trio.to_thread.run_sync(ranking.diverse, index, order.ranked, most, limiter=self._one)
        return _only(order, chosen)

    # keeping the index in step

    async def _fresh(self) -> HotIndex:
        """The index with everything that was committed before now; vectors that cannot be read do not hold up the words."""
        async with self._filling:
            space = self._embedding.active
            if space is not None and space.n == self._broken:
                space = None
            number, generation = (space.n if space is not None else None), await self._storage.index_generation()
            if self._index is None or (self._space, self._generation) != (number, generation):
                self._index = HotIndex(space.dim if space is not None else None)
                self._space, self._generation, self._vectors_to = number, generation, 0
            index = self._index
            try:
                await self._fill(index)
            except Exception:
                self._index = None  # half filled it would be wrong for ever; a search that ran out of time leaves it whole
                raise
            if self._space is not None:
                try:
                    await self._fill_vectors(index, self._space)
                except Exception:
                    log.exception("the vectors cannot be read: search is lexical")
                    self._broken, self._space = self._space, None
                    index.forget_vectors()
            return index

    async def _fill(self, index: HotIndex) -> None:
        while True:
            rows = await self._storage.passages_after(index.newest, PAGE)
            if rows:
                await trio.to_thread.run_sync(index.append, rows, limiter=self._one)
            if len(rows) < PAGE:
                return

    async def _fill_vectors(self, index: HotIndex, space: int) -> None:
        while True:
            numbers, raw = await self._storage.vectors_after(space, self._vectors_to, PAGE)
            known = [n for n in numbers if n <= index.newest]
            if known:
                await trio.to_thread.run_sync(_put, index, known, raw, limiter=self._one)
                self._vectors_to = known[-1]
            if len(known) < PAGE:
                return

    async def rest(self) -> bool:
        """Let go of the arrays, but not while they are filled; whether there were any. The next search fills them again."""
        async with self._filling:
            had, self._index, self._broken = self._index is not None, None, None
            return had


def _lacking(index: HotIndex) -> str | None:
    missing = index.without_vector()
    return f"{missing} passages wait to be embedded: they are found by words alone until then" if missing > FEW else None


def _put(index: HotIndex, numbers: list[int], raw: bytes) -> None:
    assert index.vectors is not None
    width = index.vectors.values.shape[1]
    vectors = np.frombuffer(raw, np.float16)[: len(numbers) * width].reshape(-1, width)
    index.put_vectors(numbers, vectors.astype(np.float32))


def _within(index: HotIndex, segments: Sequence[Segment]) -> Mask:
    """Which passages lie on these stretches of branches."""
    count = len(index.names["branch"].all)
    after, upto = np.zeros(count + 1, np.int64), np.full(count + 1, -1, np.int64)
    for segment in segments:
        number = index.names["branch"].number(segment.branch_id)
        if number >= 0:
            after[number], upto[number] = segment.after, segment.upto
    turns, branches = index.turns.values, index.branches.values
    inside: Mask = (turns > after[branches]) & (turns <= upto[branches])
    return inside


def _allowed(index: HotIndex, scope: Scope, wanted: Search, excluded: list[int]) -> Mask | None:
    """What may be found of the scope; what may not still lends its words to its neighbours."""
    allowed = np.ones(len(scope.members), np.bool_)
    times = index.times.values[scope.members]
    allowed &= (times >= wanted.since) & (times < wanted.until)
    if wanted.chunk_types is not None:
        kinds = [index.names["kind"].number(kind) for kind in wanted.chunk_types]
        allowed &= np.isin(index.kinds.values[scope.members], kinds)
    if excluded:
        allowed &= ~np.isin(index.messages.values[scope.members] // 2, excluded)
    return None if allowed.all() else allowed


def _only(order: _Order, chosen: Sequence[Ranked]) -> _Order:
    at = [order.ranked.index(r) for r in chosen]
    return _Order(list(chosen), [order.passages[i] for i in at], [order.words[i] for i in at], order.searched, order.answering)


def _matching(index: HotIndex, position: int, text: str) -> list[str]:
    """The words of the question that a passage holds itself, as they are spelled in the question."""
    held = set(index.terms_of(position))
    return list(dict.fromkeys(word for word, number in spelled(text[:2000]) if number in held))[:MOST_WORDS]


def _hit(one: Located, ranked: Ranked, words: list[str]) -> MemoryHit:
    chunk, said = one.found.chunk, one.found.said
    return MemoryHit(
        chunk_id=chunk.id,
        turn_id=chunk.turn_id,
        session_id=chunk.session_id,
        branch_id=chunk.branch_id,
        session_title=one.title,
        turn_seq=one.found.turn_seq,
        role=chunk.role,
        speaker=said.speaker or said.role,
        text=chunk.text,
        summary=chunk.summary,
        passage=chunk.text[slice(*one.best)],
        chunk_type=chunk.chunk_type,
        score=round(ranked.score, 4),
        score_text=round(ranked.score_text, 4),
        score_vector=round(ranked.score_vector, 4) if ranked.score_vector is not None else None,
        similarity=round(ranked.similarity, 4) if ranked.similarity is not None else None,
        rank_text=ranked.rank_text,
        rank_vector=ranked.rank_vector,
        why=_why(ranked, words),
        created_at=chunk.created_at,
        external_ids=one.external_ids,
    )


def _why(ranked: Ranked, words: list[str]) -> str:
    reasons = []
    if words:
        reasons.append(f"has {', '.join(words)} (text rank {ranked.rank_text})")
    elif ranked.rank_text is not None:
        reasons.append(f"stands beside words of the question (text rank {ranked.rank_text})")
    if ranked.similarity is not None:
        reasons.append(f"similarity {ranked.similarity:.2f} (vector rank {ranked.rank_vector})")
    return "; ".join((*reasons, *ranked.reasons)) or "nothing speaks against it"
