"""The reconciler: one outcome for every turn an earlier process left unfinished, the same however often it runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contextinfinity.daemon.actors.recovery import reconcile
from contextinfinity.daemon.storage import journals
from contextinfinity.daemon.storage.turns import Unfinished
from contextinfinity.protocol.model import Completed, Failed, Incomplete, Turn
from tests.support.stores import Bench, opened

DELTAS = [("recall.delta", {"text": "hel"}), ("recall.delta", {"text": "lo"})]
END = ("recall.end", {"usage": {"output_tokens": 2}})
ERROR = (journals.ERROR, {"code": -32005, "message": "overloaded", "data": {"code": "overloaded"}})


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with opened(tmp_path) as bench:
        yield bench


def write_journal(folder: Path, step_id: str, *events: tuple[str, dict[str, Any]], torn: bytes = b"") -> None:
    lines = [
        journals.Line("2026-01-01T00:00:00.000Z", "recall", kind, i, payload)
        for i, (kind, payload) in enumerate([(journals.START, {"model_id": "recall"}), *events])
    ]
    data = b"".join(journals.encode_line(line) + b"\n" for line in lines)
    journals.path_of(folder, step_id).write_bytes(data + torn)


async def recovered(bench: Bench, folder: Path, *events: tuple[str, dict[str, Any]], torn: bytes = b"") -> Turn:
    branch = (await bench.session()).branch.id
    turn_id = (await bench.accept(branch)).turn_id
    write_journal(folder, await bench.begin(turn_id), *events, torn=torn)
    await reconcile(bench.storage, folder, await bench.storage.unfinished_turns())
    turn = await bench.storage.turn(turn_id)
    published = len(bench.published)
    assert await bench.storage.unfinished_turns() == []
    await reconcile(bench.storage, folder, [Unfinished(turn_id, branch, turn.steps[0].id, "recall")])
    assert await bench.storage.turn(turn_id) == turn
    assert len(bench.published) == published
    return turn


async def test_a_terminal_event_finalises_the_turn(bench: Bench, tmp_path: Path) -> None:
    turn = await recovered(bench, tmp_path, *DELTAS, END)
    assert turn.phase == "response_finalized"
    assert turn.final_assistant_message is not None
    assert turn.final_assistant_message.rendered_text == "hello"
    assert turn.steps[0].outcome == Completed()


async def test_an_error_fails_it_and_keeps_the_text(bench: Bench, tmp_path: Path) -> None:
    turn = await recovered(bench, tmp_path, *DELTAS, ERROR)
    assert (turn.phase, turn.partial_text) == ("failed", "hello")
    assert turn.steps[0].outcome == Failed("overloaded", "overloaded")


async def test_neither_leaves_the_partial_text_and_tells_subscribers(bench: Bench, tmp_path: Path) -> None:
    turn = await recovered(bench, tmp_path, *DELTAS, torn=b'{"ts": "2026')
    assert (turn.phase, turn.partial_text, turn.incomplete) == ("failed", "hello", True)
    assert turn.error is not None
    assert turn.error.data == {"code": "interrupted"}
    assert isinstance(turn.steps[0].outcome, Incomplete)
    (event,) = [e for e in bench.published if e.type == "recovery.partial"]
    assert event.data == {"step_id": turn.steps[0].id, "bytes": 5}


async def test_a_step_without_a_journal_is_interrupted(bench: Bench, tmp_path: Path) -> None:
    branch = (await bench.session()).branch.id
    turn_id = (await bench.accept(branch)).turn_id
    await bench.begin(turn_id)
    waiting = (await bench.accept(branch)).turn_id
    await reconcile(bench.storage, tmp_path, await bench.storage.unfinished_turns())
    for unfinished in (turn_id, waiting):
        turn = await bench.storage.turn(unfinished)
        assert (turn.phase, turn.partial_text, turn.incomplete) == ("failed", None, False)
    assert [e.type for e in bench.published].count("recovery.partial") == 0
