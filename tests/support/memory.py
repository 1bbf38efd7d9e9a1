"""A tree with everything that memory needs: an embedder that follows words, the worker that embeds, the keeper, the importer.

`MemoryTree` is `tree.Tree` with more workers; embedders are fakes by name, so a test decides what they know and when they fail.
"""

import hashlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import trio

from contextinfinity.daemon.actors import embedding as embedding_module
from contextinfinity.daemon.actors import indexer
from contextinfinity.daemon.actors.branch import Submit
from contextinfinity.daemon.actors.branches import Branches
from contextinfinity.daemon.actors.embedding import Embedding
from contextinfinity.daemon.actors.hub import Hub
from contextinfinity.daemon.actors.importer import Importer
from contextinfinity.daemon.actors.janitor import Janitor
from contextinfinity.daemon.actors.jobs import JobRunner
from contextinfinity.daemon.actors.journal import Journal
from contextinfinity.daemon.actors.keeper import Keeper
from contextinfinity.daemon.actors.memory import Memory, Search
from contextinfinity.daemon.actors.models import Models
from contextinfinity.daemon.actors.recoverer import Recoverer
from contextinfinity.daemon.actors.store import Store, StoreGate
from contextinfinity.daemon.actors.world import World
from contextinfinity.daemon.config import Config, EmbedderSettings, Model, Retrieval, Stream
from contextinfinity.daemon.embedders.base import EmbedderError, Vectors, unit
from contextinfinity.daemon.embedders.registry import Description
from contextinfinity.daemon.providers import registry
from contextinfinity.daemon.providers.credentials import Credentials
from contextinfinity.daemon.runtime.actor import nudge
from contextinfinity.daemon.runtime.ids import IdMint
from contextinfinity.daemon.runtime.supervisor import Supervisor
from contextinfinity.daemon.storage import verify
from contextinfinity.daemon.storage.storage import Storage
from contextinfinity.protocol.blocks import message
from contextinfinity.protocol.methods import MemoryFound
from contextinfinity.protocol.model import VerifyReport
from tests.support.tree import HandDriven, Tree

MODELS = {"recall": Model("recall", "recall"), "small": Model("recall", "small"), "far": Model("anthropic", "far", 200_000)}
ALIKE = {"automobile": "car", "physician": "doctor", "feline": "cat"}


class FakeEmbedder:
    """Texts with the same words are near, and a few words mean the same."""

    threshold = 0.5

    def __init__(self, name: str = "local", dim: int = 32, space: str | None = None) -> None:
        self.name = name
        self.dim = dim
        self.space = space or f"fake:{name}"
        self.failing: Exception | None = None
        self.hold = trio.Event()
        self.hold.set()
        self.questions_wait = False
        self.asked: list[str] = []
        self.embedded: list[str] = []
        self.rested = 0

    async def documents(self, texts: Sequence[str]) -> Vectors:
        await self.hold.wait()
        if self.failing is not None:
            raise self.failing
        self.embedded += texts
        return np.stack([self.vector(text) for text in texts])

    async def query(self, text: str) -> Vectors:
        self.asked.append(text)
        if self.questions_wait:
            await trio.sleep_forever()
        if self.failing is not None:
            raise self.failing
        return self.vector(text)

    async def rest(self) -> None:
        self.rested += 1

    def vector(self, text: str) -> Vectors:
        made = np.zeros(self.dim, np.float32)
        for word in re.findall(r"\w+", text.casefold()):
            digest = hashlib.sha256(ALIKE.get(word, word).encode()).digest()
            made += np.random.default_rng(int.from_bytes(digest[:8], "little")).normal(size=self.dim)
        return unit(made)


class FakeRegistry:
    """Stands where the registry of embedders stands."""

    def __init__(self) -> None:
        self.embedders: dict[str, FakeEmbedder] = {}
        self.missing: set[str] = set()

    def make(self, name: str, *_: object) -> FakeEmbedder:
        return self.embedders[name]

    def describe(self, name: str, settings: EmbedderSettings, environ: Mapping[str, str]) -> Description:
        return Description(name, settings.kind, settings.model, name in self.embedders and name not in self.missing)


def down() -> EmbedderError:
    return EmbedderError("the embedder is down: start it")


class MemoryTree(Tree):
    """`provider` answers for the model `recall`, `far` for one that knows nothing of memory but the prompt."""

    def __init__(self, folder: Path, embedders: Sequence[FakeEmbedder], **retrieval: Any) -> None:
        self.folder = folder
        self.streams = folder / "streams"
        self.streams.mkdir(exist_ok=True)
        self.fakes = FakeRegistry()
        self.fakes.embedders = {one.name: one for one in embedders}
        self.provider = HandDriven()
        self.far = HandDriven()
        self.far.name = "anthropic"
        self.hub = Hub()
        self.gate = StoreGate(read_only=False)
        self.storage = Storage(self.gate.write, self.gate.read)
        settings = {one.name: EmbedderSettings("local", one.name) for one in embedders}
        chosen = embedders[0].name if embedders else "none"
        self.config = Config(
            models=MODELS, retrieval=Retrieval(**({"embedder": chosen} | retrieval)), embedders=settings, default_model="far"
        )
        self.watched: list[str] = []
        self.models = Models(self.config, Credentials({}))
        self.models.credentials.provide("anthropic", "key")
        self.root = Supervisor("root", "rest_for_one")
        self.branch_supervisor = Supervisor("branches", park=True)
        workers = Supervisor("workers", park=True)
        mint = IdMint()
        can_write = self.gate.can_write
        self.root.add("store", lambda: Store(folder / "test.db", self.streams, folder / "backups", self.gate, self.hub))
        self.journal = self.root.add("journal", lambda: Journal(self.streams, self.hub, Stream()))
        undone = (indexer.enqueue_undone,)
        self.root.add("recovery", lambda: Recoverer(self.storage, self.streams, undone, can_write=can_write))
        janitor = workers.add("janitor", lambda: Janitor(self.storage, self.streams, can_write=can_write))
        self.embedding = Embedding(self.storage, self.config, self.models.credentials, {})
        self.memory = Memory(self.storage, self.embedding, self.config)

        def embeds() -> bool:
            return self.embedding.target is not None

        embedding = {"embed": self.embedding.run}
        self.embedder = workers.add("embedder", lambda: JobRunner(self.storage, embedding, can_write=can_write))
        again = partial(indexer.again, self.storage, mint, embeds, lambda: nudge(self.embedder))
        indexing = {
            "index_turn": partial(indexer.run, self.storage, mint, embeds, lambda: nudge(self.embedder)),
            "mend_index": again,
            "reindex": again,
        }
        self.indexing = workers.add("indexer", lambda: JobRunner(self.storage, indexing, can_write=can_write))
        self.world = World(
            self.storage,
            self.hub,
            self.models,
            self.journal,
            janitor,
            self.indexing,
            self.memory,
            mint,
            self.streams,
            can_write,
        )
        self.branches = Branches(self.branch_supervisor, self.world)
        self.importer = workers.add(
            "importer",
            lambda: Importer(
                self.storage,
                self.branches,
                self.hub,
                self.embedder,
                mint,
                lambda: "far",
                embeds,
                lambda: self.watched,
                can_write=can_write,
            ),
        )
        self.keeper = workers.add(
            "keeper",
            lambda: Keeper(
                self.storage,
                self.memory,
                self.embedding,
                self.embedder,
                lambda: self.config.retrieval.idle_seconds,
                can_write=can_write,
            ),
        )
        self.root.add_supervisor(self.branch_supervisor)
        self.root.add_supervisor(workers)

    def configure(self, **retrieval: Any) -> None:
        """Another configuration, as a reload brings it."""
        changed = msgspec.structs.replace(self.config.retrieval, **retrieval)
        self.config = msgspec.structs.replace(self.config, retrieval=changed)
        self.models.config = self.embedding.config = self.memory.config = self.config
        nudge(self.indexing)
        nudge(self.keeper)

    def driven(self, model: str) -> HandDriven:
        return self.far if model == "far" else self.provider

    async def talk(self, branch: str, text: str, answer: str = "ok", model: str = "far", **values: Any) -> str:
        """A turn to its end, indexed."""
        submitted = await self.branches.ask(branch, Submit(said=message("user", text), model=model, **values))
        await self.driven(model).answer(answer)
        await self.indexed(submitted.turn_id)
        return submitted.turn_id

    async def indexed(self, turn_id: str) -> None:
        while not (await self.storage.turn(turn_id)).indexed:  # noqa: ASYNC110 - the test's deadline bounds it
            await trio.sleep(0.001)

    async def embedded(self) -> None:
        """Until nothing waits for a vector and the space that is wanted answers."""
        while True:
            active = self.embedding.active
            wanted = self.embedding.target
            if wanted is not None and active is not None and active.name == wanted.space and active.ready:
                spaces = await self.storage.vector_spaces()
                alone = [space.n for space in spaces] == [active.n]
                if alone and not await self.storage.embedding_backlog(spaces[0].done_to):
                    return
            await trio.sleep(0.001)

    async def search(self, text: str, **wanted: Any) -> MemoryFound:
        return await self.memory.search(Search(text=text, **wanted))

    async def texts(self, text: str, **wanted: Any) -> list[str]:
        return [hit.text for hit in (await self.search(text, **wanted)).results]

    async def session_of(self, branch: str) -> str:
        return (await self.storage.branch(branch)).session_id

    async def verified(self) -> VerifyReport:
        return await trio.to_thread.run_sync(verify.check, self.folder / "test.db", self.streams)


@asynccontextmanager
async def remembering(folder: Path, *embedders: FakeEmbedder, **retrieval: Any) -> AsyncIterator[MemoryTree]:
    """A running tree; leaving stops it in order. Without embedders memory is lexical."""
    tree = MemoryTree(folder, embedders, **retrieval)
    made, real = dict(registry._made), embedding_module.registry
    registry._made |= {"recall": tree.provider, "anthropic": tree.far}
    embedding_module.registry = tree.fakes  # type: ignore[assignment]
    try:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                await nursery.start(tree.root.run)
                try:
                    yield tree
                finally:
                    nursery.cancel_scope.cancel()
    finally:
        embedding_module.registry = real
        registry._made.clear()
        registry._made.update(made)
