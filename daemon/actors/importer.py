"""Imports: reads histories of other programs in a thread and writes them batch by batch, each batch one transaction.

What is there already is skipped, so an import can be repeated, resumed, and run again whenever a file has grown.
"""

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec
import trio

from contextinfinity.daemon.actors.branch import AddImported
from contextinfinity.daemon.actors.branches import Branches
from contextinfinity.daemon.actors.hub import Hub
from contextinfinity.daemon.actors.indexer import Cut
from contextinfinity.daemon.core.indexing import index
from contextinfinity.daemon.imports.base import Conversation, Damaged, Format, Record, Said, Skipped
from contextinfinity.daemon.imports.formats import FORMATS, detect
from contextinfinity.daemon.imports.pairing import closed, exchanges, named
from contextinfinity.daemon.runtime import failpoints
from contextinfinity.daemon.runtime.actor import Actor, ActorGone, AskTimeout, MailboxFull, Ref, Request, nudge
from contextinfinity.daemon.runtime.ids import IdMint, now
from contextinfinity.daemon.storage.chunks import IndexedTurn
from contextinfinity.daemon.storage.imports import Batch, ImportedTurn, Position
from contextinfinity.daemon.storage.sessions import NewSession
from contextinfinity.daemon.storage.storage import Storage
from contextinfinity.protocol.blocks import Message
from contextinfinity.protocol.errors import Fault, InvalidParams, InvalidState
from contextinfinity.protocol.methods import Imported

log = logging.getLogger(__name__)

RECORDS = 256
MOST_HELD = 4096
HEAD_BYTES = 4096
SUFFIXES = frozenset({".jsonl", ".ndjson", ".json", ".zip", ".db"})
MOST_NAMED = 100
MOST_SESSIONS = 1000
POLL_SECONDS = 0.75
DEADLINE = 24 * 3600.0


class ImportMessages(Request[Imported], frozen=True, kw_only=True):
    """Messages that a client holds; without a session they become one."""

    messages: tuple[Message, ...]
    session_id: str | None = None
    title: str | None = None


class ImportPath(Request[Imported], frozen=True, kw_only=True):
    """A file or folder; `format` is guessed if it is not named."""

    path: str
    format: str | None = None
    session_id: str | None = None
    title: str | None = None


class Source(msgspec.Struct, frozen=True):
    """A file as it is now: its beginning, by which it is known again, and a mark that changes whenever it does."""

    file: Path
    place: str
    head: bytes
    mark: str
    size: int
    inode: int


class Tally:
    """What came of an import so far."""

    def __init__(self, kind: str) -> None:
        self.format = kind
        self.turns = 0
        self.messages = 0
        self.skipped = 0
        self.sessions: dict[str, str] = {}
        self.damaged: list[str] = []
        self.damages = 0

    def damage(self, where: str, why: str) -> None:
        self.damages += 1
        if len(self.damaged) < MOST_NAMED:
            self.damaged.append(f"{where}: {why}")

    def result(self) -> Imported:
        first = next(iter(self.sessions.items()), (None, None))
        more = self.damages - len(self.damaged)
        return Imported(
            session_id=first[0],
            branch_id=first[1],
            turns=self.turns,
            skipped=self.skipped,
            messages=self.messages,
            sessions=tuple(islice(self.sessions, MOST_SESSIONS)),
            damaged=(*self.damaged, *([f"and {more} more"] if more else [])),
            format=self.format,
        )


class Importer(Actor):
    answers = (Fault, ActorGone, AskTimeout, MailboxFull)

    def __init__(
        self,
        storage: Storage,
        branches: Branches,
        hub: Hub,
        embedder: Ref,
        mint: IdMint,
        model: Callable[[], str],
        embeds: Callable[[], bool],
        watched: Callable[[], Sequence[str]],
        *,
        can_write: Callable[[], bool],
        cut: Cut = index,
    ) -> None:
        self._cut = cut
        self._storage = storage
        self._branches = branches
        self._hub = hub
        self._embedder = embedder
        self._mint = mint
        self._model = model
        self._embeds = embeds
        self._watched = watched
        self._can_write = can_write
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        self._complained: set[str] = set()
        self._kinds: dict[Path, str] = {}
        self._marks: dict[tuple[str, str | None, Path], tuple[str, dict[str, str]]] = {}

    async def start(self) -> None:
        if self._can_write():
            self.nursery.start_soon(self._watch)

    def _lock(self, place: str) -> trio.Lock:
        """A file is read by one at a time: somebody may ask for it while it is watched."""
        return self._locks.setdefault(place, trio.Lock())

    async def handle(self, message: ImportMessages | ImportPath) -> Imported:
        try:
            if isinstance(message, ImportMessages):
                return await self._import_messages(message)
            return await self._import_path(message)
        except self.answers:
            raise
        except Exception as error:
            log.exception("an import failed")
            raise InvalidState(
                f"the import failed ({type(error).__name__}; the daemon's log has more): what was taken over before is kept"
            ) from None

    async def _import_messages(self, asked: ImportMessages) -> Imported:
        tally = Tally("jsonl")
        target = await self._target(tally, Conversation(key="", title=asked.title), None, asked.session_id)
        said = [Said(conversation="", message=m) for m in named(asked.messages)]
        begin = 0
        while begin < len(said):
            end = begin + RECORDS
            end = len(said) if end >= len(said) else begin + (closed(said[begin:end]) or RECORDS)
            await self._write(tally, target, said[begin:end])
            begin = end
        return tally.result()

    async def _import_path(self, asked: ImportPath) -> Imported:
        path = Path(asked.path)
        try:
            kind = asked.format or self._kinds.get(path)
            if kind is None:
                kind = await trio.to_thread.run_sync(detect, path)
            form = FORMATS.get(kind)
            if form is None:
                raise InvalidParams(f"no format {kind!r}; there are {', '.join(FORMATS)}", format=kind)
            sources = await trio.to_thread.run_sync(_sources, form, path, asked.format is None, self._kinds)
        except ValueError as error:
            self._kinds.pop(path, None)
            raise InvalidParams(f"path: {error}") from None
        except OSError as error:
            raise InvalidParams(f"path: {error.filename or path} cannot be read: {error.strerror}") from None
        self._kinds[path] = kind
        tally = Tally(kind)
        for name, source in sources:
            if isinstance(source, str):
                tally.damage(*source.split(": ", 1))
                continue
            form = FORMATS[name]
            seen = (name, asked.session_id, source.file)
            known = self._marks.get(seen)
            if known is not None and known[0] == source.mark:
                tally.sessions |= known[1]
                continue
            before = dict(tally.sessions)
            try:
                async with self._lock(source.place):
                    await self._import_file(tally, form, source, asked)
                self._marks[seen] = (source.mark, {s: b for s, b in tally.sessions.items() if s not in before})
            except OSError as error:
                tally.damage(shown(source.file), f"it cannot be read: {error.strerror}")
            except (Fault, ActorGone, AskTimeout, MailboxFull):
                raise
            except Exception as error:
                log.exception("%s cannot be imported", source.file)
                tally.damage(shown(source.file), f"reading it failed ({type(error).__name__}); the daemon's log has more")
                self._marks[seen] = (source.mark, {})  # not again until it changes
        return tally.result()

    async def _import_file(self, tally: Tally, form: Format, source: Source, asked: ImportPath) -> None:
        """From where it was left, if the file has only grown since; an exchange that may go on is written at the end."""
        place = source.place if asked.session_id is None else f"{source.place}\0{asked.session_id}"
        before = await self._storage.import_position(form.name, place)
        if before is not None and before.mark == source.mark:
            tally.sessions |= await self._storage.sessions_of_file(form.name, place)
            return
        offset = before.offset if before is not None and form.append_only and _has_grown(source, before) else 0
        records = await trio.to_thread.run_sync(form.read, source.file, offset)
        end = offset
        touched = await self._storage.sessions_of_file(form.name, place) if offset else {}
        conversations: dict[str, Conversation] = {}
        targets: dict[str, tuple[str, str]] = {}
        held: dict[str, list[Said]] = {}
        while True:
            batch = await trio.to_thread.run_sync(_take, records, RECORDS)
            self._sort(tally, source.file, batch, conversations, held)
            for key, said in list(held.items()):
                upto = closed(said) if batch and len(said) < MOST_HELD else len(said)
                if upto and key not in targets:
                    known = conversations.get(key, Conversation(key=key))
                    titled = msgspec.structs.replace(known, title=asked.title or known.title or shown(Path(source.file.stem)))
                    scope = form.name if key else f"{form.name}:{source.place}"
                    targets[key] = await self._target(tally, titled, scope, asked.session_id)
                if upto:
                    await self._write(tally, targets[key], said[:upto])
                    touched |= {targets[key][0]: targets[key][1]}
                held[key] = said[upto:]
                if not held[key]:
                    del held[key]
            if not batch:
                break
            if form.append_only and not held:
                offset = batch[-1].offset
                reached = await _reached(source, offset, "", touched)
                await self._storage.set_import_position(form.name, place, reached, now())
            done = min(batch[-1].offset, source.size)
            self._hub.progress("import.progress", path=shown(source.file), done=done, total=source.size, turns=tally.turns)
            end = batch[-1].offset if form.append_only else 0
        reached = await _reached(source, end, source.mark, touched)
        await self._storage.set_import_position(form.name, place, reached, now())
        tally.sessions |= touched

    @staticmethod
    def _sort(
        tally: Tally, file: Path, batch: list[Record], conversations: dict[str, Conversation], held: dict[str, list[Said]]
    ) -> None:
        """Messages go to their conversation in order; what is no message is counted."""
        for item, _ in batch:
            match item:
                case Conversation():
                    known = conversations.get(item.key)
                    conversations[item.key] = item if known is None else _merged(known, item)
                case Damaged(where, why):
                    tally.damage(f"{shown(Path(file.name))}, {where}", why)
                    tally.skipped += 1
                case Skipped():
                    tally.skipped += 1
                case Said():
                    held.setdefault(item.conversation, []).append(item)

    async def _target(self, tally: Tally, told: Conversation, scope: str | None, session_id: str | None) -> tuple[str, str]:
        """The session and branch that a conversation belongs to, made if it is new."""
        if session_id is not None:
            session = await self._storage.session(session_id)
            found = session.id, session.active_branch
        else:
            known = await self._storage.import_target(scope, told.key) if scope is not None else None
            if known is not None:
                session = await self._storage.session(known[0])
                known = session.id, session.active_branch
            new = NewSession(
                id=self._mint(),
                branch_id=self._mint(),
                state_id=self._mint(),
                model=self._model(),
                at=told.created_at or now(),
                title=told.title,
                cwd=told.cwd,
                agent=told.agent,
            )
            key = told.key if scope is not None else None
            found = known or await self._storage.create_import_target(scope or "", key, new)
        tally.sessions[found[0]] = found[1]
        return found

    async def _write(self, tally: Tally, target: tuple[str, str], said: list[Said]) -> None:
        """One transaction: those messages that are not there yet, as turns with their chunks."""
        session_id, branch_id = target
        names = [one.message.external_id for one in said if one.message.external_id is not None]
        fresh = _unseen(said, await self._storage.known_external_ids(session_id, names))
        tally.skipped += len(said) - len(fresh)
        if not fresh:
            return
        turns = await trio.to_thread.run_sync(partial(_turns, fresh, self._mint, self._cut))
        failpoints.hit("import.prepared")
        batch = Batch(
            format=tally.format,
            session_id=session_id,
            branch_id=branch_id,
            model=self._model(),
            turns=turns,
            embed=self._embeds(),
        )
        if self._branches.is_awake(branch_id):  # its actor keeps the recent turns at hand, and must know
            made = await self._branches.ask(branch_id, AddImported(batch))
        else:
            made = await self._storage.add_imported(batch, now())
        failpoints.hit("import.stored")
        tally.turns += made
        tally.messages += len(fresh)
        if batch.embed:
            nudge(self._embedder)

    async def _watch(self) -> None:
        """Forever: read the watched folders again as they grow. What cannot be read is said once, and tried again."""
        while True:
            for path in self._watched():
                try:
                    await self._import_path(ImportPath(path=path))
                    self._complained.discard(path)
                except (Fault, ActorGone, AskTimeout, MailboxFull) as error:
                    if path not in self._complained:
                        self._complained.add(path)
                        log.warning("watching %s: %s", path, error)
            await trio.sleep(POLL_SECONDS)


def _take(records: Iterator[Record], most: int) -> list[Record]:
    return list(islice(records, most))


def _sources(form: Format, path: Path, mixed: bool, kinds: dict[Path, str]) -> list[tuple[str, Source | str]]:
    """The files of a format; a folder may hold others beside them, each of which is taken for what it looks like."""
    files = dict.fromkeys(form.files(path), form.name)
    if mixed and path.is_dir() and all(file.is_file() for file in files):
        for file in (*files, *(f for f in path.glob("*") if f.suffix in SUFFIXES and f.is_file() and f not in files)):
            with contextlib.suppress(ValueError, OSError):
                if file not in kinds:
                    kinds[file] = detect(file)
                files[file] = kinds[file]
    found: list[tuple[str, Source | str]] = []
    for file, name in sorted(files.items()):
        try:
            found.append((name, _source(file)))
        except OSError as error:
            found.append((name, f"{shown(file)}: it cannot be read: {error.strerror}"))
    return found


def shown(path: Path) -> str:
    """As text that can be kept and sent: a name may hold bytes that are none."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def _source(file: Path) -> Source:
    found = file.stat()
    newest, size, count = found.st_mtime_ns, found.st_size, 1
    if file.is_dir():
        inside = [p.stat() for p in file.rglob("*") if p.is_file()]
        newest, size, count = max((s.st_mtime_ns for s in inside), default=0), sum(s.st_size for s in inside), len(inside)
        return Source(file, shown(file.resolve()), b"", f"{size} {newest} {count}", size, found.st_ino)
    beside = file.with_name(file.name + "-wal")  # of a database
    if beside.exists():
        newest, size = max(newest, beside.stat().st_mtime_ns), size + beside.stat().st_size
    with file.open("rb") as opened:
        head = opened.read(HEAD_BYTES)
    return Source(file, shown(file.resolve()), head, f"{size} {newest} {found.st_ino}", size, found.st_ino)


def _hash(head: bytes) -> bytes:
    """With its length in front: a file that was shorter than this may have grown since."""
    return len(head).to_bytes(2, "little") + hashlib.sha256(head).digest()


def _has_grown(source: Source, before: Position) -> bool:
    """Whether what was read is still there; otherwise the file was rewritten, or another took its place."""
    known = int.from_bytes(before.head[:2], "little")
    whole = source.size >= before.offset and _hash(source.head[:known]) == before.head
    return whole and _tail(source, before.offset) == before.tail


async def _reached(source: Source, offset: int, mark: str, touched: dict[str, str]) -> Position:
    """How far a file was read; from the beginning next time, if another has taken its place meanwhile."""

    def look() -> Position:
        if offset and source.file.stat().st_ino != source.inode:
            return Position(0, b"", "", b"", touched)
        return Position(offset, _hash(source.head), mark, _tail(source, offset), touched)

    return await trio.to_thread.run_sync(look)


def _tail(source: Source, offset: int) -> bytes:
    """The hash of what stands right before a place: something inserted further up moves it."""
    if not offset:
        return b""
    with source.file.open("rb") as opened:
        opened.seek(max(0, offset - HEAD_BYTES))
        return hashlib.sha256(opened.read(min(offset, HEAD_BYTES))).digest()


def _merged(known: Conversation, more: Conversation) -> Conversation:
    told = {name: value for name in more.__struct_fields__ if (value := getattr(more, name)) is not None}
    return msgspec.structs.replace(known, **told)


def _unseen(said: Sequence[Said], seen: set[str]) -> list[Said]:
    fresh = []
    for one in said:
        name = one.message.external_id
        if name is None or name not in seen:
            fresh.append(one)
        if name is not None:
            seen.add(name)
    return fresh


def _turns(said: Sequence[Said], mint: IdMint, cut: Cut) -> tuple[ImportedTurn, ...]:
    made = []
    for exchange in exchanges(said):
        sides = exchange.sides()
        at = next((m.created_at for m in sides if m.created_at), now())
        chunks = tuple((mint(), chunk) for side in sides for chunk in cut(side, at))
        made.append(
            ImportedTurn(
                user=exchange.user,
                answer=exchange.answer,
                external_ids=exchange.external_ids,
                at=at,
                indexed=IndexedTurn(mint(), chunks),
            )
        )
    return tuple(made)
