"""The embedder that needs nobody: a model of the catalogue, or an ONNX file of the person's own.

`models` knows where the files are and whether they are right, `onnx` runs them; all of it happens in threads.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import trio

from contextinfinity.daemon.config import EmbedderSettings
from contextinfinity.daemon.embedders import models
from contextinfinity.daemon.embedders.base import DEFAULT_THRESHOLD, EmbedderError, Vectors
from contextinfinity.daemon.embedders.catalogue import CATALOGUE, MAX_TOKENS, MODEL, TOKENIZER
from contextinfinity.daemon.embedders.onnx import Model, Recipe, Tokens, pieces
from contextinfinity.daemon.runtime.memory import give_back

SHORT = 8
SLICE = 64
"""So many texts are tokenized at a time: a few milliseconds."""


class LocalEmbedder:
    """A model of the catalogue brings its own pooling; a prefix or threshold in the configuration replaces the model's."""

    def __init__(self, name: str, settings: EmbedderSettings, environ: Mapping[str, str]) -> None:
        self._name = name
        self._settings = settings
        self._environ = environ
        self._spec = None if settings.file else models.spec(settings.model)
        self._prefix = settings.query_prefix or (self._spec.query_prefix if self._spec else "")
        self._pooling = self._spec.pooling if self._spec else settings.pooling
        self._max_tokens = self._spec.max_tokens if self._spec else MAX_TOKENS
        self._pinned: str | None = None
        self._model: Model | None = None
        self._loading = trio.Lock()
        # Each kind of work has its own thread, so that a query never queues behind a batch.
        self._batch_lane = trio.CapacityLimiter(1)
        self._query_lane = trio.CapacityLimiter(1)

    @property
    def name(self) -> str:
        return self._name

    @property
    def space(self) -> str:
        """For a file of the person's own it reads the file once, and stays what it was when the first vector was made."""
        return self._pinned or self._space_now()

    @property
    def threshold(self) -> float:
        if self._settings.threshold is not None:
            return self._settings.threshold
        return self._spec.threshold if self._spec else DEFAULT_THRESHOLD

    async def documents(self, texts: Sequence[str]) -> Vectors:
        tokens: list[Tokens] = []
        for start in range(0, len(texts), SLICE):
            model = await self._ready()
            part = texts[start : start + SLICE]
            tokens += await trio.to_thread.run_sync(model.tokens, part, limiter=self._batch_lane)
        rows: Vectors | None = None
        for piece in pieces([len(t) for t in tokens]):
            # Asked for anew each time: `rest` in between has to be able to let go of it.
            model = await self._ready()
            found = await trio.to_thread.run_sync(model.run, [tokens[i] for i in piece], limiter=self._batch_lane)
            if rows is None:
                rows = np.empty((len(texts), found.shape[1]), dtype=np.float32)
            rows[piece] = found
        if rows is None:
            return np.empty((0, self._spec.dim if self._spec else 0), dtype=np.float32)
        return rows

    async def query(self, text: str) -> Vectors:
        model = await self._ready()

        def embed() -> Vectors:
            row: Vectors = model.run(model.tokens([self._prefix + text]))[0]
            return row

        return await trio.to_thread.run_sync(embed, limiter=self._query_lane)

    async def rest(self) -> None:
        async with self._loading:
            if self._model is not None:
                self._model = None
                await trio.to_thread.run_sync(give_back)

    async def _ready(self) -> Model:
        """The model, loaded by whoever comes first. A thread is never abandoned, so that none is half loaded."""
        if self._model is None:
            async with self._loading:
                if self._model is None:
                    self._model = await trio.to_thread.run_sync(self._load)
        return self._model

    def _load(self) -> Model:
        recipe = self._recipe()
        space = self._space_now()
        if self._pinned not in (None, space):
            raise EmbedderError(f"{recipe.model} or its tokenizer was replaced: restart the daemon to use the new one")
        model = Model(recipe)
        self._pinned = space
        return model

    def _recipe(self) -> Recipe:
        if self._spec is not None:
            found = models.paths(self._settings.model, self._environ)
            return Recipe(found[MODEL], found[TOKENIZER], self._pooling, self._max_tokens)
        for path in own_files(self._settings):
            if not path.is_file():
                raise EmbedderError(
                    f"{path} of embedder {self._name!r} does not exist: correct config.toml; search is lexical until then"
                )
        return Recipe(*own_files(self._settings), self._pooling, self._max_tokens)

    def _space_now(self) -> str:
        prefix = self._prefix
        if self._spec is not None:
            files = self._spec.files[MODEL].sha256[:SHORT]
            prefix = "" if prefix == self._spec.query_prefix else prefix
        else:
            files = "-".join(map(_short_hash, own_files(self._settings)))
        space = f"local:{self._settings.model}:{files}:{self._pooling}{self._max_tokens}"
        return f"{space}:{hashlib.sha256(prefix.encode()).hexdigest()[:SHORT]}" if prefix else space


def own_files(settings: EmbedderSettings) -> tuple[Path, Path]:
    """Model and tokenizer of an embedder with a file of its own; the tokenizer usually lies beside it."""
    assert settings.file is not None
    file = Path(settings.file).expanduser()
    return file, Path(settings.tokenizer).expanduser() if settings.tokenizer else file.with_name(TOKENIZER)


def is_installed(settings: EmbedderSettings, environ: Mapping[str, str]) -> bool:
    """Whether the files are there; what is wrong with them otherwise comes out at the first use."""
    if settings.file:
        return all(path.is_file() for path in own_files(settings))
    return settings.model in CATALOGUE and models.installed(settings.model, environ)


def _short_hash(path: Path) -> str:
    try:
        return models.fingerprint(path)[:SHORT]
    except OSError:
        return "absent"
