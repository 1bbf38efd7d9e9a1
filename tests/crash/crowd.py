"""Clients that talk, import and search all at once until the daemon dies under them; a ledger keeps what each was told."""

import contextlib
import random
import threading
import time
from collections.abc import Iterator

from contextinfinity.protocol.errors import Conflict, Fault
from tests.crash.promises import GONE, Document, Ledger, search
from tests.support.daemon import Daemon
from tests.support.wire import Wire

LONGEST_PAUSE = 0.3
MOST_IMPORTED = 12
IMPORT_PAUSE = 1.0


class Crowd:
    """`with Crowd(...)`: the clients talk inside the block; they end when the daemon dies, or by `leave`."""

    def __init__(self, daemon: Daemon, ledger: Ledger, branches: list[str], seed: int) -> None:
        self.acknowledged = threading.Event()
        self.failures: list[str] = []
        self._daemon = daemon
        self._ledger = ledger
        self._leaving = threading.Event()
        self._threads = [
            threading.Thread(target=self._client, args=(branch, random.Random(f"{seed} {branch} {n}")))
            for n, branch in enumerate(branches)
        ]
        for session in ledger.importing:
            self._threads.append(threading.Thread(target=self._importer, args=(session, random.Random(f"{seed} {session}"))))
        self._threads.append(threading.Thread(target=self._searcher, args=(random.Random(f"{seed} searches"),)))

    def __enter__(self) -> "Crowd":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        for thread in self._threads:
            thread.join()

    def wait_for_acknowledgement(self, seconds: float) -> bool:
        """Until some client hears, after now, that its words are safe."""
        self.acknowledged.clear()
        return self.acknowledged.wait(seconds)

    def _client(self, branch: str, rng: random.Random) -> None:
        with self._noting_failures(), self._daemon.wire() as wire, self._ledger.listening(wire):
            while not self._leaving.is_set():
                self._exchange(wire, branch, rng)

    @contextlib.contextmanager
    def _noting_failures(self) -> Iterator[None]:
        try:
            with contextlib.suppress(*GONE):
                yield
        except Exception as error:  # noqa: BLE001 - whatever a client did not expect is the test's failure
            self.failures.append(repr(error))

    def _importer(self, session: str, rng: random.Random) -> None:
        """Batch after batch; what nobody answered for is offered again first, and now and then what was answered for."""
        ledger = self._ledger
        with self._noting_failures(), self._daemon.wire() as wire:
            while not self._leaving.is_set():
                offered, safe = ledger.offered.get(session, {}), ledger.imported.get(session, {})
                again = [one for name, one in offered.items() if name not in safe]
                batch = again or self._batch(len(offered), rng)
                repeated = rng.sample(list(safe.values()), min(3, len(safe))) if rng.random() < 0.2 else []
                made = ledger.take_over(wire, session, [*repeated, *batch])
                if made["skipped"] < len(repeated):
                    self.failures.append(f"imported twice: {made}")
                self._leaving.wait(rng.uniform(0, IMPORT_PAUSE))

    @staticmethod
    def _batch(first: int, rng: random.Random) -> list[Document]:
        count = rng.randrange(1, MOST_IMPORTED)
        return [
            {
                "role": rng.choice(("user", "assistant")),
                "text": f"tale-{rng.getrandbits(64):x}",
                "external_id": f"m{first + n}",
                "created_at": "2025-03-04T05:06:07Z",
            }
            for n in range(count)
        ]

    def _searcher(self, rng: random.Random) -> None:
        """Every search is answered, or the daemon is gone."""
        with self._noting_failures(), self._daemon.wire() as wire:
            while not self._leaving.is_set():
                said = [text for text, _ in list(self._ledger.said.values())]
                search(wire, rng.choice(said) if said else "anything")
                self._leaving.wait(rng.uniform(0, LONGEST_PAUSE))

    def _exchange(self, wire: Wire, branch: str, rng: random.Random) -> None:
        ledger, text = self._ledger, f"word-{rng.getrandbits(64):x}"
        more = {"idempotency_key": text} if rng.random() < 0.3 else {}
        try:
            turn = ledger.submit(wire, branch, text, **more)
        except Conflict:  # an earlier one is under way
            time.sleep(0.02)
            return
        self.acknowledged.set()
        chance = rng.random()
        if chance < 0.4:
            time.sleep(rng.uniform(0, LONGEST_PAUSE))
            ended = ledger.cancel(wire, turn)
            if ended["phase"] == "failed" and chance < 0.1:
                ledger.wait(wire, ledger.retry(wire, turn))
        else:
            ledger.wait(wire, turn)
        if rng.random() < 0.1:
            ledger.pin(wire, branch, f"pin {text}")
        if rng.random() < 0.05:
            with contextlib.suppress(Fault):
                ledger.fork(wire, branch)
