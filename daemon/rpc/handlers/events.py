"""Methods about events: a subscription belongs to the connection that made it."""

from collections.abc import Mapping
from typing import Any

from contextinfinity.daemon.actors.hub import Filter
from contextinfinity.daemon.rpc.connection import MOST_SUBSCRIPTIONS, Connection
from contextinfinity.daemon.rpc.dispatch import Handler
from contextinfinity.daemon.rpc.services import Services
from contextinfinity.daemon.rpc.subscription import EventPump
from contextinfinity.protocol.errors import InvalidParams, NotFound, Unavailable
from contextinfinity.protocol.methods import Empty, EventsSubscribe, EventsUnsubscribe, Params, Subscribed


def handlers(s: Services) -> Mapping[type[Params[Any]], Handler]:
    hub, storage = s.world.hub, s.world.storage

    async def subscribe(connection: Connection, p: EventsSubscribe) -> Subscribed:
        cursor = hub.cursor if p.since is None else p.since  # before any wait: what is pipelined behind this is news
        if p.branch_id is not None:
            await storage.branch(p.branch_id)
        if p.session_id is not None:
            await storage.session(p.session_id)
        if len(connection.subscriptions) >= MOST_SUBSCRIPTIONS:
            raise Unavailable(f"this connection has {MOST_SUBSCRIPTIONS} subscriptions already; end some", retry_after=0)
        if cursor > hub.cursor:
            raise InvalidParams(f"since {cursor} lies in the future; the last event is {hub.cursor}", cursor=hub.cursor)
        pump = EventPump(s.world.mint(), hub, storage, Filter(p.branch_id, p.session_id), cursor, connection.send)
        connection.start_pump(pump)
        return Subscribed(pump.id, cursor)

    async def unsubscribe(connection: Connection, p: EventsUnsubscribe) -> Empty:
        pump = connection.subscriptions.pop(p.subscription_id, None)
        if pump is None:
            raise NotFound("this connection has no such subscription", kind="subscription", id=p.subscription_id)
        pump.stop()
        return Empty()

    return {EventsSubscribe: subscribe, EventsUnsubscribe: unsubscribe}
