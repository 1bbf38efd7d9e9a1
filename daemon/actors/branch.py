"""The branch actor: everything that changes a branch goes through it, one thing at a time, so turns keep their order.

It accepts words (TX-0 before the acknowledgement), runs turns one after another, and asleep it costs nothing.
"""

from collections import deque
from typing import assert_never

import trio

from contextinfinity.daemon.actors.recovery import reconcile
from contextinfinity.daemon.actors.turn import CANCELLED, Accepted, TurnRun
from contextinfinity.daemon.actors.window import Window, measured
from contextinfinity.daemon.actors.world import World
from contextinfinity.daemon.core.assembly import Assembled, Oversized, measure
from contextinfinity.daemon.core.recovery import INTERRUPTED
from contextinfinity.daemon.core.tokens import estimate_text
from contextinfinity.daemon.runtime.actor import Actor, Request
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage.connection import full
from contextinfinity.daemon.storage.idempotency import Once
from contextinfinity.daemon.storage.imports import Batch
from contextinfinity.daemon.storage.turns import NewTurn
from contextinfinity.protocol.blocks import Message
from contextinfinity.protocol.errors import Conflict, ContextTooLarge, Fault, InvalidState, Unavailable
from contextinfinity.protocol.methods import Submitted
from contextinfinity.protocol.model import Branch, Pin, Turn

MOST_QUEUED = 1000
RECORDING_SECONDS = 5.0


class Submit(Request[Submitted], frozen=True, kw_only=True):
    said: Message
    model: str | None = None
    queue: bool = False
    tz: str | None = None
    retry_of: str | None = None
    keyed: Once | None = None


class Cancel(Request[None], frozen=True):
    """Answered when the turn has been told to stop; its failure follows."""

    turn_id: str


class Retry(Request[Submitted], frozen=True, kw_only=True):
    turn: Turn
    model: str | None
    keyed: Once | None


class AddPin(Request[Pin], frozen=True):
    text: str
    keyed: Once | None


class RemovePin(Request[Pin], frozen=True):
    pin_id: str
    keyed: Once | None


class Fork(Request[Branch], frozen=True):
    at_turn_seq: int | None
    label: str | None
    activate: bool
    keyed: Once | None


class Activate(Request[Branch], frozen=True):
    keyed: Once | None


class SelectModel(Request[str], frozen=True):
    """Answers the model that was selected before."""

    model: str
    keyed: Once | None


class Preview(Request[Assembled | Oversized], frozen=True):
    said: Message
    model: str | None = None


class AddImported(Request[int], frozen=True):
    """Answers how many of the turns are new."""

    batch: Batch


BranchMessage = AddImported | Submit | Cancel | Retry | AddPin | RemovePin | Fork | Activate | SelectModel | Preview


class BranchActor(Actor):
    answers = (Fault,)

    def __init__(self, world: World, branch_id: str) -> None:
        self._world = world
        self._id = branch_id
        self._queue: deque[Accepted] = deque()
        self._running: TurnRun | None = None
        self._branch: Branch
        self._window: Window
        self._stale = True
        self._system = ""
        self._pins: tuple[str, ...] = ()

    @property
    def busy(self) -> bool:
        return self._running is not None or bool(self._queue)

    async def start(self) -> None:
        storage = self._world.storage
        self._branch = await storage.branch(self._id)
        if self._world.can_write():
            await reconcile(storage, self._world.streams, await storage.unfinished_turns(self._id))
        self._system = await storage.system_text(self._branch.session_id)
        await self._reload_pins()
        self._window = Window(self._world.models.reserves().working_set_tokens)

    async def stop(self) -> None:
        """What is live or in line ends as interrupted; it never runs again by itself."""
        waiting, self._queue = self._queue, deque()  # first, so that none of them begins when the live one ends
        run = self._running
        if run is not None:
            run.cancel(INTERRUPTED)
            await run.done.wait()
        for turn in waiting:
            await self._world.storage.fail_turn(turn.turn_id, INTERRUPTED, None, "", now())

    async def handle(self, message: BranchMessage) -> object:
        match message:
            case Submit():
                return await self._submit(message)
            case Cancel(turn_id):
                await self._cancel(turn_id)
                return None
            case Retry():
                return await self._retry(message)
            case AddPin(text, keyed):
                self._check_pin_room(text)
                pin = await self._world.storage.add_pin(self._branch, self._world.mint(), text, keyed, now())
                await self._reload_pins()
                return pin
            case RemovePin(pin_id, keyed):
                pin = await self._world.storage.remove_pin(self._branch, pin_id, keyed, now())
                await self._reload_pins()
                return pin
            case Fork(at_turn_seq, label, activate, keyed):
                return await self._world.storage.fork_branch(
                    self._id, at_turn_seq, label, self._world.mint(), now(), activate=activate, keyed=keyed
                )
            case Activate(keyed):
                return await self._world.storage.activate_branch(self._id, keyed, now())
            case SelectModel(model, keyed):
                return await self._select_model(model, keyed)
            case Preview(said, model):
                await self._settle_window()
                return self._preview(said, model)
            case AddImported(batch):
                self._stale = True
                return await self._world.storage.add_imported(batch, now())
            case _:
                assert_never(message)

    async def _submit(self, message: Submit) -> Submitted:
        model = message.model or self._branch.model
        self._world.models.get(model)
        if self._running is not None and self._running.ending and not message.queue:
            if self._running.waits_for_space:
                raise full()
            with trio.move_on_after(RECORDING_SECONDS):  # its answer is being recorded: the next words are welcome
                await self._running.done.wait()
        if self.busy and not message.queue:
            before = await self._world.storage.answered_before(message.keyed, Submitted)
            if before is None:
                raise self._conflict()
            return before
        await self._settle_window()
        if len(self._queue) >= MOST_QUEUED:
            raise Unavailable(f"{MOST_QUEUED} turns wait on this branch already", retry_after=5)
        new = NewTurn(
            id=self._world.mint(),
            branch_id=self._id,
            message=message.said,
            model=model,
            at=now(),
            retry_of=message.retry_of,
            tz=message.tz,
        )
        submitted = await self._world.storage.accept_turn(new, message.keyed)
        if submitted.turn_id == new.id:
            if message.retry_of is not None:
                self._window.drop(message.retry_of)
            self._queue.append(Accepted(new.id, message.said, model, message.tz))
            self._run_next()
        return submitted

    async def _settle_window(self) -> None:
        """Read the recent turns, if this was not done yet or something was imported since."""
        if self._stale and not self.busy:
            self._branch = await self._world.storage.branch(self._id)
            await self._window.fill(self._world.storage, self._id, self._branch.turn_seq + 1)
            self._stale = False

    def _conflict(self) -> Conflict:
        active = self._running.turn.turn_id if self._running is not None else self._queue[0].turn_id
        return Conflict(
            "a turn is still under way on this branch: wait for it, cancel it, or submit with queue: true",
            active_turn_id=active,
        )

    def _run_next(self) -> None:
        if self._running is not None or not self._queue:
            return
        run = TurnRun(self._world, self._branch, self._queue.popleft())
        self._running = run
        self.nursery.start_soon(self._run, run)

    async def _run(self, run: TurnRun) -> None:
        try:
            await run.run(self._system, self._pins, self._window.pieces())
            self._window.append(await self._world.storage.turn(run.turn.turn_id))
            self._running = None
            self._run_next()
        finally:
            run.done.set()

    async def _cancel(self, turn_id: str) -> None:
        for waiting in self._queue:
            if waiting.turn_id == turn_id:
                self._queue.remove(waiting)
                await self._world.storage.fail_turn(turn_id, CANCELLED, None, "", now())
                self._window.append(await self._world.storage.turn(turn_id))
                return
        if self._running is not None and self._running.turn.turn_id == turn_id:
            self._running.cancel()

    async def _retry(self, message: Retry) -> Submitted:
        if message.turn.phase != "failed":
            raise InvalidState(
                "only a failed turn can be asked again; to replace an answer, go back before it with `ctx rollback` "
                "(branch.rollback) and ask anew",
                id=message.turn.id,
            )
        model = message.model or message.turn.model
        return await self._submit(
            Submit(said=message.turn.user_message, model=model, retry_of=message.turn.id, keyed=message.keyed)
        )

    async def _reload_pins(self) -> None:
        self._pins = tuple(pin.text for pin in await self._world.storage.pins(self._id))

    def _check_pin_room(self, text: str) -> None:
        """Pins are in every prompt, so together they have a limit."""
        if text in self._pins:
            return  # it may be the same call again
        room = self._world.models.config.context.pin_tokens
        required = sum(map(estimate_text, (*self._pins, text)))
        if required > room:
            raise ContextTooLarge(
                f"the pins would take about {required} tokens of the {room} they may: shorten this one or remove others",
                required=required,
                budget=room,
                suggestions=["shorten the pin", "remove pins", "raise [context] pin_tokens"],
            )

    async def _select_model(self, model: str, keyed: Once | None) -> str:
        self._world.models.get(model)
        old = await self._world.storage.select_model(self._id, model, keyed, now())
        self._branch = await self._world.storage.branch(self._id)
        return old

    def _preview(self, said: Message, model: str | None) -> Assembled | Oversized:
        models = self._world.models
        limits = models.limits(model or self._branch.model)
        return measure(self._system, self._pins, self._window.pieces(), measured(said), limits, models.reserves())
