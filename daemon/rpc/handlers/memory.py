"""Methods about memory: search and what surrounds a find, the index behind it, embedders, and imports."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import trio

from contextinfinity.daemon.actors.importer import DEADLINE, ImportMessages, ImportPath
from contextinfinity.daemon.actors.memory import Search
from contextinfinity.daemon.core.content import searchable
from contextinfinity.daemon.core.when import posix, written
from contextinfinity.daemon.rpc.connection import Connection
from contextinfinity.daemon.rpc.dispatch import Handler
from contextinfinity.daemon.rpc.handlers.keys import keyed
from contextinfinity.daemon.rpc.handlers.times import client_zone, moment
from contextinfinity.daemon.rpc.handlers.turns import parsed
from contextinfinity.daemon.rpc.services import Services
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage.chunks import Found, Line
from contextinfinity.protocol import methods as m
from contextinfinity.protocol.blocks import Message
from contextinfinity.protocol.errors import InvalidParams
from contextinfinity.protocol.model import Neighbour, TimelineEntry

MOST_DIGITS = 18


def handlers(s: Services) -> Mapping[type[m.Params[Any]], Handler]:
    storage, memory, embedding = s.world.storage, s.world.memory, s.embedding
    keyed_imports = trio.Lock()

    async def search(_: Connection, p: m.MemorySearch) -> m.MemoryFound:
        at = client_zone(p.tz)
        if p.session_id is not None:
            await storage.session(p.session_id)
        wanted = Search(
            text=p.query,
            session_id=p.session_id,
            segments=tuple(await storage.lineage(p.branch_id)) if p.branch_id is not None else None,
            most=p.top_k,
            mode=p.mode,
            chunk_types=p.chunk_types,
            since=moment("since", p.since, at, end=False) if p.since is not None else float("-inf"),
            until=moment("until", p.until, at, end=True) if p.until is not None else float("inf"),
            tz=p.tz,
            diverse=p.diverse,
        )
        return await memory.search(wanted)

    async def get(_: Connection, p: m.MemoryGet) -> m.Surroundings:
        return await surroundings(p.chunk_id, 0, 0)

    async def expand(_: Connection, p: m.MemoryExpand) -> m.Surroundings:
        return await surroundings(p.chunk_id, p.before, p.after)

    async def surroundings(chunk_id: str, before: int, after: int) -> m.Surroundings:
        found = await storage.chunk(chunk_id)
        around = await storage.neighbours(found.chunk.turn_id, before, after)
        return m.Surroundings(found.chunk, tuple(neighbour(found, *row) for row in around))

    async def chunks(_: Connection, p: m.MemoryChunks) -> m.ChunkPage:
        if p.session_id is not None:
            await storage.session(p.session_id)
        if p.branch_id is not None:
            await storage.branch(p.branch_id)
        if p.turn_id is not None:
            await storage.turn(p.turn_id)
        wanted = {"session_id": p.session_id, "branch_id": p.branch_id, "source_turn": p.turn_id, "chunk_type": p.chunk_type}
        where = {column: value for column, value in wanted.items() if value is not None}
        if p.cursor is not None and not (p.cursor.isdecimal() and len(p.cursor) <= MOST_DIGITS):
            raise InvalidParams("cursor is not one that memory.chunks gave out")
        found, more = await storage.list_chunks(where, int(p.cursor or 0), p.limit)
        return m.ChunkPage(tuple(one.chunk for one in found), str(more) if more is not None else None)

    async def timeline(_: Connection, p: m.MemoryTimeline) -> m.Timeline:
        around = None
        if p.around is not None:
            around = await storage.moment_of(p.around)
            if around is None:
                around = moment("around", p.around, client_zone(p.tz), end=False)
        if p.session_id is not None:
            await storage.session(p.session_id)
        lines = await storage.timeline(p.session_id, p.branch_id, around, p.limit)
        return m.Timeline(tuple(map(entry, lines)))

    async def list_embedders(_: Connection, __: m.EmbedderList) -> m.Embedders:
        await embedding.refresh()
        return m.Embedders(await embedding.list())

    async def reindex(_: Connection, p: m.StoreReindex) -> m.Reindexing:
        once = keyed("store.reindex", p)
        before = await storage.answered_before(once, m.Reindexing)
        if before is not None:
            return before
        if p.embedder is not None and p.embedder != memory.config.retrieval.embedder:
            raise InvalidParams(
                f"the embedder of the configuration is {memory.config.retrieval.embedder!r}: "
                f"choose another with `ctx embedder use {p.embedder}`"
            )
        if await embedding.refresh() and p.embedder is not None and embedding.target is not None:
            await embedding.target.rest()  # whatever it was, it may be another model by now
            await storage.forget_space(embedding.target.space)
            await embedding.look()
        await storage.mend_index(now())
        await storage.enqueue_job("reindex", "", None, now())
        await storage.enqueue_job("embed", "", None, now())
        s.nudge()
        turns = (await storage.counts())[0]
        made = m.Reindexing(job="reindex", turns=turns, passages=await embedding.left())
        return await storage.remember(once, made, m.Reindexing, now())

    async def take_over(_: Connection, p: m.TranscriptImport) -> m.Imported:
        if (p.path is None) == (p.messages is None):
            raise InvalidParams("give either path or messages")
        once = keyed("transcript.import", p)
        if once is None:
            return await take(p)
        async with keyed_imports:  # the same call at the same time waits for the first one's answer
            before = await storage.answered_before(once, m.Imported)
            if before is not None:
                return before
            return await storage.remember(once, await take(p), m.Imported, now())

    async def take(p: m.TranscriptImport) -> m.Imported:
        if p.session_id is not None:
            await storage.session(p.session_id)
        if p.messages is not None:
            if p.format not in (None, "jsonl"):
                raise InvalidParams(f"messages are of the format jsonl, not {p.format!r}")
            said = tuple(imported_message(i, one, p.idempotency_key) for i, one in enumerate(p.messages))
            ask = ImportMessages(messages=said, session_id=p.session_id, title=p.title)
            return await s.importer.ask(ask, DEADLINE)
        assert p.path is not None
        if not os.path.isabs(p.path):
            raise InvalidParams("path must be absolute: the daemon has another working directory than you")
        file = ImportPath(path=p.path, format=p.format, session_id=p.session_id, title=p.title)
        return await s.importer.ask(file, DEADLINE)

    return {
        m.MemorySearch: search,
        m.MemoryGet: get,
        m.MemoryExpand: expand,
        m.MemoryChunks: chunks,
        m.MemoryTimeline: timeline,
        m.EmbedderList: list_embedders,
        m.StoreReindex: reindex,
        m.TranscriptImport: take_over,
    }


def imported_message(number: int, given: m.ImportMessage, key: str | None) -> Message:
    """A message of a keyed call has a name by its place, so that a call that was cut off can be repeated."""
    content = given.text if given.text is not None else given.content
    if content is None:
        raise InvalidParams(f"messages[{number}]: give text or content")
    created_at = given.created_at
    if created_at is not None and posix(created_at) is None:
        created_at = rfc3339(moment(f"messages[{number}].created_at", created_at, UTC, end=False))
    if created_at is not None:
        try:
            written(created_at)
        except (ValueError, OverflowError):
            raise InvalidParams(f"messages[{number}].created_at: {created_at} lies beyond the calendar") from None
    said = parsed(content, f"messages[{number}].content")
    name = given.external_id or (f"{key}:{number}" if key is not None else None)
    return Message(given.role, said.blocks, said.rendered_text, given.speaker, created_at, name)


def rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def neighbour(found: Found, turn_id: str, turn_seq: int, said: Message) -> Neighbour:
    return Neighbour(
        turn_id=turn_id,
        turn_seq=turn_seq,
        role=said.role,
        speaker=said.speaker,
        text=searchable(said),
        created_at=said.created_at,
        external_id=said.external_id,
        focus=turn_id == found.chunk.turn_id and said.role == found.chunk.role,
    )


def entry(line: Line) -> TimelineEntry:
    return TimelineEntry(
        turn_id=line.turn_id,
        turn_seq=line.turn_seq,
        session_id=line.session_id,
        branch_id=line.branch_id,
        chunk_id=line.chunk_id,
        role=line.role,
        speaker=line.speaker,
        line=line.summary,
        created_at=rfc3339(line.at),
    )
