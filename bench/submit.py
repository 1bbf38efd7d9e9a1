"""Words accepted and durable, through the socket, against a bare SQLite commit with full synchronisation.

Each submit stands between bare commits of the same moment, pacing and disk; answering it happens outside the timed part.
"""

import time
from pathlib import Path
from typing import Any

import apsw
import trio

from bench.process import Daemon, daemon, folder
from bench.table import Row, p50
from bench.wire import Wire, connect, result
from contextinfinity.daemon.runtime.ids import IdMint, now
from contextinfinity.daemon.storage import migrations, sessions, turns
from contextinfinity.daemon.storage.connection import Tx, open_writer
from contextinfinity.protocol.blocks import message

WARM, ROUNDS = 20, 200
TURNS_PER_BRANCH = 40
PAUSE_S = 0.001
PADDING = 400 * "."  # ids, times and the like, which make a turn's row larger than its words
WORDS = "The build server is called heron-7 and the deploy window is on Tuesday at 14:00 UTC; remember both. "


def measure() -> list[Row]:
    with daemon() as running, folder() as beside:
        submits, commits, sets = trio.run(_measure, running, beside)
    return [
        Row("durable submit p50 / bare commit", p50(submits), "us", p50(commits), 2.0),
        Row("  / bare commit of the same rows", p50(submits), "us", p50(sets)),
    ]


async def _measure(running: Daemon, beside: Path) -> tuple[list[float], ...]:
    taken: tuple[list[float], ...] = ([], [], [])
    one, several = OneRow(beside / "one.db"), SameRows(beside / "several.db")
    async with connect(running.socket) as wire:
        for number in range(WARM + ROUNDS):
            if number % TURNS_PER_BRANCH == 0:  # a long history would only make the untimed answers slow
                branch = (await wire.call("session.create"))["branch"]["id"]
            figures = [
                await _submit(wire, running, branch, f"{number}: {WORDS}"),
                await _commit(one, f"{number}: {WORDS}"),
                await _commit(several, f"{number}: {WORDS}"),
            ]
            if number >= WARM:
                for figure, kind in zip(figures, taken, strict=True):
                    kind.append(figure)
    one.close()
    several.close()
    return taken


async def _submit(wire: Wire, running: Daemon, branch: str, text: str) -> float:
    request = wire.request("turn.submit", branch_id=branch, content=text)
    await trio.sleep(PAUSE_S)
    begin = time.perf_counter()
    answer = await wire.exchange(request)
    taken = time.perf_counter() - begin
    turn = await wire.call("turn.wait", turn_id=result(answer)["turn_id"])
    assert turn["phase"] != "failed", turn
    await running.quiet()
    return taken


async def _commit(bare: "OneRow | SameRows", text: str) -> float:
    bare.prepare(text)
    await trio.sleep(PAUSE_S)
    begin = time.perf_counter()
    bare.commit()
    return time.perf_counter() - begin


class OneRow:
    """The floor: one row of the size of a turn, in a commit of its own."""

    def __init__(self, path: Path) -> None:
        self._db = open_writer(path)
        self._db.execute("CREATE TABLE turns(n INTEGER PRIMARY KEY, id TEXT, body TEXT)").fetchall()
        self._mint = IdMint()

    def prepare(self, text: str) -> None:
        self._row = (self._mint(), text + PADDING)

    def commit(self) -> None:
        self._db.execute("INSERT INTO turns(id, body) VALUES (?, ?)", self._row).fetchall()

    def close(self) -> None:
        self._db.close()


class SameRows:
    """The rows that accepting a turn writes, as plain statements: written down from a copy in memory, then repeated."""

    def __init__(self, path: Path) -> None:
        self._mint = IdMint()
        self._db, self._copy = open_writer(path), apsw.Connection(":memory:")
        self._statements: list[tuple[str, Any]] = []
        new = sessions.NewSession(id=self._mint(), branch_id=self._mint(), state_id=self._mint(), model="recall", at=now())
        for db in (self._db, self._copy):
            migrations.migrate(db, path.parent, now())
            sessions.create(Tx(db), new, None)
        self._branch = new.branch_id
        self._copy.exec_trace = self._note

    def _note(self, _: apsw.Cursor, sql: str, values: Any) -> bool:
        if not sql.startswith("SELECT"):
            self._statements.append((sql, values))
        return True

    def prepare(self, text: str) -> None:
        self._statements.clear()
        said = message("user", text, created_at=now())
        new = turns.NewTurn(id=self._mint(), branch_id=self._branch, message=said, model="recall", at=now())
        turns.accept(Tx(self._copy), new, None)

    def commit(self) -> None:
        self._db.execute("BEGIN IMMEDIATE").fetchall()
        for sql, values in self._statements:
            self._db.execute(sql, values).fetchall()
        self._db.execute("COMMIT").fetchall()

    def close(self) -> None:
        self._db.close()
        self._copy.close()
