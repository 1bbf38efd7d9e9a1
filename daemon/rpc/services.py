"""What handlers may use of the daemon; made by the composition root."""

from collections.abc import Callable

import msgspec

from contextinfinity.daemon.actors.branches import Branches
from contextinfinity.daemon.actors.embedding import Embedding
from contextinfinity.daemon.actors.world import World
from contextinfinity.daemon.runtime.actor import Ref
from contextinfinity.protocol.methods import Reloaded
from contextinfinity.protocol.model import ActorStatus


class Services(msgspec.Struct, frozen=True):
    world: World
    branches: Branches
    maintenance: Ref
    importer: Ref
    embedding: Embedding
    nudge: Callable[[], None]
    version: str
    home: str
    socket: str
    read_only: bool
    started: float
    actors: Callable[[], list[ActorStatus]]
    clients: Callable[[], int]
    shutdown: Callable[[], None]
    reload: Callable[[], Reloaded]
