"""An index that is damaged or gone is emptied and made anew; what was said is not touched."""

import os
from pathlib import Path

import apsw
import pytest

from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage import verify
from contextinfinity.daemon.storage.repair import TABLES
from tests.support.stores import Bench, opened


async def spoken(folder: Path) -> str:
    with opened(folder) as bench:
        branch = (await bench.session()).branch.id
        turn = (await bench.say(branch, "The build server is called heron-7.")).turn_id
        await bench.index(turn)
        space = await bench.storage.ensure_space("a", "local", 2, now())
        await bench.storage.add_vectors(space, [(1, bytes(4))], None, 0.0, now())
    return turn


def overwrite(path: Path, table: str) -> None:
    """Noise in the place of a table's first page."""
    db = apsw.Connection(str(path))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    ((page,),) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchall()
    ((size,),) = db.execute("PRAGMA page_size").fetchall()
    db.close()
    assert isinstance(page, int)
    assert isinstance(size, int)
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(os.urandom(size))


def drop(path: Path, table: str) -> None:
    db = apsw.Connection(str(path))
    db.execute(f"DROP TABLE {table}").fetchall()
    db.close()


async def check(bench: Bench, folder: Path, turn: str) -> None:
    assert (await bench.storage.turn(turn)).user_message.rendered_text == "The build server is called heron-7."
    assert await bench.storage.mend_index(now())
    assert [row[1] for row in await bench.storage.turns_to_index(0, 9, everything=False)] == [turn]
    assert await bench.index(turn) == 1
    assert len(await bench.storage.passages_after(0, 9)) == 1
    assert verify.check(folder / "test.db", folder).problems == ()


@pytest.mark.parametrize("break_it", [overwrite, drop])
@pytest.mark.parametrize("table", sorted(set(TABLES) - {"retrievals", "vector_spaces"}))
async def test_a_table_of_the_index_that_cannot_be_read_is_made_anew(tmp_path: Path, table: str, break_it: object) -> None:
    turn = await spoken(tmp_path)
    assert callable(break_it)
    break_it(tmp_path / "test.db", table)
    with opened(tmp_path) as bench:
        await check(bench, tmp_path, turn)


async def test_an_index_that_is_whole_is_left_alone(tmp_path: Path) -> None:
    turn = await spoken(tmp_path)
    with opened(tmp_path) as bench:
        before = await bench.storage.passages_after(0, 9)
        generation = await bench.storage.index_generation()
    with opened(tmp_path) as bench:
        assert await bench.storage.passages_after(0, 9) == before
        assert await bench.storage.index_generation() == generation
        assert not await bench.storage.mend_index(now())
        assert (await bench.storage.turn(turn)).created_chunks != ()
