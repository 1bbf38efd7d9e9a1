"""What a branch needs of the rest of the daemon, in one frozen bundle made by the composition root."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from contextinfinity.daemon.actors.hub import Hub
from contextinfinity.daemon.actors.memory import Memory
from contextinfinity.daemon.actors.models import Models
from contextinfinity.daemon.runtime.actor import Ref
from contextinfinity.daemon.runtime.ids import IdMint
from contextinfinity.daemon.storage.storage import Storage


class World(msgspec.Struct, frozen=True):
    storage: Storage
    hub: Hub
    models: Models
    journal: Ref
    janitor: Ref
    indexer: Ref
    memory: Memory
    mint: IdMint
    streams: Path
    can_write: Callable[[], bool]
