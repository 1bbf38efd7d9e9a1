"""An I/O error at each operation: somebody is told, nothing acknowledged is missing, the connection is not trusted again."""

import random
from pathlib import Path
from typing import Any

import pytest
import trio

from contextinfinity.daemon.actors import store
from contextinfinity.daemon.runtime.actor import ActorGone
from contextinfinity.daemon.storage import database, verify
from contextinfinity.daemon.storage.connection import open_reader
from tests.durability.cuts import SEED
from tests.durability.faults import fail_everywhere_on_all_cores
from tests.support.powerloss import Disk, FailedSync, Platter, io_error, lay_out
from tests.support.stores import new_turn
from tests.support.tree import running
from tests.support.waiting import until


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_failed_operation_loses_what_was_acknowledged() -> None:
    failures = fail_everywhere_on_all_cores(SEED)
    assert failures.lost == []
    assert set(failures.failed) == {"read", "write", "sync", "truncate"}
    assert failures.untold["write"] == failures.untold["sync"] == 0


class Spy:
    """Calls a function and counts."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.results: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.results.append(self._function(*args, **kwargs))
        return self.results[-1]


class FailNext:
    """Fails the next operation of one kind on the log, when told to."""

    def __init__(self, operation: str) -> None:
        self.armed = False
        self._operation = operation

    def __call__(self, operation: str, name: str) -> BaseException | None:
        if self.armed and operation == self._operation and name.endswith("-wal"):
            self.armed = False
            return io_error(operation)
        return None


@pytest.mark.parametrize("operation", ["sync", "write"])
async def test_after_a_failed_write_the_store_reopens_and_verifies_and_goes_on(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, verified = Spy(database.open_database), Spy(verify.check)
    monkeypatch.setattr(store.database, "open_database", opened)
    monkeypatch.setattr(store.verify, "check", verified)
    fault = FailNext(operation)
    home = tmp_path / "home"
    home.mkdir()
    disk = Disk(home, fault)
    with disk.as_default():
        async with running(home) as tree:
            branch = await tree.new_branch()
            before = await tree.storage.accept_turn(new_turn(branch, "before"))
            broken = tree.gate.writer
            fault.armed = True
            lost = [new_turn(branch, f"lost {i}") for i in range(5)]
            answers: list[object] = []
            async with trio.open_nursery() as nursery:
                for turn in lost:
                    nursery.start_soon(_ask, tree.storage.accept_turn(turn), answers)
            assert [type(a) for a in answers] == [ActorGone] * 5, "whoever waited is told, and nobody that it went well"
            assert broken is not None
            with pytest.raises(ActorGone):
                await broken.submit(lambda tx: tx.run("INSERT INTO meta VALUES ('a', 'b')"))
            await until(lambda: tree.gate.writer not in (None, broken))
            assert [report.ok for report in verified.results] == [True]
            assert len(opened.results) == 2
            assert opened.results[0]._connections[-1] is not opened.results[1]._connections[-1]
            after = await tree.storage.accept_turn(new_turn(branch, "after"))
            turns = (await tree.storage.list_turns(branch, 0, 100)).turns
            assert [(t.id, t.user_message.rendered_text) for t in turns] == [
                (before.turn_id, "before"),
                (after.turn_id, "after"),
            ]
            platter = Platter(disk.before)
            for done in disk.log.copy():
                platter.apply(done)
    assert any(isinstance(done, FailedSync) for done in disk.log) == (operation == "sync")
    for seed in range(20):
        rebuilt = tmp_path / f"cut {seed}"
        lay_out(platter.cut(random.Random(SEED + seed)), rebuilt)
        assert verify.check(rebuilt / "test.db", rebuilt).problems == ()
        db = open_reader(rebuilt / "test.db")
        kept = {str(row[0]) for row in db.execute("SELECT id FROM turns").fetchall()}
        db.close()
        assert {before.turn_id, after.turn_id} <= kept


async def _ask(question: Any, answers: list[object]) -> None:
    try:
        answers.append(await question)
    except ActorGone as error:
        answers.append(error)
