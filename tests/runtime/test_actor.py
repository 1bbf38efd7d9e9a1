"""One actor and its mailbox: what is asked is answered once, whatever becomes of the actor or of whoever asked."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, assert_type

import pytest
import trio
from trio.testing import MockClock, assert_no_checkpoints, wait_all_tasks_blocked

from contextinfinity.daemon.runtime.actor import (
    STOP_DEADLINE,
    Actor,
    ActorGone,
    AskTimeout,
    Envelope,
    Mailbox,
    MailboxFull,
    Ref,
    run_actor,
)
from tests.runtime.stage import GUARD, Bug, Crash, Echo, Expected, Hold, Note, Probe, Refuse, Sprout, Stage, Which

pytestmark = pytest.mark.timeout(10)


@asynccontextmanager
async def serving(actor: Actor, mailbox: Mailbox) -> AsyncIterator[trio.CancelScope]:
    """Serves for the length of the block, then closes the mailbox and waits until it is drained."""
    with trio.fail_after(GUARD):
        async with trio.open_nursery() as nursery:
            await nursery.start(run_actor, actor, mailbox)
            yield nursery.cancel_scope
            mailbox.close()


async def life(actor: Actor, mailbox: Mailbox) -> None:
    """One whole incarnation; a crash comes out as it was raised."""
    try:
        with trio.fail_after(GUARD):
            await run_actor(actor, mailbox)
    except* Bug as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            (error,) = error.exceptions
        raise error from None


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox("a", 10)


@pytest.fixture
def ref(mailbox: Mailbox) -> Ref:
    return Ref(mailbox)


# asking and telling


async def test_an_ask_returns_the_answer_with_its_type(
    stage: Stage, mailbox: Mailbox, ref: Ref, autojump_clock: MockClock
) -> None:
    async with serving(Probe(stage, "a"), mailbox):
        assert assert_type(await ref.ask(Echo("hello")), str) == "a: hello"
        assert assert_type(await ref.ask(Which()), int) == 1


async def test_a_tell_does_not_wait_and_is_handled_in_order(
    stage: Stage, mailbox: Mailbox, ref: Ref, autojump_clock: MockClock
) -> None:
    async with serving(Probe(stage, "a"), mailbox):
        with assert_no_checkpoints():
            for text in "one", "two", "three":
                ref.tell(Echo(text))
        assert stage.heard == []
    assert stage.heard == ["one", "two", "three"]


async def test_messages_are_handled_one_at_a_time(stage: Stage, mailbox: Mailbox, ref: Ref, autojump_clock: MockClock) -> None:
    async with serving(Probe(stage, "a"), mailbox):
        ref.tell(Hold())
        ref.tell(Echo("after"))
        await wait_all_tasks_blocked()
        assert stage.heard == []
        assert len(mailbox) == 1
        stage.gate.set()
        await wait_all_tasks_blocked()
        assert stage.heard == ["after"]


async def test_a_post_takes_its_place_before_it_is_awaited(
    stage: Stage, mailbox: Mailbox, ref: Ref, autojump_clock: MockClock
) -> None:
    async with serving(Probe(stage, "a"), mailbox):
        first, second = ref.post(Envelope(Echo("first"))), ref.post(Envelope(Echo("second")))
        third = Envelope(Echo("third"))
        ref.put(third)
        assert await Ref.answer(ref.name, third) == "a: third"
        assert await second == "a: second"
        assert await first == "a: first"
        assert stage.heard == ["first", "second", "third"]


async def test_a_full_mailbox_takes_no_more_until_there_is_room(stage: Stage, autojump_clock: MockClock) -> None:
    mailbox = Mailbox("small", 2)
    ref = Ref(mailbox)
    ref.tell(Echo("one"))
    ref.tell(Echo("two"))
    with pytest.raises(MailboxFull, match="small"):
        ref.tell(Echo("lost"))
    with pytest.raises(MailboxFull, match="small"):
        await ref.ask(Echo("lost"))
    async with serving(Probe(stage, "a"), mailbox):
        await wait_all_tasks_blocked()
        ref.tell(Echo("three"))
    assert stage.heard == ["one", "two", "three"]


async def test_an_envelope_is_answered_once(autojump_clock: MockClock) -> None:
    answered, refused = Envelope(Note()), Envelope(Note())
    answered.succeed(1)
    answered.succeed(2)
    answered.fail(Bug())
    refused.fail(Expected("first"))
    refused.fail(Bug())
    refused.succeed(3)
    with trio.fail_after(GUARD):
        assert await answered.answer() == 1
        with pytest.raises(Expected, match="first"):
            await refused.answer()


# errors


async def test_an_expected_error_is_an_answer_and_the_actor_lives_on(
    stage: Stage, mailbox: Mailbox, ref: Ref, autojump_clock: MockClock
) -> None:
    async with serving(Probe(stage, "a"), mailbox):
        with pytest.raises(Expected):
            await ref.ask(Refuse())
        ref.tell(Refuse())  # nobody listens to this answer
        assert await ref.ask(Which()) == 1
    assert stage.log == ["+a1", "-a1"]


async def test_an_unexpected_error_answers_gone_and_crashes_the_actor(
    stage: Stage, mailbox: Mailbox, ref: Ref, autojump_clock: MockClock
) -> None:
    asked = ref.post(Envelope(Crash()))
    with pytest.raises(Bug):
        await life(Probe(stage, "a"), mailbox)
    with pytest.raises(ActorGone, match="a crashed on Crash"):
        await asked
    assert stage.log == ["+a1", "!a1", "-a1"]


async def test_a_crash_on_a_tell_is_a_crash_too(stage: Stage, mailbox: Mailbox, ref: Ref, autojump_clock: MockClock) -> None:
    ref.tell(Crash())
    with pytest.raises(Bug):
        await life(Probe(stage, "a"), mailbox)


async def test_an_actor_without_handlers_crashes_on_any_message(mailbox: Mailbox, ref: Ref, autojump_clock: MockClock) -> None:
    ref.tell(Note())
    with pytest.RaisesGroup(NotImplementedError):
        await run_actor(Actor(), mailbox)


async def test_what_is_queued_survives_a_crash_and_only_the_crashing_message_is_lost(
    stage: Stage, mailbox: Mailbox, ref: Ref, autojump_clock: MockClock
) -> None:
    asked = [ref.post(Envelope(request)) for request in (Echo("before"), Crash(), Echo("after"), Which())]
    with pytest.raises(Bug):
        await life(Probe(stage, "a"), mailbox)
    assert await asked[0] == "a: before"
    with pytest.raises(ActorGone):
        await asked[1]
    assert len(mailbox) == 2
    async with serving(Probe(stage, "a"), mailbox):
        assert await asked[2] == "a: after"
        assert await asked[3] == 2
    assert stage.log == ["+a1", "!a1", "-a1", "+a2", "-a2"]


# patience


async def test_an_ask_times_out_at_its_deadline_and_the_actor_still_acts(
    stage: Stage, mailbox: Mailbox, ref: Ref, autojump_clock: MockClock
) -> None:
    async with serving(Probe(stage, "a"), mailbox):
        ref.tell(Hold())
        asked_at = trio.current_time()
        with pytest.raises(AskTimeout, match="a did not answer Echo in 3 s"):
            await ref.ask(Echo("late"), deadline=3)
        assert trio.current_time() - asked_at == pytest.approx(3)
        stage.gate.set()
        assert await ref.ask(Which()) == 1
        assert stage.heard == ["late"]


async def test_an_asker_that_is_cancelled_leaves_the_actor_fine(
    stage: Stage, mailbox: Mailbox, ref: Ref, autojump_clock: MockClock
) -> None:
    async with serving(Probe(stage, "a"), mailbox):
        with trio.move_on_after(1) as impatient:
            await ref.ask(Hold())  # a timeout of its own would be an AskTimeout
        assert impatient.cancelled_caught
        with trio.move_on_after(1):
            await ref.ask(Echo("still handled"))
        stage.gate.set()
        assert await ref.ask(Which()) == 1
        assert stage.heard == ["still handled"]


# the end of an actor


async def test_a_closed_mailbox_is_drained_before_the_actor_stops(
    stage: Stage, mailbox: Mailbox, ref: Ref, autojump_clock: MockClock
) -> None:
    async with serving(Probe(stage, "a"), mailbox):
        asked = [ref.post(Envelope(Echo(str(n)))) for n in range(5)]
        mailbox.close()
        assert ref.closed
        with pytest.raises(ActorGone, match="a has stopped"):
            ref.tell(Echo("too late"))
        with pytest.raises(ActorGone, match="a has stopped"):
            await ref.ask(Echo("too late"))
    assert [await each for each in asked] == [f"a: {n}" for n in range(5)]
    assert stage.log == ["+a1", "-a1"]


async def test_a_cancelled_actor_answers_whom_it_was_serving_and_keeps_the_rest(
    stage: Stage, mailbox: Mailbox, ref: Ref, autojump_clock: MockClock
) -> None:
    async with serving(Probe(stage, "a"), mailbox) as scope:
        held, queued = ref.post(Envelope(Hold())), ref.post(Envelope(Which()))
        await wait_all_tasks_blocked()
        scope.cancel()
    with pytest.raises(ActorGone):
        await held
    assert stage.log == ["+a1", "-a1"]
    async with serving(Probe(stage, "a"), mailbox):
        assert await queued == 2


async def test_discarding_answers_everybody_who_still_waits(mailbox: Mailbox, ref: Ref, autojump_clock: MockClock) -> None:
    asked = [ref.post(Envelope(Echo("never"))) for _ in range(3)]
    mailbox.discard("nobody comes")
    mailbox.discard("a second time changes nothing")
    assert ref.closed
    assert len(mailbox) == 0
    for each in asked:
        with pytest.raises(ActorGone, match="nobody comes"):
            await each


async def test_a_mailbox_can_open_again_and_its_refs_with_it(ref: Ref, mailbox: Mailbox, autojump_clock: MockClock) -> None:
    assert not ref.closed
    ref.tell(Echo("kept"))
    mailbox.open()  # open as it is, it keeps what is queued
    assert len(mailbox) == 1
    mailbox.discard("closed")
    mailbox.open()
    for _ in range(10):
        ref.tell(Note())
    with pytest.raises(MailboxFull):
        ref.tell(Note())


async def test_start_that_fails_is_followed_by_stop_and_never_served(
    stage: Stage, mailbox: Mailbox, ref: Ref, autojump_clock: MockClock
) -> None:
    stage.failing["a"] = 1
    ref.tell(Echo("kept"))
    with trio.fail_after(GUARD), pytest.RaisesGroup(pytest.RaisesGroup(Bug)):
        async with trio.open_nursery() as nursery:
            await nursery.start(run_actor, Probe(stage, "a"), mailbox)
    assert stage.alive["a"] == 0
    assert len(mailbox) == 1


# background tasks


async def test_a_background_task_that_crashes_takes_the_actor_down(
    stage: Stage, mailbox: Mailbox, ref: Ref, autojump_clock: MockClock
) -> None:
    async def open_gate() -> None:
        await wait_all_tasks_blocked()
        stage.gate.set()

    class Busy(Probe):
        async def handle(self, message: Any) -> object:
            return await trio.sleep_forever() if isinstance(message, Hold) else await super().handle(message)

    ref.tell(Sprout())
    held = ref.post(Envelope(Hold()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_gate)
        with pytest.raises(Bug, match="a1 withered"):
            await life(Busy(stage, "a"), mailbox)
    with pytest.raises(ActorGone):
        await held
    assert stage.log == ["+a1", "-a1"]


async def test_background_tasks_end_with_their_actor_after_it_has_stopped(
    stage: Stage, mailbox: Mailbox, ref: Ref, autojump_clock: MockClock
) -> None:
    ended: list[str] = []

    class Host(Probe):
        async def prepare(self) -> None:
            self.nursery.start_soon(self._guest)

        async def _guest(self) -> None:
            try:
                await trio.sleep_forever()
            finally:
                ended.extend(self.stage.log)

    async with serving(Host(stage, "a"), mailbox):
        pass
    assert ended == ["+a1", "-a1"]


# stopping


class Slow(Probe):
    """Takes its time to stop."""

    seconds = 0.0

    async def stop(self) -> None:
        await trio.sleep(self.seconds)
        await super().stop()


async def test_stop_is_shielded_from_the_cancellation_that_caused_it(
    stage: Stage, mailbox: Mailbox, autojump_clock: MockClock
) -> None:
    actor = Slow(stage, "a")
    actor.seconds = STOP_DEADLINE - 1
    async with serving(actor, mailbox) as scope:
        scope.cancel()
    assert trio.current_time() == pytest.approx(STOP_DEADLINE - 1)
    assert stage.log == ["+a1", "-a1"]


async def test_stop_is_given_up_at_its_deadline(stage: Stage, mailbox: Mailbox, autojump_clock: MockClock) -> None:
    actor = Slow(stage, "a")
    actor.seconds = float("inf")
    async with serving(actor, mailbox):
        pass
    assert trio.current_time() == pytest.approx(STOP_DEADLINE)
    assert stage.log == ["+a1"]
