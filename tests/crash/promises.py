"""What clients were told, written down as they were told it, and the check that a daemon after a crash still holds all of it.

`Ledger` is filled by clients, from any thread; `check` raises `Broken` with every promise that was not kept.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from contextinfinity.daemon.storage.connection import open_reader
from contextinfinity.protocol.errors import NotFound
from contextinfinity.protocol.events import DURABLE
from contextinfinity.protocol.model import Phase
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.support.wire import Wire

UNFINISHED: tuple[Phase, ...] = ("accepted", "context_prepared", "responding")
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
            self.ended[turn["id"]] = {k: v for k, v in turn.items() if k != "timed_out"}
        return turn

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


def check(daemon: Daemon, ledger: Ledger) -> None:
    """Hold a running daemon to everything in the ledger."""
    with daemon.wire() as wire:
        problems = [
            *_turns(wire, ledger),
            *_lists(wire, ledger),
            *_events(wire, ledger),
            *_store(wire),
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
        if before is not None and before != turn:
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
        if e["type"] in ("turn.accepted", "turn.phase", "step.started", "step.ended", "recovery.partial")
    )
    yield from (f"reported {count} times: {fact}" for fact, count in facts.items() if count > 1)


def _store(wire: Wire) -> Iterator[str]:
    report = wire.call("store.verify")
    yield from (f"verify: {problem}" for problem in report["problems"])
    jobs = wire.call("daemon.status")["jobs"]
    if any(jobs.values()):
        yield f"jobs are left: {jobs}"


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


def check_recovery(daemon: Daemon, ledger: Ledger) -> None:
    """Start after a crash, check, and start once more: the second start must find nothing to do."""
    daemon.start()
    check(daemon, ledger)
    rest(daemon)
    daemon.stop()
    first = snapshot(daemon.home)
    daemon.start()
    check(daemon, ledger)
    daemon.stop()
    second = snapshot(daemon.home)
    changed = [name for name in first.keys() | second.keys() if first.get(name) != second.get(name)]
    if changed:
        details = {name: [(a, b) for a, b in zip(first[name], second[name], strict=False) if a != b][:2] for name in changed}
        raise Broken(f"a second start changed {changed}: {json.dumps(details)[:2000]}")
