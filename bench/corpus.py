"""Chat messages by the thousand, with words as frequent as Zipf says: the common ones are English, the rare ones made up.

Deterministic from a seed; nothing in them means anything, so they are for measuring speed and never quality.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from bench import long_words
from bench.long_messages import BEGIN, written

WORDS = 40_000
SHIFT = 2.7
"""Zipf's law as Mandelbrot corrected it."""
TYPICAL_WORDS, SPREAD = 18, 0.6
IN_SESSION, IN_SITTING = 500, 24
SPEAKERS = ("Ada", "Bela", "Cleo", "Dorian")
SYLLABLES = [a + b for a in ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "st", "tr") for b in "aeiou"]


class Corpus:
    def __init__(self, seed: int = 7) -> None:
        self._random = np.random.default_rng(seed)
        self._words = np.array(_vocabulary(self._random))
        weights = 1 / (np.arange(len(self._words)) + SHIFT)
        self._weights = np.cumsum(weights / weights.sum())

    def messages(self, count: int) -> list[dict[str, Any]]:
        return list(self._messages(count))

    def _messages(self, count: int) -> Iterator[dict[str, Any]]:
        at = BEGIN
        for number in range(count):
            session, place = divmod(number, IN_SESSION)
            at += timedelta(seconds=40) if place % IN_SITTING else timedelta(days=1)
            yield {
                "session": f"session {session}",
                "role": "assistant" if place % 2 else "user",
                "speaker": SPEAKERS[session % 2 * 2 + place % 2],
                "external_id": f"m{number}",
                "created_at": written(at),
                "text": self._text(),
            }

    def _text(self) -> str:
        size = int(np.clip(self._random.lognormal(np.log(TYPICAL_WORDS), SPREAD), 3, 90))
        words = self._words[np.searchsorted(self._weights, self._random.random(size))]
        ends = set(self._random.integers(4, 14, size).cumsum().tolist())
        made = [f"{word}." if i in ends or i == size - 1 else str(word) for i, word in enumerate(words)]
        return " ".join(w.capitalize() if i == 0 or made[i - 1].endswith(".") else w for i, w in enumerate(made))[:690]

    def question(self, messages: list[dict[str, Any]]) -> str:
        """Some neighbouring words of some message."""
        words = messages[self._random.integers(len(messages))]["text"].split()
        start = int(self._random.integers(max(1, len(words) - 8)))
        return " ".join(words[start : start + 8]).rstrip(".") + "?"


def save(messages: list[dict[str, Any]], path: Path) -> None:
    """As JSON lines."""
    path.write_text("".join(f"{json.dumps(one)}\n" for one in messages))


def _vocabulary(random: np.random.Generator) -> list[str]:
    texts = " ".join(f"{fact.text} {' '.join(topic.more)}" for topic in long_words.TOPICS for fact in topic.facts)
    known = [word for word, _ in Counter(re.findall(r"[a-z]{2,}", texts.lower())).most_common()]
    made = ("".join(random.choice(SYLLABLES, size)) for size in random.integers(2, 5, WORDS))
    return list(dict.fromkeys([*known, *made]))
