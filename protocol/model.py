"""The things a client can ask about: sessions, branches, states, turns, steps, pins, chunks, contexts, daemon status.

Times are RFC 3339 UTC strings, ids are ULIDs; order comes from sequences, never from clocks.
"""

from typing import Any, Literal

import msgspec

from contextinfinity.protocol.blocks import Message, TranscriptItem
from contextinfinity.protocol.errors import ErrorObject


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of what the daemon answers: optional fields that are unset are left out."""


class Session(Value, frozen=True, kw_only=True):
    id: str
    title: str | None = None
    created_at: str
    active_branch: str
    cwd: str | None = None
    project: str | None = None
    agent: str | None = None
    turns: int
    updated_at: str | None = None


class StreamBytes(msgspec.Struct, frozen=True):
    """UTF-8 bytes of visible text: shown to clients, and safe on disk."""

    displayed: int = 0
    durable: int = 0


class Usage(msgspec.Struct, frozen=True):
    """How full the window is, in estimated tokens; severity 0 below 70 %, 1 below 90 %, 2 above."""

    used: int
    budget: int
    percent: float
    severity: int
    text: str


Phase = Literal[
    "accepted", "context_prepared", "responding", "response_finalized", "state_committed", "indexed", "done", "failed"
]


class Branch(Value, frozen=True, kw_only=True):
    id: str
    session_id: str
    label: str | None = None
    parent_id: str | None = None
    forked_at_turn_seq: int | None = None
    base_state: str
    head_state: str
    head_seq: int
    turn_seq: int
    pending_turns: int
    phase: Phase | None = None
    stream: StreamBytes
    usage: Usage | None = None
    model: str
    created_at: str
    active: bool


class Pin(Value, frozen=True, kw_only=True):
    id: str
    branch_id: str
    text: str
    created_at: str


class State(Value, frozen=True, kw_only=True):
    id: str
    branch_id: str
    state_seq: int
    covers_to_turn_seq: int
    parent_id: str | None = None
    summary: str
    pins: tuple[str, ...]
    token_count_est: int
    made_by: str
    schema_version: int
    created_at: str


class Completed(msgspec.Struct, frozen=True, tag_field="kind", tag="completed"):
    pass


class Incomplete(msgspec.Struct, frozen=True, tag_field="kind", tag="incomplete"):
    reason: str


class Paused(msgspec.Struct, frozen=True, tag_field="kind", tag="paused"):
    reason: str


class Failed(msgspec.Struct, frozen=True, tag_field="kind", tag="failed"):
    code: str
    message: str


class CancelledOutcome(msgspec.Struct, frozen=True, tag_field="kind", tag="cancelled"):
    pass


Outcome = Completed | Incomplete | Paused | Failed | CancelledOutcome


class StepSummary(Value, frozen=True, kw_only=True):
    """One provider call as a turn lists it."""

    id: str
    step_index: int
    provider: str
    model_id: str
    outcome: Outcome | None = None
    started_at: str
    ended_at: str | None = None


class Step(Value, frozen=True, kw_only=True):
    id: str
    turn_id: str
    step_index: int
    provider: str
    model_id: str
    outcome: Outcome | None = None
    request: dict[str, Any]
    request_hash: str
    response: tuple[dict[str, Any], ...]
    items: tuple[TranscriptItem, ...]
    usage: dict[str, int]
    stream: StreamBytes
    started_at: str
    ended_at: str | None = None


class Turn(Value, frozen=True, kw_only=True):
    id: str
    session_id: str
    branch_id: str
    turn_seq: int
    phase: Phase
    indexed: bool
    user_message: Message
    final_assistant_message: Message | None = None
    incomplete: bool = False
    partial_text: str | None = None
    state_before: str
    context_state: str | None = None
    state_after: str | None = None
    steps: tuple[StepSummary, ...]
    retrieved: tuple[str, ...]
    created_chunks: tuple[str, ...]
    retry_of: str | None = None
    protected: bool = False
    error: ErrorObject | None = None
    model: str
    created_at: str
    updated_at: str
    timed_out: bool = False


ChunkType = Literal["code", "explanation", "decision", "user_context", "tool_result", "other"]


class Chunk(Value, frozen=True, kw_only=True):
    """A stretch of one message as search returns it."""

    id: str
    session_id: str
    branch_id: str
    turn_id: str
    role: str
    text: str
    summary: str
    chunk_type: ChunkType
    token_est: int
    content_hash: str
    created_at: str


class MemoryHit(Value, frozen=True, kw_only=True):
    """A chunk that a search found, with the ranks and scores that brought it up and a sentence that says why.

    `external_ids` begins with the message that the result is about, if it was imported; its neighbours' follow.
    """

    chunk_id: str
    turn_id: str
    session_id: str
    branch_id: str
    session_title: str | None = None
    turn_seq: int
    role: str
    speaker: str
    text: str
    summary: str
    passage: str
    chunk_type: ChunkType
    score: float
    score_text: float
    score_vector: float | None = None
    similarity: float | None = None
    rank_text: int | None = None
    rank_vector: int | None = None
    why: str
    created_at: str
    external_ids: tuple[str, ...]


class SearchStats(Value, frozen=True, kw_only=True):
    """How a search went: messages in scope that answer at all, milliseconds, what ran, and what was not available."""

    candidates: int
    searched: int
    took_ms: float
    mode: Literal["hybrid", "vector", "text"]
    embedder: str | None = None
    degraded: str | None = None


class Neighbour(Value, frozen=True, kw_only=True):
    """A message in the surroundings of a chunk."""

    turn_id: str
    turn_seq: int
    role: str
    speaker: str | None = None
    text: str
    created_at: str | None = None
    external_id: str | None = None
    focus: bool = False


class TimelineEntry(Value, frozen=True, kw_only=True):
    """One message as a dated line."""

    turn_id: str
    turn_seq: int
    session_id: str
    branch_id: str
    chunk_id: str
    role: str
    speaker: str
    line: str
    created_at: str


class Retrieved(Value, frozen=True, kw_only=True):
    """A quote from memory in a prompt, as the model saw it."""

    chunk_id: str
    turn_id: str
    session_id: str
    role: str
    speaker: str
    text: str
    form: Literal["whole", "slice", "summary"]
    score: float
    similarity: float | None = None
    created_at: str


class RetrievalStats(Value, frozen=True, kw_only=True):
    """How the search for a prompt went; `degraded` says what was not available, and the turn went on all the same."""

    candidates: int = 0
    selected: int = 0
    tokens: int = 0
    took_ms: float = 0.0
    embed_ms: float = 0.0
    similarity_low: float | None = None
    similarity_high: float | None = None
    degraded: str | None = None


class EmbedderInfo(Value, frozen=True, kw_only=True):
    """An embedder that is configured; `installed` is known for local models only."""

    name: str
    kind: str
    model: str
    installed: bool | None = None
    chosen: bool = False
    active: bool = False


class MemoryStatus(Value, frozen=True, kw_only=True):
    """The state of search: how fresh the index is, and which embedder answers."""

    indexed_at: str | None = None
    index_age_s: float | None = None
    unindexed_turns: int
    passages: int
    embedder: str | None = None
    target: str | None = None
    unembedded: int
    degraded: str | None = None
    watching: tuple[str, ...] = ()


class Budget(msgspec.Struct, frozen=True):
    base_tokens: int
    retrieval_budget: int
    response_reserve: int
    safety_margin: int
    model_limit: int
    limit_source: str


class Context(Value, frozen=True, kw_only=True):
    """What the model sees, part by part; `prefix_hash` covers all before the last message."""

    system: str
    tools: tuple[Any, ...]
    pins: tuple[str, ...]
    state_summary: str
    pending: tuple[Message, ...]
    retrieved: tuple[Retrieved, ...]
    retrieval: RetrievalStats | None = None
    facts: tuple[Any, ...]
    user_message: Message
    budget: Budget
    usage: Usage
    shrink_log: tuple[str, ...]
    prefix_hash: str
    status: Literal["ready", "needs_fold", "too_large"] | None = None


class ModelInfo(Value, frozen=True, kw_only=True):
    name: str
    provider: str
    model_id: str
    context_limit: int
    max_output_tokens: int
    limit_source: str
    default: bool = False
    api_key_env: str | None = None
    key_present: bool | None = None


class ModelChange(Value, frozen=True, kw_only=True):
    change: Literal["none", "shrinking", "expanding"]
    old_budget: int
    new_budget: int
    needs_fold: bool | None = None
    can_restore: int | None = None


class ActorStatus(msgspec.Struct, frozen=True):
    name: str
    state: str
    restarts: int
    mailbox: int


class JobCounts(msgspec.Struct, frozen=True):
    pending: int = 0
    running: int = 0
    failed: int = 0


class StorageStatus(msgspec.Struct, frozen=True):
    bytes: int
    turns: int
    chunks: int


class LibrarianStatus(Value, frozen=True, kw_only=True):
    model: str | None = None
    tokens_today: int
    tokens_limit: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    pid: int
    uptime_s: float
    home: str
    socket: str = ""
    ready: bool
    read_only: bool
    locked: bool
    actors: tuple[ActorStatus, ...]
    jobs: JobCounts
    clients: int
    storage: StorageStatus
    librarian: LibrarianStatus
    memory: MemoryStatus | None = None
    default_model: str
    warnings: tuple[str, ...]


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was checked and what is wrong; `anchors` are the head links to write down elsewhere."""

    ok: bool
    checked: dict[str, int]
    problems: tuple[str, ...]
    anchors: dict[str, str]


class Pong(msgspec.Struct, frozen=True):
    version: str
    protocol: int
    capabilities: tuple[str, ...]
