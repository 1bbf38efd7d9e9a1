"""One publisher, many subscribers, none of whom can slow it: who falls behind its bound gets `Lagged` and resyncs.

Publishing is synchronous, so what is published before an answer is sent can be delivered before it too (`settled`).
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Lagged(Exception):
    """Items were dropped since the last receive."""


class Subscription(Generic[T]):
    """A bounded queue of what was published and wanted."""

    def __init__(self, home: "Broadcast[T]", capacity: int, wants: Callable[[T], bool]) -> None:
        self._home = home
        self._capacity = capacity
        self._wants = wants
        self._queue: deque[T] = deque()
        self._wakeup = trio.Event()
        self._lagged = False
        self._offered = 0
        self._taken = 0
        self._delivered = 0
        self._progress = trio.Event()

    def offer(self, item: T) -> None:
        if not self._wants(item):
            return
        self._offered += 1
        if self._lagged or len(self._queue) >= self._capacity:
            self._queue.clear()
            self._lagged = True
        else:
            self._queue.append(item)
        self._wakeup.set()

    async def receive(self) -> list[T]:
        """Everything that waits; `Lagged` if some of it had to be dropped. Call `delivered` when it is sent."""
        while not self._queue and not self._lagged:
            self._wakeup = trio.Event()
            await self._wakeup.wait()
        items, lagged = list(self._queue), self._lagged
        self.clear()
        if lagged:
            raise Lagged
        return items

    def clear(self) -> None:
        """Forget what waits; for a subscriber that has just caught up by other means."""
        self._queue.clear()
        self._lagged = False
        self._taken = self._offered

    def delivered(self) -> None:
        """All that was received has been handed on, or made up for if it was dropped."""
        self._delivered = self._taken
        self._progress.set()
        self._progress = trio.Event()

    async def settled(self) -> None:
        """Wait until everything published so far has been handed on."""
        target = self._offered
        while self._delivered < target:
            await self._progress.wait()

    def close(self) -> None:
        self._home.remove(self)
        self.clear()
        self.delivered()


class Broadcast(Generic[T]):
    def __init__(self) -> None:
        self._subscriptions: list[Subscription[T]] = []

    def subscribe(self, capacity: int, wants: Callable[[T], bool]) -> Subscription[T]:
        subscription = Subscription(self, capacity, wants)
        self._subscriptions.append(subscription)
        return subscription

    def remove(self, subscription: Subscription[T]) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def publish(self, item: T) -> None:
        for subscription in self._subscriptions:
            subscription.offer(item)

    def __len__(self) -> int:
        return len(self._subscriptions)
