"""Supervisors of supervisors: failure goes up one level at a time, and what comes back is reached through the same refs."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from contextinfinity.daemon.runtime.actor import ActorGone, Envelope
from contextinfinity.daemon.runtime.supervisor import RestartLimit, Supervisor
from tests.runtime.stage import (
    GUARD,
    Bug,
    Crash,
    Echo,
    Hold,
    Relay,
    Stage,
    Storm,
    Which,
    restarts,
    running,
    states,
)

pytestmark = pytest.mark.timeout(10)


async def test_a_tree_starts_in_order_and_stops_in_reverse(stage: Stage, autojump_clock: MockClock) -> None:
    root, inner = Supervisor("root", "rest_for_one"), Supervisor("inner")
    stage.add(root, "a")
    stage.add(inner, "x", "y")
    root.add_supervisor(inner)
    stage.add(root, "z")
    async with running(root):
        assert stage.fresh_log() == ["+a1", "+x1", "+y1", "+z1"]
    assert stage.fresh_log() == ["-z1", "-y1", "-x1", "-a1"]


async def test_status_tells_of_the_whole_tree(stage: Stage, autojump_clock: MockClock) -> None:
    root, inner = Supervisor("root"), Supervisor("inner")
    stage.add(root, "a")
    root.add_supervisor(inner)
    (x,) = stage.add(inner, "x")
    async with running(root):
        x.tell(Hold())
        x.tell(Which())
        await inner.start_child("d", stage.make("d"))
        await wait_all_tasks_blocked()
        assert [tuple(row) for row in root.status()] == [
            ("a", "running", 0, 0),
            ("inner", "running", 0, 0),
            ("x", "running", 0, 1),
            ("d", "running", 0, 0),
        ]
        stage.gate.set()


async def test_asks_queued_anywhere_in_the_tree_are_answered_when_it_stops(stage: Stage, autojump_clock: MockClock) -> None:
    root, inner = Supervisor("root", "rest_for_one"), Supervisor("inner")
    (a,) = stage.add(root, "a")
    (x,) = stage.add(inner, "x")
    root.add_supervisor(inner)
    async with running(root):
        d = await inner.start_child("d", stage.make("d"))
        asked = [d.post(Envelope(Relay(x, "from d"))), x.post(Envelope(Relay(a, "from x"))), a.post(Envelope(Echo("own")))]
    assert [await each for each in asked] == ["x: from d", "a: from x", "a: own"]


# a worker's crash


async def test_a_crashing_worker_disconnects_nobody(stage: Stage, autojump_clock: MockClock) -> None:
    root, workers = Supervisor("root", "rest_for_one"), Supervisor("workers", park=True)
    store, rpc = stage.add(root, "store", "rpc")
    root.add_supervisor(workers)
    janitor, sweeper = stage.add(workers, "janitor", "sweeper")
    async with running(root):
        client = rpc.post(Envelope(Hold()))
        for _ in range(10):
            try:
                janitor.tell(Crash())
            except ActorGone:
                break
            await trio.sleep(2)
        assert states(root)["janitor"] == "parked"
        assert restarts(root)["workers"] == 0
        stage.gate.set()
        assert await client == "rpc let go"
        assert [await ref.ask(Which()) for ref in (store, rpc, sweeper)] == [1, 1, 1]


# escalation


async def test_failure_rises_through_every_level_unwrapped(stage: Stage, autojump_clock: MockClock) -> None:
    root, middle, inner = (Supervisor(name, intensity=0) for name in ("root", "middle", "inner"))
    (x,) = stage.add(inner, "x")
    stage.add(root, "a")
    root.add_supervisor(middle)
    middle.add_supervisor(inner)
    x.tell(Crash())
    with trio.fail_after(GUARD), pytest.raises(RestartLimit, match="middle crashed 1 times") as caught:
        await root.run()
    causes: list[BaseException | None] = [caught.value]
    while causes[-1] is not None:
        causes.append(causes[-1].__cause__)
    assert [str(cause) for cause in causes[1:]] == ["inner crashed 1 times in 30 s", "x crashed 1 times in 30 s", "x1", "None"]
    assert stage.log == ["+a1", "+x1", "!x1", "-x1", "-a1"]


async def test_a_first_start_that_fails_deep_down_is_raised_as_it_is(stage: Stage, autojump_clock: MockClock) -> None:
    root, inner = Supervisor("root"), Supervisor("inner")
    stage.add(root, "a")
    root.add_supervisor(inner)
    stage.add(inner, "x")
    stage.failing["x"] = 1
    with trio.fail_after(GUARD), pytest.raises(Bug, match="x cannot start"):
        await root.run()
    assert stage.log == ["+a1", "?x1", "-a1"]


async def test_each_level_counts_its_own_restarts_and_begins_anew(stage: Stage, autojump_clock: MockClock) -> None:
    root, inner = Supervisor("root", intensity=2), Supervisor("inner", intensity=1)
    root.add_supervisor(inner)
    stage.add(inner, "x", kind=Storm)
    with trio.fail_after(GUARD), pytest.raises(RestartLimit, match="inner crashed 3 times"):
        await root.run()
    assert stage.lives["x"] == 3 * 2
    assert stage.started_at["x"] == pytest.approx([0, 0, 0, 0, 0.1, 0.1])
    assert stage.alive.total() == 0


# a supervisor that is restarted


async def test_an_escalated_supervisor_comes_back_with_the_same_refs(stage: Stage, autojump_clock: MockClock) -> None:
    root, inner = Supervisor("root"), Supervisor("inner", intensity=0)
    (a,) = stage.add(root, "a")
    root.add_supervisor(inner)
    x, y = stage.add(inner, "x", "y")
    async with running(root):
        drained = y.post(Envelope(Echo("drained")))
        x.tell(Crash())
        discarded = x.post(Envelope(Which()))
        assert await drained == "y: drained"
        with pytest.raises(ActorGone):
            await discarded
        await wait_all_tasks_blocked()
        for turn in 2, 3:  # and it goes on like this
            assert not x.closed
            assert [await ref.ask(Which()) for ref in (x, y)] == [turn, turn]
            x.tell(Crash())
            await trio.sleep(1)
        assert await a.ask(Which()) == 1
        assert restarts(root)["inner"] == 3
        assert set(states(root).values()) == {"running"}
    assert stage.log[-3:] == ["-y4", "-x4", "-a1"]


async def test_a_supervisor_after_a_crash_comes_back_with_the_same_refs(stage: Stage, autojump_clock: MockClock) -> None:
    root, inner = Supervisor("root", "rest_for_one"), Supervisor("inner")
    (a,) = stage.add(root, "a")
    x, y = stage.add(inner, "x", "y")
    root.add_supervisor(inner)
    async with running(root):
        stage.fresh_log()
        a.tell(Crash())
        await wait_all_tasks_blocked()
        assert stage.fresh_log() == ["!a1", "-a1", "-y1", "-x1", "+a2", "+x2", "+y2"]
        assert [await ref.ask(Which()) for ref in (a, x, y)] == [2, 2, 2]
        y.tell(Crash())
        assert await y.ask(Which()) == 3
        assert restarts(root) == {"a": 1, "inner": 0, "x": 0, "y": 1}


async def test_a_parked_worker_gets_another_chance_with_its_supervisor(stage: Stage, autojump_clock: MockClock) -> None:
    root, workers = Supervisor("root", "rest_for_one"), Supervisor("workers", intensity=1, park=True)
    (rpc,) = stage.add(root, "rpc")
    root.add_supervisor(workers)
    (janitor,) = stage.add(workers, "janitor")
    async with running(root):
        janitor.tell(Crash())
        janitor.tell(Crash())
        await wait_all_tasks_blocked()
        assert states(root)["janitor"] == "parked"
        rpc.tell(Crash())
        await wait_all_tasks_blocked()
        janitor.tell(Crash())
        assert await janitor.ask(Which()) == 4
        assert states(root)["janitor"] == "running"


async def test_a_restarted_supervisor_loses_its_dynamic_children_and_they_answer(
    stage: Stage, autojump_clock: MockClock
) -> None:
    root, inner = Supervisor("root", "rest_for_one"), Supervisor("inner", grace=1)
    (a,) = stage.add(root, "a")
    root.add_supervisor(inner)
    async with running(root):
        d = await inner.start_child("d", stage.make("d"))
        e = await inner.start_child("e", stage.make("e"))
        drained = d.post(Envelope(Echo("drained")))
        held, queued = e.post(Envelope(Hold())), e.post(Envelope(Which()))
        await wait_all_tasks_blocked()
        a.tell(Crash())
        assert await drained == "d: drained"
        for each in held, queued:
            with pytest.raises(ActorGone):
                await each
        await trio.sleep(5)
        assert states(root) == {"a": "running", "inner": "running"}
        assert d.closed
        assert e.closed
        assert stage.lives == {"a": 2, "d": 1, "e": 1}
        again = await inner.start_child("d", stage.make("d"))
        assert await again.ask(Which()) == 2


async def test_exits_from_an_earlier_run_are_not_judged_in_the_next(stage: Stage, autojump_clock: MockClock) -> None:
    """x crashes while inner is stopped by its parent: nobody judges that exit, then or later."""
    root, inner = Supervisor("root", "rest_for_one"), Supervisor("inner", "rest_for_one", intensity=0)
    (a,) = stage.add(root, "a")
    root.add_supervisor(inner)
    x, y = stage.add(inner, "x", "y")
    async with running(root):
        x.tell(Hold())
        x.tell(Crash())
        await wait_all_tasks_blocked()
        a.tell(Crash())
        await wait_all_tasks_blocked()  # a is down, inner waits for x
        stage.gate.set()
        await wait_all_tasks_blocked()
        assert [await ref.ask(Which()) for ref in (a, x, y)] == [2, 2, 2]
        assert restarts(root) == {"a": 1, "inner": 0, "x": 0, "y": 0}
        assert set(states(root).values()) == {"running"}
