"""The sweeper puts idle branches to sleep; it is a worker, so if it crashes nobody notices."""

from contextinfinity.daemon.actors.branches import Branches
from contextinfinity.daemon.runtime.actor import Actor


class Sweeper(Actor):
    def __init__(self, branches: Branches) -> None:
        self._branches = branches

    async def start(self) -> None:
        self.nursery.start_soon(self._branches.sweep)
