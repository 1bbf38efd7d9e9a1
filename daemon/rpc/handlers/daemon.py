"""Methods about the daemon itself, its models and its keys."""

import os
import time
from collections.abc import Mapping
from functools import cache
from typing import Any

import trio

from contextinfinity.daemon.actors.branch import SelectModel
from contextinfinity.daemon.actors.maintenance import DEADLINE, Backup, Verify
from contextinfinity.daemon.core.assembly import available, input_budget
from contextinfinity.daemon.core.when import posix
from contextinfinity.daemon.rpc.connection import Connection
from contextinfinity.daemon.rpc.dispatch import Handler
from contextinfinity.daemon.rpc.handlers.keys import keyed
from contextinfinity.daemon.rpc.services import Services
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage.chunks import IndexState
from contextinfinity.protocol import PROTOCOL_VERSION
from contextinfinity.protocol.errors import InvalidParams, NotAuthorised
from contextinfinity.protocol.methods import (
    BackupMade,
    ConfigReload,
    CredentialProvide,
    DaemonPing,
    DaemonShutdown,
    DaemonStatus,
    Empty,
    ModelList,
    ModelPage,
    ModelSelect,
    Params,
    Reloaded,
    RpcDiscover,
    StoreBackup,
    StoreVerify,
)
from contextinfinity.protocol.model import (
    LibrarianStatus,
    MemoryStatus,
    ModelChange,
    Pong,
    Status,
    StorageStatus,
    VerifyReport,
)
from contextinfinity.protocol.openrpc import document

CAPABILITIES = ("events", "recall", "memory", "import", "anthropic", "openai", "openai_chat", "websocket")


def handlers(s: Services) -> Mapping[type[Params[Any]], Handler]:
    pong = Pong(s.version, PROTOCOL_VERSION, CAPABILITIES)

    async def ping(_: Connection, __: DaemonPing) -> Pong:
        return pong

    async def status(_: Connection, __: DaemonStatus) -> Status:
        turns, size = await s.world.storage.counts()
        config = s.world.models.config
        index = await s.world.storage.index_state()
        return Status(
            version=s.version,
            pid=os.getpid(),
            uptime_s=round(trio.current_time() - s.started, 3),
            home=s.home,
            socket=s.socket,
            ready=True,
            read_only=s.read_only,
            locked=False,
            actors=tuple(s.actors()),
            jobs=await s.world.storage.job_counts(),
            clients=s.clients(),
            storage=StorageStatus(size, turns, index.chunks),
            librarian=LibrarianStatus(tokens_today=0, tokens_limit=0),
            memory=await memory_status(s, index),
            default_model=config.default_model,
            warnings=config.warnings,
        )

    async def shutdown(_: Connection, __: DaemonShutdown) -> Empty:
        s.shutdown()
        return Empty()

    async def reload(_: Connection, __: ConfigReload) -> Reloaded:
        return s.reload()

    async def provide(connection: Connection, p: CredentialProvide) -> Empty:
        if connection.kind != "unix":
            raise NotAuthorised("keys are taken over the Unix socket only")
        s.world.models.credentials.provide(p.provider, p.key)
        return Empty()

    discovered = cache(lambda: document(s.version))

    async def discover(_: Connection, __: RpcDiscover) -> dict[str, Any]:
        return discovered()

    async def list_models(_: Connection, p: ModelList) -> ModelPage:
        return ModelPage(s.world.models.list()[: p.limit])

    async def select_model(_: Connection, p: ModelSelect) -> ModelChange:
        models = s.world.models
        models.get(p.model)
        old = await s.branches.ask(p.branch_id, SelectModel(p.model, keyed(p.branch_id, p)))
        reserves = models.reserves()
        after = available(input_budget(models.limits(p.model), reserves))
        before = available(input_budget(models.limits(old), reserves)) if old in models.config.models else after
        if before == after:
            return ModelChange(change="none", old_budget=before, new_budget=after)
        return ModelChange(change="shrinking" if after < before else "expanding", old_budget=before, new_budget=after)

    async def verify(_: Connection, p: StoreVerify) -> VerifyReport:
        anchors = p.anchor or {}
        if not all(_is_link(link) for link in anchors.values()):
            raise InvalidParams("anchor: each link is 64 hexadecimal digits, as store.verify gives them")
        return await s.maintenance.ask(Verify(anchors), DEADLINE)

    async def backup(_: Connection, p: StoreBackup) -> BackupMade:
        if p.path is not None and not os.path.isabs(p.path):
            raise InvalidParams("path must be absolute: the daemon has another working directory than you")
        once = keyed("store.backup", p)
        before = await s.world.storage.answered_before(once, BackupMade)
        if before is not None:
            return before
        made = await s.maintenance.ask(Backup(p.path), DEADLINE)
        return await s.world.storage.remember(once, made, BackupMade, now())

    return {
        StoreVerify: verify,
        StoreBackup: backup,
        DaemonPing: ping,
        DaemonStatus: status,
        DaemonShutdown: shutdown,
        ConfigReload: reload,
        CredentialProvide: provide,
        RpcDiscover: discover,
        ModelList: list_models,
        ModelSelect: select_model,
    }


async def memory_status(s: Services, index: IndexState) -> MemoryStatus:
    embedding, retrieval = s.embedding, s.world.models.config.retrieval
    at = posix(index.indexed_at) if index.indexed_at is not None else None
    return MemoryStatus(
        indexed_at=index.indexed_at,
        index_age_s=round(max(0.0, time.time() - at), 1) if at is not None else None,
        unindexed_turns=index.unindexed,
        passages=index.passages,
        embedder=embedding.active.embedder if embedding.active is not None else None,
        target=retrieval.embedder,
        unembedded=await embedding.left(),
        degraded=embedding.problem,
        watching=s.world.models.config.imports.watch,
    )


def _is_link(text: str) -> bool:
    return len(text) == 64 and all(c in "0123456789abcdef" for c in text)
