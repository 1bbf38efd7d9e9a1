"""Subscriptions: replay, joining a live stream, lagging, and leaving."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from contextinfinity.daemon.actors.hub import QUEUE, Filter
from contextinfinity.daemon.rpc import connection as connections
from contextinfinity.daemon.rpc.subscription import PAGE, EventPump, joined
from contextinfinity.daemon.runtime.actor import ActorGone, MailboxFull
from contextinfinity.protocol.errors import Fault, InvalidParams, NotFound, Unavailable
from contextinfinity.protocol.events import Event
from tests.rpc.events import BRANCHES, FILTERS, Ear, Outbox, Story, shown
from tests.rpc.serving import request, serving
from tests.support.daemon import Daemon
from tests.support.provider_server import ProviderServer, Reply
from tests.support.wire import TrioWire, Wire

STEPS = 60


# the pump alone


@pytest.mark.parametrize("wanted", FILTERS, ids=repr)
async def test_replay_gives_what_came_after_the_cursor(nursery: trio.Nursery, wanted: Filter) -> None:
    outbox = Outbox()
    for _ in range(10):
        for branch in BRANCHES:
            outbox.commit(branch)
    for since in range(len(outbox.events) + 1):
        ear = Ear()
        nursery.start_soon(EventPump("x", outbox.hub, outbox, wanted, since, ear.hear).run)  # type: ignore[arg-type]
        await wait_all_tasks_blocked()
        assert ear.durable == [event.cursor for event in outbox.wanted(wanted, since)]
    nursery.cancel_scope.cancel()


async def test_replay_takes_several_pages(nursery: trio.Nursery) -> None:
    outbox, ear = Outbox(), Ear()
    for i in range(PAGE * 2 + 10):
        outbox.commit(["b1", "b2"][i % 2])
    outbox.ticks = lambda: 3
    nursery.start_soon(EventPump("x", outbox.hub, outbox, Filter(branch_id="b1"), 0, ear.hear).run)  # type: ignore[arg-type]
    for _ in range(8):  # while it reads, more happens
        await trio.lowlevel.checkpoint()
        outbox.commit("b1")
    await wait_all_tasks_blocked()
    assert ear.durable == [event.cursor for event in outbox.wanted(Filter(branch_id="b1"), 0)]
    nursery.cancel_scope.cancel()


async def test_whenever_one_joins_nothing_is_missing_and_nothing_comes_twice() -> None:
    for seed in range(12):
        for join in range(STEPS):
            await listen_from(seed, join)


async def listen_from(seed: int, join: int) -> None:
    """One story, one listener that joins at some point of it, with reads and writes that take random time."""
    outbox, ear, rng = Outbox(), Ear(), random.Random(f"{seed} {join}")
    outbox.ticks = lambda: rng.randrange(4)
    story, wanted = Story(outbox, seed), rng.choice(FILTERS)

    async def send(documents: list[bytes]) -> None:
        for _ in range(rng.randrange(4)):
            await trio.lowlevel.checkpoint()
        await ear.hear(documents)

    async with trio.open_nursery() as nursery:
        for _ in range(join):
            story.step()
        since = rng.choice([outbox.hub.cursor, 0, rng.randrange(outbox.hub.cursor + 1)])
        over = story.lives.keys() - story.open
        nursery.start_soon(EventPump("x", outbox.hub, outbox, wanted, since, send).run)  # type: ignore[arg-type]
        for _ in range(join, STEPS):
            for _ in range(rng.choice([0, 0, 1, 3])):
                await trio.lowlevel.checkpoint()
            story.step()
        await wait_all_tasks_blocked()
        assert ear.durable == [event.cursor for event in outbox.wanted(wanted, since)], (seed, join)
        assert ear.lagged == 0
        for name, live in story.lives.items():
            if wanted.wants(Event(0, "", live.branch_id, {}, live.turn_id, live.session_id)):
                assert ear.text(live) == ({} if name in over else shown(live)), (seed, join)
            else:
                assert live.step_id not in ear.texts
        nursery.cancel_scope.cancel()


async def test_a_snapshot_is_the_first_word_on_a_live_stream(nursery: trio.Nursery) -> None:
    outbox, ear = Outbox(), Ear()
    live = outbox.open("a", "b1")
    outbox.open("another branch's", "b2")
    outbox.hub.shown(live, 0, "Hello")
    outbox.hub.shown(live, 1, "aside")
    outbox.hub.durable(live, 5)
    outbox.commit("b1")
    heard: list[Any] = []

    async def send(documents: list[bytes]) -> None:
        await ear.hear(documents)
        heard.extend(documents)

    nursery.start_soon(EventPump("sub", outbox.hub, outbox, Filter(branch_id="b1"), 0, send).run)  # type: ignore[arg-type]
    await wait_all_tasks_blocked()
    outbox.hub.shown(live, 0, ", world")
    await wait_all_tasks_blocked()
    assert ear.types == ["pin.changed", "stream.snapshot", "stream.snapshot", "stream.delta"]
    assert ear.texts["step a"] == {0: "Hello, world", 1: "aside"}
    nursery.cancel_scope.cancel()


async def test_a_stream_without_words_has_a_snapshot_too(nursery: trio.Nursery) -> None:
    outbox, ear = Outbox(), Ear()
    outbox.open("a", "b1")
    nursery.start_soon(EventPump("sub", outbox.hub, outbox, Filter(), 0, ear.hear).run)  # type: ignore[arg-type]
    await wait_all_tasks_blocked()
    assert ear.texts == {"step a": {0: ""}}
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("more", [0, 5], ids=["at rest", "and more comes"])
async def test_who_falls_behind_is_told_and_caught_up(nursery: trio.Nursery, more: int) -> None:
    outbox, ear, gate = Outbox(), Ear(), trio.Event()
    live = outbox.open("a", "b1")

    async def send(documents: list[bytes]) -> None:
        if ear.types:
            await gate.wait()
        await ear.hear(documents)

    pump = EventPump("sub", outbox.hub, outbox, Filter(), 0, send)  # type: ignore[arg-type]
    nursery.start_soon(pump.run)
    await wait_all_tasks_blocked()
    for i in range(QUEUE * 3):
        outbox.hub.shown(live, 0, "x")
        if i % 10 == 0:
            outbox.commit("b2")
            await trio.lowlevel.checkpoint()
    gate.set()
    await wait_all_tasks_blocked()
    with trio.fail_after(1):
        await pump.settled()
    for _ in range(more):
        outbox.hub.shown(live, 0, "y")
        outbox.commit("b1")
    await wait_all_tasks_blocked()
    assert ear.lagged == 1
    assert ear.durable == [event.cursor for event in outbox.events], "nothing durable is lost"
    assert ear.text(live) == shown(live)
    nursery.cancel_scope.cancel()


async def test_a_store_that_is_busy_or_restarts_is_waited_for(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    outbox, ear = Outbox(), Ear()
    outbox.failures = [ActorGone("the store is not open"), MailboxFull("store-reader-0")]
    live = outbox.open("a", "b1")
    for _ in range(3):
        outbox.commit("b1")
    nursery.start_soon(EventPump("sub", outbox.hub, outbox, Filter(), 0, ear.hear).run)  # type: ignore[arg-type]
    for _ in range(30):
        await trio.sleep(0.1)
        outbox.hub.shown(live, 0, "more ")
        outbox.commit("b2")
    await wait_all_tasks_blocked()
    assert outbox.failures == []
    assert ear.durable == [event.cursor for event in outbox.events]
    assert ear.text(live) == shown(live)
    nursery.cancel_scope.cancel()


def delta(text: str, displayed: int, step: str = "s", block: int = 0, cursor: int = 1) -> Event:
    data = {"text": text, "step_id": step, "block": block, "displayed": displayed, "durable": 0}
    return Event(cursor, "stream.delta", "b", data, "t", "s")


def test_deltas_that_wait_together_are_joined() -> None:
    other = Event(2, "turn.phase", "b", {"phase": "done"}, "t", "s")
    apart = [delta("c", 3), delta("d", 4, block=1)]
    found = joined([delta("a", 1), delta("b", 2, cursor=2), other, *apart, delta("e", 1, step="z"), delta("f", 2, step="z")])
    assert found == [delta("ab", 2, cursor=2), other, *apart, delta("ef", 2, step="z")]
    assert joined([]) == []


# through a socket


async def test_every_filter_hears_its_own(tmp_path: Path) -> None:
    outbox = Outbox()
    async with serving(tmp_path, outbox.table()) as served, await served.unix() as wire:
        ids = {}
        for wanted in FILTERS:
            params = {k: v for k, v in (("branch_id", wanted.branch_id), ("session_id", wanted.session_id)) if v}
            answer = await wire.call("events.subscribe", **params)
            assert answer["cursor"] == 0
            ids[answer["subscription_id"]] = wanted
        for branch in BRANCHES:
            outbox.commit(branch)
        await wait_all_tasks_blocked(0.002)
        await wire.call("ping")
        for ident, wanted in ids.items():
            heard = [event["cursor"] for event in wire.events if event["subscription_id"] == ident]
            assert heard == [event.cursor for event in outbox.wanted(wanted, 0)]


async def test_an_event_is_addressed_and_says_where_it_belongs(tmp_path: Path) -> None:
    outbox = Outbox()
    async with serving(tmp_path, outbox.table()) as served, await served.unix() as wire:
        answer = await wire.call("events.subscribe", branch_id="b1")
        live = outbox.open("a", "b1")
        outbox.commit("b1")
        outbox.hub.shown(live, 0, "hi")
        await wait_all_tasks_blocked(0.002)
        await wire.call("ping")
        assert wire.events == [
            {
                "subscription_id": answer["subscription_id"], "cursor": 1, "type": "pin.changed", "branch_id": "b1",
                "session_id": "s1", "data": {"n": 0},
            },
            {
                "subscription_id": answer["subscription_id"], "cursor": 1, "type": "stream.delta", "branch_id": "b1",
                "session_id": "s1", "turn_id": "turn a",
                "data": {"step_id": "step a", "block": 0, "text": "hi", "displayed": 2, "durable": 0},
            },
        ]  # fmt: skip


async def test_a_deaf_client_lags_alone(tmp_path: Path) -> None:
    """It reads nothing while thousands of events pass; another hears each of them in time, and it catches up later."""
    outbox = Outbox()
    live = outbox.open("a", "b1")
    async with serving(tmp_path, outbox.table()) as served, await served.unix() as deaf, await served.unix() as keen:
        await deaf.call("events.subscribe")
        await keen.call("events.subscribe", branch_id="b1")
        ear = Ear()
        for i in range(QUEUE * 4):
            outbox.hub.shown(live, 0, f"{i} " + "x" * 500)
            if i % 100 == 0:
                outbox.commit("b1")
            if i % 50 == 0:
                await drain(keen, ear, until=live.displayed)
                assert ear.text(live) == shown(live), "in time"
        assert ear.lagged == 0
        late = Ear()
        await drain(deaf, late, until=live.displayed)
        assert late.lagged == 1
        assert late.text(live) == shown(live)
        assert late.durable == ear.durable == [event.cursor for event in outbox.events]


async def drain(wire: TrioWire, ear: Ear, until: int) -> None:
    """Hear events until so much of the one stream was shown and nothing durable is outstanding."""
    while True:
        for event in wire.events:
            ear.take(event)
        wire.events.clear()
        if ear.displayed.get("step a", 0) >= until:
            return
        assert await wire.receive() is not None


@pytest.mark.parametrize("attempt", range(20))
async def test_the_answer_to_wait_comes_after_the_deltas(tmp_path: Path, attempt: int) -> None:
    """The last words and the end of a turn come at one instant; in which order tasks wake then is chance."""
    outbox = Outbox()
    live = outbox.open("a", "b1")
    async with serving(tmp_path, outbox.table()) as served, await served.unix() as wire:
        for params in ({}, {"branch_id": "b1"}, {"session_id": "s1"}):
            await wire.call("events.subscribe", **params)
        await wire.send(request("wait", "turn.wait", turn_id="turn a"))
        await wait_all_tasks_blocked(0.002)
        outbox.hub.shown(live, 0, "the last words")
        outbox.commit("b1", "turn.phase", "turn a")
        outbox.hub.closed(live)
        while (await wire.receive()).get("id") != "wait":
            pass
        told = [event["type"] for event in wire.events]
        assert told.count("stream.delta") == told.count("turn.phase") == 3


async def test_who_unsubscribes_hears_no_more(tmp_path: Path) -> None:
    outbox = Outbox()
    async with serving(tmp_path, outbox.table()) as served, await served.unix() as wire:
        leave = (await wire.call("events.subscribe"))["subscription_id"]
        stay = (await wire.call("events.subscribe"))["subscription_id"]
        assert await wire.call("events.unsubscribe", subscription_id=leave) == {}
        outbox.commit("b1")
        await wait_all_tasks_blocked(0.002)
        await wire.call("ping")
        assert [event["subscription_id"] for event in wire.events] == [stay]
        with pytest.raises(NotFound):
            await wire.call("events.unsubscribe", subscription_id=leave)


async def test_nothing_is_told_after_the_answer_to_unsubscribe(tmp_path: Path) -> None:
    """Whatever is published around the instant at which it is handled."""
    outbox = Outbox()
    async with serving(tmp_path, outbox.table()) as served, await served.unix() as wire:
        for attempt in range(80):
            ident = (await wire.call("events.subscribe"))["subscription_id"]
            await wait_all_tasks_blocked()
            await wire.send(request("bye", "events.unsubscribe", subscription_id=ident))
            for _ in range(attempt % 8):
                outbox.commit("b1")
                await trio.lowlevel.checkpoint()
            while (await wire.receive()).get("id") != "bye":
                pass
            seen = len(wire.events)
            await wait_all_tasks_blocked(0.001)
            await wire.call("ping")
            assert len(wire.events) == seen


async def test_unsubscribing_in_mid_write_leaves_frames_whole_and_is_final(tmp_path: Path) -> None:
    outbox = Outbox()
    live = outbox.open("a", "b1")
    async with serving(tmp_path, outbox.table()) as served, await served.unix() as wire:
        ident = (await wire.call("events.subscribe"))["subscription_id"]
        outbox.hub.shown(live, 0, "x" * 1_000_000)
        outbox.hub.shown(live, 1, "y" * 1_000_000)
        await wait_all_tasks_blocked(0.002)
        await wire.send(request("bye", "events.unsubscribe", subscription_id=ident))
        await wait_all_tasks_blocked(0.002)
        outbox.hub.shown(live, 0, "never told")
        while (document := await wire.receive()) is not None and document.get("id") != "bye":
            assert document["params"]["type"] in ("stream.snapshot", "stream.delta")
        await wait_all_tasks_blocked(0.002)
        seen = len(wire.events)
        await wire.call("ping")
        assert len(wire.events) == seen
        assert "never told" not in str(wire.events)


async def test_a_subscription_ends_with_its_connection(tmp_path: Path) -> None:
    outbox = Outbox()
    async with serving(tmp_path, outbox.table()) as served:
        async with await served.unix() as wire, await served.unix() as other:
            ident = (await wire.call("events.subscribe"))["subscription_id"]
            await wire.call("events.subscribe", branch_id="b1")
            with pytest.raises(NotFound):
                await other.call("events.unsubscribe", subscription_id=ident)
            assert len(outbox.hub._broadcast) == 2
        await served.only(0)
        assert len(outbox.hub._broadcast) == 0


@pytest.mark.parametrize(
    ("params", "kind", "hint"),
    [
        ({"branch_id": "nowhere"}, NotFound, "branch"),
        ({"session_id": "nowhere"}, NotFound, "session"),
        ({"since": 4}, InvalidParams, "the last event is 3"),
        ({"since": -1}, InvalidParams, "since"),
        ({"since": "now"}, InvalidParams, "since"),
        ({"branch": "b1"}, InvalidParams, "branch"),
    ],
)
async def test_a_subscription_that_makes_no_sense(tmp_path: Path, params: dict[str, Any], kind: type[Fault], hint: str) -> None:
    outbox = Outbox()
    for branch in BRANCHES:
        outbox.commit(branch)
    async with serving(tmp_path, outbox.table()) as served, await served.unix() as wire:
        with pytest.raises(kind, match=hint):
            await wire.call("events.subscribe", **params)
        assert len(outbox.hub._broadcast) == 0


async def test_a_connection_has_a_bound_on_subscriptions(tmp_path: Path) -> None:
    outbox = Outbox()
    async with serving(tmp_path, outbox.table()) as served, await served.unix() as wire:
        ids = [(await wire.call("events.subscribe"))["subscription_id"] for _ in range(connections.MOST_SUBSCRIPTIONS)]
        with pytest.raises(Unavailable, match="subscriptions already"):
            await wire.call("events.subscribe")
        await wire.call("events.unsubscribe", subscription_id=ids[0])
        await wire.call("events.subscribe")


# with a whole daemon


def said(wire: Wire, branch_id: str, content: str) -> dict[str, Any]:
    submitted = wire.call("turn.submit", branch_id=branch_id, content=content)
    turn: dict[str, Any] = wire.call("turn.wait", turn_id=submitted["turn_id"])
    return turn


def replayed(wire: Wire, marker: dict[str, Any], **params: Any) -> list[tuple[int, str]]:
    """The events of a new subscription up to a marker, which is the last of them."""
    ident = wire.call("events.subscribe", **params)["subscription_id"]
    wire.until(lambda event: event["subscription_id"] == ident and event["cursor"] == marker["cursor"])
    wire.call("events.unsubscribe", subscription_id=ident)
    return [(event["cursor"], event["type"]) for event in wire.events if event["subscription_id"] == ident]


@pytest.mark.slow
@pytest.mark.e2e
def test_replay_from_any_cursor_with_any_filter_also_after_a_restart(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        with daemon.wire() as wire:
            first, second = wire.call("session.create", title="one"), wire.call("session.create", title="two")
            main, other = first["branch"]["id"], second["branch"]["id"]
            said(wire, main, "hello")
            fork = wire.call("branch.fork", branch_id=main)["id"]
            for branch in (fork, other, main):
                wire.call("pin.add", branch_id=branch, text="remember")
                said(wire, branch, "and again")
            wire.call("events.subscribe", since=0)
            for branch in (fork, other, main):
                wire.call("pin.add", branch_id=branch, text="the last word")
            wire.until(lambda _: sum(event["type"] == "pin.changed" for event in wire.events) == 6)
            everything = [event for event in wire.events if not event["type"].startswith("stream.")]
        assert [event["cursor"] for event in everything] == list(range(1, len(everything) + 1))
        sessions = {main: first["session"]["id"], fork: first["session"]["id"], other: second["session"]["id"]}
        for attempt in ("before", "after a restart"):
            with daemon.wire() as wire:
                for branch, session in sessions.items():
                    for key, value in (("branch_id", branch), ("session_id", session)):
                        wanted = [e for e in everything if e[key] == value]
                        for since in (0, *(before["cursor"] for before, _ in pairwise(wanted))):
                            expected = [(e["cursor"], e["type"]) for e in wanted if e["cursor"] > since]
                            found = replayed(wire, wanted[-1], since=since, **{key: value})
                            assert found == expected, (attempt, key, since)
            if attempt == "before":
                daemon.kill9()
                daemon.start()


@pytest.mark.slow
@pytest.mark.e2e
def test_a_turns_deltas_come_before_the_answer_to_wait(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, daemon.wire() as wire:
        created = wire.call("session.create")
        branch = created["branch"]["id"]
        for params in ({}, {"branch_id": branch}, {"session_id": created["session"]["id"]}):
            for _ in range(10):
                ident = wire.call("events.subscribe", **params)["subscription_id"]
                wire.events.clear()
                turn = said(wire, branch, "say something")
                heard = [e for e in wire.events if e["subscription_id"] == ident and e.get("turn_id") == turn["id"]]
                text = "".join(e["data"]["text"] for e in heard if e["type"] == "stream.delta")
                assert text == turn["final_assistant_message"]["rendered_text"]
                assert heard[-1]["type"] == "turn.phase"
                assert heard[-1]["data"]["phase"] == "response_finalized"
                wire.call("events.unsubscribe", subscription_id=ident)


def watched(wire: Wire, turn_id: str, displayed: int) -> None:
    """Wait until so much of a turn's answer was shown."""
    wire.until(lambda event: event.get("turn_id") == turn_id and event["data"].get("displayed", -1) >= displayed)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("policy", ["buffered", "write_ahead"])
def test_joining_a_live_answer_at_any_point(tmp_path: Path, policy: str) -> None:
    pieces = tuple(f"piece {i}, " for i in range(6))
    with ProviderServer(Reply(deltas=pieces)) as provider:
        url = provider.base_url("openai_chat")
        config = f'[models.m]\nprovider = "openai_chat"\nmodel_id = "m"\nbase_url = "{url}"\n[stream]\npolicy = "{policy}"\n'
        with Daemon(tmp_path, config=config) as daemon, daemon.wire() as wire:
            branch = wire.call("session.create")["branch"]["id"]
            wire.call("events.subscribe", branch_id=branch)
            for point in range(1, len(pieces)):
                provider.script(Reply(deltas=pieces, pause_after=point))
                turn = wire.call("turn.submit", branch_id=branch, content="go on")
                watched(wire, turn["turn_id"], len("".join(pieces[:point])))
                with daemon.wire() as late:
                    ear = Ear()
                    late.call("events.subscribe", branch_id=branch)
                    provider.resume()
                    late.call("turn.wait", turn_id=turn["turn_id"])
                    for event in late.events:
                        ear.take(event)
                    (blocks,) = ear.texts.values()
                    assert blocks == {0: "".join(pieces)}, point
