"""What each method does: thin functions `(connection, params) -> result`, bound to the daemon's services."""

from collections.abc import Mapping
from typing import Any

from contextinfinity.daemon.rpc.dispatch import Handler
from contextinfinity.daemon.rpc.handlers import daemon, events, memory, sessions, turns
from contextinfinity.daemon.rpc.services import Services
from contextinfinity.protocol.methods import Params


def handlers(services: Services) -> Mapping[type[Params[Any]], Handler]:
    return {
        **daemon.handlers(services),
        **sessions.handlers(services),
        **turns.handlers(services),
        **events.handlers(services),
        **memory.handlers(services),
    }
