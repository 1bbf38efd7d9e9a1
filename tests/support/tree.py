"""The daemon's actors in this process, on a real database and real files, with a provider that a test drives by hand."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

from contextinfinity.daemon.actors import indexer
from contextinfinity.daemon.actors.branches import Branches
from contextinfinity.daemon.actors.embedding import Embedding
from contextinfinity.daemon.actors.hub import Hub
from contextinfinity.daemon.actors.janitor import Janitor
from contextinfinity.daemon.actors.jobs import Handler, JobRunner
from contextinfinity.daemon.actors.journal import Journal
from contextinfinity.daemon.actors.memory import Memory
from contextinfinity.daemon.actors.models import Models
from contextinfinity.daemon.actors.recoverer import Recoverer
from contextinfinity.daemon.actors.store import Store, StoreGate
from contextinfinity.daemon.actors.world import World
from contextinfinity.daemon.config import Config, Model, Retrieval, Stream
from contextinfinity.daemon.core.transcript import Effect, Ended, TextDelta
from contextinfinity.daemon.providers import registry
from contextinfinity.daemon.providers.base import Endpoint, ModelRequest, RawEvent
from contextinfinity.daemon.providers.credentials import Credentials
from contextinfinity.daemon.runtime.ids import IdMint, now
from contextinfinity.daemon.runtime.supervisor import Supervisor
from contextinfinity.daemon.storage.sessions import NewSession
from contextinfinity.daemon.storage.storage import Storage
from contextinfinity.protocol.model import Completed, Phase, Turn


class HandDriven:
    """A provider whose stream says what the test sends: text, an exception to raise, END for the terminal event, or CUT."""

    name = "recall"
    END, CUT = object(), object()

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []
        self.say, self._heard = trio.open_memory_channel[Any](1000)

    def body(self, request: ModelRequest) -> dict[str, Any]:
        return {"messages": [m.rendered_text for m in request.messages]}

    def estimate(self, request: ModelRequest) -> int:
        return 1

    async def stream(self, request: ModelRequest, endpoint: Endpoint) -> AsyncGenerator[RawEvent, None]:
        self.requests.append(request)
        while True:
            item = await self._heard.receive()
            if item is self.CUT:
                return
            if isinstance(item, Exception):
                raise item
            if item is self.END:
                yield RawEvent("end", {})
                return
            yield RawEvent("text", {"text": item})

    def normalise(self, event: RawEvent) -> Sequence[Effect]:
        match event.type:
            case "text":
                return (TextDelta(0, event.payload["text"]),)
            case "end":
                return (Ended(Completed()),)
        return ()

    async def answer(self, *texts: str) -> None:
        for text in texts:
            await self.say.send(text)
        await self.say.send(self.END)


class Tree:
    """The parts a test talks to."""

    def __init__(self, folder: Path, stream: Stream) -> None:
        streams = folder / "streams"
        streams.mkdir(exist_ok=True)
        self.provider = HandDriven()
        self.hub = Hub()
        self.gate = StoreGate(read_only=False)
        self.storage = Storage(self.gate.write, self.gate.read)
        models = {"recall": Model("recall", "recall"), "small": Model("recall", "small")}
        config = Config(models=models, stream=stream, retrieval=Retrieval(embedder="none"))
        self.models = Models(config, Credentials({}))
        self.root = Supervisor("root", "rest_for_one")
        self.branch_supervisor = Supervisor("branches", park=True)
        workers = Supervisor("workers", park=True)
        self.root.add("store", lambda: Store(folder / "test.db", streams, folder / "backups", self.gate, self.hub))
        self.journal = self.root.add("journal", lambda: Journal(streams, self.hub, stream))
        self.root.add("recovery", lambda: Recoverer(self.storage, streams, can_write=self.gate.can_write))
        janitor = workers.add("janitor", lambda: Janitor(self.storage, streams, can_write=self.gate.can_write))
        mint = IdMint()
        self.embedding = Embedding(self.storage, config, self.models.credentials, {})
        self.memory = Memory(self.storage, self.embedding, config)
        index_turns = partial(indexer.run, self.storage, mint, lambda: False, lambda: None)
        handlers: dict[str, Handler] = {"index_turn": index_turns}
        indexing = workers.add("indexer", lambda: JobRunner(self.storage, handlers, can_write=self.gate.can_write))
        self.world = World(
            self.storage,
            self.hub,
            self.models,
            self.journal,
            janitor,
            indexing,
            self.memory,
            mint,
            streams,
            self.gate.can_write,
        )
        self.branches = Branches(self.branch_supervisor, self.world)
        self.root.add_supervisor(self.branch_supervisor)
        self.root.add_supervisor(workers)

    async def new_branch(self, **values: Any) -> str:
        mint = self.world.mint
        new = NewSession(id=mint(), branch_id=mint(), state_id=mint(), model="recall", at=now(), **values)
        return (await self.storage.create_session(new)).branch.id

    def shown(self, branch_id: str) -> int:
        stream = self.hub.stream_of(branch_id)
        return stream.displayed if stream is not None else 0

    async def reached(self, turn_id: str, *phases: Phase) -> Turn:
        """Wait for a milestone by asking; bounded by the test's own deadline."""
        while True:
            turn = await self.storage.turn(turn_id)
            if turn.phase in phases:
                return turn
            await trio.sleep(0.001)


@asynccontextmanager
async def running(folder: Path, stream: Stream | None = None) -> AsyncIterator[Tree]:
    """A running tree; leaving stops it in order."""
    tree = Tree(folder, stream or Stream())
    before = dict(registry._made)
    registry._made["recall"] = tree.provider
    try:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                await nursery.start(tree.root.run)
                try:
                    yield tree
                finally:
                    nursery.cancel_scope.cancel()
    finally:
        registry._made.clear()
        registry._made.update(before)
