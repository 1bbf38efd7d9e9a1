"""How long a start takes that finds unfinished turns: it may grow with their number, never with the history behind them.

Each history is made once, with the functions that the store itself uses, and copied for every start.
"""

import hashlib
import random
import shutil
import time
from pathlib import Path
from statistics import median

from bench.process import BIN, PING, folder, process, sockets, until_answer
from bench.table import Row
from contextinfinity.daemon.core.assembly import request_hash
from contextinfinity.daemon.core.transcript import Answer, Ended, TextDelta
from contextinfinity.daemon.runtime.ids import IdMint, now
from contextinfinity.daemon.storage import journals, messages, migrations, sessions, steps, turns
from contextinfinity.daemon.storage.connection import Tx, open_writer
from contextinfinity.protocol.blocks import message
from contextinfinity.protocol.model import Completed

HISTORIES = (100, 1000, 5000)
UNFINISHED, MORE_UNFINISHED = 20, 200
STARTS = 5
BATCH = 500
WORDS = 60


class History:
    """A home with so many turns, each in the way the daemon leaves it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._states: dict[str, str] = {}
        (home / "streams").mkdir(mode=0o700)
        self._db = open_writer(home / "contextinfinity.db")
        self._mint = IdMint()
        self._random = random.Random(7)
        migrations.migrate(self._db, home / "backups", now())

    def add(self, ended: int, unfinished: int) -> None:
        for start in range(0, ended, BATCH):
            self._db.execute("BEGIN").fetchall()
            branch = self._branch()
            for _ in range(min(BATCH, ended - start)):
                self._turn(branch, whole=True)
            self._db.execute("COMMIT").fetchall()
        self._db.execute("BEGIN").fetchall()
        for _ in range(unfinished):
            self._turn(self._branch(), whole=False)
        self._db.execute("COMMIT").fetchall()

    def close(self) -> None:
        self._db.close()

    def _branch(self) -> str:
        new = sessions.NewSession(id=self._mint(), branch_id=self._mint(), state_id=self._mint(), model="recall", at=now())
        sessions.create(Tx(self._db), new, None)
        self._states[new.branch_id] = new.state_id
        return new.branch_id

    def _text(self) -> str:
        return " ".join(f"{self._random.getrandbits(40):x}" for _ in range(WORDS))

    def _turn(self, branch: str, *, whole: bool) -> None:
        tx, at = Tx(self._db), now()
        said = message("user", self._text(), created_at=at)
        turn = turns.NewTurn(id=self._mint(), branch_id=branch, message=said, model="recall", at=at)
        turns.accept(tx, turn, None)
        system = hashlib.sha256(b"").digest()
        proof = request_hash("recall", "", [hashlib.sha256(messages.encode(said)).digest()], 1000)
        step = steps.NewStep(
            id=self._mint(),
            turn_id=turn.id,
            step_index=0,
            provider="recall",
            model_id="recall",
            recipe=steps.Recipe(system, [], "recall", 1000, {"pins": [], "state_id": self._states[branch]}),
            parts={system: b""},
            request_hash=proof,
            at=at,
        )
        turns.respond(tx, turn.id, step, self._states[branch], at)
        answer, text = Answer(), self._text()
        lines = [journals.Line(at, "recall", journals.START, 0, {"model_id": "recall", "turn_id": turn.id})]
        lines += [
            journals.Line(at, "recall", "recall.delta", n, {"text": f"{word} "}) for n, word in enumerate(text.split(), 1)
        ]
        raw = b"".join(journals.encode_line(line) + b"\n" for line in lines)
        if not whole:
            journals.path_of(self.home / "streams", step.id).write_bytes(raw)
            return
        answer.apply(TextDelta(0, text))
        answer.apply(Ended(Completed()))
        size = len(text.encode())
        ended = steps.EndedStep(id=step.id, outcome=Completed(), items=answer.items(), usage={}, displayed=size, durable=size)
        turns.finalize(tx, turn.id, ended, message("assistant", answer.blocks(), created_at=at), at)
        steps.pack(tx, {step.id: raw})


def measure() -> list[Row]:
    with folder() as made, sockets() as short:
        rows: list[Row] = []
        few = _start_time(made, short, HISTORIES[0], UNFINISHED)
        for history in HISTORIES[1:]:
            name = f"start with {UNFINISHED} unfinished turns, {history:,} in all / {HISTORIES[0]}"
            rows.append(Row(name, _start_time(made, short, history, UNFINISHED), "ms", few, 1.25))
        nothing = _start_time(made, short, HISTORIES[0], 0)
        many = _start_time(made, short, HISTORIES[0], MORE_UNFINISHED)
        each = max(0.0, many - nothing) / MORE_UNFINISHED
        return [*rows, Row("  each unfinished turn adds", each, "ms", target=10.0)]


def _start_time(made: Path, short: Path, ended: int, unfinished: int) -> float:
    """Milliseconds from starting the process to its first answer, all turns recovered."""
    original = made / f"{ended}-{unfinished}"
    if not original.exists():
        original.mkdir(mode=0o700)
        history = History(original)
        history.add(ended, unfinished)
        history.close()
    taken = []
    for number in range(STARTS):
        home = made / f"copy-{number}"
        shutil.copytree(original, home)
        begin = time.perf_counter()
        with process([BIN / "ctxd", "--home", home, "--socket", short / "ctxd.sock"], home=home):
            until_answer(short / "ctxd.sock", PING)
            taken.append(time.perf_counter() - begin)
        shutil.rmtree(home)
    return median(taken) * 1e3
