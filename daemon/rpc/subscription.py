"""One subscription of one client: replays durable events from its cursor, then follows live, joining what comes together.

A client that does not read gets `lagged`, is caught up from the database, and slows nobody else.
"""

from collections.abc import Awaitable, Callable

import trio

from contextinfinity.daemon.actors.hub import Filter, Hub
from contextinfinity.daemon.runtime.actor import ActorGone, MailboxFull
from contextinfinity.daemon.runtime.broadcast import Lagged
from contextinfinity.daemon.storage.storage import Storage
from contextinfinity.protocol import jsonrpc
from contextinfinity.protocol.events import Event, Notification

PAGE = 500
RETRY_SECONDS = 0.5


class EventPump:
    def __init__(
        self,
        subscription_id: str,
        hub: Hub,
        storage: Storage,
        wanted: Filter,
        cursor: int,
        send: Callable[[list[bytes]], Awaitable[None]],
    ) -> None:
        self.id = subscription_id
        self._hub = hub
        self._storage = storage
        self._wanted = wanted
        self._cursor = cursor
        self._send = send
        self._scope = trio.CancelScope()
        self._subscription = hub.subscribe(wanted)
        self._join()

    def _join(self) -> None:
        """From this moment everything is queued; what was before is in the database, or in these snapshots."""
        self._subscription.clear()
        self._joined_at = self._hub.cursor
        self._snapshots = self._hub.snapshots(self._wanted)

    async def run(self) -> None:
        try:
            with self._scope:
                while True:
                    try:
                        await self._catch_up()
                        await self._follow()
                    except Lagged:
                        self._join()
                        await self._lagged()
                    except (ActorGone, MailboxFull):
                        await trio.sleep(RETRY_SECONDS)
                        self._join()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the client is gone; its connection ends by itself
        finally:
            self._subscription.close()

    def stop(self) -> None:
        self._scope.cancel()

    async def settled(self) -> None:
        await self._subscription.settled()

    async def _catch_up(self) -> None:
        while self._cursor < self._joined_at:
            page = await self._storage.events_after(
                self._cursor, self._joined_at, PAGE, self._wanted.branch_id, self._wanted.session_id
            )  # fmt: skip
            await self._deliver(page)
            self._cursor = page[-1].cursor if len(page) == PAGE else self._joined_at
        await self._deliver(self._snapshots)
        self._snapshots = []
        self._subscription.delivered()

    async def _follow(self) -> None:
        while True:
            events = await self._subscription.receive()
            await self._deliver(joined(events))
            self._cursor = events[-1].cursor
            self._subscription.delivered()

    async def _lagged(self) -> None:
        branch = self._wanted.branch_id or ""
        await self._deliver([Event(self._cursor, "lagged", branch, {"reset": True})])

    async def _deliver(self, events: list[Event]) -> None:
        if events and not self._scope.cancel_called:  # sending need not pass a checkpoint
            await self._send([self._document(event) for event in events])

    def _document(self, e: Event) -> bytes:
        return jsonrpc.notification(
            "event", Notification(self.id, e.cursor, e.type, e.branch_id, e.data, e.turn_id, e.session_id)
        )


def joined(events: list[Event]) -> list[Event]:
    """Deltas of one block that wait together become one; order and totals stay."""
    result: list[Event] = []
    run: list[Event] = []

    def close_run() -> None:
        if run:
            last = run[-1]
            text = "".join(e.data["text"] for e in run)
            data = {**last.data, "text": text}
            result.append(Event(last.cursor, last.type, last.branch_id, data, last.turn_id, last.session_id))
            run.clear()

    for event in events:
        if event.type != "stream.delta":
            close_run()
            result.append(event)
            continue
        if run and (run[-1].data["step_id"], run[-1].data["block"]) != (event.data["step_id"], event.data["block"]):
            close_run()
        run.append(event)
    close_run()
    return result
