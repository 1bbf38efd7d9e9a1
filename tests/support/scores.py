"""The recipe of search once more, slowly and in the words of its description: what the fast one is compared with.

Passages are plain values; no arrays, no positions, nothing shared with the code under test but its constants and `Passage`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from contextinfinity.daemon.core.hot_index import END, Floats, Passage
from contextinfinity.daemon.core.ranking import (
    ASKING,
    ASKING_SIZE,
    DATED,
    MEANING,
    NAMED,
    RECENT,
    RECENT_DAYS,
    SITTING_MEANING,
    SITTING_SIZE,
    SITTING_WORDS,
    WHOLE_SIZE,
    WHOLE_WORDS,
    WORDS,
)
from contextinfinity.daemon.core.scoring import PAIR_WEIGHT, UNHEARD
from contextinfinity.daemon.core.when import Span

GAP = 3 * 3600.0
BEFORE = {1: 0.5, 2: 0.3, 3: 0.2, 4: 0.1, -1: 0.3, -2: 0.2, -3: 0.1}
PAIR_BEFORE = {1: 0.5, 2: 0.25, -1: 0.25}


@dataclass
class Doc:
    """A passage as the reference sees it."""

    row: Passage
    flow: list[int]
    wholes: list[int]
    sitting: int = 0
    whole_message: int = 0

    @property
    def length(self) -> int:
        return len(self.flow)


@dataclass
class Scores:
    """By number of passage, by sitting, by message."""

    passages: dict[int, float] = field(default_factory=dict)
    coverage: dict[int, float] = field(default_factory=dict)
    sittings: dict[int, float] = field(default_factory=dict)
    messages: dict[int, float] = field(default_factory=dict)
    whole: dict[int, float] = field(default_factory=dict)


def docs(rows: Sequence[Passage]) -> list[Doc]:
    """Everything there is, with its sittings and the lengths of whole messages."""
    found: list[Doc] = []
    last: dict[str, tuple[int, float]] = {}
    count = 0
    for row in rows:
        numbers = np.frombuffer(row.terms, np.uint32).tolist()
        at = numbers.index(END)
        doc = Doc(row, numbers[:at], numbers[at + 1 :])
        before = last.get(row.branch)
        if before is None or abs(row.at - before[1]) > GAP:
            count += 1
            doc.sitting = count
        else:
            doc.sitting = before[0]
        last[row.branch] = (doc.sitting, row.at)
        found.append(doc)
    for doc in found:
        doc.whole_message = sum(other.length for other in found if other.row.message == doc.row.message)
    return found


def idf(count: int, holders: int) -> float:
    return math.log(1 + (count - holders + 0.5) / (holders + 0.5))


def in_order(scope: Sequence[Doc]) -> list[Doc]:
    return sorted(scope, key=lambda doc: (doc.sitting, doc.row.n))


def lexical(scope: Sequence[Doc], flow: Sequence[tuple[int, float]], wholes: Sequence[tuple[int, float]]) -> Scores:
    """`flow` and `wholes` are (term, weight)."""
    ordered = in_order(scope)
    by_sitting: dict[int, list[Doc]] = {}
    for doc in ordered:
        by_sitting.setdefault(doc.sitting, []).append(doc)
    scores = Scores({doc.row.n: 0.0 for doc in ordered}, {doc.row.n: 0.0 for doc in ordered}, dict.fromkeys(by_sitting, 0.0))
    by_message: dict[int, list[Doc]] = {}
    for doc in ordered:
        by_message.setdefault(doc.row.message, []).append(doc)
    scores.whole = dict.fromkeys(by_message, 0.0)
    weights: dict[int, float] = {}
    for term, weight in (*flow, *wholes):
        weights[term] = max(weight, weights.get(term, 0.0))
    rarity = 0.0
    for term, weight in weights.items():
        own = {doc.row.n: (doc.flow + doc.wholes).count(term) for doc in ordered}
        _spread(scores, by_sitting, own, BEFORE, weight, within=0.4)
        holders = sum(1 for times in own.values() if times)
        rarity += weight * idf(len(ordered), max(1, holders)) * (1.0 if holders else UNHEARD)
        for n, times in own.items():
            if times:
                scores.coverage[n] += weight * idf(len(ordered), holders)
        _bm25(scores.sittings, by_sitting, own, weight)
        _bm25(scores.whole, by_message, own, weight)
    pairs: dict[tuple[int, int], float] = {}
    for (a, weight_a), (b, weight_b) in pairwise(flow):
        pairs[(a, b)] = min(weight_a, weight_b)
    for (a, b), weight in pairs.items():
        own = {doc.row.n: sum(1 for x in pairwise(doc.flow) if x == (a, b)) for doc in ordered}
        if any(own.values()):
            _spread(scores, by_sitting, own, PAIR_BEFORE, PAIR_WEIGHT * weight)
    if rarity:
        scores.coverage = {n: min(1.0, value / rarity) for n, value in scores.coverage.items()}
    for doc in ordered:
        scores.messages[doc.row.message] = max(scores.messages.get(doc.row.message, 0.0), scores.passages[doc.row.n])
    return scores


def _spread(
    scores: Scores, by_sitting: Mapping[int, list[Doc]], own: Mapping[int, int], shares: Mapping[int, float], weight: float,
    within: float = 0.0,
) -> None:  # fmt: skip
    frequency: dict[int, float] = {}
    for together in by_sitting.values():
        for i, doc in enumerate(together):
            total = float(own[doc.row.n])
            for distance, share in shares.items():
                if 0 <= i - distance < len(together):
                    giver = together[i - distance]
                    size = giver.length if giver.row.message == doc.row.message else giver.whole_message
                    total += share * own[giver.row.n] * 33.0 / (15.0 + size)
            same = sum(own[other.row.n] for other in together if other.row.message == doc.row.message)
            total += within * (same - own[doc.row.n])
            if total:
                frequency[doc.row.n] = total
    rare = idf(len(scores.passages), len(frequency))
    for together in by_sitting.values():
        for doc in together:
            if tf := frequency.get(doc.row.n):
                length = max(doc.length**0.75 * doc.whole_message**0.25, 30.0)
                norm = 0.9 * (0.25 + 0.75 * length / 40.0)
                scores.passages[doc.row.n] += weight * rare * 1.9 * tf / (tf + norm)


def _bm25(scores: dict[int, float], groups: Mapping[int, list[Doc]], own: Mapping[int, int], weight: float) -> None:
    """Plain BM25 with whole messages, or whole sittings, as the documents."""
    lengths = {group: sum(doc.length for doc in together) for group, together in groups.items()}
    mean = max(1.0, sum(lengths.values()) / len(lengths))
    held = {group: sum(own[doc.row.n] for doc in together) for group, together in groups.items()}
    rare = idf(len(groups), sum(1 for times in held.values() if times))
    for group, times in held.items():
        norm = 1.2 * (0.25 + 0.75 * lengths[group] / mean)
        scores[group] += weight * rare * 2.2 * times / (times + norm)


@dataclass
class Near:
    similarity: dict[int, float] = field(default_factory=dict)
    messages: dict[int, float] = field(default_factory=dict)
    sittings: dict[int, float] = field(default_factory=dict)


def dense(scope: Sequence[Doc], vectors: Mapping[int, Floats], query: Floats) -> Near:
    """The mean is that of the whole store, whatever the scope."""
    mean = np.mean(np.array(list(vectors.values()), np.float64), axis=0)
    moved = query.astype(np.float64) - mean
    raw: dict[int, float] = {}
    by_message: dict[int, list[float]] = {}
    near = Near()
    for doc in in_order(scope):
        known = by_message.setdefault(doc.row.message, [])
        near.similarity.setdefault(doc.row.message, -1.0)
        if (vector := vectors.get(doc.row.n)) is not None:
            off = vector.astype(np.float64) - mean
            raw[doc.row.n] = float(off @ moved) / (float(np.linalg.norm(off)) * float(np.linalg.norm(moved)))
            known.append(raw[doc.row.n])
            near.similarity[doc.row.message] = max(near.similarity[doc.row.message], float(vector @ query))
    joined = {m: 0.8 * max(known) + 0.2 * sum(known) / len(known) for m, known in by_message.items() if known}
    z = standardised(joined)
    near.messages = {m: z.get(m, 0.0) for m in by_message}
    of_sitting: dict[int, dict[int, float]] = {}
    for doc in scope:
        of_sitting.setdefault(doc.sitting, {})[doc.row.message] = near.messages[doc.row.message]
    for sitting, values in of_sitting.items():
        best = sorted(values.values(), reverse=True)[:3]
        near.sittings[sitting] = sum(best) / len(best)
    return near


def standardised(values: Mapping[int, float]) -> dict[int, float]:
    if len(values) < 2:
        return {}
    numbers = list(values.values())
    mean = sum(numbers) / len(numbers)
    sd = math.sqrt(sum((value - mean) ** 2 for value in numbers) / len(numbers))
    return {key: max(-3.5, min(3.5, (value - mean) / sd)) for key, value in values.items()} if sd else {}


def fused(
    scope: Sequence[Doc],
    words: Scores,
    near: Near | None,
    *,
    named: frozenset[str] = frozenset(),
    dates: Sequence[Span] = (),
    now: float = 0.0,
    recency: float = 0.0,
) -> dict[int, float]:
    """The score of each message."""
    best = max(words.messages.values()) or 1.0
    top = max(words.sittings.values()) or 1.0
    whole = max(words.whole.values()) or 1.0
    sizes: dict[int, int] = {}
    for doc in scope:
        sizes[doc.sitting] = sizes.get(doc.sitting, 0) + doc.length
    total: dict[int, float] = {}
    for doc in in_order(scope):
        message = doc.row.message
        if message in total:
            continue
        together = SITTING_WORDS * words.sittings[doc.sitting] / top
        score = WORDS * words.messages[message] / best
        score += WHOLE_WORDS * words.whole[message] / whole * doc.whole_message / (WHOLE_SIZE + doc.whole_message)
        if near is not None:
            score += MEANING * near.messages[message]
            together += SITTING_MEANING * near.sittings[doc.sitting]
        score += together * SITTING_SIZE / (SITTING_SIZE + sizes[doc.sitting])
        score += NAMED * (doc.row.speaker in named)
        score -= ASKING * doc.row.asks * 30.0 / (ASKING_SIZE + doc.whole_message)
        score += DATED * any(span.start <= doc.row.at < span.end for span in dates)
        score += recency * RECENT * 0.5 ** (max(0.0, now - doc.row.at) / (RECENT_DAYS * 86_400.0))
        total[message] = score
    return total
