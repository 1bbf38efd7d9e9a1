"""Cancellation at every step: wherever it strikes, everybody is answered, nobody is left, and the order holds."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from contextinfinity.daemon.runtime.actor import ActorGone, Envelope, Ref, Request
from contextinfinity.daemon.runtime.supervisor import Supervisor
from tests.runtime.stage import GUARD, Crash, Echo, Held, Probe, Relay, Stage, Which

pytestmark = [pytest.mark.timeout(20), pytest.mark.slow]

ORDER = "anxdb"
"""The tree of `Life`, in the order in which its actors start."""


class Strike(trio.abc.Instrument):
    """Cancels its scope before the n-th step that any task takes once it is armed."""

    def __init__(self, n: int) -> None:
        self.scope = trio.CancelScope()
        self.left = n
        self.armed = False
        self.stage = Stage()
        self.since = 0  # the length of the log when it struck

    @property
    def missed(self) -> bool:
        return self.left > 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.armed:
            self.left -= 1
            if self.left == 0:
                self.now()

    def now(self) -> None:
        self.armed = False
        self.since = len(self.stage.log)
        self.scope.cancel()


def sweep(scenario: Callable[[Strike], Awaitable[None]]) -> int:
    """Plays it once for each step there is, and once to the end."""
    n = 0
    while True:
        n += 1
        strike = Strike(n)
        try:
            trio.run(scenario, strike, clock=MockClock(autojump_threshold=0), instruments=[strike])
        except BaseException as error:
            error.add_note(f"cancelled before step {n}")
            raise
        if strike.missed:
            return n


class Noted(Probe):
    """Notes whether it ended by itself or was asked to."""

    async def handle(self, message: Any) -> object:
        if isinstance(message, Crash):
            self.serves = False  # its stop is its own affair, out of order
        return await super().handle(message)


class Life:
    """A tree with everything: an actor before, a supervisor with a static and a dynamic child, and one after it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.answers: dict[str, object] = {}
        self.over = False
        self.root = Supervisor("root", "rest_for_one", grace=1)
        self.inner = Supervisor("inner", intensity=1, grace=1)
        (self.a,) = self.stage.add(self.root, "a", kind=Noted)
        self.n, self.x = self.stage.add(self.inner, "n", "x", kind=Noted)
        self.root.add_supervisor(self.inner)
        (self.b,) = self.stage.add(self.root, "b", kind=Noted)

    async def run(self, scope: trio.CancelScope) -> None:
        with scope:
            await self.root.run()
        self.over = True

    async def ask(self, key: str, ref: Ref, request: Request[Any]) -> None:
        self.answers[key] = "none"
        try:
            self.answers[key] = await ref.ask(request)
        except ActorGone:
            self.answers[key] = "gone"

    async def play(self) -> None:
        """Crashes that restart one, some and all, with asks before and between and after."""
        a, n, x, b = self.a, self.n, self.x, self.b
        async with trio.open_nursery() as askers:
            asks: list[tuple[str, Ref, Request[Any]]] = [
                ("early a", a, Echo("1")),
                ("early x", x, Echo("2")),
                ("early b", b, Relay(a, "3")),
                ("crash b", b, Crash()),
                ("again b", b, Relay(x, "4")),
                ("crash n", n, Crash()),
                ("after n", n, Which()),
            ]
            for key, ref, request in asks:
                askers.start_soon(self.ask, key, ref, request)
            askers.start_soon(self.sprout)
        async with trio.open_nursery() as askers:
            askers.start_soon(self.ask, "crash a", a, Crash())
            askers.start_soon(self.ask, "last b", b, Relay(a, "5"))
        await trio.sleep(5)  # until everybody is back
        await self.ask("last x", x, Relay(a, "6"))

    async def sprout(self) -> None:
        while not self.over:
            try:
                d = await self.inner.start_child("d", self.stage.make("d", Noted))
            except ActorGone:
                await trio.sleep(0.01)
            else:
                await self.ask("d", d, Relay(self.a, "7"))
                return

    def check(self, since: int) -> None:
        stage = self.stage
        assert "none" not in self.answers.values()
        assert stage.alive.total() == 0
        assert stage.crowded == set()
        stopped = [ORDER.index(entry[1]) for entry in stage.log[since:] if entry.startswith("-")]
        assert stopped == sorted(stopped, reverse=True)
        for ref in self.a, self.n, self.x, self.b:
            assert ref.closed
        assert {row.state for row in self.root.status()} == {"stopped"}


def test_a_tree_that_is_cancelled_at_any_step_stops_in_order_and_answers_everybody() -> None:
    async def scenario(strike: Strike) -> None:
        life = Life(strike.stage)
        strike.armed = True
        with trio.fail_after(GUARD):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(life.run, strike.scope)
                await life.play()
                if strike.missed:
                    strike.now()
        life.check(strike.since)
        if strike.missed:  # undisturbed, the play has an end that is known
            lives = life.stage.lives
            assert life.answers["last x"] == "a: 6"
            assert (lives["a"], lives["n"], life.answers["crash n"]) == (2, 3, "gone")

    assert sweep(scenario) > 100


def test_a_starter_that_is_cancelled_at_any_step_leaves_a_child_or_nothing() -> None:
    async def scenario(strike: Strike) -> None:
        stage = strike.stage
        supervisor = Supervisor("top", grace=1)
        (a,) = stage.add(supervisor, "a")
        started: list[Ref] = []

        async def start() -> None:
            with strike.scope:
                strike.armed = True
                started.append(await supervisor.start_child("d", stage.make("d", Held)))
            strike.armed = False
            assert [row.name for row in supervisor.status()] == ["a", *("d" for _ in started)]
            assert stage.alive["d"] == len(started)

        async def open_gate() -> None:
            await wait_all_tasks_blocked()
            stage.gate.set()

        with trio.fail_after(GUARD):
            async with trio.open_nursery() as nursery:
                await nursery.start(supervisor.run)
                async with trio.open_nursery() as starter:
                    starter.start_soon(start)
                    starter.start_soon(open_gate)
                assert await a.ask(Which()) == 1
                for ref in started:
                    assert await ref.ask(Which()) == 1
                nursery.cancel_scope.cancel()
        assert stage.alive.total() == 0

    assert sweep(scenario) > 5


def test_a_stopper_that_is_cancelled_at_any_step_leaves_no_child_that_is_half_stopped() -> None:
    async def scenario(strike: Strike) -> None:
        stage = strike.stage
        supervisor = Supervisor("top", grace=1)
        with trio.fail_after(GUARD):
            async with trio.open_nursery() as nursery:
                await nursery.start(supervisor.run)
                d = await supervisor.start_child("d", stage.make("d"))
                asked = [d.post(Envelope(Echo(str(n)))) for n in range(3)]
                with strike.scope:
                    strike.armed = True
                    await supervisor.stop_child(d)
                strike.armed = False
                await wait_all_tasks_blocked()
                assert [await each for each in asked] == ["d: 0", "d: 1", "d: 2"]
                assert d.closed
                assert supervisor.status() == []
                assert stage.alive["d"] == 0
                nursery.cancel_scope.cancel()

    assert sweep(scenario) > 3


async def test_a_tree_that_is_cancelled_before_it_begins_still_ends(autojump_clock: MockClock) -> None:
    life = Life(Stage())
    scope = trio.CancelScope()
    scope.cancel()
    with trio.fail_after(GUARD):
        await life.run(scope)
    life.check(0)
