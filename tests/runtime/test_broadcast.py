"""Bounded broadcast: nobody slows the publisher, who falls behind hears of it, and `settled` never waits in vain."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, assert_no_checkpoints, wait_all_tasks_blocked

from contextinfinity.daemon.runtime.broadcast import Broadcast, Lagged, Subscription

pytestmark = pytest.mark.timeout(10)

GUARD = 1000.0


@pytest.fixture
def radio() -> Broadcast[int]:
    return Broadcast()


def everything(_: int) -> bool:
    return True


def publish(radio: Broadcast[int], *items: int) -> None:
    with assert_no_checkpoints():
        for item in items:
            radio.publish(item)


async def is_waiting(call: Callable[[], Awaitable[object]]) -> bool:
    """Whether the call still waits when nothing else happens any more."""
    with trio.move_on_after(1) as patience:
        await call()
    return patience.cancelled_caught


async def heard(subscription: Subscription[int]) -> list[int]:
    with trio.fail_after(GUARD):
        return await subscription.receive()


async def settle(subscription: Subscription[int]) -> None:
    with trio.fail_after(GUARD):
        await subscription.settled()


# receiving


async def test_each_subscriber_gets_what_it_wants_in_order(radio: Broadcast[int], autojump_clock: MockClock) -> None:
    all_of_it = radio.subscribe(10, everything)
    even = radio.subscribe(10, lambda item: item % 2 == 0)
    publish(radio, 1, 2, 3, 4)
    assert await heard(all_of_it) == [1, 2, 3, 4]
    assert await heard(even) == [2, 4]
    publish(radio, 5)
    assert await heard(all_of_it) == [5]
    assert await is_waiting(even.receive)


async def test_who_joins_later_hears_only_what_comes_then(radio: Broadcast[int], autojump_clock: MockClock) -> None:
    publish(radio, 1)
    late = radio.subscribe(10, everything)
    publish(radio, 2)
    assert await heard(late) == [2]


async def test_a_receiver_wakes_when_something_comes(radio: Broadcast[int], autojump_clock: MockClock) -> None:
    subscription = radio.subscribe(10, everything)
    got: list[list[int]] = []

    async def receive() -> None:
        got.append(await heard(subscription))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        assert got == []
        publish(radio, 1, 2)  # both come before it runs, and it gets both
    assert got == [[1, 2]]


async def test_a_receiver_that_is_cancelled_loses_nothing(radio: Broadcast[int], autojump_clock: MockClock) -> None:
    subscription = radio.subscribe(10, everything)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subscription.receive)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        publish(radio, 1)  # after its cancellation, before it has left
    publish(radio, 2)
    assert await heard(subscription) == [1, 2]


async def test_a_receiver_never_gets_nothing(radio: Broadcast[int], autojump_clock: MockClock) -> None:
    subscription = radio.subscribe(10, everything)
    got: list[list[int]] = []

    async def receive() -> None:
        got.append(await heard(subscription))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        publish(radio, 1)
        subscription.clear()  # it was woken, and there is nothing any more
        await wait_all_tasks_blocked()
        assert got == []
        publish(radio, 2)
    assert got == [[2]]


# falling behind


async def test_who_falls_behind_is_told_once_and_goes_on_with_what_comes_next(
    radio: Broadcast[int], autojump_clock: MockClock
) -> None:
    slow, quick = radio.subscribe(2, everything), radio.subscribe(10, everything)
    publish(radio, 1, 2, 3, 4)
    with pytest.raises(Lagged):
        await heard(slow)
    assert await heard(quick) == [1, 2, 3, 4]
    publish(radio, 5)
    assert await heard(slow) == [5]


async def test_a_subscriber_holds_as_much_as_its_capacity(radio: Broadcast[int], autojump_clock: MockClock) -> None:
    subscription = radio.subscribe(2, everything)
    publish(radio, 1, 2)
    assert await heard(subscription) == [1, 2]


async def test_nothing_that_came_after_a_loss_hides_it(radio: Broadcast[int], autojump_clock: MockClock) -> None:
    subscription = radio.subscribe(1, everything)
    publish(radio, 1, 2)
    publish(radio, 3)  # there would be room, but an item before it is missing
    with pytest.raises(Lagged):
        await heard(subscription)
    assert await is_waiting(subscription.receive)


async def test_what_is_not_wanted_makes_nobody_lag(radio: Broadcast[int], autojump_clock: MockClock) -> None:
    subscription = radio.subscribe(1, lambda item: item == 7)
    publish(radio, *range(100))
    assert await heard(subscription) == [7]


async def test_a_lag_wakes_a_receiver(radio: Broadcast[int], autojump_clock: MockClock) -> None:
    subscription = radio.subscribe(1, everything)

    async def receive() -> None:
        with pytest.raises(Lagged):
            await heard(subscription)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        publish(radio, 1, 2)


async def test_who_has_caught_up_by_other_means_starts_clean(radio: Broadcast[int], autojump_clock: MockClock) -> None:
    subscription = radio.subscribe(2, everything)
    publish(radio, 1, 2, 3)
    subscription.clear()
    assert await is_waiting(subscription.receive)
    publish(radio, 4)
    assert await heard(subscription) == [4]


# settling


async def test_settled_waits_until_what_was_published_is_handed_on(radio: Broadcast[int], autojump_clock: MockClock) -> None:
    subscription = radio.subscribe(10, everything)
    await settle(subscription)  # nothing was published
    publish(radio, 1, 2)
    assert await is_waiting(subscription.settled)
    await heard(subscription)
    assert await is_waiting(subscription.settled)  # received is not yet handed on
    subscription.delivered()
    await settle(subscription)


async def test_settled_does_not_wait_for_what_is_published_later(radio: Broadcast[int], autojump_clock: MockClock) -> None:
    subscription = radio.subscribe(10, everything)
    publish(radio, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(settle, subscription)
        await wait_all_tasks_blocked()
        await heard(subscription)
        publish(radio, 2)
        subscription.delivered()
    assert await is_waiting(subscription.settled)  # the second is still there


async def test_settled_waits_through_several_rounds(radio: Broadcast[int], autojump_clock: MockClock) -> None:
    subscription = radio.subscribe(10, everything)
    publish(radio, 1)
    await heard(subscription)
    publish(radio, 2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(settle, subscription)
        await wait_all_tasks_blocked()
        subscription.delivered()
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        await heard(subscription)
        subscription.delivered()


async def test_settled_ignores_what_is_not_wanted(radio: Broadcast[int], autojump_clock: MockClock) -> None:
    subscription = radio.subscribe(10, lambda item: item > 100)
    publish(radio, 1)
    await settle(subscription)


async def test_what_was_dropped_is_settled_when_it_has_been_made_up_for(
    radio: Broadcast[int], autojump_clock: MockClock
) -> None:
    subscription = radio.subscribe(2, everything)
    publish(radio, 1, 2, 3)
    with pytest.raises(Lagged):
        await heard(subscription)
    assert await is_waiting(subscription.settled)
    subscription.clear()
    subscription.delivered()
    await settle(subscription)


async def test_a_loss_between_receive_and_delivered_is_not_yet_settled(
    radio: Broadcast[int], autojump_clock: MockClock
) -> None:
    subscription = radio.subscribe(1, everything)
    publish(radio, 1)
    await heard(subscription)
    publish(radio, 2, 3)
    subscription.delivered()
    assert await is_waiting(subscription.settled)
    with pytest.raises(Lagged):
        await heard(subscription)
    subscription.delivered()
    await settle(subscription)


async def test_what_was_cleared_is_settled_when_its_substitute_is_delivered(
    radio: Broadcast[int], autojump_clock: MockClock
) -> None:
    subscription = radio.subscribe(10, everything)
    publish(radio, 1, 2)
    subscription.clear()
    publish(radio, 3)  # while the substitute is being sent
    assert await is_waiting(subscription.settled)
    subscription.delivered()
    assert await is_waiting(subscription.settled)
    assert await heard(subscription) == [3]
    subscription.delivered()
    await settle(subscription)


# leaving


async def test_who_has_left_hears_nothing_and_others_do(radio: Broadcast[int], autojump_clock: MockClock) -> None:
    gone, staying = radio.subscribe(10, everything), radio.subscribe(10, everything)
    assert len(radio) == 2
    gone.close()
    gone.close()
    assert len(radio) == 1
    publish(radio, 1)
    assert await heard(staying) == [1]
    assert await is_waiting(gone.receive)


async def test_nobody_waits_for_one_that_has_left(radio: Broadcast[int], autojump_clock: MockClock) -> None:
    subscription = radio.subscribe(2, everything)
    publish(radio, 1, 2, 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(settle, subscription)
        nursery.start_soon(settle, subscription)
        await wait_all_tasks_blocked()
        subscription.close()
    await settle(subscription)


async def test_a_delivery_that_ends_after_the_leaving_changes_nothing(radio: Broadcast[int], autojump_clock: MockClock) -> None:
    subscription = radio.subscribe(10, everything)
    publish(radio, 1)
    await heard(subscription)
    publish(radio, 2)
    subscription.close()
    subscription.delivered()
    await settle(subscription)
