"""A hub with an outbox in memory, a script of things that happen, and an ear that notices what is missing or told twice."""

import json
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import trio

from contextinfinity.daemon.actors.hub import Filter, Hub, Live
from contextinfinity.daemon.rpc.handlers import events, turns
from contextinfinity.daemon.rpc.services import Services
from contextinfinity.daemon.runtime.ids import IdMint
from contextinfinity.protocol.errors import NotFound
from contextinfinity.protocol.events import Event
from contextinfinity.protocol.methods import NAMES, TurnWait
from contextinfinity.protocol.model import Turn
from tests.protocol.samples import least
from tests.rpc.serving import Table

BRANCHES = {"b1": "s1", "b2": "s1", "b3": "s2"}
"""Branches and the sessions that they belong to."""

FILTERS = [Filter(), Filter(session_id="s1"), Filter(session_id="s2"), *(Filter(branch_id=branch) for branch in BRANCHES)]


class Outbox:
    """Durable events and the side of storage that reads them; `ticks` is how long a read takes."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.events: list[Event] = []
        self.ticks: Callable[[], int] = lambda: 0
        self.failures: list[Exception] = []
        """Raised by the next reads, one each."""

    def commit(self, branch: str, kind: str = "pin.changed", turn_id: str | None = None) -> Event:
        event = Event(len(self.events) + 1, kind, branch, {"n": len(self.events)}, turn_id, BRANCHES[branch])
        self.events.append(event)
        self.hub.committed([event])
        return event

    def open(self, name: str, branch: str) -> Live:
        live = Live(f"step {name}", f"turn {name}", branch, BRANCHES[branch])
        self.hub.opened(live)
        return live

    def wanted(self, wanted: Filter, since: int) -> list[Event]:
        return [event for event in self.events if event.cursor > since and wanted.wants(event)]

    async def events_after(
        self, cursor: int, upto: int, limit: int, branch_id: str | None, session_id: str | None
    ) -> list[Event]:  # fmt: skip
        if self.failures:
            raise self.failures.pop()
        for _ in range(self.ticks()):
            await trio.lowlevel.checkpoint()
        found = [event for event in self.wanted(Filter(branch_id, session_id), cursor) if event.cursor <= upto]
        for _ in range(self.ticks()):
            await trio.lowlevel.checkpoint()
        return found[:limit]

    async def branch(self, branch_id: str) -> None:
        await trio.lowlevel.checkpoint()
        if branch_id not in BRANCHES:
            raise NotFound("no such branch")

    async def session(self, session_id: str) -> None:
        await trio.lowlevel.checkpoint()
        if session_id not in BRANCHES.values():
            raise NotFound("no such session")

    async def turn(self, turn_id: str) -> Turn:
        """A turn is over once anything durable has happened."""
        turn = msgspec.convert({**msgspec.to_builtins(least(Turn)), "id": turn_id}, Turn)
        return msgspec.structs.replace(turn, phase="response_finalized" if self.events else "responding")

    def table(self) -> Table:
        """`events.*` and `turn.wait` as the daemon serves them."""
        world = SimpleNamespace(hub=self.hub, storage=self, mint=IdMint())
        services = cast("Services", SimpleNamespace(world=world))
        found = {**events.handlers(services), TurnWait: turns.handlers(services)[TurnWait]}
        return {kind: (NAMES[kind], handler) for kind, handler in found.items()}


class Story:
    """What happens, one random thing at a time; the same seed tells the same story."""

    def __init__(self, outbox: Outbox, seed: int) -> None:
        self.lives: dict[str, Live] = {}
        self.open: set[str] = set()
        self._outbox = outbox
        self._rng = random.Random(seed)

    def step(self) -> None:
        rng = self._rng
        if rng.random() < 0.35:
            self._outbox.commit(rng.choice(list(BRANCHES)))
        elif not self.open or (len(self.open) < 3 and rng.random() < 0.1):
            name = str(len(self.lives))
            self.lives[name] = self._outbox.open(name, rng.choice(list(BRANCHES)))
            self.open.add(name)
        else:
            self._stream(rng.choice(sorted(self.open)))

    def _stream(self, name: str) -> None:
        live, hub = self.lives[name], self._outbox.hub
        chance = self._rng.random()
        if chance < 0.05:
            hub.closed(live)
            self.open.remove(name)
        elif chance < 0.2:
            hub.durable(live, live.displayed)
        else:
            hub.shown(live, self._rng.randrange(2), self._rng.choice(["a", "ü", "🌍 ", "words and more words "]))


class Ear:
    """Listens to one subscription and keeps account."""

    def __init__(self) -> None:
        self.durable: list[int] = []
        self.types: list[str] = []
        self.texts: dict[str, dict[int, str]] = {}
        self.displayed: dict[str, int] = {}
        self.lagged = 0

    async def hear(self, documents: list[bytes]) -> None:
        for document in documents:
            self.take(json.loads(document)["params"])

    def take(self, event: dict[str, Any]) -> None:
        data, kind = event["data"], event["type"]
        self.types.append(kind)
        match kind:
            case "stream.snapshot":
                self.texts.setdefault(data["step_id"], {})[data["block"]] = data["text"]
                self.displayed[data["step_id"]] = data["displayed"]
            case "stream.delta":
                step, text = data["step_id"], data["text"]
                known = self.displayed.get(step, 0)
                assert data["displayed"] == known + len(text.encode()), "a piece is missing, or was told twice"
                self.displayed[step] = data["displayed"]
                blocks = self.texts.setdefault(step, {})
                blocks[data["block"]] = blocks.get(data["block"], "") + text
            case "stream.durable":
                assert data["displayed"] == self.displayed.get(data["step_id"], 0)
            case "lagged":
                assert data["reset"]
                self.lagged += 1
                self.texts.clear()
                self.displayed.clear()
            case _:
                assert not self.durable or event["cursor"] > self.durable[-1], "durable events come once and in order"
                self.durable.append(event["cursor"])

    def text(self, live: Live) -> dict[int, str]:
        return {block: text for block, text in self.texts.get(live.step_id, {}).items() if text}


def shown(live: Live) -> dict[int, str]:
    return {block: "".join(parts) for block, parts in live.shown.items()}
