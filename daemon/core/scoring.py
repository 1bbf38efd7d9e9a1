"""How well each passage of a scope answers a question: by its words and its neighbours' words, and by its vector.

Pure functions over the arrays of `hot_index`; docs/decisions/retrieval-recipe.md says why each part is there.
"""

from collections.abc import Sequence
from itertools import pairwise
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from contextinfinity.daemon.core.hot_index import Floats, HotIndex, Scope

K1, SATURATION, FLOOR, TYPICAL = 1.9, 0.9, 30.0, 40.0
BEFORE, AFTER = (0.5, 0.3, 0.2, 0.1), (0.3, 0.2, 0.1)
PAIR_BEFORE, PAIR_AFTER = (0.5, 0.25), (0.25,)
PAIR_WEIGHT = 0.4
GIVER, GIVER_FLOOR = 33.0, 15.0
OWN_LENGTH = 0.75
"""Length counts as that of the passage to this power times that of its message to the rest."""
WITHIN = 0.4
"""How much a term counts for the other passages of its message, however far."""
WHOLE_K1, WHOLE_B = 1.2, 0.75
BEST_OF_SITTING, MOST_Z = 3, 3.5
"""Among very many much alike, anything else stands out by so much that no word could speak against it."""
UNHEARD = 0.5
"""A word that stands nowhere counts half as much as one that stands once, when it is asked how much of a question is held."""
DENSE = 16
"""A term that more than one passage in so many holds is spread over all at once."""

Doubles = NDArray[np.float64]


class Term(msgspec.Struct, frozen=True):
    """A term of the question, and how much it counts."""

    number: int
    weight: float = 1.0


class Lexical(msgspec.Struct, frozen=True):
    """By passage, by whole message, by sitting, and how much of the question's rarity each passage holds itself."""

    passages: Doubles
    messages: Doubles
    sittings: Doubles
    coverage: Doubles


def lexical(index: HotIndex, scope: Scope, flow: Sequence[Term], wholes: Sequence[Term]) -> Lexical:
    count = len(scope.members)
    scores, covered = np.zeros(count), np.zeros(count)
    wholes_of = np.zeros(len(scope.message_starts))
    sittings = np.zeros(len(scope.sitting_starts))
    if not count:
        return Lexical(scores, wholes_of, sittings, covered)
    lengths = _lengths(scope)
    places: dict[int, NDArray[np.int32]] = {}
    rarity = 0.0
    for term in _merged([*flow, *wholes]):
        places[term.number] = index.occurrences(term.number)
        holders, times = _holders(index, scope, places[term.number])
        rare = term.weight * _idf(count, max(1, len(holders)))
        if not len(holders):
            rarity += UNHEARD * rare
            continue
        spread = _spread(scope, holders, times, lengths, BEFORE, AFTER, WITHIN)
        _add(scores, spread, lengths.norm, term.weight)
        rarity += rare
        covered[holders] += rare
        _add_whole(wholes_of, scope.message[holders], times, lengths.message_norm, term.weight)
        _add_whole(sittings, scope.sitting[holders], times, lengths.sitting_norm, term.weight)
    for (first, second), weight in _pairs(flow).items():
        both = np.intersect1d(places[first] + 1, places[second], assume_unique=True)
        holders, times = _holders(index, scope, both)
        if len(holders):
            spread = _spread(scope, holders, times, lengths, PAIR_BEFORE, PAIR_AFTER)
            _add(scores, spread, lengths.norm, PAIR_WEIGHT * weight)
    return Lexical(scores, wholes_of, sittings, np.minimum(1.0, covered / rarity) if rarity else covered)


class _Lengths(msgspec.Struct, frozen=True):
    """What the lengths of a scope's passages amount to, for every question the same."""

    giver: Floats
    stranger: Floats
    """What a passage gives to those of other messages: the less, the longer its own message."""
    norm: Floats
    message_norm: Floats
    sitting_norm: Floats


_known_lengths: WeakKeyDictionary[Scope, _Lengths] = WeakKeyDictionary()


def _lengths(scope: Scope) -> _Lengths:
    known = _known_lengths.get(scope)
    if known is None:
        typical = np.maximum(scope.length**OWN_LENGTH * scope.weight ** (1 - OWN_LENGTH), FLOOR) / TYPICAL
        known = _known_lengths[scope] = _Lengths(
            (GIVER / (GIVER_FLOOR + scope.length)).astype(np.float32),
            (GIVER / (GIVER_FLOOR + scope.weight)).astype(np.float32),
            (SATURATION * (0.25 + 0.75 * typical)).astype(np.float32),
            _whole_norm(np.add.reduceat(scope.length, scope.message_starts)),
            _whole_norm(np.add.reduceat(scope.length, scope.sitting_starts)),
        )
    return known


def _whole_norm(lengths: Floats) -> Floats:
    relative = lengths / max(1.0, float(lengths.mean()))
    return (WHOLE_K1 * (1 - WHOLE_B + WHOLE_B * relative)).astype(np.float32)


def _merged(terms: Sequence[Term]) -> list[Term]:
    """Each term once, with its greatest weight."""
    best: dict[int, float] = {}
    for term in terms:
        best[term.number] = max(term.weight, best.get(term.number, 0.0))
    return [Term(number, weight) for number, weight in best.items()]


def _pairs(flow: Sequence[Term]) -> dict[tuple[int, int], float]:
    return {(a.number, b.number): min(a.weight, b.weight) for a, b in pairwise(flow)}


def _holders(index: HotIndex, scope: Scope, places: NDArray[np.int32]) -> tuple[NDArray[np.int64], Doubles]:
    """The passages of the scope that hold a term, and how often."""
    found = scope.local[index.documents(places)]
    found = found[found >= 0]
    if len(found) * DENSE > len(scope.members):
        times = np.bincount(found, minlength=len(scope.members))
        holders = np.flatnonzero(times)
        return holders, times[holders].astype(np.float64)
    holders, times = np.unique(found, return_counts=True)
    return holders.astype(np.int64), times.astype(np.float64)


def _spread(scope: Scope, holders: NDArray[np.int64], times: Doubles, lengths: _Lengths, before: Sequence[float],
            after: Sequence[float], within: float = 0.0) -> tuple[NDArray[np.int64], Doubles]:  # fmt: skip
    """A term counts a little for the passages around it: `before` says how much for each one that follows its holder."""
    count = len(scope.members)
    if len(holders) * DENSE > count:
        return _spread_densely(scope, holders, times, lengths, before, after, within)
    given, far = times * lengths.giver[holders], times * lengths.stranger[holders]
    places, values = [holders], [times]
    for distance, share in [*((i + 1, w) for i, w in enumerate(before)), *((-i - 1, w) for i, w in enumerate(after))]:
        target = holders + distance
        ok = (target >= 0) & (target < count)
        target = target[ok]
        same = scope.sitting[target] == scope.sitting[holders[ok]]
        together = scope.message[target] == scope.message[holders[ok]]
        places.append(target[same])
        values.append(share * np.where(together, given[ok], far[ok])[same])
    if within and len(scope.message_starts) < count:
        target, gift = _within(scope, holders, times)
        places.append(target)
        values.append(within * gift)
    reached, inverse = np.unique(np.concatenate(places), return_inverse=True)
    return reached, np.bincount(inverse, weights=np.concatenate(values)).astype(np.float64)


def _within(scope: Scope, holders: NDArray[np.int64], times: Doubles) -> tuple[NDArray[np.int64], Doubles]:
    """All passages of the messages that hold a term, each with how often the others hold it."""
    ends = np.append(scope.message_starts, len(scope.members))
    messages, which = np.unique(scope.message[holders], return_inverse=True)
    totals = np.bincount(which, weights=times)
    starts, sizes = ends[messages], ends[messages + 1] - ends[messages]
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    target = np.repeat(starts, sizes) + np.arange(int(sizes.sum())) - first
    gift = np.repeat(totals, sizes).astype(np.float64)
    gift[np.searchsorted(target, holders)] -= times
    return target.astype(np.int64), gift


def _spread_densely(scope: Scope, holders: NDArray[np.int64], times: Doubles, lengths: _Lengths, before: Sequence[float],
                    after: Sequence[float], within: float) -> tuple[NDArray[np.int64], Doubles]:  # fmt: skip
    """The same for a term that many hold: shifting all is faster than following each."""
    count = len(scope.members)
    held = np.zeros(count)
    held[holders] = times
    several = len(scope.message_starts) < count
    dense, far = held.copy(), held * lengths.stranger
    near = held * lengths.giver if several else far
    for distance, share in enumerate(before, 1):
        gift = _gift(scope, near[:-distance], far[:-distance], distance) if several else far[:-distance]
        dense[distance:] += share * gift * scope.together[distance - 1]
    for distance, share in enumerate(after, 1):
        gift = _gift(scope, near[distance:], far[distance:], distance) if several else far[distance:]
        dense[:-distance] += share * gift * scope.together[distance - 1]
    if within and several:
        dense += within * (np.add.reduceat(held, scope.message_starts)[scope.message] - held)
    reached = np.flatnonzero(dense)
    return reached, dense[reached]


def _gift(scope: Scope, near: Doubles, far: Doubles, distance: int) -> Doubles:
    return np.where(scope.message[distance:] == scope.message[:-distance], near, far)


def _add(scores: Doubles, spread: tuple[NDArray[np.int64], Doubles], norm: Floats, weight: float) -> None:
    reached, frequency = spread
    idf = _idf(len(scores), len(reached))
    scores[reached] += weight * idf * K1 * frequency / (frequency + norm[reached])


def _add_whole(scores: Doubles, groups: NDArray[np.int32], times: Doubles, norm: Floats, weight: float) -> None:
    """Plain BM25 with a whole message, or a whole sitting, as the document."""
    frequency = np.bincount(groups, weights=times, minlength=len(scores))
    held = np.flatnonzero(frequency)
    idf = _idf(len(scores), len(held))
    scores[held] += weight * idf * (WHOLE_K1 + 1) * frequency[held] / (frequency[held] + norm[held])


def _idf(count: int, holders: int) -> float:
    return float(np.log(1 + (count - holders + 0.5) / (holders + 0.5)))


def best_of_messages(scope: Scope, passages: Doubles) -> Doubles:
    """A message is as good as its best passage."""
    if len(scope.message_starts) == len(passages):
        return passages
    best: Doubles = np.maximum.reduceat(passages, scope.message_starts)
    return best


class Dense(msgspec.Struct, frozen=True):
    """By message: the raw cosine of its best passage (-1: none has a vector), and how far its score stands out.

    By sitting that of its best three messages; by passage that of each.
    """

    similarity: Doubles
    messages: Doubles
    sittings: Doubles
    passages: Doubles


def dense(index: HotIndex, scope: Scope, query: Floats) -> Dense:
    """Cosines after moving the origin to the store's mean; a message without a vector stands out in neither direction."""
    assert index.vectors is not None
    members, starts = scope.members, scope.message_starts
    vectors = index.vectors.values
    cosines = (vectors @ query)[members] if len(members) * 3 > len(index) else vectors[members] @ query
    mean, drift, stretch = index.centre()
    moved = query - mean
    shift = float(mean @ query) - float(mean @ mean)
    centred = (cosines - drift[members] - shift) * stretch[members] / (np.linalg.norm(moved) or 1.0)
    known = index.has_vector.values[members]
    if known.all() and len(starts) == len(members):  # chat: every message is one passage
        z = _standardised(centred.astype(np.float64))
        return Dense(cosines.astype(np.float64), z, _best_three(z, scope.sitting), z)
    if known.all():
        counts = np.diff(np.append(starts, len(members)))
        by_message = 0.8 * np.maximum.reduceat(centred, starts) + 0.2 * np.add.reduceat(centred, starts) / counts
        similarity = np.maximum.reduceat(cosines, starts)
    else:
        counts = np.add.reduceat(known.astype(np.int64), starts)
        best = np.maximum.reduceat(np.where(known, centred, -np.inf), starts)
        sums = np.add.reduceat(np.where(known, centred, 0.0), starts)
        by_message = np.where(counts > 0, 0.8 * best + 0.2 * sums / np.maximum(counts, 1), np.nan)
        similarity = np.maximum.reduceat(np.where(known, cosines, -1.0), starts)
        centred = np.where(known, centred, np.nan)
    z = _standardised(by_message.astype(np.float64))
    sittings = _best_three(z, scope.sitting[starts])
    return Dense(similarity.astype(np.float64), z, sittings, _standardised(centred.astype(np.float64)))


def _standardised(values: Doubles) -> Doubles:
    known = values[~np.isnan(values)]
    if len(known) < 2 or not (sd := float(known.std())):
        return np.zeros(len(values))
    return np.clip(np.nan_to_num((values - float(known.mean())) / sd), -MOST_Z, MOST_Z)


def _best_three(z: Doubles, sitting: NDArray[np.int32]) -> Doubles:
    """The mean of each sitting's three best messages."""
    starts = np.flatnonzero(np.concatenate(([True], sitting[1:] != sitting[:-1])))
    left = z.copy()
    total, counted = np.zeros(len(starts)), np.zeros(len(starts))
    for _ in range(BEST_OF_SITTING):
        best = np.maximum.reduceat(left, starts)
        real = np.isfinite(best)
        total[real] += best[real]
        counted += real
        first = np.flatnonzero(left == best[sitting])
        left[first[np.unique(sitting[first], return_index=True)[1]]] = -np.inf  # one of equals at a time
    return total / np.maximum(counted, 1)
