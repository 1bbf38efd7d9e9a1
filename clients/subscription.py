"""Events as an async iterator with a bounded buffer; the connection that feeds it is `api.Client`.

The reader of the socket never waits for a consumer. When a buffer is full, the rest is dropped and the subscription is
renewed from the last durable event seen: durable events come exactly once and in order, and a `lagged` event with `reset`,
the same that the daemon sends when it is the one that could not wait, says that live text was missed and snapshots follow.
"""

from collections import deque
from typing import TYPE_CHECKING

import anyio
import msgspec

from contextinfinity.clients.errors import DaemonUnreachable
from contextinfinity.protocol.errors import Fault
from contextinfinity.protocol.events import TRANSIENT, Notification
from contextinfinity.protocol.methods import EventsSubscribe, EventsUnsubscribe, Subscribed

if TYPE_CHECKING:
    from contextinfinity.clients.api import Client

BUFFER = 1024


class Subscription:
    """Iterate it for `Notification`s; it ends with the connection, as `DaemonUnreachable`."""

    def __init__(self, client: "Client", ask: EventsSubscribe, limit: int = BUFFER) -> None:
        self.id = ""
        self.cursor = ask.since or 0
        self._client = client
        self._ask = ask
        self._limit = limit
        self._buffer: deque[Notification] = deque()
        self._news = anyio.Event()
        self._lagged = False

    async def open(self) -> None:
        await self._client._open_subscription(self._ask, self)

    async def close(self) -> None:
        self._client._forget(self.id)
        try:
            await self._client.call(EventsUnsubscribe(subscription_id=self.id))
        except (Fault, DaemonUnreachable):
            return  # it ended by itself

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Notification:
        while True:
            if self._buffer:
                event = self._buffer.popleft()
                if self._is_new(event):
                    return event
            elif self._lagged:
                return await self._renew()
            elif self._client._lost is not None:
                raise DaemonUnreachable(f"the connection to the daemon was lost: {self._client._lost}")
            else:
                self._news = anyio.Event()
                await self._news.wait()

    def drain(self) -> list[Notification]:
        """What has arrived already, without waiting."""
        events = [event for event in self._buffer if self._is_new(event)]
        self._buffer.clear()
        return events

    def _is_new(self, event: Notification) -> bool:
        """Move the cursor past a durable event; one that was seen before a renewal is not shown again."""
        if event.type in TRANSIENT:
            return True
        if event.cursor <= self.cursor:
            return False
        self.cursor = event.cursor
        return True

    async def _renew(self) -> Notification:
        await self.close()
        self._buffer.clear()
        self._ask = msgspec.structs.replace(self._ask, since=self.cursor)
        await self.open()
        branch = self._ask.branch_id or ""
        return Notification(self.id, self.cursor, "lagged", branch, {"reset": True})

    def _begin(self, subscribed: Subscribed) -> None:
        self.id = subscribed.subscription_id
        if self._ask.since is None:
            self.cursor = subscribed.cursor
        self._lagged = False

    def _put(self, event: Notification) -> None:
        if self._lagged:
            return
        catches_up = event.data.get("reset")  # then the daemon itself goes on from where it stopped
        if (event.type == "lagged" and not catches_up) or len(self._buffer) >= self._limit:
            self._lagged = True
        else:
            self._buffer.append(event)
        self._wake()

    def _wake(self) -> None:
        self._news.set()
