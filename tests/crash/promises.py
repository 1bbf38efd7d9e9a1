"""What clients were told, written down as they were told it, and the check that a daemon after a crash still holds all of it.

`Ledger` is filled by clients, from any thread; `check` raises `Broken` with every promise that was not kept.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage import jobs, verify
from contextinfinity.daemon.storage.connection import open_reader, open_writer, write_batch
from contextinfinity.protocol.errors import NotFound
from contextinfinity.protocol.events import DURABLE
from contextinfinity.protocol.model import Phase
from tests.support.daemon import Daemon
from tests.support.model_check import settled
from tests.support.waiting import wait_until
from tests.support.wire import Wire

UNFINISHED: tuple[Phase, ...] = ("accepted", "context_prepared", "responding")
STALLED_SECONDS = 8.0
LOOKED_AT_SECONDS = 40.0
"""What waits without a worker on it is found when one looks by itself; what runs and does not end is stuck."""
MOST_HITS = 1000
MOST_SEARCHES = 200
LONGEST_QUESTION = 1000
BATCH = 500
EMBEDDER = "fake"
"""What a configuration of these tests calls the embedder that can be asked."""
GONE = (ConnectionError, BrokenPipeError, EOFError, FileNotFoundError)
"""How a client notices that the daemon died."""

Document = dict[str, Any]


class Broken(AssertionError):
    """Promises that were not kept."""


class Ledger:
    def __init__(self, answer: str, *, write_ahead: bool = False) -> None:
        self.answer = answer
        self.write_ahead = write_ahead  # then what was shown is durable, too
        self.branches: list[str] = []
        self.unscripted: set[str] = set()  # branches whose answers come from elsewhere
        self.sent: list[str] = []  # words that a client tried to submit, acknowledged or not
        self.said: dict[str, tuple[str, int]] = {}  # acknowledged: words and number of each turn
        self.durable: dict[str, int] = {}
        self.ended: dict[str, Document] = {}  # turns as they were given out after they were over
        self.pins: dict[str, dict[str, str]] = {}
        self.keyed: dict[tuple[str, str], tuple[str, Document]] = {}  # words and answer by branch and key
        self.events: dict[int, Document] = {}
        self.importing: dict[str, str] = {}  # the branches that histories are imported into, by their sessions
        self.offered: dict[str, dict[str, Document]] = {}  # by session and external id, imported or not, in order
        self.imported: dict[str, dict[str, Document]] = {}  # acknowledged
        self.searched: set[str] = set()  # turns whose words were found
        self._lock = threading.Lock()

    # What a client does, with what it learns from it.

    def session(self, wire: Wire, **params: Any) -> str:
        branch: str = wire.call("session.create", **params)["branch"]["id"]
        if "model" in params:
            self.unscripted.add(branch)
        self.branches.append(branch)
        return branch

    def submit(self, wire: Wire, branch: str, text: str, **more: Any) -> str:
        with self._lock:
            self.sent.append(text)
        turn = wire.call("turn.submit", branch_id=branch, content=text, **more)
        self.said[turn["turn_id"]] = (text, turn["turn_seq"])
        if "idempotency_key" in more:
            self.keyed[(branch, more["idempotency_key"])] = (text, turn)
        return str(turn["turn_id"])

    def wait(self, wire: Wire, turn_id: str, timeout: float = 20) -> Document:
        return self.take(wire.call("turn.wait", turn_id=turn_id, timeout_s=timeout))

    def cancel(self, wire: Wire, turn_id: str) -> Document:
        return self.take(wire.call("turn.cancel", turn_id=turn_id))

    def retry(self, wire: Wire, turn_id: str) -> str:
        with self._lock:
            self.sent.append(self.said[turn_id][0])
        again = wire.call("turn.retry", turn_id=turn_id)
        self.said[again["id"]] = (self.said[turn_id][0], again["turn_seq"])
        return str(again["id"])

    def pin(self, wire: Wire, branch: str, text: str) -> None:
        self.pins.setdefault(branch, {})[wire.call("pin.add", branch_id=branch, text=text)["id"]] = text

    def fork(self, wire: Wire, branch: str) -> str:
        made = wire.call("branch.fork", branch_id=branch)
        if branch in self.unscripted:
            self.unscripted.add(made["id"])
        self.branches.append(made["id"])
        return str(made["id"])

    def take(self, turn: Document) -> Document:
        if turn["phase"] not in UNFINISHED:
            self.ended[turn["id"]] = settled(turn)
        return turn

    def history(self, wire: Wire, title: str) -> str:
        """A session that messages are imported into."""
        made = wire.call("session.create", title=title)
        session: str = made["session"]["id"]
        self.importing[session] = made["branch"]["id"]
        return session

    def take_over(self, wire: Wire, session: str, messages: list[Document]) -> Document:
        """Import them; they count as acknowledged when the answer is there."""
        named = {one["external_id"]: one for one in messages}
        with self._lock:
            self.offered.setdefault(session, {}).update(named)
        made: Document = wire.call("transcript.import", session_id=session, messages=messages)
        with self._lock:
            self.imported.setdefault(session, {}).update(named)
        return made

    @contextmanager
    def listening(self, wire: Wire) -> Iterator[Wire]:
        """Subscribed to everything; whatever was heard counts, also when the daemon dies."""
        try:
            wire.call("events.subscribe")
            yield wire
        finally:
            wire.socket.setblocking(False)
            with suppress(OSError):
                while wire.receive() is not None:
                    pass
            self.heard(wire.events)

    def heard(self, events: list[Document]) -> None:
        with self._lock:
            for event in events:
                if event["type"] in DURABLE:
                    self.events[event["cursor"]] = stripped(event)
                elif event["type"].startswith("stream."):
                    told = event["data"]["durable"]
                    if self.write_ahead:
                        told = max(told, event["data"]["displayed"])
                    turn = event["turn_id"]
                    self.durable[turn] = max(self.durable.get(turn, 0), told)
            events.clear()


def stripped(event: Document) -> Document:
    return {k: v for k, v in event.items() if k != "subscription_id"}


def check(daemon: Daemon, ledger: Ledger, *, indexed: bool = True) -> None:
    """Hold a running daemon to everything in the ledger; what is not `indexed` yet is not searched for."""
    with daemon.wire() as wire:
        problems = [
            *(_quiet(wire) if indexed else ()),
            *_turns(wire, ledger),
            *_lists(wire, ledger),
            *_imports(wire, ledger),
            *_events(wire, ledger),
            *_verify(wire),
            *(_index(wire, ledger) if indexed else ()),
            *_repeats(wire, ledger),
        ]
    if problems:
        raise Broken("\n".join(problems))


def _turns(wire: Wire, ledger: Ledger) -> Iterator[str]:
    for turn_id, (text, seq) in ledger.said.items():
        turn = _get(wire, turn_id)
        if turn is None:
            yield f"lost: turn {turn_id} was acknowledged as number {seq}"
            continue
        if turn["user_message"]["rendered_text"] != text:
            yield f"changed: the words of turn {turn_id}"
        if turn["turn_seq"] != seq:
            yield f"renumbered: turn {turn_id} was {seq}, is {turn['turn_seq']}"
        before = ledger.ended.get(turn_id)
        if before is not None and before != settled(turn):
            yield f"changed: turn {turn_id} was over already:\n{before}\n{turn}"
    for turn_id, durable in ledger.durable.items():
        turn = _get(wire, turn_id)
        if turn is None:
            yield f"lost: turn {turn_id} streamed"
            continue
        kept = len(text_of(turn).encode())
        if kept < durable:
            yield f"shorter: {durable} bytes of turn {turn_id} were reported durable, {kept} are there"


def _get(wire: Wire, turn_id: str) -> Document | None:
    try:
        turn: Document = wire.call("turn.get", turn_id=turn_id)
    except NotFound:
        return None
    return turn


def text_of(turn: Document) -> str:
    """What is kept of an answer, whole or not."""
    final = turn.get("final_assistant_message")
    return str(final["rendered_text"] if final else turn.get("partial_text") or "")


def turns_of(wire: Wire, branch: str) -> list[Document]:
    found: list[Document] = wire.call("turn.list", branch_id=branch, limit=10_000)["turns"]
    return found


def _lists(wire: Wire, ledger: Ledger) -> Iterator[str]:
    seen: dict[str, str] = {}
    for branch in ledger.branches:
        turns = turns_of(wire, branch)
        seqs = [turn["turn_seq"] for turn in turns]
        if seqs != list(range(1, len(seqs) + 1)):
            yield f"holes or doubles in the numbers of branch {branch}: {seqs}"
        for turn in turns:
            seen[turn["id"]] = turn["user_message"]["rendered_text"]
            kept = text_of(turn)
            if turn["phase"] in UNFINISHED:
                yield f"stuck: turn {turn['id']} is {turn['phase']}"
            if branch in ledger.unscripted:
                continue
            if not ledger.answer.startswith(kept):
                yield f"changed: the answer of turn {turn['id']} is not what the provider said: {kept[:80]!r}"
            if turn.get("final_assistant_message") and kept != ledger.answer:
                yield f"cut: turn {turn['id']} is final with {len(kept)} of {len(ledger.answer)} characters"
        pins = {pin["id"]: pin["text"] for pin in wire.call("pin.list", branch_id=branch)["pins"]}
        if not ledger.pins.get(branch, {}).items() <= pins.items():
            yield f"lost: a pin of branch {branch}"
    extra = Counter(seen.values()) - Counter(ledger.sent)
    if extra:
        yield f"doubled or invented: {extra}"


def replay(wire: Wire) -> list[Document]:
    """Every durable event there is, in order."""
    mine = wire.call("events.subscribe", since=0)["subscription_id"]
    last = wire.call("events.subscribe")["cursor"]
    if last:
        wire.until(lambda e: e["subscription_id"] == mine and e["type"] in DURABLE and e["cursor"] >= last)
    return [stripped(e) for e in wire.events if e["subscription_id"] == mine and e["type"] in DURABLE]


def _events(wire: Wire, ledger: Ledger) -> Iterator[str]:
    found = replay(wire)
    cursors = [event["cursor"] for event in found]
    if cursors != sorted(set(cursors)):
        yield "events come twice or out of order"
    there = {event["cursor"]: event for event in found}
    for cursor, event in ledger.events.items():
        if there.get(cursor) != event:
            yield f"event {cursor} was told as {event} and is now {there.get(cursor)}"
    facts = Counter(
        (e["type"], e.get("turn_id"), e["data"].get("phase"), e["data"].get("step_id"))
        for e in found
        if e["type"] in ("turn.accepted", "turn.phase", "turn.indexed", "step.started", "step.ended", "recovery.partial")
    )
    yield from (f"reported {count} times: {fact}" for fact, count in facts.items() if count > 1)


def quiet(wire: Wire) -> Document:
    """The status once every job is done, or when none has ended for a while."""
    left, since, seen = None, time.monotonic(), 0
    while True:
        status: Document = wire.call("daemon.status")
        now_left = (status["jobs"], status["memory"]["unindexed_turns"], status["memory"]["unembedded"])
        seen = seen + 1 if _is_quiet(status) else 0
        if seen == 2:  # its figures are not of one instant
            return status
        if now_left != left:
            left, since = now_left, time.monotonic()
        elif time.monotonic() - since > (STALLED_SECONDS if status["jobs"]["running"] else LOOKED_AT_SECONDS):
            return status
        time.sleep(0.01)


def _is_quiet(status: Document) -> bool:
    """Where an embedder can be asked, the space that it fills answers; it is looked at only after the start."""
    jobs_, memory = status["jobs"], status["memory"]
    embedded = memory.get("embedder") == EMBEDDER and memory["unembedded"] == 0
    wanted = memory["target"] == EMBEDDER and memory["passages"]
    return not (jobs_["pending"] or jobs_["running"] or memory["unindexed_turns"]) and (embedded or not wanted)


def _quiet(wire: Wire) -> Iterator[str]:
    status = quiet(wire)
    if any(status["jobs"].values()):
        yield f"jobs are left: {status['jobs']}"
    unindexed = status["memory"]["unindexed_turns"]
    if unindexed:
        yield f"not indexed: {unindexed} turns are over, and nobody indexes them"
    unembedded = status["memory"]["unembedded"]
    if unembedded:
        yield f"not embedded: {unembedded} passages, and nobody embeds them"


def _verify(wire: Wire) -> Iterator[str]:
    report = wire.call("store.verify")
    yield from (f"verify: {problem}" for problem in report["problems"])


def chunks_of(wire: Wire) -> list[Document]:
    """Every chunk there is."""
    page: Document = wire.call("memory.chunks", limit=BATCH)
    found: list[Document] = page["chunks"]
    while page.get("next_cursor"):
        page = wire.call("memory.chunks", limit=BATCH, cursor=page["next_cursor"])
        found += page["chunks"]
    return found


def _index(wire: Wire, ledger: Ledger) -> Iterator[str]:
    """Each turn has its chunks, once; whoever looks for words that were acknowledged finds them."""
    found = chunks_of(wire)
    doubled = Counter((c["turn_id"], c["chunk_type"], c["content_hash"]) for c in found)
    yield from (f"doubled: {count} times a chunk of turn {key[0]}" for key, count in doubled.items() if count > 1)
    there = {(c["turn_id"], c["role"]) for c in found}
    for turn_id, (text, _) in ledger.said.items():
        if (turn_id, "user") not in there:
            yield f"not indexed: turn {turn_id} has no chunk of what was said"
        elif turn_id not in ledger.searched and len(text) < LONGEST_QUESTION:
            if turn_id not in (hit["turn_id"] for hit in search(wire, text)):
                yield f"not found: turn {turn_id} by its words {text!r}"
            ledger.searched.add(turn_id)
    for session, acknowledged in ledger.imported.items():
        for external_id in sorted(acknowledged.keys() - ledger.searched)[:MOST_SEARCHES]:
            results = search(wire, acknowledged[external_id]["text"], session_id=session)
            if external_id not in (hit["external_ids"][0] for hit in results):
                yield f"not found: imported message {external_id}"
            ledger.searched.add(external_id)


def search(wire: Wire, text: str, **where: Any) -> list[Document]:
    found: list[Document] = wire.call("memory.search", query=text, mode="text", top_k=MOST_HITS, **where)["results"]
    return found


def _imports(wire: Wire, ledger: Ledger) -> Iterator[str]:
    """What was imported is there as it was given, once, in order; an import is there whole or not at all."""
    for session, branch in ledger.importing.items():
        offered = ledger.offered.get(session, {})
        turns = turns_of(wire, branch)
        sides = [side for t in turns for side in (t["user_message"], t.get("final_assistant_message")) if side]
        found = [side["external_id"] for side in sides if side.get("external_id")]
        if len(set(found)) != len(found):
            yield f"doubled: imported messages of session {session}: {[e for e, n in Counter(found).items() if n > 1]}"
        if found != [external_id for external_id in offered if external_id in set(found)]:
            yield f"imported messages of session {session} are out of order"
        lost = ledger.imported.get(session, {}).keys() - set(found)
        if lost:
            yield f"lost: imported messages {sorted(lost)[:3]} of session {session} were acknowledged"
        for side in sides:
            external_id = side.get("external_id")
            if external_id and offered[external_id]["text"] != side["rendered_text"]:
                yield f"changed: the words of imported message {external_id}"


def _repeats(wire: Wire, ledger: Ledger) -> Iterator[str]:
    """A keyed call, made again after the crash, answers as the first time and does nothing."""
    for (branch, key), (text, first) in ledger.keyed.items():
        again = wire.call("turn.submit", branch_id=branch, content=text, idempotency_key=key)
        if again != first:
            yield f"repeated: key {key} answered {first}, now {again}"


def rest(daemon: Daemon) -> None:
    """Wait until the journals of ended turns are in the database: the last thing that follows a crash."""
    wait_until(lambda: not list((daemon.home / "streams").iterdir()), 10)


def snapshot(home: Path) -> dict[str, list[str]]:
    """Every row of every table of a database that nobody writes now, and the files beside it."""
    db = open_reader(home / "contextinfinity.db")
    try:
        names = [str(r[0]) for r in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
        found = {name: [repr(row) for row in db.execute(f"SELECT * FROM {name}")] for name in names}
    finally:
        db.close()
    return found | {"streams/": sorted(path.name for path in (home / "streams").iterdir())}


def check_left(home: Path) -> None:
    """The database as a crash left it holds together already, before anybody repairs anything."""
    report = verify.check(home / "contextinfinity.db", home / "streams")
    if not report.ok:
        raise Broken("\n".join(f"left by the crash: {problem}" for problem in report.problems))


def repeat_imports(daemon: Daemon, ledger: Ledger) -> None:
    """What was offered is imported again: only what is not there is new, and after that nothing."""
    with daemon.wire() as wire:
        for session, offered in ledger.offered.items():
            ledger.take_over(wire, session, list(offered.values()))
            made = ledger.take_over(wire, session, list(offered.values()))
            if made["turns"] or made["skipped"] != len(offered):
                raise Broken(f"imported again: {made['turns']} turns of session {session}")


def check_recovery(daemon: Daemon, ledger: Ledger) -> None:
    """What a crash left holds together; a start makes good of it; the second start must find nothing to do."""
    check_left(daemon.home)
    check_two_starts(daemon, ledger)


def check_two_starts(daemon: Daemon, ledger: Ledger) -> None:
    daemon.start()
    check(daemon, ledger)
    repeat_imports(daemon, ledger)
    rest(daemon)
    daemon.stop()
    first = snapshot(daemon.home)
    daemon.start()
    check(daemon, ledger)
    daemon.stop()
    _compare(first, snapshot(daemon.home), "a second start")


def check_indexing_again(daemon: Daemon, ledger: Ledger) -> None:
    """A daemon that was stopped is asked to index every turn once more: that changes nothing."""
    before = snapshot(daemon.home)
    assert _ask_to_index(daemon.home)
    daemon.start()
    check(daemon, ledger)
    daemon.stop()
    after = snapshot(daemon.home)
    numbers = "sqlite_sequence"  # of jobs, among others
    assert before.pop(numbers) != after.pop(numbers), "nothing was indexed again"
    _compare(before, after, "indexing again")


def _ask_to_index(home: Path) -> bool:
    db = open_writer(home / "contextinfinity.db")
    try:
        ((asked, error),) = write_batch(db, [lambda tx: jobs.enqueue(tx, "reindex", "", None, now())])
        assert error is None
    finally:
        db.close()
    return bool(asked.value)


def _compare(before: dict[str, list[str]], after: dict[str, list[str]], what: str) -> None:
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    if changed:
        details = {name: [(a, b) for a, b in zip(before[name], after[name], strict=False) if a != b][:2] for name in changed}
        raise Broken(f"{what} changed {changed}: {json.dumps(details)[:2000]}")
