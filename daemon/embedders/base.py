"""What an embedder is for the rest of the daemon, and what goes wrong with one.

`local` and `http` are the two implementations; `registry` chooses between them.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
FindKey = Callable[[], Awaitable[str]]

DEFAULT_THRESHOLD = 0.5
MAX_CHARACTERS = 8_000
SMALLEST_LENGTH = 1e-12


class EmbedderError(Exception):
    """The world's fault: a server is down, a model is missing. The message names the fix and holds neither key nor text."""


class Embedder(Protocol):
    """Rows have unit length, so that a dot product is the cosine; a text without any meaning may be the zero vector."""

    @property
    def name(self) -> str:
        """The name in the configuration."""
        ...

    @property
    def space(self) -> str:
        """Vectors are comparable exactly when this is equal."""
        ...

    @property
    def threshold(self) -> float:
        """Under this cosine a hit is not similar."""
        ...

    async def documents(self, texts: Sequence[str]) -> Vectors:
        """One row per text, in order."""
        ...

    async def query(self, text: str) -> Vectors:
        """One vector, without waiting for a running `documents`."""
        ...

    async def rest(self) -> None:
        """Let go of memory and connections; the next use takes them again."""
        ...


def unit(rows: Vectors) -> Vectors:
    """Each row at length one; a zero row stays zero."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(rows / np.maximum(lengths, SMALLEST_LENGTH), dtype=np.float32)


def clean(text: str) -> str:
    """What can be sent anywhere: a bounded text, in valid Unicode."""
    return text[:MAX_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
