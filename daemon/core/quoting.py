"""Finds the sentences of earlier messages that a question is about, by the rarity of the words they share with it.

Pure and deterministic; the `recall` provider turns the result into an answer.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

import msgspec

LIMIT = 3
QUOTE_CHARS = 240
SCAN_CHARS = 200_000
ASSISTANT_WEIGHT = 0.6
ENOUGH_WORDS = 2
ENOUGH_SHARE = 0.34

# Scripts without spaces are matched character by character.
_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_word = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_sentence_end = re.compile(r"(?<=[.!?。！？])\s+|(?<=[。！？])")  # noqa: RUF001
_markup = re.compile(r"^(?:[-*+>#]+|\d+[.)])\s+")

STOP = frozenset(
    _word.findall(
        """
    a about all also am an and any are as at be been but by can could did do does for from had has have he her him
    his how i if in into is it its itself just let me my no not of on or our out please she should so some tell than
    that the their them then there these they this those to too up us was we were what when where which who whom whose
    why will with would you your d ll m re s t ve
    """
    )
)


class Source(msgspec.Struct, frozen=True):
    """An earlier message, and where it was said."""

    text: str
    by_user: bool
    created_at: str | None = None
    turn_id: str | None = None
    session_id: str | None = None


class Quote(msgspec.Struct, frozen=True):
    text: str
    source: Source


def words(text: str) -> list[str]:
    """The words that carry meaning, in lower case and without a plural's s."""
    return [_stem(w) for w in _word.findall(text.casefold()) if w not in STOP]


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def sentences(text: str) -> list[str]:
    lines = (_markup.sub("", line.strip()) for line in text.splitlines())
    return [piece.strip() for line in lines for piece in _sentence_end.split(line) if piece.strip()]


def best_quotes(question: str, sources: Sequence[Source], limit: int = LIMIT) -> list[Quote]:
    """Up to `limit` sentences, best first: the user's before the assistant's, newer before older, none twice."""
    asked = set(words(question[:SCAN_CHARS]))
    found: dict[str, tuple[Source, str, set[str]]] = {}
    left = SCAN_CHARS
    for source in reversed(sources):
        for sentence in reversed(sentences(source.text[-left:] if left > 0 else "")):
            # A question states nothing, and the same question again would be its own best match.
            if not sentence.endswith(("?", "？")):  # noqa: RUF001
                found.setdefault(sentence.casefold(), (source, sentence, set(words(sentence))))
        left -= len(source.text)
    spread = Counter(word for _, _, own in found.values() for word in own)
    rarity = {word: math.log(1 + (len(found) + 1) / (spread[word] + 1)) for word in asked}
    total = sum(rarity.values())
    scored: list[tuple[float, int, Source, str, set[str]]] = []
    for age, (source, sentence, own) in enumerate(found.values()):
        shared = asked & own
        weight = sum(rarity[word] for word in sorted(shared))
        if shared and (len(shared) >= ENOUGH_WORDS or weight >= ENOUGH_SHARE * total):
            scored.append((weight if source.by_user else weight * ASSISTANT_WEIGHT, age, source, sentence, shared))
    scored.sort(key=lambda item: (-item[0], item[1]))
    best = [item for item in scored if item[0] >= scored[0][0] / 2][:limit]
    return [Quote(_clip(text, shared), source) for _, _, source, text, shared in best]


def opening(source: Source) -> Quote | None:
    """The beginning of what a source states, where no word says which of its sentences is meant."""
    stated = [s for s in sentences(source.text[:SCAN_CHARS]) if not s.endswith(("?", "？"))]  # noqa: RUF001
    return Quote(_clip(stated[0], set()), source) if stated else None


def _clip(sentence: str, shared: set[str]) -> str:
    """At most `QUOTE_CHARS` around the first word that matched."""
    if len(sentence) <= QUOTE_CHARS:
        return sentence
    at = next((m.start() for m in _word.finditer(sentence) if _stem(m.group().casefold()) in shared), 0)
    start = max(0, min(at - QUOTE_CHARS // 4, len(sentence) - QUOTE_CHARS))
    end = start + QUOTE_CHARS
    return ("…" if start else "") + sentence[start:end].strip() + ("…" if end < len(sentence) else "")
