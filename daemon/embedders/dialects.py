"""How the three kinds of embedding servers are spoken to: where to post, what, and how to read the answer.

`http` does the talking; nothing here opens a connection.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

Rows = list[list[float]]


class Dialect(Protocol):
    @property
    def path(self) -> str:
        """What is appended to the configured address."""
        ...

    def ask(self, model: str, texts: Sequence[str]) -> dict[str, Any]:
        """The body of the request."""
        ...

    def read(self, answer: bytes) -> Rows:
        """One row per text, in order; `msgspec.MsgspecError` or `ValueError` if it is anything else."""
        ...


class _OllamaAnswer(msgspec.Struct):
    embeddings: Rows


class _OpenAIRow(msgspec.Struct):
    index: int
    embedding: list[float]


class _OpenAIAnswer(msgspec.Struct):
    data: list[_OpenAIRow]


@dataclass(frozen=True)
class Ollama:
    path: str = "/api/embed"

    def ask(self, model: str, texts: Sequence[str]) -> dict[str, Any]:
        return {"model": model, "input": list(texts)}

    def read(self, answer: bytes) -> Rows:
        return msgspec.json.decode(answer, type=_OllamaAnswer).embeddings


@dataclass(frozen=True)
class Tei:
    """text-embeddings-inference: a server has one model, so none is named."""

    path: str = "/embed"

    def ask(self, model: str, texts: Sequence[str]) -> dict[str, Any]:
        return {"inputs": list(texts), "truncate": True}

    def read(self, answer: bytes) -> Rows:
        return msgspec.json.decode(answer, type=Rows)


@dataclass(frozen=True)
class OpenAI:
    path: str = "/embeddings"

    def ask(self, model: str, texts: Sequence[str]) -> dict[str, Any]:
        return {"model": model, "input": list(texts), "encoding_format": "float"}

    def read(self, answer: bytes) -> Rows:
        rows = sorted(msgspec.json.decode(answer, type=_OpenAIAnswer).data, key=lambda row: row.index)
        if [row.index for row in rows] != list(range(len(rows))):
            raise ValueError("its rows are not numbered as the texts are")
        return [row.embedding for row in rows]


DIALECTS: dict[str, Dialect] = {"ollama": Ollama(), "tei": Tei(), "openai": OpenAI()}
