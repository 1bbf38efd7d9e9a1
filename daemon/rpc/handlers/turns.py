"""Methods about turns: submitting, waiting, reading, and what the model saw."""

from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec
import trio

from contextinfinity.daemon.actors.branch import Cancel, Preview, Retry, Submit
from contextinfinity.daemon.actors.hub import Filter
from contextinfinity.daemon.actors.memory import Recalled
from contextinfinity.daemon.actors.retrieval import recall
from contextinfinity.daemon.core.assembly import Assembled, Oversized, last_message, with_memory
from contextinfinity.daemon.core.milestones import has_reached
from contextinfinity.daemon.core.packing import Packed, Quoted
from contextinfinity.daemon.core.untrusted import Artifact, mark
from contextinfinity.daemon.providers.base import ModelRequest
from contextinfinity.daemon.providers.registry import provider
from contextinfinity.daemon.rpc.connection import Connection
from contextinfinity.daemon.rpc.dispatch import Handler
from contextinfinity.daemon.rpc.handlers.keys import keyed
from contextinfinity.daemon.rpc.handlers.times import client_zone
from contextinfinity.daemon.rpc.services import Services
from contextinfinity.daemon.runtime.broadcast import Lagged, Subscription
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage import journals, messages
from contextinfinity.daemon.storage.chunks import QUOTING_PROVIDER
from contextinfinity.daemon.storage.steps import StoredRequest
from contextinfinity.protocol import methods as m
from contextinfinity.protocol.blocks import Message, message, parse_blocks
from contextinfinity.protocol.errors import InvalidParams, InvalidState
from contextinfinity.protocol.events import Event
from contextinfinity.protocol.model import Budget, Context, Phase, RetrievalStats, Retrieved, Step, Turn, Usage

CANCEL_SECONDS = 30.0


def parsed(content: str | list[dict[str, Any]], where: str) -> Message:
    try:
        blocks = content if isinstance(content, str) else parse_blocks(content, "client")
    except msgspec.ValidationError as error:
        raise InvalidParams(f"{where}: {error}") from None
    return message("user", blocks, created_at=now())


def user_message(content: str | list[dict[str, Any]]) -> Message:
    said = parsed(content, "content")
    if not said.blocks or (isinstance(content, str) and not content.strip()):
        raise InvalidParams("content is empty; say something")
    return said


def handlers(s: Services) -> Mapping[type[m.Params[Any]], Handler]:
    storage = s.world.storage

    def submit(_: Connection, p: m.TurnSubmit) -> Awaitable[m.Submitted]:
        if p.tools_mode not in (None, "disabled"):
            raise InvalidParams(f"tools_mode {p.tools_mode!r} is not available: this version runs without tools")
        client_zone(p.tz)
        said = user_message(p.content)
        once = keyed(p.branch_id, p)
        return s.branches.ask(p.branch_id, Submit(said=said, model=p.model, queue=p.queue, tz=p.tz, keyed=once))

    async def reached(turn_id: str, phase: Phase, seconds: float) -> Turn:
        """The turn once it is there or failed, or as it is when the time is up."""
        heard = s.world.hub.subscribe(Filter(turn_id=turn_id), capacity=64)
        try:
            turn = await storage.turn(turn_id)
            with trio.move_on_after(seconds):
                while not has_reached(turn.phase, turn.indexed, phase):
                    await next_milestone(heard)
                    turn = await storage.turn(turn_id)
            return turn
        finally:
            heard.close()

    async def wait(connection: Connection, p: m.TurnWait) -> Turn:
        turn = await reached(p.turn_id, p.phase, p.timeout_s)
        await connection.settled()
        return turn if has_reached(turn.phase, turn.indexed, p.phase) else msgspec.structs.replace(turn, timed_out=True)

    async def get(_: Connection, p: m.TurnGet) -> Turn:
        return await storage.turn(p.turn_id)

    async def list_turns(_: Connection, p: m.TurnList) -> m.TurnPage:
        return await storage.list_turns(p.branch_id, p.after_seq, p.limit)

    async def cancel(_: Connection, p: m.TurnCancel) -> Turn:
        turn = await storage.turn(p.turn_id)
        await storage.remember(keyed(turn.branch_id, p), p.turn_id, str, now())
        if has_reached(turn.phase, turn.indexed, "response_finalized"):
            return turn
        await s.branches.ask(turn.branch_id, Cancel(p.turn_id))
        return await reached(p.turn_id, "response_finalized", CANCEL_SECONDS)

    async def retry(_: Connection, p: m.TurnRetry) -> Turn:
        turn = await storage.turn(p.turn_id)
        branch_id = p.branch_id or turn.branch_id
        once = keyed(branch_id, p)
        submitted = await s.branches.ask(branch_id, Retry(turn=turn, model=p.model, keyed=once))
        return await storage.turn(submitted.turn_id)

    async def context(_: Connection, p: m.TurnContext) -> Context:
        turn = await storage.turn(p.turn_id)
        if not turn.steps:
            raise InvalidState("this turn never reached a model, so there is no context to show", id=turn.id, phase=turn.phase)
        stored = await storage.step_request(turn.steps[0].id)
        state = await storage.state(stored.context["state_id"])
        return rebuilt_context(stored, state.summary)

    async def step(_: Connection, p: m.StepGet) -> Step:
        request = await storage.step_request(p.step_id)
        path = journals.path_of(s.world.streams, p.step_id)
        journal = await trio.to_thread.run_sync(journals.read_raw, path)
        return await storage.step(p.step_id, provider(request.provider).body(model_request(request)), journal)

    async def preview(_: Connection, p: m.ContextPreview) -> Context:
        said = user_message(p.content)
        assembled = await s.branches.ask(p.branch_id, Preview(said, p.model))
        state = (await storage.states(p.branch_id, 1))[0]
        recalled = Recalled()
        if isinstance(assembled, Assembled):
            model = p.model or (await storage.branch(p.branch_id)).model
            everywhere = s.world.models.provider(model).name == QUOTING_PROVIDER
            recalled = await recall(s.world, p.branch_id, assembled, said, None, everywhere=everywhere)
            assembled = with_memory(assembled, recalled.packed, mark(await storage.memory_secret(), s.world.mint()))
        return preview_context(assembled, recalled.stats, state.summary)

    return {
        m.TurnSubmit: submit,
        m.TurnWait: wait,
        m.TurnGet: get,
        m.TurnList: list_turns,
        m.TurnCancel: cancel,
        m.TurnRetry: retry,
        m.TurnContext: context,
        m.StepGet: step,
        m.ContextPreview: preview,
    }


async def next_milestone(heard: Subscription[Event]) -> None:
    """Wait until the turn that is listened to has moved, or until nobody can tell any more whether it has."""
    while True:
        try:
            if any(event.type in ("turn.phase", "turn.indexed") for event in await heard.receive()):
                return
        except Lagged:
            return


def model_request(stored: StoredRequest) -> ModelRequest:
    *earlier, new = (messages.decode(document) for document in stored.messages)
    memory = "" if stored.provider == QUOTING_PROVIDER else stored.memory
    said = (*earlier, last_message(memory, new))
    return ModelRequest(stored.model_id, stored.system.decode(), said, stored.max_output_tokens)


def rebuilt_context(stored: StoredRequest, summary: str) -> Context:
    """What the model saw, put together again from the parts that were kept."""
    *pending, said = (messages.decode(document) for document in stored.messages)
    kept = stored.context
    return Context(
        system=stored.system.decode(),
        tools=(),
        pins=tuple(kept["pins"]),
        state_summary=summary,
        pending=tuple(pending),
        retrieved=tuple(retrieved(*pair) for pair in stored.quoted),
        retrieval=msgspec.convert(kept.get("retrieval", {}), RetrievalStats),
        facts=(),
        user_message=said,
        budget=msgspec.convert(kept["budget"], Budget),
        usage=msgspec.convert(kept["usage"], Usage),
        shrink_log=(),
        prefix_hash=kept["prefix_hash"],
    )


def retrieved(quoted: Quoted, one: Artifact) -> Retrieved:
    return Retrieved(
        chunk_id=one.chunk_id,
        turn_id=one.turn_id,
        session_id=one.session_id,
        role=one.role,
        speaker=one.speaker,
        text=one.text,
        form=quoted.form,
        score=quoted.score,
        similarity=quoted.similarity,
        created_at=one.at,
    )


def preview_context(made: Assembled | Oversized, stats: RetrievalStats, summary: str) -> Context:
    fits = isinstance(made, Assembled)
    packed = made.packed if isinstance(made, Assembled) else Packed()
    return Context(
        system=made.system,
        tools=(),
        pins=made.pins,
        state_summary=summary,
        pending=made.pending() if isinstance(made, Assembled) else (),
        retrieved=tuple(map(retrieved, packed.quoted, packed.artifacts)),
        retrieval=stats,
        facts=(),
        user_message=made.new.message,
        budget=made.budget,
        usage=made.usage,
        shrink_log=(),
        prefix_hash=made.prefix_hash if isinstance(made, Assembled) else "",
        status="ready" if fits else "too_large",
    )
