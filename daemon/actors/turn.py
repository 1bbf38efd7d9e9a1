"""Runs one turn from its accepted words to its recorded end: assemble, call the provider, journal, finalise.

Every way out (answer, provider error, cancel, shutdown, bug) ends in exactly one recorded outcome.
"""

import hashlib
import logging
from contextlib import aclosing

import msgspec
import trio

from contextinfinity.daemon.actors.hub import Live
from contextinfinity.daemon.actors.janitor import PackJournal
from contextinfinity.daemon.actors.journal import OpenStep, StepJournal
from contextinfinity.daemon.actors.retrieval import quotable, recall
from contextinfinity.daemon.actors.window import measured
from contextinfinity.daemon.actors.world import World
from contextinfinity.daemon.core.assembly import Assembled, Piece, assemble, last_message, request_hash, with_memory
from contextinfinity.daemon.core.recovery import INTERRUPTED, verdict
from contextinfinity.daemon.core.transcript import Answer, TextDelta
from contextinfinity.daemon.core.untrusted import mark
from contextinfinity.daemon.providers.base import Endpoint, ModelRequest, Provider
from contextinfinity.daemon.runtime import failpoints
from contextinfinity.daemon.runtime.actor import ActorGone, nudge
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage.chunks import QUOTING_PROVIDER
from contextinfinity.daemon.storage.journals import ERROR
from contextinfinity.daemon.storage.steps import EndedStep, NewStep, Part, Recipe, Turns
from contextinfinity.protocol.blocks import Message, message
from contextinfinity.protocol.errors import ErrorObject, Fault, InternalError, StorageFull
from contextinfinity.protocol.model import Branch, CancelledOutcome, Incomplete, Outcome, RetrievalStats

log = logging.getLogger(__name__)

CLEANUP_DEADLINE = 10.0
FULL_RETRY_SECONDS = 1.0
ACK_TICKS = 4  # turns of the event loop in which the acknowledgement of the words gets out before work on them begins
CANCELLED = ErrorObject(-32800, "stopped by you (turn.cancel)", {"code": "cancelled"})
CUT_OFF = ErrorObject(
    -32005,
    "the provider's stream ended before its answer was complete; `ctx retry` (turn.retry) asks again",
    {"code": "incomplete", "retryable": True},
)


class Accepted(msgspec.Struct, frozen=True):
    """A turn in line: its words are on disk."""

    turn_id: str
    said: Message
    model: str
    tz: str | None = None


class TurnRun:
    """One turn under way; `cancel` ends it early and keeps what was said."""

    def __init__(self, world: World, branch: Branch, turn: Accepted) -> None:
        self.turn = turn
        self.ending = False
        self.waits_for_space = False
        self.done = trio.Event()  # set by the branch, once the turn is part of its window
        self._world = world
        self._branch = branch
        self._scope = trio.CancelScope()
        self._stopped_by: ErrorObject = INTERRUPTED
        self._answer = Answer()
        self._journal: StepJournal | None = None
        self._step_id: str | None = None

    def cancel(self, why: ErrorObject = CANCELLED) -> None:
        self._stopped_by = why
        self._scope.cancel()

    async def run(self, system: str, pins: tuple[str, ...], recent: list[Piece]) -> None:
        error: ErrorObject | None = None
        try:
            with self._scope:
                error = await self._respond(system, pins, recent)
            if self._scope.cancelled_caught:
                error = self._stopped_by
        except Fault as fault:
            error = fault.to_error()
        except Exception:
            incident = self._world.mint()
            log.exception("turn %s failed, incident %s", self.turn.turn_id, incident)
            error = InternalError(f"a bug stopped this turn; incident {incident} is in the log", incident=incident).to_error()
        except trio.Cancelled:  # the branch itself is going away
            with trio.move_on_after(CLEANUP_DEADLINE, shield=True):
                await self._record_while_leaving()
            raise
        self.ending = True
        await self._record_when_possible(error)

    async def _record_and_index(self, error: ErrorObject | None) -> None:
        await self._record(error)
        nudge(self._world.indexer)

    async def _record_when_possible(self, error: ErrorObject | None) -> None:
        """A full disk delays the record, it does not lose it: the answer stays here, and its journal on disk."""
        while True:
            self.waits_for_space = False
            try:
                with trio.CancelScope(shield=True):
                    await self._record_and_index(error)
                return
            except StorageFull:
                self.waits_for_space = True
                log.error("turn %s cannot be recorded: the disk is full", self.turn.turn_id)
            await trio.sleep(FULL_RETRY_SECONDS)

    async def _record_while_leaving(self) -> None:
        try:
            await self._record(self._stopped_by)
        except (Fault, ActorGone) as error:
            log.warning("turn %s is recovered at the next start: %s", self.turn.turn_id, error)

    async def _respond(self, system: str, pins: tuple[str, ...], recent: list[Piece]) -> ErrorObject | None:
        world, turn = self._world, self.turn
        for _ in range(ACK_TICKS):
            await trio.lowlevel.checkpoint()
        failpoints.hit("turn.acknowledged")
        limits = world.models.limits(turn.model)
        assembled = assemble(system, pins, recent, measured(turn.said), limits, world.models.reserves())
        provider, endpoint = world.models.provider(turn.model), await world.models.endpoint(turn.model)
        quoting = provider.name == QUOTING_PROVIDER
        recalled = await recall(world, self._branch.id, assembled, turn.said, turn.tz, everywhere=quoting)
        secret = await world.storage.memory_secret()
        assembled = with_memory(assembled, recalled.packed, mark(secret, turn.turn_id))
        said = turn.said if quoting else last_message(assembled.memory, turn.said)
        request = ModelRequest(
            endpoint.model_id,
            assembled.system,
            (*assembled.pending(), said),
            assembled.max_output_tokens,
            quotable(assembled, self._branch.session_id) if quoting else (),
        )
        step = new_step(world.mint(), turn.turn_id, provider.name, request, assembled, self._branch.head_state, recalled.stats)
        failpoints.hit("turn.assembled")
        live = Live(step.id, turn.turn_id, self._branch.id, self._branch.session_id)
        with trio.CancelScope(shield=True):  # a cancel must find either no step, or a step and its journal
            await world.storage.begin_response(turn.turn_id, step, self._branch.head_state, step.at)
            self._step_id = step.id
            failpoints.hit("turn.responding")
            journal = await world.journal.ask(OpenStep(live, provider.name, endpoint.model_id))
            self._journal = journal
        return await self._stream(provider, request, endpoint, journal)

    async def _stream(
        self, provider: Provider, request: ModelRequest, endpoint: Endpoint, journal: StepJournal
    ) -> ErrorObject | None:
        answer = self._answer
        try:
            async with aclosing(provider.stream(request, endpoint)) as events:
                async for event in events:
                    texts = []
                    for effect in provider.normalise(event):
                        answer.apply(effect)
                        if isinstance(effect, TextDelta):
                            texts.append((effect.block, effect.text))
                    journal.append(event.type, event.payload, texts)
                    failpoints.hit("turn.streaming")
                    await journal.room()
        except Fault as fault:
            error = fault.to_error()
            journal.append(ERROR, msgspec.to_builtins(error))
            return error
        return None

    async def _record(self, error: ErrorObject | None) -> None:
        """Write down how it ended. TX-A follows the journal's last sync, so recovery always finds one or the other."""
        world, turn_id = self._world, self.turn.turn_id
        if self._step_id is None or self._journal is None:
            error = error or INTERRUPTED
            await world.storage.fail_turn(turn_id, error, self._ended(Incomplete(error.message)), "", now())
            return
        interrupted = error is INTERRUPTED  # judged like a journal after a crash: the answer may be whole all the same
        failpoints.hit("turn.streamed")
        judged = verdict(self._answer, None if interrupted else error, INTERRUPTED if interrupted else CUT_OFF)
        outcome: Outcome = CancelledOutcome() if error is CANCELLED else judged.outcome
        try:
            await self._seal(self._journal)
            failpoints.hit("turn.sealed")
            ended = self._ended(outcome)
            if judged.error is None:
                said = message("assistant", self._answer.blocks(), created_at=now())
                assert ended is not None
                await world.storage.finalize_response(turn_id, ended, said, now())
            else:
                await world.storage.fail_turn(turn_id, judged.error, ended, self._answer.text(), now())
            failpoints.hit("turn.recorded")
        finally:
            world.hub.closed(self._journal.live)
        nudge(world.janitor, PackJournal(self._step_id))

    @staticmethod
    async def _seal(journal: StepJournal) -> None:
        """The journal may have no room for the end of an answer; the database may still have it, and is tried next."""
        try:
            await journal.seal()
        except StorageFull:
            log.warning("journal %s is cut short: the disk is full", journal.live.step_id)

    def _ended(self, outcome: Outcome) -> EndedStep | None:
        if self._step_id is None:
            return None
        live = self._journal.live if self._journal is not None else None
        return EndedStep(
            id=self._step_id,
            outcome=outcome,
            items=self._answer.items(),
            usage=self._answer.usage,
            displayed=live.displayed if live else 0,
            durable=live.durable if live else 0,
        )


def new_step(
    step_id: str,
    turn_id: str,
    provider: str,
    request: ModelRequest,
    assembled: Assembled,
    state_id: str,
    retrieval: RetrievalStats,
) -> NewStep:
    """The request as a recipe over what is stored already, with the hash that proves a rebuilt one."""
    system = request.system.encode()
    parts = {hashlib.sha256(system).digest(): system}
    digests = [e.digest for piece in assembled.pieces for e in piece.entries]
    recipe = Recipe(next(iter(parts)), [], request.model_id, request.max_output_tokens, {
        "state_id": state_id,
        "pins": assembled.pins,
        "budget": assembled.budget,
        "usage": assembled.usage,
        "prefix_hash": assembled.prefix_hash,
        "retrieval": retrieval,
    }, assembled.packed.quoted)  # fmt: skip
    for piece in assembled.pieces:
        last = recipe.messages[-1] if recipe.messages else None
        if not piece.verbatim:
            parts |= {e.digest: e.document for e in piece.entries}
            recipe.messages.extend(Part(e.digest) for e in piece.entries)
        elif isinstance(last, Turns) and last.last == piece.turn_seq - 1:
            recipe.messages[-1] = Turns(last.first, piece.turn_seq)
        else:
            recipe.messages.append(Turns(piece.turn_seq, piece.turn_seq))
    return NewStep(
        id=step_id,
        turn_id=turn_id,
        step_index=0,
        provider=provider,
        model_id=request.model_id,
        recipe=recipe,
        parts=parts,
        request_hash=request_hash(
            request.model_id,
            request.system,
            [*digests, assembled.new.digest],
            request.max_output_tokens,
            assembled.memory,
        ),
        at=now(),
    )
