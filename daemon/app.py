"""The composition root: the only file that knows every actor, the order they start in, and what each is given."""

import logging
import signal
import socket
from collections.abc import Callable, MutableMapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import trio

from contextinfinity.daemon import config as configuration
from contextinfinity.daemon.actors import indexer, recovery
from contextinfinity.daemon.actors.branches import Branches
from contextinfinity.daemon.actors.embedding import Embedding
from contextinfinity.daemon.actors.hub import Hub
from contextinfinity.daemon.actors.importer import Importer
from contextinfinity.daemon.actors.janitor import Janitor
from contextinfinity.daemon.actors.jobs import Handler as JobHandler
from contextinfinity.daemon.actors.jobs import JobRunner
from contextinfinity.daemon.actors.journal import Journal
from contextinfinity.daemon.actors.keeper import Keeper
from contextinfinity.daemon.actors.maintenance import Maintenance
from contextinfinity.daemon.actors.memory import Memory
from contextinfinity.daemon.actors.models import Models
from contextinfinity.daemon.actors.recoverer import Recoverer
from contextinfinity.daemon.actors.store import Store, StoreGate
from contextinfinity.daemon.actors.sweeper import Sweeper
from contextinfinity.daemon.actors.world import World
from contextinfinity.daemon.config import Config
from contextinfinity.daemon.core.indexing import NewChunk, index
from contextinfinity.daemon.home import Home
from contextinfinity.daemon.notify import inherited_sockets, notify, watchdog_seconds
from contextinfinity.daemon.providers import registry
from contextinfinity.daemon.providers.credentials import Credentials
from contextinfinity.daemon.rpc import unix
from contextinfinity.daemon.rpc.dispatch import Dispatcher
from contextinfinity.daemon.rpc.handlers import handlers
from contextinfinity.daemon.rpc.server import RpcServer
from contextinfinity.daemon.rpc.services import Services
from contextinfinity.daemon.rpc.websocket import WebsocketGate
from contextinfinity.daemon.runtime.actor import Ref, nudge
from contextinfinity.daemon.runtime.ids import IdMint
from contextinfinity.daemon.runtime.supervisor import Supervisor
from contextinfinity.daemon.storage.storage import Storage
from contextinfinity.protocol.blocks import Message
from contextinfinity.protocol.errors import InvalidParams
from contextinfinity.protocol.methods import METHODS, Reloaded
from contextinfinity.protocol.model import ActorStatus

log = logging.getLogger(__name__)


class App:
    """A daemon for one home, from `run` until somebody stops it."""

    def __init__(self, home: Home, config: Config, socket_path: Path, flags: dict[str, Any],
                 environ: MutableMapping[str, str], *, read_only: bool) -> None:  # fmt: skip
        self._home = home
        self._config = config
        self._flags = flags
        self._environ = environ
        self._socket_path = socket_path
        self._read_only = read_only
        self._version = version("contextinfinity")
        self._clients: set[object] = set()
        self._hub = Hub()
        self._credentials = Credentials(environ)
        self._models = Models(config, self._credentials)
        self._nudges: list[Ref] = []
        self._stop = trio.Event()

    async def run(self) -> None:
        inherited = inherited_sockets(self._environ)
        listeners = inherited or [unix.bind(self._socket_path)]
        tcp: list[socket.socket] = []
        try:
            tcp += self._bind_websocket()
            root = self._build(listeners, tcp)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._heed_signals)
                self._announce(listeners, tcp)
                nursery.start_soon(self._start, nursery, root)
                await self._stop.wait()
                log.info("stopping")
                notify(self._environ, "STOPPING=1")
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await registry.aclose()
            self._home.withdraw()
            for listener in [*listeners, *tcp]:
                listener.close()
            if not inherited:
                self._socket_path.unlink(missing_ok=True)

    async def _start(self, nursery: trio.Nursery, root: Supervisor) -> None:
        """In a task of its own, so that a signal during a long recovery stops the daemon all the same."""
        await nursery.start(root.run)
        self._ready()
        nursery.start_soon(self._watchdog)

    def _build(self, listeners: list[socket.socket], tcp: list[socket.socket]) -> Supervisor:
        """The tree: each line may use the ones above it, and is stopped before them."""
        home, config, hub, read_only = self._home, self._config, self._hub, self._read_only
        gate = StoreGate(read_only=read_only)
        storage = Storage(gate.write, gate.read)
        root = Supervisor("root", "rest_for_one")
        workers = Supervisor("workers", park=True)
        branch_supervisor = Supervisor("branches", park=True)

        root.add("store", lambda: Store(home.database, home.streams, home.backups, gate, hub))
        journal = root.add("journal", lambda: Journal(home.streams, hub, self._config.stream))
        undone = (indexer.enqueue_undone,)
        root.add("recovery", lambda: Recoverer(storage, home.streams, undone, can_write=gate.can_write))
        janitor = workers.add("janitor", lambda: Janitor(storage, home.streams, can_write=gate.can_write))
        mint = IdMint()
        embedding = self._embedding = Embedding(storage, config, self._credentials, self._environ)
        memory = self._memory = Memory(storage, embedding, config)

        def embeds() -> bool:
            return embedding.target is not None

        def jobs(**handlers: JobHandler) -> Callable[[], JobRunner]:
            return lambda: JobRunner(storage, handlers, can_write=gate.can_write)

        embedder = workers.add("embedder", jobs(embed=embedding.run))

        def cut(said: Message, at: str) -> tuple[NewChunk, ...]:
            return index(said, at, self._config.retrieval.overlap_tokens)

        index_turns = partial(indexer.run, storage, mint, embeds, lambda: nudge(embedder), cut=cut)
        indexing = workers.add("indexer", jobs(index_turn=index_turns))
        again = partial(indexer.again, storage, mint, embeds, lambda: nudge(embedder), cut=cut)
        reindexer = workers.add("reindexer", jobs(mend_index=again, reindex=again))
        world = World(storage, hub, self._models, journal, janitor, indexing, memory, mint, home.streams, gate.can_write)
        branches = Branches(branch_supervisor, world)
        root.add_supervisor(branch_supervisor)
        maintenance = workers.add("maintenance", lambda: Maintenance(home.database, home.streams, home.backups))
        importer = workers.add(
            "importer",
            lambda: Importer(
                storage,
                branches,
                hub,
                embedder,
                mint,
                lambda: self._config.default_model,
                embeds,
                self._watched,
                can_write=gate.can_write,
                cut=cut,
            ),
        )
        keeper = workers.add(
            "keeper",
            lambda: Keeper(
                storage, memory, embedding, embedder, lambda: self._config.retrieval.idle_seconds, can_write=gate.can_write
            ),
        )
        self._nudges = [indexing, reindexer, keeper]
        services = Services(
            world=world,
            branches=branches,
            maintenance=maintenance,
            importer=importer,
            embedding=embedding,
            nudge=self._nudge_memory,
            version=self._version,
            home=str(home.path),
            socket=str(listeners[0].getsockname()),
            read_only=read_only,
            started=trio.current_time(),
            actors=lambda: [ActorStatus(*row) for row in root.status()],
            clients=lambda: len(self._clients),
            shutdown=self._stop.set,
            reload=self.reload,
        )
        dispatcher = Dispatcher(METHODS, handlers(services), world.mint)
        websocket = (tcp, self._websocket_gate) if tcp else None
        frame_limit = config.general.max_frame_bytes
        root.add("rpc", lambda: RpcServer(dispatcher, listeners, websocket, frame_limit, self._clients))
        workers.add("jobs", jobs(reconcile_stream=partial(recovery.run, storage, home.streams)))
        workers.add("sweeper", lambda: Sweeper(branches))
        root.add_supervisor(workers)
        return root

    def _bind_websocket(self) -> list[socket.socket]:
        settings = self._config.websocket
        if not settings.enabled:
            return []
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", settings.port))
        except OSError as error:
            listener.close()
            raise unix.SocketError(
                f"cannot listen on 127.0.0.1:{settings.port}: {error.strerror}; choose another port"
            ) from None
        listener.listen(unix.BACKLOG)
        return [listener]

    def _websocket_gate(self) -> WebsocketGate:
        return WebsocketGate(self._home.token(), self._config.websocket.allowed_origins)

    def _announce(self, listeners: list[socket.socket], tcp: list[socket.socket]) -> None:
        """Tell clients where to connect, before the first is served: whoever connects early waits in line."""
        websocket = f"ws://127.0.0.1:{tcp[0].getsockname()[1]}/rpc" if tcp else None
        address = str(listeners[0].getsockname())
        self._home.announce(address, websocket, self._version)
        log.info("listening on %s%s", address, f" and {websocket}" if websocket else "")

    def _ready(self) -> None:
        notify(self._environ, "READY=1")
        log.info("ready")
        for warning in self._config.warnings:
            log.warning("%s", warning)

    def reload(self) -> Reloaded:
        """Read the configuration again, all of it or nothing."""
        try:
            fresh = configuration.load(self._home.config, self._environ, self._flags)
        except configuration.ConfigError as error:
            raise InvalidParams(f"the configuration was not reloaded: {error}") from None
        changed = configuration.differences(self._config, fresh)
        self._config = fresh
        self._models.config = self._embedding.config = self._memory.config = fresh
        self._nudge_memory()
        restart = tuple(key for key in changed if key in configuration.NEEDS_RESTART)
        applied = tuple(key for key in changed if key not in configuration.NEEDS_RESTART)
        log.info(
            "configuration reloaded; applied: %s; needs a restart: %s", *(", ".join(k) or "none" for k in (applied, restart))
        )
        return Reloaded(applied, restart)

    def _watched(self) -> list[str]:
        return [str(Path(path).expanduser()) for path in self._config.imports.watch]

    def _nudge_memory(self) -> None:
        """There may be something to index or to embed, or another embedder to do it with."""
        for worker in self._nudges:
            nudge(worker)

    async def _heed_signals(self) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async for number in signals:
                if number == signal.SIGHUP:
                    try:
                        self.reload()
                    except Exception as error:  # noqa: BLE001 - whatever a file may hold, the old configuration stays
                        log.error("%s", error)
                else:
                    self._stop.set()

    async def _watchdog(self) -> None:
        interval = watchdog_seconds(self._environ)
        while interval is not None:
            notify(self._environ, "WATCHDOG=1")
            await trio.sleep(interval)
