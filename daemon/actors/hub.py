"""What is happening, for everybody who listens: durable events after their commit, and the text of live streams.

Synchronous and in order, so a subscriber that joins gets a snapshot with nothing missing and nothing twice.
"""

import msgspec

from contextinfinity.daemon.runtime.broadcast import Broadcast, Subscription
from contextinfinity.protocol.events import Event
from contextinfinity.protocol.model import StreamBytes

QUEUE = 1000


class Live:
    """A stream in progress: what clients were shown of it, and how much of that is on disk."""

    def __init__(self, step_id: str, turn_id: str, branch_id: str, session_id: str) -> None:
        self.step_id = step_id
        self.turn_id = turn_id
        self.branch_id = branch_id
        self.session_id = session_id
        self.shown: dict[int, list[str]] = {}
        self.displayed = 0
        self.durable = 0


class Filter(msgspec.Struct, frozen=True):
    """What a subscriber wants to hear of: everything, one session, one branch, or one turn."""

    branch_id: str | None = None
    session_id: str | None = None
    turn_id: str | None = None

    def wants(self, event: Event) -> bool:
        return (
            (self.branch_id is None or event.branch_id == self.branch_id)
            and (self.session_id is None or event.session_id == self.session_id)
            and (self.turn_id is None or event.turn_id == self.turn_id)
        )


class Hub:
    def __init__(self) -> None:
        self.cursor = 0
        self._broadcast: Broadcast[Event] = Broadcast()
        self._live: dict[str, Live] = {}

    def subscribe(self, wanted: Filter, capacity: int = QUEUE) -> Subscription[Event]:
        return self._broadcast.subscribe(capacity, wanted.wants)

    def committed(self, events: list[Event]) -> None:
        for event in events:
            self.cursor = event.cursor
            self._broadcast.publish(event)

    def opened(self, live: Live) -> None:
        self._live[live.step_id] = live

    def shown(self, live: Live, block: int, text: str) -> None:
        live.shown.setdefault(block, []).append(text)
        live.displayed += len(text.encode())
        self._tell(live, "stream.delta", block=block, text=text)

    def durable(self, live: Live, durable: int) -> None:
        if durable > live.durable:
            live.durable = durable
            self._tell(live, "stream.durable")

    def closed(self, live: Live) -> None:
        self._live.pop(live.step_id, None)

    def snapshots(self, wanted: Filter) -> list[Event]:
        """What somebody who joins now has missed of the streams that are live."""
        found = []
        for live in self._live.values():
            for block, parts in live.shown.items() or [(0, [])]:
                event = self._event(live, "stream.snapshot", block=block, text="".join(parts))
                if wanted.wants(event):
                    found.append(event)
        return found

    def stream_of(self, branch_id: str) -> StreamBytes | None:
        """How far the live stream of a branch is, if there is one."""
        for live in self._live.values():
            if live.branch_id == branch_id:
                return StreamBytes(live.displayed, live.durable)
        return None

    def progress(self, kind: str, **data: object) -> None:
        """Something that belongs to no branch goes on; only those who listen to everything hear of it."""
        if len(self._broadcast):
            self._broadcast.publish(Event(self.cursor, kind, "", data))

    def _tell(self, live: Live, kind: str, **data: object) -> None:
        if len(self._broadcast):
            self._broadcast.publish(self._event(live, kind, **data))

    def _event(self, live: Live, kind: str, **data: object) -> Event:
        data |= {"step_id": live.step_id, "displayed": live.displayed, "durable": live.durable}
        return Event(self.cursor, kind, live.branch_id, data, live.turn_id, live.session_id)
