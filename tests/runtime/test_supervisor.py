"""One supervisor and its children: who is restarted, when, in which order, and how everybody stops."""

import logging
from collections.abc import Awaitable
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from contextinfinity.daemon.runtime.actor import ActorGone, Envelope, MailboxFull, Ref
from contextinfinity.daemon.runtime.supervisor import RestartLimit, Supervisor, backoff
from tests.runtime.stage import (
    GUARD,
    Bug,
    Crash,
    Echo,
    Expected,
    Held,
    Hold,
    Probe,
    Refuse,
    Relay,
    Sprout,
    Stage,
    Storm,
    Which,
    restarts,
    running,
    states,
)

pytestmark = pytest.mark.timeout(10)


async def answer_or_gone(answer: Awaitable[object]) -> object:
    try:
        return await answer
    except ActorGone:
        return "gone"


# starting


async def test_children_start_in_order_and_stop_in_reverse(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top")
    stage.add(supervisor, "a", "b", "c")
    async with running(supervisor):
        assert stage.fresh_log() == ["+a1", "+b1", "+c1"]
        assert states(supervisor) == {"a": "running", "b": "running", "c": "running"}
    assert stage.fresh_log() == ["-c1", "-b1", "-a1"]
    assert states(supervisor) == {"a": "stopped", "b": "stopped", "c": "stopped"}


async def test_a_child_starts_when_the_one_before_it_serves(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top")
    stage.add(supervisor, "a", kind=Held)
    stage.add(supervisor, "b")
    with trio.fail_after(GUARD):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await wait_all_tasks_blocked()
            assert stage.lives == {"a": 1}
            assert states(supervisor) == {"a": "starting", "b": "starting"}
            stage.gate.set()
            await wait_all_tasks_blocked()
            assert stage.log == ["+a1", "+b1"]
            nursery.cancel_scope.cancel()


async def test_a_first_start_that_fails_stops_the_others_and_is_raised_as_it_is(
    stage: Stage, autojump_clock: MockClock
) -> None:
    supervisor = Supervisor("top")
    a, _, c = stage.add(supervisor, "a", "b", "c")
    stage.failing["b"] = 1
    waiting = c.post(Envelope(Which()))
    with trio.fail_after(GUARD), pytest.raises(Bug, match="b cannot start"):
        await supervisor.run()
    assert stage.log == ["+a1", "?b1", "-a1"]
    assert stage.alive.total() == 0
    with pytest.raises(ActorGone):
        await waiting
    with pytest.raises(ActorGone):
        a.tell(Which())


async def test_asks_reach_a_supervised_actor_and_expected_errors_do_not_restart_it(
    stage: Stage, autojump_clock: MockClock
) -> None:
    supervisor = Supervisor("top")
    (a,) = stage.add(supervisor, "a")
    early = a.post(Envelope(Echo("early")))  # a mailbox takes messages before anybody serves it
    async with running(supervisor):
        assert await early == "a: early"
        with pytest.raises(Expected):
            await a.ask(Refuse())
        assert await a.ask(Which()) == 1
    assert restarts(supervisor) == {"a": 0}


# one_for_one


async def test_one_for_one_restarts_only_the_one_that_crashed(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top", "one_for_one")
    a, b, c = stage.add(supervisor, "a", "b", "c")
    async with running(supervisor):
        stage.fresh_log()
        with pytest.raises(ActorGone, match="b crashed on Crash"):
            await b.ask(Crash())
        assert [await ref.ask(Which()) for ref in (a, b, c)] == [1, 2, 1]
        assert stage.fresh_log() == ["!b1", "-b1", "+b2"]
        assert restarts(supervisor) == {"a": 0, "b": 1, "c": 0}
    assert stage.log == ["-c1", "-b2", "-a1"]


async def test_queued_messages_survive_a_restart_and_only_the_crashing_one_is_lost(
    stage: Stage, autojump_clock: MockClock
) -> None:
    supervisor = Supervisor("top")
    (a,) = stage.add(supervisor, "a")
    async with running(supervisor):
        asked = [a.post(Envelope(request)) for request in (Echo("1"), Crash(), Echo("2"), Crash(), Echo("3"), Which())]
        assert [await answer_or_gone(each) for each in asked] == ["a: 1", "gone", "a: 2", "gone", "a: 3", 3]
    assert stage.heard == ["1", "2", "3"]


async def test_a_background_task_that_crashes_restarts_its_actor(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top")
    a, b = stage.add(supervisor, "a", "b")
    async with running(supervisor):
        await a.ask(Sprout())
        stage.gate.set()
        await wait_all_tasks_blocked()
        assert await a.ask(Which()) == 2
        assert await b.ask(Which()) == 1


async def test_a_crash_is_logged_with_its_cause(
    stage: Stage, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    supervisor = Supervisor("top")
    (a,) = stage.add(supervisor, "a")
    async with running(supervisor):
        a.tell(Crash())
        await wait_all_tasks_blocked()
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert record.getMessage() == "a crashed"
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], Bug)
        caplog.clear()
        a.tell(Hold())
        a.tell(Crash())
        await wait_all_tasks_blocked()
        stage.gate.set()  # it crashes while it is being stopped
    assert "a crashed" in caplog.messages


# rest_for_one


async def test_rest_for_one_restarts_the_crashed_and_those_after_it_in_order(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top", "rest_for_one")
    a, b, c, d = stage.add(supervisor, "a", "b", "c", "d")
    async with running(supervisor):
        stage.fresh_log()
        b.tell(Crash())
        await wait_all_tasks_blocked()
        assert stage.fresh_log() == ["!b1", "-b1", "-d1", "-c1", "+b2", "+c2", "+d2"]
        assert [await ref.ask(Which()) for ref in (a, b, c, d)] == [1, 2, 2, 2]
        assert restarts(supervisor) == {"a": 0, "b": 1, "c": 0, "d": 0}
        assert set(states(supervisor).values()) == {"running"}
    assert stage.log == ["-d2", "-c2", "-b2", "-a1"]


async def test_a_crash_of_the_last_disturbs_nobody_before_it(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top", "rest_for_one")
    a, b, c = stage.add(supervisor, "a", "b", "c")
    async with running(supervisor):
        held = b.post(Envelope(Hold()))
        c.tell(Crash())
        await wait_all_tasks_blocked()
        stage.gate.set()
        assert await held == "b let go"
        assert [await ref.ask(Which()) for ref in (a, b, c)] == [1, 1, 2]


async def test_those_after_a_crash_keep_what_is_queued_and_answer_whom_they_served(
    stage: Stage, autojump_clock: MockClock
) -> None:
    supervisor = Supervisor("top", "rest_for_one")
    a, b = stage.add(supervisor, "a", "b")
    async with running(supervisor):
        held, queued = b.post(Envelope(Hold())), b.post(Envelope(Which()))
        await wait_all_tasks_blocked()
        a.tell(Crash())
        with pytest.raises(ActorGone):
            await held
        assert await queued == 2


async def test_those_after_a_crash_wait_for_its_backoff(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top", "rest_for_one")
    a, b = stage.add(supervisor, "a", "b")
    async with running(supervisor):
        for _ in range(3):
            a.tell(Crash())
        await trio.sleep(1)
        assert stage.started_at["a"] == pytest.approx([0, 0, 0.1, 0.3])
        assert stage.started_at["b"] == stage.started_at["a"]
        assert await b.ask(Which()) == 4
        assert stage.crowded == set()


async def test_two_that_crash_at_once_come_back_once_in_order(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top", "rest_for_one")
    refs = a, b, c = stage.add(supervisor, "a", "b", "c")
    async with running(supervisor):
        for ref in refs:
            await ref.ask(Sprout())
        stage.fresh_log()
        stage.gate.set()
        stage.gate = trio.Event()
        await wait_all_tasks_blocked()
        log = stage.fresh_log()
        ups = [entry for entry in log if entry.startswith("+")]
        assert ups[-3:] == [f"+{name}{stage.lives[name]}" for name in "abc"]
        assert [await ref.ask(Which()) for ref in (a, b, c)] == [stage.lives[name] for name in "abc"]
        assert restarts(supervisor)["a"] == 1
        assert stage.crowded == set()


async def test_a_crash_during_the_restart_of_an_earlier_one_waits_for_it(stage: Stage, autojump_clock: MockClock) -> None:
    class Slow(Probe):
        async def stop(self) -> None:
            await trio.sleep(1)
            await super().stop()

    supervisor = Supervisor("top", "rest_for_one")
    a, b = stage.add(supervisor, "a", "b")
    stage.add(supervisor, "c", kind=Slow)
    async with running(supervisor):
        await b.ask(Sprout())
        stage.fresh_log()
        stage.failing["a"] = 1
        a.tell(Crash())
        await trio.sleep(0.5)  # c is being stopped for the restart of a
        stage.gate.set()  # b crashes by itself
        await trio.sleep(2)
        assert stage.log == ["!a1", "-a1", "-b1", "-c1", "?a2", "+a3", "+b2", "+c2"]
        assert restarts(supervisor) == {"a": 2, "b": 0, "c": 0}


async def test_whoever_fails_to_start_because_an_earlier_one_is_down_is_not_to_blame(
    stage: Stage, autojump_clock: MockClock
) -> None:
    class Dependent(Probe):
        async def prepare(self) -> None:
            if self.number == 2:
                a.tell(Crash())  # while b starts, what it builds on goes down
            await trio.sleep(0.001)
            if not self.stage.alive["a"]:
                raise Bug("b needs a")

    supervisor = Supervisor("top", "rest_for_one", intensity=1)
    (a,) = stage.add(supervisor, "a")
    (b,) = stage.add(supervisor, "b", kind=Dependent)
    async with running(supervisor):
        b.tell(Crash())
        assert await b.ask(Which()) == 3
        assert await a.ask(Which()) == 2
        assert restarts(supervisor) == {"a": 1, "b": 1}


async def test_restarts_that_fail_for_long_do_not_pile_up(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top", "rest_for_one", intensity=3, period=0.05)
    (a,) = stage.add(supervisor, "a")
    async with running(supervisor):
        stage.failing["a"] = 600  # a stack would not hold so many
        a.tell(Crash())
        assert await a.ask(Which()) == 602


# intensity and backoff


def test_backoff_doubles_from_a_tenth_of_a_second_to_ten() -> None:
    assert [backoff(n) for n in range(1, 12)] == pytest.approx([0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10])


@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one"])
async def test_restarts_back_off_and_one_too_many_is_raised_unwrapped(
    strategy: Any, stage: Stage, autojump_clock: MockClock
) -> None:
    supervisor = Supervisor("top", strategy)
    a, b, c = stage.add(supervisor, "a", "b", "c")
    for _ in range(7):
        b.tell(Crash())
    last = b.post(Envelope(Which()))
    with trio.fail_after(GUARD), pytest.raises(RestartLimit, match="b crashed 6 times in 30 s") as caught:
        await supervisor.run()
    assert isinstance(caught.value.__cause__, Bug)
    pauses = [after - before for before, after in pairwise(stage.started_at["b"])]
    assert pauses == pytest.approx([0, 0.1, 0.2, 0.4, 0.8])
    assert stage.log[-2:] == [f"-c{stage.lives['c']}", "-a1"]
    assert stage.alive.total() == 0
    with pytest.raises(ActorGone):
        await last
    for ref in (a, b, c):
        with pytest.raises(ActorGone):
            ref.tell(Which())


async def test_crashes_that_are_a_period_apart_never_add_up(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top", intensity=1, period=10)
    (a,) = stage.add(supervisor, "a")
    async with running(supervisor):
        for _ in range(5):
            a.tell(Crash())
            await trio.sleep(10.5)
        assert await a.ask(Which()) == 6
        assert stage.started_at["a"] == pytest.approx([0, 0, 10.5, 21, 31.5, 42])


async def test_crashes_of_siblings_do_not_add_up(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top", intensity=1)
    refs = stage.add(supervisor, "a", "b", "c")
    async with running(supervisor):
        for ref in refs:
            ref.tell(Crash())
        assert [await ref.ask(Which()) for ref in refs] == [2, 2, 2]


@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one"])
async def test_a_restart_whose_start_fails_is_one_more_crash(strategy: Any, stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top", strategy, intensity=3)
    a, b = stage.add(supervisor, "a", "b")
    async with running(supervisor):
        stage.fresh_log()
        stage.failing["a"] = 2
        a.tell(Crash())
        queued = a.post(Envelope(Which()))
        assert await queued == 4
        assert [entry for entry in stage.log if "a" in entry] == ["!a1", "-a1", "?a2", "?a3", "+a4"]
        assert stage.started_at["a"] == pytest.approx([0, 0, 0.1, 0.3])
        assert restarts(supervisor)["a"] == 3
        assert await b.ask(Which()) == (1 if strategy == "one_for_one" else 2)
        assert set(states(supervisor).values()) == {"running"}


@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one"])
async def test_restarts_whose_starts_keep_failing_escalate(strategy: Any, stage: Stage, autojump_clock: MockClock) -> None:
    class Broken(Probe):
        async def prepare(self) -> None:
            if self.number > 1:
                raise Bug("once was enough")

    supervisor = Supervisor("top", strategy, intensity=3)
    (a,) = stage.add(supervisor, "a", kind=Broken)
    stage.add(supervisor, "b")
    a.tell(Crash())
    with trio.fail_after(GUARD), pytest.raises(RestartLimit, match="a crashed 4 times"):
        await supervisor.run()
    assert stage.lives["a"] == 4
    assert stage.alive.total() == 0


async def test_a_storm_of_crashes_escalates_and_leaves_nobody(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top")
    (calm,) = stage.add(supervisor, "calm")
    stage.add(supervisor, "s", "t", "u", kind=Storm)
    with trio.fail_after(GUARD), pytest.raises(RestartLimit, match=r"[stu] crashed 6 times"):
        await supervisor.run()
    assert stage.alive.total() == 0
    assert stage.crowded == set()
    assert stage.lives["calm"] == 1
    assert stage.log[-1] == "-calm1"
    assert calm.closed


async def test_an_actor_that_crashes_in_its_backoff_never_lives_twice(stage: Stage, autojump_clock: MockClock) -> None:
    """The one before it crashes while it waits for its restart, so two restarts of it are under way."""
    supervisor = Supervisor("top", "rest_for_one", intensity=10)
    a, b, c = stage.add(supervisor, "a", "b", "c")
    async with running(supervisor):
        for _ in range(4):
            b.tell(Crash())
        await trio.sleep(0.5)  # b waits for its fourth restart
        assert states(supervisor) == {"a": "running", "b": "restarting", "c": "restarting"}
        a.tell(Crash())
        await trio.sleep(10)
        assert stage.crowded == set()
        assert [await ref.ask(Which()) for ref in (a, b, c)] == [stage.lives[name] for name in "abc"]
        assert stage.lives["a"] == 2
        assert [entry[:2] for entry in stage.log[-3:]] == ["+a", "+b", "+c"]


async def test_a_child_in_its_backoff_is_not_started_by_the_stop(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top")
    (a,) = stage.add(supervisor, "a")
    async with running(supervisor):
        a.tell(Crash())
        a.tell(Crash())
        queued = a.post(Envelope(Which()))
        await wait_all_tasks_blocked()
        assert states(supervisor) == {"a": "restarting"}
        assert supervisor.status()[0].mailbox == 1
    assert stage.lives["a"] == 2
    with pytest.raises(ActorGone, match="a has stopped"):
        await queued


async def test_a_backoff_that_ends_while_an_escalating_supervisor_stops_starts_nobody(
    stage: Stage, autojump_clock: MockClock
) -> None:
    supervisor = Supervisor("top", intensity=2, grace=3)
    x, y, z = stage.add(supervisor, "x", "y", "z")

    async def trip() -> None:
        await trio.sleep(0.05)
        x.tell(Crash())  # for the second time: it waits a tenth of a second

    x.tell(Crash())
    for _ in range(3):
        y.tell(Crash())  # the third escalates when x waits
    z.tell(Hold())  # so that the stop takes longer than the backoff
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trip)
        with trio.fail_after(GUARD), pytest.raises(RestartLimit, match="y crashed 3 times"):
            await supervisor.run()
    assert trio.current_time() == pytest.approx(3.1)
    assert stage.lives == {"x": 2, "y": 3, "z": 1}
    assert x.closed


# parking


async def test_a_worker_that_keeps_crashing_is_parked_and_disturbs_nobody(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("workers", intensity=2, park=True)
    a, b = stage.add(supervisor, "a", "b")
    async with running(supervisor):
        for _ in range(3):
            a.tell(Crash())
        queued = a.post(Envelope(Which()))
        with pytest.raises(ActorGone, match="a keeps crashing and is parked"):
            await queued
        assert states(supervisor) == {"a": "parked", "b": "running"}
        assert a.closed
        with pytest.raises(ActorGone):
            await a.ask(Which())
        await trio.sleep(60)
        assert stage.lives == {"a": 3, "b": 1}
        assert await b.ask(Which()) == 1
    assert stage.log[-1] == "-b1"


def test_whoever_has_others_after_it_cannot_be_parked() -> None:
    with pytest.raises(ValueError, match="parked"):
        Supervisor("top", "rest_for_one", park=True)


# dynamic children


async def test_a_dynamic_child_serves_is_restarted_and_stops_first(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top")
    stage.add(supervisor, "a")
    async with running(supervisor):
        d = await supervisor.start_child("d", stage.make("d"))
        assert states(supervisor) == {"a": "running", "d": "running"}
        d.tell(Crash())
        assert await d.ask(Which()) == 2
        stage.fresh_log()
    assert stage.log == ["-d2", "-a1"]
    assert d.closed
    assert states(supervisor) == {"a": "stopped"}


async def test_a_dynamic_child_has_its_own_capacity(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top")
    async with running(supervisor):
        d = await supervisor.start_child("d", stage.make("d"), capacity=1)
        d.tell(Hold())
        await wait_all_tasks_blocked()
        d.tell(Echo("taken"))
        with pytest.raises(MailboxFull):
            d.tell(Echo("lost"))
        stage.gate.set()
    assert stage.heard == ["taken"]


async def test_a_dynamic_child_that_cannot_start_is_forgotten(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top", intensity=0)
    (a,) = stage.add(supervisor, "a")
    async with running(supervisor):
        stage.failing["d"] = 1
        with pytest.raises(Bug, match="d cannot start"):
            await supervisor.start_child("d", stage.make("d"))
        assert states(supervisor) == {"a": "running"}
        d = await supervisor.start_child("d", stage.make("d"))
        assert await d.ask(Which()) == 2
        assert await a.ask(Which()) == 1


async def test_nobody_starts_a_child_of_a_supervisor_that_does_not_run(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top")
    with pytest.raises(ActorGone, match="top is not running"):
        await supervisor.start_child("d", stage.make("d"))
    async with running(supervisor):
        pass
    with pytest.raises(ActorGone, match="top is not running"):
        await supervisor.start_child("d", stage.make("d"))
    assert stage.lives["d"] == 0


async def test_nobody_starts_a_child_of_a_supervisor_that_stops(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top")
    (a,) = stage.add(supervisor, "a")
    async with running(supervisor) as scope:
        a.tell(Hold())
        await wait_all_tasks_blocked()
        scope.cancel()
        with trio.CancelScope(shield=True):
            await wait_all_tasks_blocked()
            with pytest.raises(ActorGone, match="top is not running"):
                await supervisor.start_child("d", stage.make("d"))
            stage.gate.set()


async def test_stopping_a_dynamic_child_drains_it_and_leaves_the_others(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top")
    async with running(supervisor):
        d = await supervisor.start_child("d", stage.make("d"))
        e = await supervisor.start_child("e", stage.make("e"))
        asked = [d.post(Envelope(Echo(str(n)))) for n in range(3)]
        await supervisor.stop_child(d)
        assert stage.heard == ["0", "1", "2"]
        assert [await each for each in asked] == ["d: 0", "d: 1", "d: 2"]
        assert d.closed
        assert states(supervisor) == {"e": "running"}
        await supervisor.stop_child(d)  # it is gone already
        assert await e.ask(Which()) == 1


async def test_a_dynamic_child_that_does_not_drain_is_cancelled_after_its_grace(
    stage: Stage, autojump_clock: MockClock
) -> None:
    supervisor = Supervisor("top", grace=2)
    async with running(supervisor):
        d = await supervisor.start_child("d", stage.make("d"))
        held, queued = d.post(Envelope(Hold())), d.post(Envelope(Which()))
        await supervisor.stop_child(d)
        assert trio.current_time() == pytest.approx(2)
        for each in held, queued:
            with pytest.raises(ActorGone):
                await each
        assert supervisor.status() == []


async def test_a_child_whose_stopper_gave_up_stops_all_the_same(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top", "rest_for_one")
    (a,) = stage.add(supervisor, "a")
    async with running(supervisor):
        d = await supervisor.start_child("d", stage.make("d"))
        for ref in a, d:
            ref.tell(Hold())
            with trio.move_on_after(1):
                await supervisor.stop_child(ref)
        assert states(supervisor) == {"a": "running", "d": "running"}
        stage.gate.set()
        await wait_all_tasks_blocked()
        assert states(supervisor) == {"a": "stopped"}
        assert stage.lives == {"a": 1, "d": 1}


@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one"])
async def test_a_dynamic_child_that_is_stopped_in_its_backoff_stays_away(
    strategy: Any, stage: Stage, autojump_clock: MockClock
) -> None:
    supervisor = Supervisor("top", strategy)
    (a,) = stage.add(supervisor, "a")
    async with running(supervisor):
        d = await supervisor.start_child("d", stage.make("d"))
        d.tell(Crash())
        d.tell(Crash())
        queued = d.post(Envelope(Which()))
        await wait_all_tasks_blocked()
        assert states(supervisor)["d"] == "restarting"
        await supervisor.stop_child(d)
        with pytest.raises(ActorGone, match="d has stopped"):
            await queued
        await trio.sleep(60)
        assert stage.lives["d"] == 2
        assert await a.ask(Which()) == 1


async def test_a_dynamic_child_that_crashes_while_it_is_stopped_concerns_nobody(
    stage: Stage, autojump_clock: MockClock
) -> None:
    supervisor = Supervisor("top", "rest_for_one", intensity=0)
    async with running(supervisor):
        d = await supervisor.start_child("d", stage.make("d"))
        e = await supervisor.start_child("e", stage.make("e"))
        asked = [d.post(Envelope(request)) for request in (Echo("x"), Crash(), Which())]
        await supervisor.stop_child(d)
        assert [await answer_or_gone(each) for each in asked] == ["d: x", "gone", "gone"]
        await wait_all_tasks_blocked()
        assert states(supervisor) == {"e": "running"}
        assert await e.ask(Which()) == 1
        assert stage.lives["d"] == 1


async def test_a_starter_that_is_cancelled_takes_its_child_along(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top")
    async with running(supervisor):
        with trio.move_on_after(1):
            await supervisor.start_child("d", stage.make("d", Held))
        assert stage.lives["d"] == 1
        assert stage.alive["d"] == 0
        assert supervisor.status() == []


async def test_a_child_that_still_starts_when_its_supervisor_stops_is_given_up(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top", grace=2)

    async def start() -> None:
        with pytest.raises(ActorGone, match="d stopped while starting"):
            await supervisor.start_child("d", stage.make("d", Held))

    async with trio.open_nursery() as nursery:
        async with running(supervisor):
            nursery.start_soon(start)
            await wait_all_tasks_blocked()
        assert stage.alive["d"] == 0
        assert trio.current_time() == pytest.approx(2)


async def test_those_who_leave_while_the_supervisor_stops_hide_nobody(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top")

    async def leave(children: list[Ref]) -> None:
        await wait_all_tasks_blocked()  # until the supervisor waits for the last
        for child in children:
            await supervisor.stop_child(child)
        stage.gate.set()

    async with trio.open_nursery() as nursery, running(supervisor) as scope:
        children = [await supervisor.start_child(name, stage.make(name)) for name in "abcdef"]
        children[-1].tell(Hold())
        scope.cancel()
        nursery.start_soon(leave, children[:3])
    assert stage.log[6:] == ["-a1", "-b1", "-c1", "-f1", "-e1", "-d1"]


# stopping


async def test_asks_that_are_queued_at_cancel_time_are_still_answered(stage: Stage, autojump_clock: MockClock) -> None:
    """Also those for which a child needs one that was started before it."""
    supervisor = Supervisor("top")
    a, b = stage.add(supervisor, "a", "b")
    async with running(supervisor):
        asked = [b.post(Envelope(Relay(a, str(n)))) for n in range(5)]
        asked += [a.post(Envelope(Echo("own")))]
    assert [await each for each in asked] == [*(f"a: {n}" for n in range(5)), "a: own"]
    assert stage.log == ["+a1", "+b1", "-b1", "-a1"]


async def open_soon(stage: Stage) -> None:
    await trio.sleep(0.1)
    stage.gate.set()


async def test_cancelling_does_not_reach_into_the_work_of_a_child(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top")
    (a,) = stage.add(supervisor, "a")
    held = a.post(Envelope(Hold()))
    async with trio.open_nursery() as nursery, running(supervisor) as scope:
        await wait_all_tasks_blocked()
        scope.cancel()
        nursery.start_soon(open_soon, stage)
    assert await held == "a let go"


async def test_a_child_that_does_not_drain_is_cancelled_after_its_grace(
    stage: Stage, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    supervisor = Supervisor("top", grace=3)
    a, b = stage.add(supervisor, "a", "b")
    async with running(supervisor):
        held, queued = b.post(Envelope(Hold())), b.post(Envelope(Which()))
        await wait_all_tasks_blocked()
    assert trio.current_time() == pytest.approx(3)
    for each in held, queued:
        with pytest.raises(ActorGone):
            await each
    assert stage.log == ["+a1", "+b1", "-b1", "-a1"]
    assert caplog.messages == ["b did not drain in 3 s"]
    assert a.closed


async def test_a_child_that_crashes_while_it_drains_is_not_restarted(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top")
    _, b = stage.add(supervisor, "a", "b")
    async with running(supervisor):
        asked = [b.post(Envelope(request)) for request in (Echo("x"), Crash(), Which())]
    assert [await answer_or_gone(each) for each in asked] == ["b: x", "gone", "gone"]
    assert stage.lives == {"a": 1, "b": 1}
    assert stage.log[-1] == "-a1"


class Clumsy(Probe):
    """Has a background task, and stumbles when it must stop."""

    async def prepare(self) -> None:
        self.nursery.start_soon(trio.sleep_forever)

    async def stop(self) -> None:
        await super().stop()
        raise Bug(f"{self.life} stumbles")


async def test_a_child_that_stumbles_when_it_is_interrupted_is_restarted_all_the_same(
    stage: Stage, autojump_clock: MockClock
) -> None:
    supervisor = Supervisor("top", "rest_for_one")
    (a,) = stage.add(supervisor, "a")
    (b,) = stage.add(supervisor, "b", kind=Clumsy)
    async with running(supervisor):
        a.tell(Crash())
        await wait_all_tasks_blocked()
        assert [await ref.ask(Which()) for ref in (a, b)] == [2, 2]
        assert restarts(supervisor) == {"a": 1, "b": 0}
    assert stage.log[-2:] == ["-b2", "-a2"]


async def test_an_exit_of_the_interpreter_goes_through_after_an_ordered_stop(stage: Stage, autojump_clock: MockClock) -> None:
    class Quitter(Probe):
        async def handle(self, message: Any) -> object:
            raise SystemExit(3)

    supervisor = Supervisor("top")
    stage.add(supervisor, "a")
    (b,) = stage.add(supervisor, "b", kind=Quitter)
    stage.add(supervisor, "c")
    b.tell(Which())
    with trio.fail_after(GUARD), pytest.RaisesGroup(SystemExit, flatten_subgroups=True):
        await supervisor.run()
    assert stage.log[-2:] == ["-c1", "-a1"]
    assert stage.alive.total() == 0


# looking


async def test_status_tells_state_restarts_and_what_is_queued(stage: Stage, autojump_clock: MockClock) -> None:
    supervisor = Supervisor("top")
    a, b = stage.add(supervisor, "a", "b")
    assert [tuple(row) for row in supervisor.status()] == [("a", "starting", 0, 0), ("b", "starting", 0, 0)]
    async with running(supervisor):
        b.tell(Crash())
        await wait_all_tasks_blocked()
        a.tell(Hold())
        a.tell(Which())
        a.tell(Which())
        await wait_all_tasks_blocked()
        assert [tuple(row) for row in supervisor.status()] == [("a", "running", 0, 2), ("b", "running", 1, 0)]
        stage.gate.set()
    assert [tuple(row) for row in supervisor.status()] == [("a", "stopped", 0, 0), ("b", "stopped", 1, 0)]
