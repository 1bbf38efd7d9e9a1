"""The one table of methods: it drives dispatch, the typed client, `rpc.discover` and docs/protocol.md.

A method is in the table only when it works. Its parameters are a `Params[Result]`, so a call knows its answer's type.
"""

from collections.abc import Callable
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta

from contextinfinity.protocol.blocks import Role
from contextinfinity.protocol.model import (
    Branch,
    Chunk,
    ChunkType,
    Context,
    EmbedderInfo,
    MemoryHit,
    ModelChange,
    ModelInfo,
    Neighbour,
    Phase,
    Pin,
    Pong,
    SearchStats,
    Session,
    State,
    Status,
    Step,
    TimelineEntry,
    Turn,
    VerifyReport,
)

R = TypeVar("R")
P = TypeVar("P", bound="type[Params[Any]]")

Limit = Annotated[int, Meta(ge=1, le=10_000)]
Key = Annotated[str, Meta(min_length=1, max_length=200, description="makes a repeated call answer like the first")]
Content = Annotated[
    str | list[dict[str, Any]], Meta(description="text, or content blocks; kinds not known here are kept as they are")
]


class Params(msgspec.Struct, Generic[R], frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parameters of one method; the type argument is its result."""


class Method(msgspec.Struct, frozen=True):
    name: str
    params: type[Params[Any]]
    result: Any
    doc: str
    inline: bool


METHODS: dict[str, Method] = {}
NAMES: dict[type[Params[Any]], str] = {}


def method(name: str, *, inline: bool = False) -> Callable[[P], P]:
    """Enter a parameter class in the table. `inline`: answered at once on the reader's task, never waits."""

    def enter(params: P) -> P:
        (result,) = get_args(params.__orig_bases__[0])  # type: ignore[attr-defined]  # a generic base leaves it on the class
        METHODS[name] = Method(name, params, result, params.__doc__ or "", inline)
        NAMES[params] = name
        return params

    return enter


class Empty(msgspec.Struct, frozen=True):
    pass


# daemon


@method("daemon.ping", inline=True)
class DaemonPing(Params[Pong], frozen=True, kw_only=True):
    """Is anybody there, and which version?"""


@method("daemon.status")
class DaemonStatus(Params[Status], frozen=True, kw_only=True):
    """Health of the daemon: actors, jobs, clients, storage."""


@method("daemon.shutdown")
class DaemonShutdown(Params[Empty], frozen=True, kw_only=True):
    """Stop in order, as SIGTERM does."""

    idempotency_key: Key | None = None


class Reloaded(msgspec.Struct, frozen=True):
    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]


@method("config.reload")
class ConfigReload(Params[Reloaded], frozen=True, kw_only=True):
    """Read the configuration again, as SIGHUP does; a broken file changes nothing and is an error."""

    idempotency_key: Key | None = None


@method("credential.provide")
class CredentialProvide(Params[Empty], frozen=True, kw_only=True):
    """Hand the daemon an API key for as long as it runs; it is kept in memory only. Unix socket only."""

    provider: str
    key: Annotated[str, Meta(min_length=1)]
    idempotency_key: Key | None = None


@method("rpc.discover")
class RpcDiscover(Params[dict[str, Any]], frozen=True, kw_only=True):
    """This interface as an OpenRPC document."""


# sessions


class SessionCreated(msgspec.Struct, frozen=True):
    session: Session
    branch: Branch


@method("session.create")
class SessionCreate(Params[SessionCreated], frozen=True, kw_only=True):
    """Start a conversation with one empty branch."""

    title: str | None = None
    model: str | None = None
    system: str | None = None
    cwd: str | None = None
    project: str | None = None
    agent: str | None = None
    idempotency_key: Key | None = None


class SessionPage(msgspec.Struct, frozen=True, omit_defaults=True):
    sessions: tuple[Session, ...]
    next_cursor: str | None = None


@method("session.list")
class SessionList(Params[SessionPage], frozen=True, kw_only=True):
    """Conversations, newest first; `query` matches titles."""

    limit: Limit = 100
    cursor: str | None = None
    query: str | None = None


@method("session.get")
class SessionGet(Params[Session], frozen=True, kw_only=True):
    """One conversation."""

    session_id: str


@method("session.rename")
class SessionRename(Params[Session], frozen=True, kw_only=True):
    """Give a conversation another title."""

    session_id: str
    title: str
    idempotency_key: Key | None = None


# branches


class BranchPage(msgspec.Struct, frozen=True):
    branches: tuple[Branch, ...]


@method("branch.list")
class BranchList(Params[BranchPage], frozen=True, kw_only=True):
    """The branches of a session, oldest first."""

    session_id: str
    limit: Limit = 100


@method("branch.get")
class BranchGet(Params[Branch], frozen=True, kw_only=True):
    """One branch: where it stands, what streams, how full its window is."""

    branch_id: str


@method("branch.fork")
class BranchFork(Params[Branch], frozen=True, kw_only=True):
    """A new branch that shares the history up to `at_turn_seq` (default: all of it)."""

    branch_id: str
    at_turn_seq: Annotated[int, Meta(ge=0)] | None = None
    label: str | None = None
    idempotency_key: Key | None = None


@method("branch.rollback")
class BranchRollback(Params[Branch], frozen=True, kw_only=True):
    """Go back to an earlier turn: a fork there becomes the active branch, nothing is deleted."""

    branch_id: str
    to_turn_seq: Annotated[int, Meta(ge=0)]
    idempotency_key: Key | None = None


@method("branch.activate")
class BranchActivate(Params[Branch], frozen=True, kw_only=True):
    """Make this the session's active branch."""

    branch_id: str
    idempotency_key: Key | None = None


# turns


class Submitted(msgspec.Struct, frozen=True):
    turn_id: str
    turn_seq: int


@method("turn.submit")
class TurnSubmit(Params[Submitted], frozen=True, kw_only=True):
    """Say something. Answered once the words are on disk; the answer streams afterwards.

    While a turn is responding this is a conflict with `active_turn_id`, unless `queue` asks to wait in line.
    """

    branch_id: str
    content: Content
    model: str | None = None
    tools_mode: Literal["disabled", "parse_only", "enabled"] | None = None
    idempotency_key: Key | None = None
    queue: bool = False
    tz: str | None = None


@method("turn.wait")
class TurnWait(Params[Turn], frozen=True, kw_only=True):
    """Wait until a turn reaches a milestone or fails; after `timeout_s` the turn as it is, with `timed_out`."""

    turn_id: str
    phase: Phase = "response_finalized"
    timeout_s: Annotated[float, Meta(ge=0, le=86_400)] = 300.0


@method("turn.get")
class TurnGet(Params[Turn], frozen=True, kw_only=True):
    """One turn."""

    turn_id: str


class TurnPage(msgspec.Struct, frozen=True, omit_defaults=True):
    turns: tuple[Turn, ...]
    next_cursor: str | None = None


@method("turn.list")
class TurnList(Params[TurnPage], frozen=True, kw_only=True):
    """The turns of a branch in order, its ancestors' up to the fork included; `next_cursor` is the next `after_seq`."""

    branch_id: str
    after_seq: Annotated[int, Meta(ge=0)] = 0
    limit: Limit = 100


@method("turn.cancel")
class TurnCancel(Params[Turn], frozen=True, kw_only=True):
    """Stop a turn and keep what was said so far; a finished turn is left as it is."""

    turn_id: str
    idempotency_key: Key | None = None


@method("turn.retry")
class TurnRetry(Params[Turn], frozen=True, kw_only=True):
    """Ask again: a new turn with the same words, `retry_of` the failed one, which leaves the prompt.

    A fork may ask again what failed before it left: `branch_id` says where, by default the turn's own branch.
    """

    turn_id: str
    branch_id: str | None = None
    model: str | None = None
    idempotency_key: Key | None = None


@method("turn.context")
class TurnContext(Params[Context], frozen=True, kw_only=True):
    """What the model saw when it answered this turn."""

    turn_id: str


@method("step.get")
class StepGet(Params[Step], frozen=True, kw_only=True):
    """One provider call with its request, raw response, usage and outcome."""

    step_id: str


@method("context.preview")
class ContextPreview(Params[Context], frozen=True, kw_only=True):
    """What the model would see if this were said now; nothing is sent or stored."""

    branch_id: str
    content: Content
    model: str | None = None


# events


class Subscribed(msgspec.Struct, frozen=True):
    subscription_id: str
    cursor: int


@method("events.subscribe")
class EventsSubscribe(Params[Subscribed], frozen=True, kw_only=True):
    """Be told what happens, of one branch, one session or all; `since` replays every durable event after that cursor."""

    branch_id: str | None = None
    session_id: str | None = None
    since: Annotated[int, Meta(ge=0)] | None = None


@method("events.unsubscribe")
class EventsUnsubscribe(Params[Empty], frozen=True, kw_only=True):
    """Be told no more."""

    subscription_id: str


# state and pins


@method("state.get")
class StateGet(Params[State], frozen=True, kw_only=True):
    """The state at the head of a branch."""

    branch_id: str


class StatePage(msgspec.Struct, frozen=True):
    states: tuple[State, ...]


@method("state.history")
class StateHistory(Params[StatePage], frozen=True, kw_only=True):
    """Every state of a branch's lineage, newest first."""

    branch_id: str
    limit: Limit = 100


@method("pin.add")
class PinAdd(Params[Pin], frozen=True, kw_only=True):
    """Keep a sentence word for word in every prompt of this branch and of its forks."""

    branch_id: str
    text: Annotated[str, Meta(min_length=1)]
    idempotency_key: Key | None = None


@method("pin.remove")
class PinRemove(Params[Pin], frozen=True, kw_only=True):
    """Let go of a pin."""

    branch_id: str
    pin_id: str
    idempotency_key: Key | None = None


class PinPage(msgspec.Struct, frozen=True):
    pins: tuple[Pin, ...]


@method("pin.list")
class PinList(Params[PinPage], frozen=True, kw_only=True):
    """The pins active on this branch, oldest first."""

    branch_id: str
    limit: Limit = 100


# memory

Moment = Annotated[str, Meta(description="a time as people write it: 2026-03-01, last Tuesday, 3 days ago, RFC 3339")]
Zone = Annotated[str, Meta(description="the client's time zone: Europe/Berlin, UTC, +02:00")]


class MemoryFound(msgspec.Struct, frozen=True):
    results: tuple[MemoryHit, ...]
    stats: SearchStats


@method("memory.search")
class MemorySearch(Params[MemoryFound], frozen=True, kw_only=True):
    """Find what was said, by words and by meaning; any text is a valid query. Everywhere, in one session, or in the history
    of one branch; each message once, with its best chunk.

    Without an embedder the search is lexical, and `stats.degraded` says so.
    """

    query: str
    session_id: str | None = None
    branch_id: str | None = None
    top_k: Annotated[int, Meta(ge=1, le=1000)] = 6
    mode: Literal["hybrid", "vector", "text"] = "hybrid"
    chunk_types: tuple[ChunkType, ...] | None = None
    since: Moment | None = None
    until: Moment | None = None
    tz: Zone | None = None
    diverse: bool = False


class Surroundings(msgspec.Struct, frozen=True):
    """A chunk, and the messages around it in order; `focus` marks the one it comes from."""

    chunk: Chunk
    messages: tuple[Neighbour, ...]


@method("memory.get")
class MemoryGet(Params[Surroundings], frozen=True, kw_only=True):
    """One chunk with the turn it comes from."""

    chunk_id: str


@method("memory.expand")
class MemoryExpand(Params[Surroundings], frozen=True, kw_only=True):
    """One chunk with this many turns before and after it, whole."""

    chunk_id: str
    before: Annotated[int, Meta(ge=0, le=100)] = 2
    after: Annotated[int, Meta(ge=0, le=100)] = 2


class ChunkPage(msgspec.Struct, frozen=True, omit_defaults=True):
    chunks: tuple[Chunk, ...]
    next_cursor: str | None = None


@method("memory.chunks")
class MemoryChunks(Params[ChunkPage], frozen=True, kw_only=True):
    """Browse the chunks that there are, in the order they were made."""

    session_id: str | None = None
    branch_id: str | None = None
    turn_id: str | None = None
    chunk_type: ChunkType | None = None
    limit: Limit = 100
    cursor: str | None = None


class Timeline(msgspec.Struct, frozen=True):
    entries: tuple[TimelineEntry, ...]


@method("memory.timeline")
class MemoryTimeline(Params[Timeline], frozen=True, kw_only=True):
    """What was said when, a line each, oldest first: the latest, or those around a turn, a chunk or a time."""

    session_id: str | None = None
    branch_id: str | None = None
    around: Annotated[str, Meta(description="a turn id, a chunk id, or a time as people write it")] | None = None
    limit: Limit = 100
    tz: Zone | None = None


class Embedders(msgspec.Struct, frozen=True):
    embedders: tuple[EmbedderInfo, ...]


@method("embedder.list")
class EmbedderList(Params[Embedders], frozen=True, kw_only=True):
    """The embedders that are configured: which is chosen, which answers now, which still has to be installed."""


class Reindexing(msgspec.Struct, frozen=True):
    """`turns` are indexed again, and `passages` embedded, in the background; `daemon.status` shows what is left."""

    job: str
    turns: int
    passages: int


@method("store.reindex")
class StoreReindex(Params[Reindexing], frozen=True, kw_only=True):
    """Make what is missing of the index from the transcript, while search goes on; with `embedder`, all vectors anew by it."""

    embedder: str | None = None
    idempotency_key: Key | None = None


class ImportMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message from elsewhere; `external_id` is what it is called there."""

    role: Role
    text: str | None = None
    content: Content | None = None
    created_at: str | None = None
    external_id: str | None = None
    speaker: str | None = None


class Imported(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of an import: of several conversations the first, all in `sessions`; damaged places are named, not quoted."""

    session_id: str | None
    branch_id: str | None
    turns: int
    skipped: int
    messages: int = 0
    sessions: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    format: str = ""


@method("transcript.import")
class TranscriptImport(Params[Imported], frozen=True, kw_only=True):
    """Take over conversations from messages, or from files and folders of other programs (without `format` it is guessed).

    Messages that are there already are skipped, so it can be repeated; nothing is ever written to the source.
    """

    format: str | None = None
    path: str | None = None
    messages: tuple[ImportMessage, ...] | None = None
    session_id: str | None = None
    title: str | None = None
    idempotency_key: Key | None = None


# the store as a whole


@method("store.verify")
class StoreVerify(Params[VerifyReport], frozen=True, kw_only=True):
    """Re-derive every hash and check every invariant; `anchor` holds head links written down earlier, by branch."""

    anchor: dict[str, str] | None = None


class BackupMade(msgspec.Struct, frozen=True):
    path: str
    bytes: int
    anchors: dict[str, str]


@method("store.backup")
class StoreBackup(Params[BackupMade], frozen=True, kw_only=True):
    """Copy everything to a file while work goes on, and verify the copy; `path` is absolute, default in the home."""

    path: str | None = None
    idempotency_key: Key | None = None


# models


class ModelPage(msgspec.Struct, frozen=True):
    models: tuple[ModelInfo, ...]


@method("model.list")
class ModelList(Params[ModelPage], frozen=True, kw_only=True):
    """The models that are configured, with their limits and where these come from."""

    limit: Limit = 100


@method("model.select")
class ModelSelect(Params[ModelChange], frozen=True, kw_only=True):
    """Use another model for this branch from now on."""

    branch_id: str
    model: str
    idempotency_key: Key | None = None
