"""The async face of storage: one method per thing that happens, each one transaction, bound to an owner.

How work reaches a connection is injected (`write`, `read`), so the store actor decides about threads and batching.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from contextinfinity.daemon.core.hot_index import Passage
from contextinfinity.daemon.storage import branches, chunks, events, imports, jobs, pins, sessions, steps, turns, vectors
from contextinfinity.daemon.storage.connection import Job as Transaction
from contextinfinity.daemon.storage.connection import Tx
from contextinfinity.daemon.storage.idempotency import Once, answered_before, once
from contextinfinity.daemon.storage.jobs import Job
from contextinfinity.protocol.blocks import Message
from contextinfinity.protocol.errors import ErrorObject
from contextinfinity.protocol.events import Event
from contextinfinity.protocol.methods import BranchPage, SessionCreated, SessionPage, Submitted, TurnPage
from contextinfinity.protocol.model import Branch, JobCounts, Pin, Session, State, Step, Turn

T = TypeVar("T")
P = ParamSpec("P")
Submit = Callable[[Transaction], Awaitable[Any]]


class Storage:
    """Sessions, branches, turns, steps, pins and events of one owner."""

    def __init__(self, write: Submit, read: Submit, owner: str = "local") -> None:
        self._write_job = write
        self._read_job = read
        self.owner = owner

    def for_owner(self, owner: str) -> "Storage":
        return Storage(self._write_job, self._read_job, owner)

    def _bind(self, fn: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> Transaction:
        def job(tx: Tx) -> T:
            tx.owner = self.owner
            return fn(tx, *args, **kwargs)

        return job

    async def _write(self, fn: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await self._write_job(self._bind(fn, *args, **kwargs))
        return result

    async def _read(self, fn: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await self._read_job(self._bind(fn, *args, **kwargs))
        return result

    # sessions

    async def create_session(self, new: sessions.NewSession, keyed: Once | None = None) -> SessionCreated:
        return await self._write(sessions.create, new, keyed)

    async def session(self, session_id: str) -> Session:
        return await self._read(sessions.get, session_id)

    async def list_sessions(self, limit: int, cursor: str | None, query: str | None) -> SessionPage:
        return await self._read(sessions.page, limit, cursor, query)

    async def rename_session(self, session_id: str, title: str, keyed: Once | None, at: str) -> Session:
        return await self._write(sessions.rename, session_id, title, keyed, at)

    async def system_text(self, session_id: str) -> str:
        return await self._read(sessions.system_text, session_id)

    # branches, states, pins

    async def branch(self, branch_id: str) -> Branch:
        return await self._read(branches.get, branch_id)

    async def list_branches(self, session_id: str, limit: int = 10_000) -> BranchPage:
        return await self._read(branches.of_session, session_id, limit)

    async def fork_branch(
        self,
        source_id: str,
        at_turn_seq: int | None,
        label: str | None,
        new_id: str,
        at: str,
        *,
        activate: bool = False,
        keyed: Once | None = None,
    ) -> Branch:
        return await self._write(branches.fork, source_id, at_turn_seq, label, new_id, at, activate=activate, keyed=keyed)

    async def activate_branch(self, branch_id: str, keyed: Once | None, at: str) -> Branch:
        return await self._write(branches.activate, branch_id, keyed, at)

    async def select_model(self, branch_id: str, model: str, keyed: Once | None, at: str) -> str:
        return await self._write(branches.select_model, branch_id, model, keyed, at)

    async def states(self, branch_id: str, limit: int) -> list[State]:
        return await self._read(branches.states, branch_id, limit)

    async def state(self, state_id: str) -> State:
        return await self._read(branches.state, state_id)

    async def pins(self, branch_id: str) -> list[Pin]:
        return await self._read(pins.active, branch_id)

    async def add_pin(self, branch: Branch, pin_id: str, text: str, keyed: Once | None, at: str) -> Pin:
        return await self._write(pins.add, branch.id, branch.session_id, pin_id, text, keyed, at)

    async def remove_pin(self, branch: Branch, pin_id: str, keyed: Once | None, at: str) -> Pin:
        return await self._write(pins.remove, branch.id, branch.session_id, pin_id, keyed, at)

    # turns

    async def accept_turn(self, new: turns.NewTurn, keyed: Once | None = None) -> Submitted:
        return await self._write(turns.accept, new, keyed)

    async def remember(self, keyed: Once | None, answer: T, kind: type[T], at: str) -> T:
        """Keep the answer of a keyed call whose effect is not in the database; the first one stays."""
        return await self._write(once, keyed, at, kind, lambda: answer)

    async def answered_before(self, keyed: Once | None, kind: type[T]) -> T | None:
        """What a keyed call answered the first time."""
        return await self._read(answered_before, keyed, kind)

    async def begin_response(self, turn_id: str, step: steps.NewStep, context_state: str, at: str) -> None:
        await self._write(turns.respond, turn_id, step, context_state, at)

    async def finalize_response(
        self, turn_id: str, ended: steps.EndedStep, answer: Message, at: str, *, job: Job | None = None
    ) -> bool:
        return await self._write(turns.finalize, turn_id, ended, answer, at, job)

    async def fail_turn(
        self,
        turn_id: str,
        error: ErrorObject,
        ended: steps.EndedStep | None,
        partial: str,
        at: str,
        *,
        recovered: bool = False,
        job: Job | None = None,
    ) -> bool:
        return await self._write(turns.fail, turn_id, error, ended, partial, at, recovered=recovered, job=job)

    async def turn(self, turn_id: str) -> Turn:
        return await self._read(turns.get, turn_id)

    async def list_turns(self, branch_id: str, after_seq: int, limit: int) -> TurnPage:
        return await self._read(turns.page, branch_id, after_seq, limit)

    async def latest_turns(self, branch_id: str, before_seq: int, limit: int) -> list[Turn]:
        return await self._read(turns.latest, branch_id, before_seq, limit)

    async def retried_turns(self, branch_id: str, turn_ids: list[str]) -> set[str]:
        return await self._read(turns.retried, branch_id, turn_ids)

    async def unfinished_turns(self, branch_id: str | None = None) -> list[turns.Unfinished]:
        return await self._read(turns.unfinished, branch_id)

    # recovery and jobs

    async def unfinished_turn(self, turn_id: str) -> turns.Unfinished | None:
        return await self._read(turns.unfinished_step, turn_id)

    async def enqueue_job(self, kind: jobs.JobType, branch_id: str, turn_id: str | None, at: str) -> bool:
        return await self._write(jobs.enqueue, kind, branch_id, turn_id, at)

    async def claim_job(
        self, kinds: tuple[str, ...], lease: str, clock: float, at: str, turn_id: str | None = None
    ) -> Job | None:
        return await self._write(jobs.claim, kinds, lease, clock, at, turn_id)

    async def finish_job(self, job: Job, at: str) -> None:
        await self._write(jobs.finish, job, at)

    async def fail_job(self, job: Job, error: str, clock: float, chance: float, at: str) -> None:
        await self._write(jobs.fail, job, error, clock, chance, at)

    async def is_parked(self, kind: jobs.JobType, turn_id: str) -> bool:
        return await self._read(jobs.is_parked, kind, turn_id)

    async def release_jobs(self, at: str) -> None:
        await self._write(jobs.release, at)

    async def next_job_at(self, kinds: tuple[str, ...]) -> float | None:
        return await self._read(jobs.next_due, kinds)

    async def job_counts(self) -> JobCounts:
        return await self._read(jobs.counts)

    # memory

    async def index_turn(self, indexed: chunks.IndexedTurn, at: str, job: Job | None, *, embed: bool) -> int:
        return await self._write(chunks.index_turn, indexed, at, job, embed=embed)

    async def said_in(self, turn_id: str) -> tuple[list[Message], str]:
        return await self._read(chunks.said_in, turn_id)

    async def index_turns(self, many: list[chunks.IndexedTurn], job: Job, clock: float, at: str, *, embed: bool) -> int:
        return await self._write(chunks.index_turns, many, job, clock, at, embed=embed)

    async def turns_to_index(self, after: int, limit: int, *, everything: bool) -> list[tuple[int, str]]:
        return await self._read(chunks.to_index, after, limit, everything=everything)

    async def mend_index(self, at: str) -> bool:
        return await self._write(chunks.mend, at)

    async def index_generation(self) -> int:
        return await self._read(chunks.generation)

    async def index_state(self) -> chunks.IndexState:
        return await self._read(chunks.state)

    async def passages_after(self, n: int, limit: int) -> list[Passage]:
        return await self._read(chunks.passages_after, n, limit)

    async def located_chunks(self, passages: list[int]) -> list[chunks.Located | None]:
        return await self._read(chunks.located, passages)

    async def chunk(self, chunk_id: str) -> chunks.Found:
        return await self._read(chunks.by_id, chunk_id)

    async def list_chunks(self, where: dict[str, Any], after: int, limit: int) -> tuple[list[chunks.Found], int | None]:
        return await self._read(chunks.page, where, after, limit)

    async def neighbours(self, turn_id: str, before: int, after: int) -> list[tuple[str, int, Message]]:
        return await self._read(chunks.neighbours, turn_id, before, after)

    async def timeline(
        self, session_id: str | None, branch_id: str | None, around: float | None, limit: int
    ) -> list[chunks.Line]:
        return await self._read(chunks.timeline, session_id, branch_id, around, limit)

    async def moment_of(self, ident: str) -> float | None:
        return await self._read(chunks.moment, ident)

    async def lineage(self, branch_id: str) -> list[branches.Segment]:
        return await self._read(branches.lineage_of, branch_id)

    async def active_lineages(self) -> list[branches.Segment]:
        return await self._read(branches.active_lineages)

    async def turns_left_out(self, turn_ids: frozenset[str]) -> list[int]:
        return await self._read(chunks.left_out, turn_ids)

    async def memory_secret(self) -> bytes:
        return await self._read(steps.secret)

    # vectors

    async def vector_spaces(self) -> list[vectors.Space]:
        return await self._read(vectors.spaces)

    async def ensure_space(self, name: str, embedder: str, dim: int, at: str) -> vectors.Space:
        return await self._write(vectors.ensure, name, embedder, dim, at)

    async def unembedded(self, done_to: int, limit: int) -> list[vectors.Unembedded]:
        return await self._read(vectors.unembedded, done_to, limit)

    async def embedding_backlog(self, done_to: int) -> int:
        return await self._read(vectors.backlog, done_to)

    async def add_vectors(
        self, space: vectors.Space, made: list[tuple[int, bytes]], job: Job | None, clock: float, at: str
    ) -> None:
        await self._write(vectors.add, space, made, job, clock, at)

    async def finish_embedding(self, space: vectors.Space | None, job: Job, at: str) -> bool:
        return await self._write(vectors.finish, space, job, at)

    async def forget_space(self, name: str) -> None:
        await self._write(vectors.forget, name)

    async def vectors_after(self, space: int, passage: int, limit: int) -> tuple[list[int], bytes]:
        return await self._read(vectors.after, space, passage, limit)

    # imports

    async def import_target(self, kind: str, key: str) -> tuple[str, str] | None:
        return await self._read(imports.target, kind, key)

    async def create_import_target(self, kind: str, key: str | None, new: sessions.NewSession) -> tuple[str, str]:
        return await self._write(imports.create_target, kind, key, new)

    async def known_external_ids(self, session_id: str, external_ids: list[str]) -> set[str]:
        return await self._read(imports.known_ids, session_id, external_ids)

    async def add_imported(self, batch: imports.Batch, at: str) -> int:
        return await self._write(imports.add, batch, at)

    async def import_position(self, kind: str, path: str) -> imports.Position | None:
        return await self._read(imports.position, kind, path)

    async def sessions_of_file(self, kind: str, path: str) -> dict[str, str]:
        return await self._read(imports.sessions_of_file, kind, path)

    async def set_import_position(self, kind: str, path: str, reached: imports.Position, at: str) -> None:
        await self._write(imports.set_position, kind, path, reached, at)

    # steps

    async def step_request(self, step_id: str) -> steps.StoredRequest:
        return await self._read(steps.request, step_id)

    async def step(self, step_id: str, body: dict[str, Any], journal: bytes | None) -> Step:
        return await self._read(steps.get, step_id, body, journal)

    async def pack_journals(self, raw: dict[str, bytes]) -> list[str]:
        return await self._write(steps.pack, raw)

    # events and figures

    async def events_after(
        self, cursor: int, upto: int, limit: int, branch_id: str | None = None, session_id: str | None = None
    ) -> list[Event]:
        return await self._read(events.after, cursor, upto, limit, branch_id, session_id)

    async def counts(self) -> tuple[int, int]:
        return await self._read(turns.counts)
