"""A real database in a temporary folder behind the storage interface, with every transaction run at once on the loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contextinfinity.daemon.core.assembly import request_hash
from contextinfinity.daemon.core.indexing import index
from contextinfinity.daemon.runtime.ids import IdMint, now
from contextinfinity.daemon.storage.blobs import digest
from contextinfinity.daemon.storage.chunks import IndexedTurn
from contextinfinity.daemon.storage.connection import Job
from contextinfinity.daemon.storage.database import Database, open_database
from contextinfinity.daemon.storage.messages import encode
from contextinfinity.daemon.storage.sessions import NewSession
from contextinfinity.daemon.storage.steps import EndedStep, NewStep, Recipe
from contextinfinity.daemon.storage.storage import Storage
from contextinfinity.daemon.storage.turns import NewTurn
from contextinfinity.protocol.blocks import AssistantMessage, Message, Text, message
from contextinfinity.protocol.events import Event
from contextinfinity.protocol.methods import SessionCreated, Submitted
from contextinfinity.protocol.model import Completed

mint = IdMint()


class Bench:
    """Storage, and what was published by its commits."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.published: list[Event] = []
        self.storage = Storage(self._write, self._read)

    async def _write(self, job: Job) -> Any:
        assert self.database.write is not None
        ((committed, error),) = self.database.write([job])
        if error is not None:
            raise error
        self.published += committed.events
        return committed.value

    async def _read(self, job: Job) -> Any:
        ((value, error),) = self.database.reads[0]([job])
        if error is not None:
            raise error
        return value

    async def session(self, **values: Any) -> SessionCreated:
        new = NewSession(id=mint(), branch_id=mint(), state_id=mint(), model="recall", at=now(), **values)
        return await self.storage.create_session(new)

    async def accept(self, branch_id: str, text: str = "hello", **values: Any) -> Submitted:
        return await self.storage.accept_turn(new_turn(branch_id, text, **values))

    async def begin(self, turn_id: str) -> str:
        turn = await self.storage.turn(turn_id)
        step = new_step(turn_id, turn.user_message)
        branch = await self.storage.branch(turn.branch_id)
        await self.storage.begin_response(turn_id, step, branch.head_state, now())
        return step.id

    async def finish(self, turn_id: str, text: str = "an answer") -> str:
        step_id = await self.begin(turn_id)
        assert await self.storage.finalize_response(turn_id, ended(step_id, text), message("assistant", text), now())
        return step_id

    async def index(self, turn_id: str) -> int:
        """TX-C, as the indexer does it."""
        said, at = await self.storage.said_in(turn_id)
        chunks = tuple((mint(), chunk) for one in said for chunk in index(one, at))
        return await self.storage.index_turn(IndexedTurn(turn_id, chunks), now(), None, embed=False)

    async def say(self, branch_id: str, text: str, reply: str = "an answer") -> Submitted:
        submitted = await self.accept(branch_id, text)
        await self.finish(submitted.turn_id, reply)
        return submitted


def new_turn(branch_id: str, text: str = "hello", **values: Any) -> NewTurn:
    return NewTurn(id=mint(), branch_id=branch_id, message=message("user", text), model="recall", at=now(), **values)


def new_step(turn_id: str, said: Message) -> NewStep:
    return NewStep(
        id=mint(),
        turn_id=turn_id,
        step_index=0,
        provider="recall",
        model_id="recall",
        recipe=Recipe(digest(b"system"), [], "recall", 100, {}),
        parts={digest(b"system"): b"system"},
        request_hash=request_hash("recall", "system", [digest(encode(said))], 100),
        at=now(),
    )


def ended(step_id: str, text: str = "") -> EndedStep:
    items = (AssistantMessage((Text(text),)),) if text else ()
    return EndedStep(id=step_id, outcome=Completed(), items=items, usage={"output_tokens": 3}, displayed=9, durable=9)


@contextmanager
def opened(folder: Path) -> Iterator[Bench]:
    database = open_database(folder / "test.db", folder / "backups", now(), readers=1, read_only=False)
    try:
        yield Bench(database)
    finally:
        database.close()
