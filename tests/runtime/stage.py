"""Actors that write down what happens to them, on a stage where a test can watch them and trip them up."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from contextinfinity.daemon.runtime.actor import Actor, Ref, Request
from contextinfinity.daemon.runtime.supervisor import State, Supervisor

GUARD = 10_000.0
"""Seconds, all of them virtual: on an autojump clock whoever waits forever gets here at once."""


class Expected(Exception):
    """An error that is an answer."""


class Bug(Exception):
    """An error that is a crash."""


class Echo(Request[str], frozen=True):
    text: str


class Which(Request[int], frozen=True):
    """Answers with the number of the incarnation."""


class Refuse(Request[str], frozen=True):
    pass


class Crash(Request[str], frozen=True):
    pass


class Hold(Request[str], frozen=True):
    """Answered when the stage's gate opens."""


class Relay(Request[str], frozen=True):
    """Answered with what the other one says to it."""

    to: Ref
    text: str


class Sprout(Request[str], frozen=True):
    """Start a background task; it crashes when the stage's gate opens."""


class Stage:
    """The log has +a1 (first incarnation of a serves), -a1 (has stopped), !a1 (crashes), ?a1 (cannot start)."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.heard: list[str] = []
        self.lives: Counter[str] = Counter()
        self.alive: Counter[str] = Counter()
        self.crowded: set[str] = set()
        self.failing: Counter[str] = Counter()  # so many of the next starts fail
        self.started_at: dict[str, list[float]] = {}
        self.gate = trio.Event()

    def make(self, name: str, kind: "type[Probe] | None" = None) -> Callable[[], Actor]:
        return lambda: (kind or Probe)(self, name)

    def add(self, supervisor: Supervisor, *names: str, kind: "type[Probe] | None" = None) -> list[Ref]:
        return [supervisor.add(name, self.make(name, kind)) for name in names]

    def fresh_log(self) -> list[str]:
        """What happened since the last call."""
        log, self.log = self.log, []
        return log


class Probe(Actor):
    answers = (Expected,)

    def __init__(self, stage: Stage, name: str) -> None:
        stage.lives[name] += 1
        self.stage = stage
        self.name = name
        self.number = stage.lives[name]
        self.life = f"{name}{self.number}"
        self.serves = False

    async def start(self) -> None:
        stage = self.stage
        stage.alive[self.name] += 1
        if stage.alive[self.name] > 1:
            stage.crowded.add(self.name)
        stage.started_at.setdefault(self.name, []).append(trio.current_time())
        await trio.lowlevel.checkpoint()
        await self.prepare()
        if stage.failing[self.name] > 0:
            stage.failing[self.name] -= 1
            stage.log.append(f"?{self.life}")
            raise Bug(f"{self.name} cannot start")
        stage.log.append(f"+{self.life}")
        self.serves = True

    async def prepare(self) -> None:
        """For those whose start is special."""

    async def handle(self, message: Any) -> object:
        match message:
            case Echo(text):
                await trio.lowlevel.checkpoint()
                self.stage.heard.append(text)
                return f"{self.name}: {text}"
            case Which():
                return self.number
            case Refuse():
                raise Expected(self.name)
            case Crash():
                self.stage.log.append(f"!{self.life}")
                raise Bug(self.life)
            case Hold():
                await self.stage.gate.wait()
                return f"{self.name} let go"
            case Relay(to, text):
                return await to.ask(Echo(text))
            case Sprout():
                self.nursery.start_soon(self._wither)
                return "sprouted"
            case _:
                raise NotImplementedError(message)

    async def _wither(self) -> None:
        await self.stage.gate.wait()
        raise Bug(f"{self.life} withered")

    async def stop(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.serves:
            self.stage.log.append(f"-{self.life}")
        self.stage.alive[self.name] -= 1


class Storm(Probe):
    """Crashes right after every start."""

    async def prepare(self) -> None:
        self.nursery.start_soon(self._soon)

    async def _soon(self) -> None:
        while not self.serves:
            await trio.lowlevel.checkpoint()
        raise Bug(f"{self.life} is in a storm")


class Held(Probe):
    """Starts when the gate opens."""

    async def prepare(self) -> None:
        await self.stage.gate.wait()


class Note(msgspec.Struct, frozen=True):
    """A message nobody understands."""


@asynccontextmanager
async def running(supervisor: Supervisor) -> AsyncIterator[trio.CancelScope]:
    """Runs it for the length of the block, then cancels it and waits for its ordered stop."""
    with trio.fail_after(GUARD):
        async with trio.open_nursery() as nursery:
            await nursery.start(supervisor.run)
            yield nursery.cancel_scope
            nursery.cancel_scope.cancel()


def states(supervisor: Supervisor) -> dict[str, State]:
    return {row.name: row.state for row in supervisor.status()}


def restarts(supervisor: Supervisor) -> dict[str, int]:
    return {row.name: row.restarts for row in supervisor.status()}
