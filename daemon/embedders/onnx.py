"""A sentence model in this process: tokenizer and ONNX session, loaded together and used from threads only.

`local` decides when it is loaded, in which pieces it works and when it goes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contextinfinity.daemon.embedders.base import EmbedderError, Vectors, clean, unit
from contextinfinity.daemon.embedders.catalogue import Pooling

Tokens = NDArray[np.int64]

# One thread per run: on two cores a second one costs 55 % more CPU for 2-12 % more texts per second at this size of a
# run, and a query beside it then takes longer. A run of 512 tokens takes 40 ms; larger ones are not faster.
THREADS = 1
RUN_TOKENS = 512
RUN_TEXTS = 16

QUIET = 3  # errors only
HIDDEN_STATES = ("last_hidden_state", "token_embeddings")


@dataclass(frozen=True)
class Recipe:
    """The files and how to read a sentence's vector off the model."""

    model: Path
    tokenizer: Path
    pooling: Pooling
    max_tokens: int


class Model:
    """`run` may be called by several threads at once: the session takes that."""

    def __init__(self, recipe: Recipe) -> None:
        self._pooling = recipe.pooling
        self._tokenizer = _load_tokenizer(recipe)
        self._session = _load_session(recipe.model)
        self._inputs = {given.name for given in self._session.get_inputs()}
        if not {"input_ids"} <= self._inputs <= {"input_ids", "attention_mask", "token_type_ids"}:
            raise EmbedderError(f"{recipe.model} wants {', '.join(sorted(self._inputs))}: it is not a text embedding model")
        outputs = [given.name for given in self._session.get_outputs()]
        self._output = next((name for name in HIDDEN_STATES if name in outputs), outputs[0])

    def tokens(self, texts: Sequence[str]) -> list[Tokens]:
        return [np.array(self._tokenizer.encode(clean(text)).ids, dtype=np.int64) for text in texts]

    def run(self, batch: Sequence[Tokens]) -> Vectors:
        """One row of unit length per text."""
        ids = np.zeros((len(batch), max(map(len, batch), default=1)), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        try:
            (found,) = self._session.run([self._output], {name: given[name] for name in self._inputs})
        except Exception as error:  # noqa: BLE001 - the runtime's errors have no common class below this
            raise EmbedderError(f"the model fails ({type(error).__name__}): do tokenizer and ONNX file match?") from None
        return unit(self._pool(np.asarray(found, dtype=np.float32), mask))

    def _pool(self, found: Vectors, mask: Tokens) -> Vectors:
        if found.ndim == 2:  # the model pools by itself
            return found
        if self._pooling == "cls":
            return found[:, 0]
        weights = mask[:, :, np.newaxis].astype(np.float32)
        return np.asarray((found * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1), dtype=np.float32)


def pieces(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Which texts to run together, by their index: of like length, and never so many that a run takes long."""
    piece: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if piece and (len(piece) == RUN_TEXTS or (len(piece) + 1) * lengths[index] > RUN_TOKENS):
            yield piece
            piece = []
        piece.append(index)
    if piece:
        yield piece


def _load_tokenizer(recipe: Recipe) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(recipe.tokenizer))
        tokenizer.enable_truncation(recipe.max_tokens)
        tokenizer.no_padding()
    except Exception as error:  # noqa: BLE001 - it raises nothing more specific
        raise EmbedderError(f"{recipe.tokenizer} cannot be used as a tokenizer ({type(error).__name__})") from None
    return tokenizer


def _load_session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.intra_op_num_threads = THREADS
    options.inter_op_num_threads = 1
    options.log_severity_level = QUIET
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - the runtime's errors have no common class below this
        raise EmbedderError(f"{path} cannot be used as an ONNX model ({type(error).__name__})") from None
