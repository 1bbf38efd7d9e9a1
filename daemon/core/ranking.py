"""Joins the scores of `scoring` into one order of messages, says why each is where it is, and chooses among them for prompts.

Pure: the same index, question and moment give the same order. docs/decisions/retrieval-recipe.md has the figures behind it.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from contextinfinity.daemon.core.hot_index import Floats, HotIndex, Ints, Mask, Scope
from contextinfinity.daemon.core.scoring import Dense, Doubles, Lexical, Term, best_of_messages, dense, lexical
from contextinfinity.daemon.core.when import Span
from contextinfinity.daemon.core.words import terms

WORDS, MEANING = 4.0, 0.75
WHOLE_WORDS, WHOLE_SIZE = 3.0, 150.0
"""A long message also counts as a whole, the more the longer it is: its answer may use the words of several passages."""
SITTING_WORDS, SITTING_MEANING, SITTING_SIZE = 2.0, 0.4, 400.0
NAMED = 0.5
ASKING, ASKING_SIZE = 0.75, 15.0
DATED = 1.0
RECENT, RECENT_DAYS = 4.0, 30.0
DAY = 86_400.0
CONTEXT_WEIGHT = 0.3
FEW_TERMS = 2
MOST_TERMS, MOST_CHARACTERS = 64, 20_000
LEAST_GIST, GIST_CHARACTERS = 15, 1000
COVERED = 0.5
RELEVANCE = 0.7

Mode = Literal["hybrid", "vector", "text"]


class Question(msgspec.Struct, frozen=True):
    """What is asked, in terms; `known` are those of them that stand anywhere in the index."""

    flow: tuple[Term, ...]
    wholes: tuple[Term, ...]
    dates: tuple[Span, ...] = ()


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What may be found and how it is weighed; `allowed` is a mask over the passages of the scope."""

    mode: Mode = "hybrid"
    allowed: Mask | None = None
    now: float = 0.0
    recency: float = 0.0
    demoted: Mapping[int, float] = {}
    """By chunk, how much of its score feedback takes away."""


class Ranked(msgspec.Struct, frozen=True):
    """A message in the order of a search, by its best passage (a position in the index)."""

    position: int
    score: float
    score_text: float
    score_vector: float | None
    similarity: float | None
    rank_text: int | None
    rank_vector: int | None
    coverage: float
    reasons: tuple[str, ...]


def is_follow_up(text: str) -> bool:
    """Whether a question says too little to be looked for by itself."""
    return len(text) < MOST_CHARACTERS and len(set(terms(text).flow)) <= FEW_TERMS


def question(index: HotIndex, text: str, context: str = "", dates: Sequence[Span] = ()) -> Question:
    """The terms of a text of any size; those of `context` count less."""
    own = terms(_ends(text))
    flow = [Term(number) for number in own.flow]
    wholes = [Term(number) for number in own.wholes]
    if context:
        more = terms(context[-MOST_CHARACTERS:])
        flow += [Term(number, CONTEXT_WEIGHT) for number in more.flow]
        wholes += [Term(number, CONTEXT_WEIGHT) for number in more.wholes]
    keep = _rarest(index, flow, wholes)
    return Question(tuple(t for t in flow if t.number in keep), tuple(t for t in wholes if t.number in keep), tuple(dates))


def _rarest(index: HotIndex, flow: Sequence[Term], wholes: Sequence[Term]) -> set[int]:
    """A pasted page has more words than are worth looking for: its rarest say what it is about."""
    numbers = list(dict.fromkeys(term.number for term in (*flow, *wholes)))
    if len(numbers) <= MOST_TERMS:
        return set(numbers)
    counts = {number: count for number in numbers if (count := index.count(number))}
    return set(sorted(counts, key=counts.__getitem__)[:MOST_TERMS])


def _ends(text: str) -> str:
    """Of a pasted page its beginning and its end: the question stands before it or behind it."""
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[: MOST_CHARACTERS // 2]}\n{text[-MOST_CHARACTERS // 2 :]}"


def gist(text: str) -> str:
    """What an embedder, which reads a page at most, is given of a long text: its last paragraph, or its end."""
    if len(text) <= GIST_CHARACTERS:
        return text
    last = text.rstrip().rpartition("\n\n")[2]
    return last if LEAST_GIST <= len(last) <= GIST_CHARACTERS else text[-GIST_CHARACTERS:]


class Ranking(msgspec.Struct, frozen=True):
    """The best messages, and how many there are that answer at all."""

    best: list[Ranked] = []
    answering: int = 0


def rank(index: HotIndex, scope: Scope, asked: Question, vector: Floats | None, wanted: Wanted, most: int) -> Ranking:
    """The best messages of a scope; one that nothing speaks for is not among them."""
    if not len(scope.members):
        return Ranking()
    words = lexical(index, scope, asked.flow, asked.wholes)
    text = best_of_messages(scope, words.passages)
    near = dense(index, scope, vector) if vector is not None and index.vectors is not None else None
    if wanted.mode == "text":
        near = None
    total, reasons = _joined(index, scope, asked, words, text, near, wanted)
    if wanted.mode == "vector" and near is not None:
        total = near.messages.copy()
    eligible = _eligible(scope, text, near, wanted)
    among = np.flatnonzero(eligible)
    by_words = text[among]
    by_meaning = near.messages[among] if near is not None else by_words
    coverage = best_of_messages(scope, words.coverage)
    found = []
    for message in _best(total, among, most):
        position = _best_passage(scope, message, words, near, wanted.allowed)
        found.append(
            Ranked(
                position=int(scope.members[position]),
                score=float(total[message]),
                score_text=float(text[message]),
                score_vector=float(near.messages[message]) if near is not None else None,
                similarity=float(near.similarity[message]) if near is not None and near.similarity[message] > -1 else None,
                rank_text=_place(by_words, text[message]) if text[message] > 0 else None,
                rank_vector=_place(by_meaning, near.messages[message]) if near is not None else None,
                coverage=float(coverage[message]),
                reasons=tuple(why for why, holds in reasons.items() if holds[message]),
            )
        )
    return Ranking(found, len(among))


def _joined(index: HotIndex, scope: Scope, asked: Question, words: Lexical, text: Doubles, near: Dense | None,
            wanted: Wanted) -> tuple[Doubles, dict[str, Mask]]:  # fmt: skip
    """The score of each message, and by reason where it holds."""
    starts = scope.message_starts
    members = scope.members[starts]
    total = WORDS * text / (text.max() or 1.0)
    lengths = scope.weight[starts]
    total += WHOLE_WORDS * words.messages / (words.messages.max() or 1.0) * lengths / (WHOLE_SIZE + lengths)
    together = SITTING_WORDS * words.sittings / (words.sittings.max() or 1.0)
    if near is not None:
        total += MEANING * near.messages
        together = together + SITTING_MEANING * near.sittings
    sizes = np.add.reduceat(scope.length, scope.sitting_starts)
    sitting = scope.sitting[starts]
    total += (together * SITTING_SIZE / (SITTING_SIZE + sizes))[sitting]
    called = np.zeros(len(index.names["speaker"].all) + 1, np.bool_)
    called[_named(index, asked)] = True
    named = called[index.speakers.values[members]]
    total += NAMED * named
    total -= ASKING * index.asks.values[members] * 30.0 / (ASKING_SIZE + lengths)
    times = index.times.values[members]
    dated = np.zeros(len(members), np.bool_)
    for span in asked.dates:
        dated |= (times >= span.start) & (times < span.end)
    total += DATED * dated
    if wanted.recency:
        age = np.maximum(0.0, wanted.now - times) / (RECENT_DAYS * DAY)
        total += wanted.recency * RECENT * np.exp2(-age.astype(np.float32))
    if wanted.demoted:
        chunks = index.chunks.values[members]
        total -= np.abs(total) * np.array([min(1.0, wanted.demoted.get(int(c), 0.0)) for c in chunks])
    return total, {"said by somebody you name": named, "of the time you name": dated}


def _eligible(scope: Scope, text: Doubles, near: Dense | None, wanted: Wanted) -> Mask:
    answers = text > 0 if near is None else (text > 0) | (near.similarity > -1)
    if wanted.allowed is not None:
        answers = answers & np.logical_or.reduceat(wanted.allowed, scope.message_starts)
    return answers


def _named(index: HotIndex, asked: Question) -> Ints:
    words = {term.number for term in asked.flow if term.weight == 1.0}
    names = index.names["speaker"].all
    return np.array([i for i, name in enumerate(names) if (own := terms(name).flow) and words.issuperset(own)], np.int64)


def _best(scores: Doubles, among: Ints, most: int) -> list[int]:
    """The best of these, best first; of equals the earlier one."""
    if len(among) > most:
        least = np.partition(scores[among], len(among) - most)[len(among) - most]
        among = among[scores[among] >= least]
    found: list[int] = among[np.argsort(-scores[among], kind="stable")][:most].tolist()
    return found


def _place(scores: Doubles, own: float) -> int:
    """The rank of a message by one score alone, from 1."""
    return 1 + int(np.count_nonzero(scores > own))


def _best_passage(scope: Scope, message: int, words: Lexical, near: Dense | None, allowed: Mask | None) -> int:
    """What is shown of a message: rather what holds the words itself than what stands beside them."""
    start = int(scope.message_starts[message])
    end = int(scope.message_starts[message + 1]) if message + 1 < len(scope.message_starts) else len(scope.members)
    scores = WORDS * (words.passages[start:end] / (words.passages.max() or 1.0) + words.coverage[start:end])
    if near is not None:
        scores = scores + MEANING * near.passages[start:end]
    if allowed is not None:
        scores = np.where(allowed[start:end], scores, -np.inf)
    return start + int(np.argmax(scores))


def relevant(found: Sequence[Ranked], threshold: float) -> list[Ranked]:
    """Those that belong into a prompt unasked: near enough in meaning, or holding enough of the question's rare words."""
    return [r for r in found if (r.similarity is not None and r.similarity >= threshold) or r.coverage >= COVERED]


def diverse(index: HotIndex, found: Sequence[Ranked], most: int) -> list[Ranked]:
    """Maximal marginal relevance: each next one is good and unlike those that were chosen."""
    if len(found) <= 1:
        return list(found[:most])
    scores = np.array([r.score for r in found])
    relevance = (scores - scores.min()) / (np.ptp(scores) or 1.0)
    alike = _alike(index, [r.position for r in found])
    chosen = [0]
    while len(chosen) < min(most, len(found)):
        left = [i for i in range(len(found)) if i not in chosen]
        chosen.append(max(left, key=lambda i: RELEVANCE * relevance[i] - (1 - RELEVANCE) * alike[i, chosen].max()))
    return [found[i] for i in chosen]


def _alike(index: HotIndex, positions: list[int]) -> Doubles:
    """How alike passages are, by vector where both have one, else by shared terms."""
    sets = [set(index.terms_of(p)) for p in positions]
    alike = np.array([[len(a & b) / (len(a | b) or 1) for b in sets] for a in sets])
    if index.vectors is not None:
        at = np.array(positions)
        vectors, known = index.vectors.values[at], index.has_vector.values[at]
        both = known[:, None] & known[None, :]
        alike = np.where(both, vectors @ vectors.T, alike)
    return alike
