"""Imported turns: whole and searchable in one transaction, each message once, and proven like any other."""

from pathlib import Path

import pytest
import trio

from contextinfinity.daemon.core.indexing import index
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage import verify
from contextinfinity.daemon.storage.chunks import IndexedTurn
from contextinfinity.daemon.storage.imports import Batch, ImportedTurn, Position
from contextinfinity.daemon.storage.sessions import NewSession
from contextinfinity.protocol.blocks import Message, message
from contextinfinity.protocol.errors import NotFound
from tests.support.stores import Bench, mint

AT = "2024-05-08T10:00:00.000Z"


def said(role: str, text: str, ident: str) -> Message:
    made = message(role, text, created_at=AT)  # type: ignore[arg-type]
    return Message(made.role, made.blocks, made.rendered_text, "Ada", AT, ident)


def turn(user: Message | None, answer: Message | None) -> ImportedTurn:
    sides = [m for m in (user, answer) if m is not None]
    chunks = tuple((mint(), chunk) for side in sides for chunk in index(side, AT))
    ids = tuple(m.external_id for m in sides if m.external_id is not None)
    return ImportedTurn(user=user, answer=answer, external_ids=ids, at=AT, indexed=IndexedTurn(mint(), chunks))


def exchange(number: int) -> ImportedTurn:
    return turn(said("user", f"question {number}", f"q{number}"), said("assistant", f"answer {number}", f"a{number}"))


async def add(bench: Bench, branch: str, *turns: ImportedTurn, embed: bool = False) -> int:
    session = (await bench.storage.branch(branch)).session_id
    batch = Batch(format="jsonl", session_id=session, branch_id=branch, model="recall", turns=turns, embed=embed)
    return await bench.storage.add_imported(batch, now())


async def sound(folder: Path) -> None:
    report = await trio.to_thread.run_sync(verify.check, folder / "test.db", folder)
    assert report.problems == ()


async def test_imported_turns_are_whole_at_once(bench: Bench, tmp_path: Path) -> None:
    branch = (await bench.session()).branch.id
    await bench.say(branch, "before")
    assert await add(bench, branch, exchange(1), exchange(2)) == 2
    await bench.say(branch, "after")
    turns = (await bench.storage.list_turns(branch, 0, 10)).turns
    assert [t.turn_seq for t in turns] == [1, 2, 3, 4]
    one = turns[1]
    assert (one.phase, one.indexed, len(one.created_chunks), one.created_at) == ("response_finalized", True, 2, AT)
    assert (one.user_message.speaker, one.user_message.external_id) == ("Ada", "q1")
    assert one.final_assistant_message is not None
    assert one.final_assistant_message.rendered_text == "answer 1"
    told = [(e.type, e.data.get("phase")) for e in bench.published if e.turn_id == one.id]
    assert told == [("turn.accepted", None), ("turn.phase", "response_finalized"), ("turn.indexed", None)]
    assert (await bench.storage.index_state()).unindexed == 2, "those that were said here"
    await sound(tmp_path)


async def test_a_message_comes_once_per_session(bench: Bench, tmp_path: Path) -> None:
    branch, other = (await bench.session()).branch.id, (await bench.session()).branch.id
    assert await add(bench, branch, exchange(1)) == 1
    assert await add(bench, branch, exchange(1), exchange(2)) == 1
    assert await add(bench, branch, exchange(1), exchange(2)) == 0
    assert await add(bench, branch, exchange(3), exchange(3)) == 1, "nor twice in one batch"
    assert await add(bench, other, exchange(1)) == 1
    session = (await bench.storage.branch(branch)).session_id
    assert await bench.storage.known_external_ids(session, ["q1", "a2", "q9"]) == {"q1", "a2"}
    assert await bench.storage.known_external_ids(session, []) == set()
    assert (await bench.storage.branch(branch)).turn_seq == 3
    await sound(tmp_path)


async def test_a_message_without_a_partner_is_a_turn_with_one_side(bench: Bench, tmp_path: Path) -> None:
    branch = (await bench.session()).branch.id
    await add(bench, branch, turn(None, said("assistant", "Hello!", "a0")), turn(said("user", "Hm.", "q0"), None))
    first, second = (await bench.storage.list_turns(branch, 0, 10)).turns
    assert (first.user_message.blocks, len(first.created_chunks)) == ((), 1)
    assert first.final_assistant_message is not None
    assert (second.final_assistant_message, second.phase, len(second.created_chunks)) == (None, "response_finalized", 1)
    around = await bench.storage.neighbours(second.id, 5, 5)
    assert [(m.role, m.rendered_text) for _, _, m in around] == [("assistant", "Hello!"), ("user", "Hm.")]
    await sound(tmp_path)


async def test_a_fork_of_imported_turns_can_be_proven(bench: Bench, tmp_path: Path) -> None:
    branch = (await bench.session()).branch.id
    await add(bench, branch, *(exchange(n) for n in range(4)))
    fork = await bench.storage.fork_branch(branch, 2, None, mint(), now())
    await add(bench, fork.id, exchange(9))
    await bench.say(fork.id, "go on")
    assert [t.user_message.rendered_text for t in (await bench.storage.list_turns(fork.id, 0, 10)).turns] == [
        "question 0", "question 1", "question 9", "go on"
    ]  # fmt: skip
    await sound(tmp_path)


async def test_a_batch_for_no_branch_writes_nothing(bench: Bench) -> None:
    batch = Batch(format="jsonl", session_id="s", branch_id="nope", model="recall", turns=(exchange(1),), embed=False)
    with pytest.raises(NotFound):
        await bench.storage.add_imported(batch, now())
    assert (await bench.storage.counts())[0] == 0


async def test_embedding_is_asked_for_when_something_is_new(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    await add(bench, branch, exchange(1), embed=True)
    job = await bench.storage.claim_job(("embed",), mint(), 1.0, now())
    assert job is not None
    await bench.storage.finish_embedding(None, job, now())
    await add(bench, branch, exchange(1), embed=True)
    assert await bench.storage.claim_job(("embed",), mint(), 1.0, now()) is None


def new(title: str) -> NewSession:
    return NewSession(id=mint(), branch_id=mint(), state_id=mint(), model="recall", at=now(), title=title)


async def test_a_conversation_has_one_target_for_ever(bench: Bench) -> None:
    mine = await bench.session(title="mine")
    made = await bench.storage.create_import_target("codex", "c1", new("theirs"))
    assert await bench.storage.create_import_target("codex", "c1", new("again")) == made
    assert await bench.storage.import_target("codex", "c1") == made
    assert await bench.storage.import_target("codex", "c2") is None
    assert await bench.storage.import_target("claude", "c1") is None
    assert await bench.storage.create_import_target("claude", "c1", new("other")) != made
    nameless = await bench.storage.create_import_target("", None, new("a"))
    assert await bench.storage.create_import_target("", None, new("b")) != nameless
    listed = (await bench.storage.list_sessions(10, None, None)).sessions
    assert listed[0].id == mine.session.id, "what is imported was not used last"
    assert len(listed) == 5


async def test_how_far_a_file_was_read_is_kept_by_format_and_path(bench: Bench) -> None:
    assert await bench.storage.import_position("jsonl", "/a") is None
    for offset in (10, 200):
        reached = Position(offset, b"\x01\x00hash", f"{offset} 1 2")
        await bench.storage.set_import_position("jsonl", "/a", reached, now())
        assert await bench.storage.import_position("jsonl", "/a") == reached
    assert await bench.storage.import_position("jsonl", "/b") is None
    assert await bench.storage.import_position("codex", "/a") is None
