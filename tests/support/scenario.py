"""One life of a database, from nothing: every kind of transaction, migration and checkpoint, the same for the same seed.

It writes down what was acknowledged when; `examine` says what of that a folder with some state of its files does not keep.
"""

import contextlib
import copy
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import apsw
import msgspec

from contextinfinity.daemon.actors import indexer
from contextinfinity.daemon.actors.recovery import reconcile
from contextinfinity.daemon.core import indexing
from contextinfinity.daemon.core.assembly import request_hash
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage import (
    blobs,
    branches,
    chunks,
    connection,
    database,
    idempotency,
    imports,
    jobs,
    journals,
    links,
    messages,
    migrations,
    pins,
    sessions,
    steps,
    turns,
    vectors,
    verify,
)
from contextinfinity.daemon.storage.chunks import IndexedTurn
from contextinfinity.daemon.storage.connection import Job, Tx
from contextinfinity.protocol.blocks import AssistantMessage, Text, message
from contextinfinity.protocol.errors import ErrorObject, Fault, NotFound
from contextinfinity.protocol.methods import Submitted
from contextinfinity.protocol.model import Completed, Incomplete, Outcome
from tests.support.powerloss import Disk
from tests.support.stores import Bench, mint

BROKEN = ErrorObject(-32005, "it broke", {"code": "overloaded"})
SYSTEM = b"Be brief, be right."
EXAMINE_AT = "2026-06-01T00:00:00.000Z"
CLOCK = 1000.0
INDEX_EVERY = 4
"""After one of so many commits what is not indexed is indexed, and everything verified once more."""
FIRST_SPACE, SECOND_SPACE = ("first", 4), ("second", 6)
IMPORTED_FROM = "/elsewhere/history.jsonl"


class Promise(NamedTuple):
    """Something that was acknowledged: what kind of thing, which one, and its exact value."""

    kind: str
    key: str
    value: Any


class Acknowledged(NamedTuple):
    """The mark in the log: so many commits and promises can be relied on from here."""

    commits: int
    promises: int


@dataclass
class Memory:
    """All that a scenario knows; with a copy of the folder, it can go on from there."""

    rng: random.Random
    count: int = 0
    states: list[str] = field(default_factory=lambda: [NOTHING])
    anchors: list[dict[str, str]] = field(default_factory=lambda: [{}])
    promises: list[Promise] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    migrated_at: int = 0
    """How many commits there were when the schema was that of today."""
    backed_up: tuple[int, str, str] | None = None
    """From which commit on there is a backup, its name and its state."""


class Scenario:
    """`run` performs steps; `early` is the mistake of acknowledging before the commit."""

    def __init__(
        self, folder: Path, seed: int = 0, disk: Disk | None = None, memory: Memory | None = None, *, early: bool = False
    ) -> None:  # fmt: skip
        self.folder = folder
        self.path = folder / "test.db"
        self.streams = folder / "streams"
        self.streams.mkdir(exist_ok=True)
        self.disk = disk
        self.memory = memory or Memory(random.Random(seed))
        self.undisturbed: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        self._early = early
        self._connections: list[apsw.Connection] = []
        self._write: database.Batch | None = None

    def run(self, names: Sequence[str]) -> None:
        with self._deterministic():
            for name in names:
                getattr(self, name)()

    @contextlib.contextmanager
    def _deterministic(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(patch.object(links, "secrets", _Seeded(self.memory.rng)))
            stack.enter_context(patch.object(chunks, "index", index))
            scripts = [(name, script.replace("randomblob(32)", f"x'{'5e' * 32}'")) for name, script in migrations.MIGRATIONS]
            stack.enter_context(patch.object(migrations, "MIGRATIONS", scripts))
            if self.disk is not None:
                stack.enter_context(patch.object(journals, "os", self.disk.os))
            yield

    # tools

    def mint(self) -> str:
        self.memory.count += 1
        return "01" + hashlib.blake2b(str(self.memory.count).encode(), digest_size=12).hexdigest().upper()

    def at(self) -> str:
        self.memory.count += 1
        seconds, thousandths = divmod(self.memory.count * 59, 1000)
        return f"2026-01-01T00:{seconds // 60:02d}:{seconds % 60:02d}.{thousandths:03d}Z"

    def words(self, size: int = 60) -> str:
        """Text that does not compress, in several languages."""
        return "".join(self.memory.rng.choices("abcdefghijklmnopqrstuvwxyz    äöüßéλж漢🦆\n", k=size))

    def commit(self, *work: Job, promises: Sequence[Promise] = ()) -> list[Any]:
        """One transaction for all of them; what it promised counts from here on."""
        assert self._write is not None
        if self._early:
            self._acknowledge(promises, 1)
        outcomes = self._write(work)
        for _, error in outcomes:
            if error is not None and not isinstance(error, NotFound):
                raise error
        told = [
            Promise("event", str(e.cursor), (e.type, e.branch_id, e.turn_id, e.data))
            for c, _ in outcomes
            if c
            for e in c.events
        ]
        self.settle([*(() if self._early else promises), *told])
        return [c.value if c is not None else error for c, error in outcomes]

    def settle(self, promises: Sequence[Promise] = ()) -> None:
        """A commit has returned: note the state it made, then acknowledge it."""
        with self.undisturbed():
            self.memory.states.append(digest(self.writer))
            self.memory.anchors.append(heads(self.writer))
        self._acknowledge(promises, 0)

    def _acknowledge(self, promises: Sequence[Promise], ahead: int) -> None:
        self.memory.promises += promises
        if self.disk is not None:
            self.disk.mark(Acknowledged(len(self.memory.states) - 1 + ahead, len(self.memory.promises)))

    @property
    def writer(self) -> apsw.Connection:
        return self._connections[-1]

    def resume(self) -> None:
        opened = database.open_database(self.path, self.folder / "backups", self.at(), readers=1, read_only=False)
        self._connections = opened._connections
        self._write = opened.write

    def reopen(self) -> None:
        """Go on with a copy of the folder, changing nothing that the scenario counts."""
        count = self.memory.count
        self.resume()
        self.memory.count = count

    def close(self) -> None:
        while self._connections:
            self._connections.pop(0).close()
        self._write = None

    def abandon(self) -> None:
        """Close whatever is open and let nothing stop it: what a daemon does after an I/O error."""
        with contextlib.suppress(apsw.Error):
            self.close()
        for left in self._connections:
            left.close(True)
        self._connections = []

    # what one does with turns

    def _session(self, name: str, keyed: str | None = None) -> None:
        ids = self.memory.ids
        ids[f"session {name}"], ids[name] = self.mint(), self.mint()
        new = sessions.NewSession(
            id=ids[f"session {name}"], branch_id=ids[name], state_id=self.mint(), model="recall", at=self.at(), title=name
        )
        once = idempotency.Once.of("session.create", keyed, "session.create", {"title": name})
        self.commit(
            lambda tx: sessions.create(tx, new, once),
            promises=[Promise("session", new.id, name), Promise("branch", ids[name], None)],
        )

    def _new_turn(self, branch: str, text: str, retry_of: str | None = None) -> turns.NewTurn:
        said = message("user", text)
        return turns.NewTurn(
            id=self.mint(), branch_id=self.memory.ids[branch], message=said, model="recall", at=self.at(), retry_of=retry_of
        )

    def _accept(self, branch: str, *, size: int = 60, keyed: str | None = None, retry_of: str | None = None) -> str:
        text = self.words(size)
        new = self._new_turn(branch, text, retry_of)
        once = idempotency.Once.of(new.branch_id, keyed, "turn.submit", {"content": keyed})
        promises = [Promise("said", new.id, text)]
        if keyed is not None:
            promises.append(Promise("keyed", f"{new.branch_id} {keyed}", new.id))
        self.commit(lambda tx: turns.accept(tx, new, once), promises=promises)
        return new.id

    def _respond(self, turn_id: str) -> str:
        rows = self.writer.execute(
            "SELECT t.user_message, b.head_state FROM turns t JOIN branches b ON b.id = t.branch_id WHERE t.id = ?", (turn_id,)
        ).fetchall()
        document = blobs.get(Tx(self.writer), rows[0][0])  # type: ignore[arg-type]
        extra = messages.encode(message("user", "as the pins say"))
        system, part = blobs.digest(SYSTEM), blobs.digest(extra)
        new = steps.NewStep(
            id=self.mint(),
            turn_id=turn_id,
            step_index=0,
            provider="recall",
            model_id="recall",
            recipe=steps.Recipe(system, [steps.Part(part)], "recall", 100, {}),
            parts={system: SYSTEM, part: extra},
            request_hash=request_hash("recall", SYSTEM.decode(), [part, blobs.digest(document)], 100),
            at=self.at(),
        )
        self.commit(lambda tx: turns.respond(tx, turn_id, new, str(rows[0][1]), new.at))
        return new.id

    def _journal(self, step_id: str, text: str, *, whole: bool = True) -> bytes:
        """Write the journal of an answer in a few rounds; it is promised as far as it was synced."""
        size = max(20, len(text) // 6)
        pieces = [("recall.delta", {"text": text[i : i + size]}) for i in range(0, len(text), size)]
        events = [(journals.START, {"model_id": "recall"}), *pieces, *([("recall.end", {"usage": {}})] if whole else [])]
        file = journals.JournalFile(journals.path_of(self.streams, step_id))
        raw = b""
        for number, (kind, payload) in enumerate(events):
            line = journals.encode_line(journals.Line(self.at(), "recall", kind, number, payload)) + b"\n"
            raw += line
            file.write(line)
            if kind == "recall.end" or self.memory.rng.random() < 0.3:
                journals.JournalFile.sync([file])
                self._acknowledge([Promise("journal", step_id, raw)], 0)
        file.close()
        return raw

    def _end(self, step_id: str, text: str, outcome: Outcome) -> steps.EndedStep:
        size = len(text.encode())
        items = (AssistantMessage((Text(text),)),) if text else ()
        return steps.EndedStep(id=step_id, outcome=outcome, items=items, usage={"out": 3}, displayed=size, durable=size)

    def _finalize(self, turn_id: str, step_id: str, text: str, job: jobs.Job | None = None) -> None:
        ended, said, at = self._end(step_id, text, Completed()), message("assistant", text), self.at()
        self.commit(lambda tx: turns.finalize(tx, turn_id, ended, said, at, job), promises=[Promise("answered", turn_id, text)])

    def _fail(self, turn_id: str, step_id: str | None, partial_text: str) -> None:
        ended = self._end(step_id, partial_text, Incomplete("it broke")) if step_id is not None else None
        at = self.at()
        self.commit(
            lambda tx: turns.fail(tx, turn_id, BROKEN, ended, partial_text, at),
            promises=[Promise("partial", turn_id, partial_text)],
        )

    def _pack(self, step_id: str, raw: bytes) -> None:
        self.commit(lambda tx: steps.pack(tx, {step_id: raw}), promises=[Promise("journal", step_id, raw)])
        path = journals.path_of(self.streams, step_id)
        if self.disk is not None:
            self.disk.os.unlink(path)
        else:
            journals.remove(path)

    def _say(self, branch: str, size: int = 60) -> str:
        turn_id = self._accept(branch, size=size)
        step_id = self._respond(turn_id)
        text = self.words(size)
        raw = self._journal(step_id, text)
        self._finalize(turn_id, step_id, text)
        self._pack(step_id, raw)
        return turn_id

    def _index(self, job: jobs.Job) -> None:
        """TX-C of the turn of a claimed job."""
        assert job.turn_id is not None
        said, at = chunks.said_in(Tx(self.writer), job.turn_id)
        made = IndexedTurn(job.turn_id, tuple((self.mint(), one) for each in said for one in index(each, at)))
        work = partial(chunks.index_turn, indexed=made, at=self.at(), job=job, embed=True)
        self.commit(work, promises=[Promise("indexed", job.turn_id, _stored(made))])

    def _index_many(self, kind: str) -> tuple[int, int]:
        """A job for many turns: how many there were, and how many of them got chunks."""
        job = self._claim(kind)
        assert job is not None
        many, promises = [], []
        for _, turn_id in chunks.to_index(Tx(self.writer), 0, 1000, everything=kind == "reindex"):
            said, at = chunks.said_in(Tx(self.writer), turn_id)
            made = IndexedTurn(turn_id, tuple((self.mint(), one) for each in said for one in index(each, at)))
            many.append(made)
            if not chunks.of_turn(Tx(self.writer), turn_id):
                promises.append(Promise("indexed", turn_id, _stored(made)))
        at = self.at()
        self.commit(lambda tx: chunks.index_turns(tx, many, job, CLOCK, at, embed=True), promises=promises)
        self.commit(lambda tx: jobs.finish(tx, job, at))
        return len(many), len(promises)

    def _claim(self, kind: str) -> jobs.Job | None:
        lease, at = self.mint(), self.at()
        (job,) = self.commit(lambda tx: jobs.claim(tx, (kind,), lease, CLOCK, at))
        return job  # type: ignore[no-any-return]

    def _embed(self, name: str, dim: int, batches: int) -> None:
        """Vectors of every passage, in so many batches; then this space answers, and no other is left."""
        at = self.at()
        self.commit(lambda tx: jobs.enqueue(tx, "embed", "", None, at))
        job = self._claim("embed")
        assert job is not None
        (space,) = self.commit(lambda tx: vectors.ensure(tx, name, name, dim, at))
        left = [row[0] for row in self.writer.execute("SELECT n FROM passages ORDER BY n").fetchall()]
        size = -(-len(left) // batches)
        for begin in range(0, len(left), size):
            rows = [(n, self.memory.rng.randbytes(2 * dim)) for n in left[begin : begin + size]]
            work = partial(vectors.add, space=space, vectors=rows, job=job, clock=CLOCK, at=self.at())
            self.commit(work, promises=[Promise("vectors", name, dict(rows))])
        (whole,) = self.commit(lambda tx: vectors.finish(tx, space, job, at), promises=[Promise("answers", name, dim)])
        assert whole

    def _import(self, said: Sequence[tuple[str, str]]) -> imports.Batch:
        """A batch of exchanges, ready to be written."""
        made = []
        for number, (asked, answered) in enumerate(said):
            names = (f"q{number}", f"a{number}")
            sides = (
                msgspec.structs.replace(message("user", asked), external_id=names[0], created_at="2025-01-01T00:00:00.000Z"),
                msgspec.structs.replace(message("assistant", answered), external_id=names[1]),
            )
            cut = tuple((self.mint(), one) for side in sides for one in index(side, "2025-01-01T00:00:00.000Z"))
            turn = IndexedTurn(self.mint(), cut)
            at = "2025-01-01T00:00:00.000Z"
            made.append(imports.ImportedTurn(user=sides[0], answer=sides[1], external_ids=names, at=at, indexed=turn))
        ids = self.memory.ids
        return imports.Batch(format="jsonl", session_id=ids["session imported"], branch_id=ids["imported"], model="recall",
                             turns=tuple(made), embed=True)  # fmt: skip

    # the steps

    def first_version(self) -> None:
        """A database of the oldest schema, with something in it."""
        writer = connection.open_writer(self.path)
        self._connections = [writer]
        self._write = partial(connection.write_batch, writer)
        migrations.migrate(writer, self.folder / "backups", self.at(), migrations.MIGRATIONS[:1])
        self.settle()
        self._session("old")
        with patch.object(turns.jobs, "enqueue"):  # there are no jobs yet
            self._say("old")
        self.close()

    def migrate(self) -> None:
        """The schema of today, after a backup. Each migration is a commit of its own."""
        seen: list[tuple[str, dict[str, str]]] = []
        before = self.memory.states[-1]
        original = migrations.migrate

        def one_by_one(db: apsw.Connection, backups: Path, at: str) -> list[str]:
            ran = []
            for upto in range(1, len(migrations.MIGRATIONS) + 1):
                done = original(db, backups, at, migrations.MIGRATIONS[: max(upto, migrations.version(db))])
                if done:
                    with self.undisturbed():
                        seen.append((digest(db), heads(db)))
                ran += done
            return ran

        with patch.object(migrations, "migrate", one_by_one):
            self.resume()
        for state, anchors in seen:
            self.memory.states.append(state)
            self.memory.anchors.append(anchors)
        self.memory.migrated_at = len(self.memory.states) - 1
        (backup, *_) = sorted((self.folder / "backups").iterdir())
        self.memory.backed_up = (self.memory.migrated_at - len(seen) + 1, backup.name, before)
        self._acknowledge([Promise("migrated", "", len(migrations.MIGRATIONS))], 0)

    def new_session(self) -> None:
        self._session("main", keyed="k-session")
        at = self.at()
        self.commit(lambda tx: sessions.rename(tx, self.memory.ids["session main"], "renamed — ünï", None, at))

    def talk(self) -> None:
        self._say("main")
        self._say("main", 400)

    def keyed_turn(self) -> None:
        turn_id = self._accept("main", keyed="once")
        again = self._new_turn("main", "the same call again")
        once = idempotency.Once.of(self.memory.ids["main"], "once", "turn.submit", {"content": "once"})
        (answer,) = self.commit(lambda tx: turns.accept(tx, again, once))
        assert answer.turn_id == turn_id
        step_id = self._respond(turn_id)
        self._finalize(turn_id, step_id, "short")

    def large_message(self) -> None:
        self._say("main", 12_000)

    def failed_turn(self) -> None:
        turn_id = self._accept("main")
        step_id = self._respond(turn_id)
        text = self.words(90)
        raw = self._journal(step_id, text, whole=False)
        self._fail(turn_id, step_id, text)
        self._pack(step_id, raw)
        self._accept("main", retry_of=turn_id)

    def queue(self) -> None:
        """Several turns wait; one is answered, one fails before it began, the others go on waiting."""
        waiting = [self._accept("main") for _ in range(3)]
        step_id = self._respond(waiting[0])
        self._finalize(waiting[0], step_id, self.words())
        self._fail(waiting[1], None, "")

    def pin(self) -> None:
        branch, session = self.memory.ids["main"], self.memory.ids["session main"]
        made = []
        for text in ("Never touch  `auth/` — ünï.", self.words(200)):
            pin_id, at = self.mint(), self.at()
            made.append(pin_id)
            work = partial(pins.add, branch_id=branch, session_id=session, pin_id=pin_id, text=text, keyed=None, at=at)
            self.commit(work, promises=[Promise("pin", pin_id, text)])
        at = self.at()
        self.commit(lambda tx: pins.remove(tx, branch, session, made[0], None, at))

    def indexing(self) -> None:
        """The turns so far, whole and failed ones, short and long; then the one that is older than the index."""
        while (job := self._claim("index_turn")) is not None:
            self._index(job)
        at = self.at()
        assert self.commit(lambda tx: chunks.mend(tx, at)) == [True]
        assert self._index_many("mend_index") == (1, 1)

    def reindexing(self) -> None:
        """To index everything once more changes nothing of what is indexed already."""
        at = self.at()
        self.commit(lambda tx: jobs.enqueue(tx, "reindex", "", None, at))
        turns_, made = self._index_many("reindex")
        assert turns_ > made

    def vectors(self) -> None:
        self._embed(*FIRST_SPACE, batches=2)

    def other_vectors(self) -> None:
        """Another model fills a space of its own and takes over."""
        self._embed(*SECOND_SPACE, batches=2)

    def importing(self) -> None:
        """A history, twice: the second time nothing is new. How far its file was read is known, too."""
        ids, at = self.memory.ids, self.at()
        ids["session imported"], ids["imported"] = self.mint(), self.mint()
        new = sessions.NewSession(
            id=ids["session imported"], branch_id=ids["imported"], state_id=self.mint(), model="recall", at=at, title="was"
        )
        self.commit(
            lambda tx: imports.create_target(tx, "jsonl", "talk", new),
            promises=[Promise("session", new.id, "was"), Promise("target", "talk", (new.id, new.branch_id))],
        )
        said = [(self.words(), self.words(900)) for _ in range(3)]
        promises = [Promise("imported", f"{side}{n}", said[n][i]) for n in range(3) for i, side in enumerate("qa")]
        batch = self._import(said)
        assert self.commit(partial(imports.add, batch=batch, at=self.at()), promises=promises) == [3]
        reached = imports.Position(900, self.memory.rng.randbytes(34), "mark", self.memory.rng.randbytes(34), {new.id: "b"})
        work = partial(imports.set_position, kind="jsonl", path=IMPORTED_FROM, reached=reached, at=self.at())
        self.commit(work, promises=[Promise("position", IMPORTED_FROM, reached)])
        assert self.commit(partial(imports.add, batch=self._import(said), at=self.at())) == [0]

    def forks(self) -> None:
        """A fork, a rollback, an activation and another model."""
        source = self.memory.ids["main"]
        for name, seq, active in (("fork", 2, False), ("rolled", 1, True)):
            new_id = self.memory.ids[name] = self.mint()
            work = partial(
                branches.fork,
                source_id=source,
                at_turn_seq=seq,
                label=name,
                new_id=new_id,
                at=self.at(),
                activate=active,
                keyed=None,
            )
            self.commit(work, promises=[Promise("branch", new_id, name)])
        self._say("fork")
        at = self.at()
        self.commit(lambda tx: branches.activate(tx, self.memory.ids["fork"], None, at))
        self.commit(lambda tx: branches.select_model(tx, self.memory.ids["fork"], "other", None, at))

    def durable_jobs(self) -> None:
        """A job fails once, is claimed again, and ends with what it did."""
        turn_id = self._accept("fork")
        step_id = self._respond(turn_id)
        branch, kinds = self.memory.ids["fork"], ("reconcile_stream",)
        at, lease, clock = self.at(), self.mint(), 1000.0
        (made,) = self.commit(lambda tx: jobs.enqueue(tx, "reconcile_stream", branch, turn_id, at))
        assert made
        (job,) = self.commit(lambda tx: jobs.claim(tx, kinds, lease, clock, at))
        self.commit(lambda tx: jobs.fail(tx, job, "not yet", clock, 0.5, at))
        (job,) = self.commit(lambda tx: jobs.claim(tx, kinds, lease, clock + 600, at))
        assert job.attempts == 2
        self._finalize(turn_id, step_id, self.words(), job)

    def passive_checkpoint(self) -> None:
        self._checkpoint("PASSIVE")
        self._say("fork")

    def truncating_checkpoint(self) -> None:
        self._checkpoint("TRUNCATE")
        self._say("fork")
        self._say("rolled")

    def restarting_checkpoint(self) -> None:
        self._checkpoint("RESTART")
        self._say("rolled")

    def automatic_checkpoints(self) -> None:
        """The log is short, so commits checkpoint, and the log is used again from its start."""
        self.writer.execute("PRAGMA wal_autocheckpoint = 20").fetchall()
        for _ in range(3):
            self._say("rolled", 300)

    def _checkpoint(self, mode: str) -> None:
        self.writer.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        self._acknowledge((), 0)

    def group_commit(self) -> None:
        """Five clients in one transaction, one of them refused."""
        texts = [self.words() for _ in range(5)]
        new = [self._new_turn("rolled", text) for text in texts]
        new[2] = msgspec.structs.replace(new[2], branch_id=self.mint())
        work = [partial(turns.accept, new=n, keyed=None) for n in new]
        kept = [i for i in range(5) if i != 2]
        answers = self.commit(*work, promises=[Promise("said", new[i].id, texts[i]) for i in kept])
        assert [isinstance(a, Submitted) for a in answers] == [i != 2 for i in range(5)]

    def close_and_open(self) -> None:
        """Closing checkpoints and removes the log; the next commit makes a new one."""
        self.close()
        self._acknowledge((), 0)
        self.resume()
        self._say("main")

    def leave_unfinished(self) -> None:
        """What a crash finds: answers under way, whole and cut, and a turn that nobody began."""
        for whole in (True, False):
            turn_id = self._accept("old")
            self._journal(self._respond(turn_id), self.words(100), whole=whole)
        self._accept("old")

    def at_last(self) -> None:
        self.close()
        self._acknowledge((), 0)


STEPS = (
    "first_version", "migrate", "new_session", "talk", "keyed_turn", "large_message", "failed_turn", "queue", "pin",
    "indexing", "vectors", "forks", "passive_checkpoint", "importing", "durable_jobs", "reindexing", "other_vectors",
    "truncating_checkpoint", "group_commit", "restarting_checkpoint", "automatic_checkpoints", "close_and_open",
    "leave_unfinished", "at_last",
)  # fmt: skip


index = lru_cache(None)(indexing.index)
"""The same, once per message: what follows from a text alone need not be found out for every power cut."""


def _stored(made: IndexedTurn) -> list[Any]:
    """A turn's chunks and passages as they are to be in the database."""
    return [(i, c.role, c.start, c.end, [(p.start, p.end, p.terms) for p in c.passages]) for i, c in made.chunks]


class _Seeded:
    """Stands in for the module `secrets`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def token_bytes(self, size: int) -> bytes:
        return self._rng.randbytes(size)


# what a state of the files is worth


def dump(db: apsw.Connection) -> list[tuple[Any, ...]]:
    """Every row of every table, and the schema."""
    tables = [
        str(r[0]) for r in db.execute("SELECT name FROM sqlite_schema WHERE sql LIKE 'CREATE TABLE%' ORDER BY name").fetchall()
    ]
    rows: list[tuple[Any, ...]] = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name").fetchall()
    for table in tables:
        rows += [(table, *row) for row in db.execute(f"SELECT * FROM {table}").fetchall()]
    return rows


def digest(db: apsw.Connection) -> str:
    return _hash(dump(db))


def _hash(rows: list[tuple[Any, ...]]) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(rows), digest_size=16).hexdigest()


NOTHING = _hash([])


def heads(db: apsw.Connection) -> dict[str, str]:
    known = db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'branches'").fetchall()
    return {str(r[0]): r[1].hex() for r in db.execute("SELECT id, link FROM branches").fetchall()} if known else {}  # type: ignore[union-attr]


async def examine(folder: Path, memory: Memory, told: Acknowledged, *, again: bool = True) -> list[str]:
    """Open what is in the folder as the daemon would, and list every way in which it is less than was acknowledged."""
    checks = {name: check for name, check in verify._CHECKS.items() if name != "schema"}  # every digest is over it, too
    with patch.object(chunks, "index", index), patch.object(verify, "_CHECKS", checks):
        return await _examine(folder, memory, told, again=again)


async def _examine(folder: Path, memory: Memory, told: Acknowledged, *, again: bool) -> list[str]:
    path, streams = folder / "test.db", folder / "streams"
    streams.mkdir(exist_ok=True)
    try:
        found = _state_before_migration(path) if told.commits < memory.migrated_at else None
        opened = _open(folder)
    except (apsw.Error, Fault) as error:
        return [f"the database does not open: {error}"]
    try:
        found = found or digest(opened._connections[-1])
        problems = _compare_state(memory, found, told.commits) + _missing_backup(folder, memory, found)
        await _recover(opened, streams)
        problems += _kept_promises(opened, streams, memory.promises[: told.promises])
        anchors = memory.anchors[min(told.commits, len(memory.anchors) - 1)]
        problems += [f"verify: {problem}" for problem in verify.check(path, streams, anchors).problems]
        if told.commits % INDEX_EVERY == 0 and await _index_all(opened):
            problems += _unindexed(opened) + _kept_promises(opened, streams, memory.promises[: told.promises])
            problems += [f"verify, indexed: {problem}" for problem in verify.check(path, streams, anchors).problems]
        after = digest(opened._connections[-1]) if again else ""
    except (apsw.Error, Fault) as error:
        return [f"the database cannot be used: {error}"]
    finally:
        opened.close()
    if again:
        problems += await _changes_of_a_second_start(folder, after)
    return problems


def _open(folder: Path) -> database.Database:
    return database.open_database(folder / "test.db", folder / "backups", EXAMINE_AT, readers=1, read_only=False)


def _state_before_migration(path: Path) -> str:
    db = connection.open_writer(path)
    try:
        return digest(db)
    finally:
        db.close()


async def _recover(opened: database.Database, streams: Path) -> None:
    storage = Bench(opened).storage
    await storage.release_jobs(now())
    await reconcile(storage, streams, await storage.unfinished_turns())
    await indexer.enqueue_undone(storage)


async def _index_all(opened: database.Database) -> int:
    """What the indexer does once recovery is over; how many jobs there were for it."""
    storage, done, work = (
        Bench(opened).storage,
        0,
        {"index_turn": indexer.run, "mend_index": indexer.again, "reindex": indexer.again},
    )
    while (job := await storage.claim_job(tuple(work), mint(), CLOCK, now())) is not None:
        await work[job.type](storage, mint, lambda: False, lambda: None, job, cut=index)
        done += 1
    return done


def _unindexed(opened: database.Database) -> list[str]:
    """Every turn is over and indexed by now, and no job is left for one."""
    tx = Tx(opened._connections[-1])
    return [
        *(f"turn {row[0]} is not indexed" for row in tx.rows("SELECT id FROM turns WHERE indexed_at IS NULL")),
        *(
            f"job {row[0]} is left"
            for row in tx.rows("SELECT id FROM jobs WHERE type IN ('index_turn', 'mend_index', 'reindex')")
        ),
        *(
            f"turn {row[0]} has the same chunk twice"
            for row in tx.rows(
                "SELECT source_turn FROM chunks GROUP BY source_turn, chunk_type, content_hash HAVING count(*) > 1"
            )
        ),
    ]


def _compare_state(memory: Memory, found: str, acknowledged: int) -> list[str]:
    """It is exactly what some commit left, and no earlier one than the last that was acknowledged."""
    if found not in memory.states:
        return ["the database is in a state that no commit left"]
    newest = len(memory.states) - 1 - memory.states[::-1].index(found)
    if newest < acknowledged:
        return [f"{acknowledged} commits were acknowledged, the database has {newest}"]
    return []


def _missing_backup(folder: Path, memory: Memory, found: str) -> list[str]:
    """A database that was migrated has its backup from before."""
    if memory.backed_up is None:
        return []
    since, name, state = memory.backed_up
    if found not in memory.states[since:]:
        return []
    path = folder / "backups" / name
    if not path.exists():
        return ["the database was migrated and its backup is gone"]
    return [] if _state_before_migration(path) == state else ["the backup from before the migration is not what there was"]


async def _changes_of_a_second_start(folder: Path, before: str) -> list[str]:
    opened = _open(folder)
    try:
        await _recover(opened, folder / "streams")
        return [] if digest(opened._connections[-1]) == before else ["starting a second time changed the database"]
    finally:
        opened.close()


def _kept_promises(opened: database.Database, streams: Path, promises: Sequence[Promise]) -> list[str]:
    db = opened._connections[-1]
    tx = Tx(db)
    events = {str(r[0]): (r[1], r[2], r[3], r[4]) for r in tx.rows("SELECT id, type, branch_id, turn_id, data FROM events")}
    problems = []
    for promise in promises:
        kind, key, value = promise
        if kind == "event":
            event = events.get(key)
            kept = event is not None and (*event[:3], msgspec.json.decode(event[3])) == value
        else:
            kept = _is_kept(tx, streams, kind, key, value)
        if not kept:
            problems.append(f"{kind} {key} was acknowledged and is not there as it was")
    return problems


def _is_kept(tx: Tx, streams: Path, kind: str, key: str, value: Any) -> bool:
    match kind:
        case "said" | "answered" | "partial":
            column = {"said": "user_message", "answered": "final_assistant_message", "partial": "partial_text"}[kind]
            row = tx.row(f"SELECT {column} FROM turns WHERE id = ?", key)
            if row is None:
                return False
            stored = blobs.get(tx, row[0]) if row[0] is not None else b""
            return (stored.decode() if kind == "partial" else messages.decode(stored).rendered_text) == value
        case "journal":
            row = tx.row("SELECT response FROM steps WHERE id = ?", key)
            packed = blobs.expand(row[0]) if row is not None and row[0] is not None else b""
            lines = value.count(b"\n")
            return packed.startswith(value) or (
                journals.read_raw(journals.path_of(streams, key)).startswith(value)
                and len(journals.read_lines(journals.path_of(streams, key))) >= lines
            )
        case "keyed":
            scope, once = key.split(" ")
            row = tx.row("SELECT result FROM idempotency WHERE scope = ? AND key = ?", scope, once)
            return row is not None and msgspec.json.decode(row[0], type=Submitted).turn_id == value
        case "pin":
            return tx.row("SELECT text FROM pins WHERE id = ?", key) == (value,)
        case "branch":
            return tx.row("SELECT label FROM branches WHERE id = ?", key) == (value,)
        case "session":
            return tx.row("SELECT id FROM sessions WHERE id = ?", key) == (key,)
        case "indexed":
            return _is_indexed(tx, key, value)
        case "vectors":  # they may have given way to the vectors of another space since
            rows = dict(tx.rows("SELECT passage, vector FROM passage_vectors WHERE space = (SELECT n FROM vector_spaces "
                                "WHERE name = ?)", key))  # fmt: skip
            return value.items() <= rows.items() or _answers(tx, SECOND_SPACE[0])
        case "answers":
            return _answers(tx, key) or _answers(tx, SECOND_SPACE[0])
        case "imported":
            rows = tx.rows("SELECT t.user_message, t.final_assistant_message, t.indexed_at FROM external_ids x "
                           "JOIN turns t ON t.id = x.turn_id WHERE x.external_id = ?", key)  # fmt: skip
            side = 0 if key.startswith("q") else 1
            return [(messages.decode(blobs.get(tx, r[side])).rendered_text, r[2] is not None) for r in rows] == [(value, True)]
        case "target":
            return imports.target(tx, "jsonl", key) == value
        case "position":
            return imports.position(tx, "jsonl", key) == value
        case "migrated":
            return tx.row("SELECT max(version) FROM migrations") == (value,)
    raise AssertionError(kind)


def _is_indexed(tx: Tx, turn_id: str, wanted: list[Any]) -> bool:
    """Chunks, passages, milestone and event are there, once, and the job is not."""
    rows = tx.rows("SELECT n, id, role, start, end FROM chunks WHERE source_turn = ? ORDER BY n", turn_id)
    pieces = "SELECT start, end, terms FROM passages WHERE chunk = ? ORDER BY n"
    found = [(*row[1:], tx.rows(pieces, row[0])) for row in rows]
    told = tx.row("SELECT count(*) FROM events WHERE type = 'turn.indexed' AND turn_id = ?", turn_id)
    live = tx.row("SELECT count(*) FROM jobs WHERE type = 'index_turn' AND turn_id = ? AND attempts > 0", turn_id)
    milestone = tx.row("SELECT indexed_at IS NOT NULL FROM turns WHERE id = ?", turn_id)
    return found == wanted and told == milestone == (1,) and live == (0,)


def _answers(tx: Tx, space: str) -> bool:
    """It is the space of vectors that takes the questions, and every passage it should have is in it."""
    return any(one.ready and one.name == space for one in vectors.spaces(tx))


def record(folder: Path, seed: int, *, early: bool = False, names: Sequence[str] = STEPS) -> tuple[Disk, Memory]:
    """Play the scenario on a disk that remembers."""
    disk = Disk(folder)
    scenario = Scenario(folder, seed, disk, early=early)
    with disk.as_default():
        try:
            scenario.run(names)
        finally:
            scenario.abandon()
    return disk, scenario.memory


def snapshot(memory: Memory) -> Memory:
    return copy.deepcopy(memory)


def acknowledged_by(disk: Disk) -> list[Acknowledged]:
    """For each moment, what had been acknowledged when so many operations were done."""
    last = Acknowledged(0, 0)
    found = [last]
    for operation in disk.log:
        what = getattr(operation, "what", None)
        if isinstance(what, Acknowledged):
            last = what
        found.append(last)
    return found
