"""Wakes branch actors when somebody needs them and lets idle ones sleep, so a million branches on disk cost nothing."""

from collections.abc import Coroutine
from typing import Any, TypeVar

import trio

from contextinfinity.daemon.actors.branch import BranchActor
from contextinfinity.daemon.actors.world import World
from contextinfinity.daemon.runtime.actor import Actor, ActorGone, Envelope, MailboxFull, Ref, Request
from contextinfinity.daemon.runtime.supervisor import Supervisor

R = TypeVar("R")

IDLE_SECONDS = 60.0
SWEEP_SECONDS = 20.0


class _Awake:
    def __init__(self, ref: Ref) -> None:
        self.ref = ref
        self.actor: BranchActor | None = None
        self.used = trio.current_time()


class Branches:
    """`ask` reaches the actor of a branch in the order of the calls, waking it first if it sleeps."""

    def __init__(self, supervisor: Supervisor, world: World) -> None:
        self._supervisor = supervisor
        self._world = world
        self._awake: dict[str, _Awake] = {}
        self._backlog: dict[str, list[Envelope]] = {}

    def ask(self, branch_id: str, request: Request[R]) -> Coroutine[None, None, R]:
        """Queue a request now; await the result for its answer."""
        envelope = Envelope(request)
        awake = self._awake.get(branch_id)
        if branch_id in self._backlog:
            self._backlog[branch_id].append(envelope)
        elif awake is not None and not awake.ref.closed:
            awake.used = trio.current_time()
            return awake.ref.post(envelope)
        else:
            self._backlog[branch_id] = [envelope]
            return self._wake_and_answer(branch_id, envelope)
        return Ref.answer(branch_id, envelope)

    def is_awake(self, branch_id: str) -> bool:
        return branch_id in self._awake or branch_id in self._backlog

    async def _wake_and_answer(self, branch_id: str, envelope: Envelope) -> Any:
        with trio.CancelScope(shield=True):  # others may wait behind this one
            await self._wake_for_backlog(branch_id)
        return await Ref.answer(branch_id, envelope)

    async def _wake_for_backlog(self, branch_id: str) -> None:
        try:
            awake = self._awake[branch_id] = await self._wake(branch_id)
            for waiting in self._backlog[branch_id]:
                try:
                    awake.ref.put(waiting)
                except (ActorGone, MailboxFull) as error:
                    waiting.fail(error)
        except Exception as error:  # noqa: BLE001 - whoever waits for this branch must hear why it did not wake
            for waiting in self._backlog[branch_id]:
                waiting.fail(error)
        finally:
            del self._backlog[branch_id]

    async def _wake(self, branch_id: str) -> _Awake:
        made: list[BranchActor] = []

        def make() -> Actor:
            made[:] = [BranchActor(self._world, branch_id)]
            if branch_id in self._awake:
                self._awake[branch_id].actor = made[0]
            return made[0]

        awake = _Awake(await self._supervisor.start_child(f"branch {branch_id}", make))
        awake.actor = made[0]
        return awake

    async def sweep(self) -> None:
        """Forever: put branches to sleep that nobody used for a while and that have nothing to do."""
        while True:
            await trio.sleep(SWEEP_SECONDS)
            limit = trio.current_time() - IDLE_SECONDS
            for branch_id, awake in list(self._awake.items()):
                if awake.used < limit and awake.actor is not None and not awake.actor.busy:
                    del self._awake[branch_id]
                    await self._supervisor.stop_child(awake.ref)
