"""Embedding: which model spans the vectors that answer now, which one is to, and the work that leads from one to the other.

A new model fills a space of its own in the background while the old one goes on answering; without any, search is lexical.
"""

import contextlib
import logging
import time
from collections.abc import Mapping

import msgspec
import numpy as np
import trio

from contextinfinity.daemon.config import NO_EMBEDDER, Config, EmbedderSettings
from contextinfinity.daemon.core.hot_index import Floats
from contextinfinity.daemon.core.indexing import in_context, spoken
from contextinfinity.daemon.embedders import registry
from contextinfinity.daemon.embedders.base import Embedder, EmbedderError
from contextinfinity.daemon.providers.credentials import Credentials
from contextinfinity.daemon.runtime import failpoints
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage.jobs import Job
from contextinfinity.daemon.storage.storage import Storage
from contextinfinity.daemon.storage.vectors import Space, Unembedded
from contextinfinity.protocol.model import EmbedderInfo

log = logging.getLogger(__name__)

BATCH = 64
QUERY_DEADLINE = 5.0
CONTEXT_SHARE = 0.5
RETRY_SECONDS, SILENCE_SECONDS = 30.0, 15.0
LOCAL = "local:"
NONE_CHOSEN = 'no embedder is chosen (embedder = "none"): search is lexical'
NO_VECTORS = "no vectors have been made yet: search is lexical until then"


class Meaning(msgspec.Struct, frozen=True):
    """What a question means to the embedder, or why there is no telling."""

    vector: Floats | None = None
    space: int | None = None
    embedder: str | None = None
    threshold: float = 1.0
    degraded: str | None = None


class Embedding:
    """`active` is the space that answers; the embedder of the configuration, `target`, fills the one that is to."""

    def __init__(self, storage: Storage, config: Config, credentials: Credentials, environ: Mapping[str, str]) -> None:
        self.config = config
        self.used = 0.0
        self.active: Space | None = None
        self.target: Embedder | None = None
        self.problem: str | None = None
        self._storage = storage
        self._credentials = credentials
        self._environ = environ
        self._made: dict[str, Embedder] = {}
        self._made_from: dict[str, object] = {}
        self._silent_until = -1.0
        self._refreshing = trio.Lock()

    async def refresh(self) -> bool:
        """Follow the configuration and what is installed; whether there is something to embed with."""
        async with self._refreshing:
            return await self._refresh()

    async def _refresh(self) -> bool:
        name = self.config.retrieval.embedder
        target, problem = None, None
        if name != NO_EMBEDDER:
            try:
                target = await self._usable(name)
            except EmbedderError as error:
                problem = str(error)
        if target is None or target is not self.target:
            self.problem = problem  # what the same embedder ran into stays until it works again
        self.target = target
        await self.look()
        return self.target is not None

    async def look(self) -> None:
        """Which space answers: the one that is whole, else the one that is being filled; none if none is wanted."""
        spaces = await self._storage.vector_spaces() if self.config.retrieval.embedder != NO_EMBEDDER else []
        ready = [s for s in spaces if s.ready]
        filling = [s for s in spaces if self.target is not None and s.name == self.target.space]
        self.active = next(reversed(ready or filling), None)

    async def meaning(self, text: str, patience: float = QUERY_DEADLINE) -> Meaning:
        """The vector of a question in the space that answers. One that was silent is not waited for again for a while."""
        if self.config.retrieval.embedder == NO_EMBEDDER:
            return Meaning(degraded=NONE_CHOSEN)
        if self.active is None and self.target is None and self.problem is None:
            await self.refresh()  # nobody has looked yet: the daemon has just begun
        space = self.active
        if space is None:
            return Meaning(degraded=self.problem or NO_VECTORS)
        try:
            embedder = await self._of(space)
            if embedder is None:
                return Meaning(degraded=f"the embedder {space.embedder!r} that made the vectors is no longer configured")
            self.used = trio.current_time()
            if trio.current_time() < self._silent_until:
                return Meaning(degraded=f"the embedder {space.embedder!r} did not answer lately: search is lexical")
            with trio.fail_after(patience):
                vector = await embedder.query(text)
        except EmbedderError as error:
            return Meaning(degraded=f"{error} (search is lexical)")
        except trio.TooSlowError:
            if not space.name.startswith(LOCAL):  # which was only loading
                self._silent_until = trio.current_time() + SILENCE_SECONDS
            late = f"the embedder {space.embedder!r} did not answer in {patience:g} s"
            return Meaning(degraded=f"{late}: search is lexical")
        except Exception as error:
            log.exception("the embedder failed")
            return Meaning(degraded=f"the embedder failed ({type(error).__name__}): search is lexical")
        if len(vector) != space.dim:
            return Meaning(degraded="the embedder changed its dimension: `ctx reindex` makes the vectors anew")
        return Meaning(vector, space.n, embedder.name, embedder.threshold)

    async def run(self, job: Job) -> None:
        """One job: embed whatever has no vector in the target's space, then let that space take over."""
        try:
            while (target := self.target) is not None:
                space = await self._fill(target, job)
                if self.target is target and await self._storage.finish_embedding(space, job, now()):
                    self.problem = None
                    break
            else:
                await self._storage.finish_embedding(None, job, now())
                if self.target is not None and await self.left():  # it came back while this job was given up
                    await self._storage.enqueue_job("embed", "", None, now())
        except EmbedderError as error:
            self.problem = str(error)
            log.warning("embedding waits: %s", error)
            await self._storage.finish_embedding(None, job, now())
        failpoints.hit("embed.finished")
        await self.look()

    async def _fill(self, target: Embedder, job: Job) -> Space | None:
        space = next((s for s in await self._storage.vector_spaces() if s.name == target.space), None)
        done_to = space.done_to if space is not None else 0
        while True:
            batch = await self._storage.unembedded(done_to, BATCH)
            if not batch or self.target is not target:  # nothing is left, or another embedder was chosen meanwhile
                return space
            self.used = trio.current_time()
            vectors = await _embed(target, batch)
            failpoints.hit("embed.made")
            if space is None or space.dim != vectors.shape[1]:
                space = await self._storage.ensure_space(target.space, target.name, vectors.shape[1], now())
                if space.done_to < done_to:  # the model has another dimension now: from the beginning
                    done_to = space.done_to
                    continue
                await self.look()
            rows = [(one.n, vector.astype(np.float16).tobytes()) for one, vector in zip(batch, vectors, strict=True)]
            await self._storage.add_vectors(space, rows, job, time.time(), now())
            failpoints.hit("embed.stored")
            done_to = batch[-1].n

    async def left(self) -> int:
        """How many passages have no vector in the space that is to answer."""
        if self.target is None:
            return 0
        space = next((s for s in await self._storage.vector_spaces() if s.name == self.target.space), None)
        return await self._storage.embedding_backlog(space.done_to if space is not None else 0)

    async def _of(self, space: Space) -> Embedder | None:
        """The embedder of a space, also when another one is chosen by now."""
        if space.name in self._made:
            return self._made[space.name]
        for name in (space.embedder, *self.config.embedders):
            settings = self.config.embedders.get(name)
            with contextlib.suppress(EmbedderError):
                if settings is not None and (made := await self._make(name, settings)).space == space.name:
                    return made
        return None

    async def _usable(self, name: str) -> Embedder:
        settings = self.config.embedders[name]
        described = await trio.to_thread.run_sync(registry.describe, name, settings, self._environ)
        if described.installed is False:
            raise EmbedderError(
                f"{settings.model} is not installed: `ctx embedder install` fetches it; search is lexical until then"
            )
        return await self._make(name, settings)

    async def _make(self, name: str, settings: EmbedderSettings) -> Embedder:
        async def find_key() -> str:
            key = await self._credentials.find("openai" if settings.kind == "openai" else name, settings.api_key_env)
            if key is None:
                raise EmbedderError(
                    f"the embedder {name!r} needs a key: set {settings.api_key_env}; until then it makes no vectors"
                )
            return key

        made = registry.make(name, settings, self.config.network, self._environ, find_key)
        space = await trio.to_thread.run_sync(lambda: made.space)  # of a file of one's own it is the file's hash
        source = (name, settings, self.config.network)
        if self._made_from.get(space) != source:  # another address or key for the same vectors counts as well
            before = self._made.get(space)
            self._made[space], self._made_from[space] = made, source
            if before is not None:
                await before.rest()
        return self._made[space]

    async def list(self) -> tuple[EmbedderInfo, ...]:
        """What `ctx embedder list` shows."""
        chosen = self.config.retrieval.embedder
        active = self.active.embedder if self.active is not None else None
        found = []
        for name, settings in sorted(self.config.embedders.items()):
            d = await trio.to_thread.run_sync(registry.describe, name, settings, self._environ)
            info = EmbedderInfo(
                name=name, kind=d.kind, model=d.model, installed=d.installed, chosen=name == chosen, active=name == active
            )
            found.append(info)
        return tuple(found)

    async def rest(self) -> None:
        """Let go of models and connections; the next use takes them again."""
        for made in self._made.values():
            await made.rest()


async def _embed(embedder: Embedder, batch: list[Unembedded]) -> Floats:
    """A passage as it stands; the vector of a short message leans towards what it answers."""
    alone = [spoken(one.speaker, one.at, one.text) for one in batch]
    leaning = [i for i, one in enumerate(batch) if one.before]
    vectors = await embedder.documents([*alone, *(in_context(batch[i].before, alone[i]) for i in leaning)])
    made = vectors[: len(batch)].copy()
    made[leaning] += CONTEXT_SHARE * vectors[len(batch) :]
    lengths = np.linalg.norm(made, axis=1, keepdims=True)
    unit: Floats = made / np.maximum(lengths, 1e-9)
    return unit
