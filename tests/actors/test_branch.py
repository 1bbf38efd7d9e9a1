"""The branch actor: order, gating, queue, cancel, retry, and exactly one recorded outcome whatever happens."""

from pathlib import Path

import msgspec
import pytest
import trio

from contextinfinity.daemon.actors.branch import AddPin, Cancel, Fork, Preview, Retry, SelectModel, Submit
from contextinfinity.daemon.core.assembly import request_hash
from contextinfinity.daemon.storage import journals
from contextinfinity.daemon.storage.blobs import digest
from contextinfinity.daemon.storage.idempotency import Once
from contextinfinity.protocol.blocks import message
from contextinfinity.protocol.errors import Conflict, InvalidParams, InvalidState, NotFound, ProviderError
from contextinfinity.protocol.model import CancelledOutcome, Completed, Incomplete
from tests.support.tree import Tree, running
from tests.support.waiting import until


def said(text: str, **values: object) -> Submit:
    return Submit(said=message("user", text), **values)  # type: ignore[arg-type]


async def talk(tree: Tree, branch: str, text: str, *answer: str) -> str:
    submitted = await tree.branches.ask(branch, said(text))
    await tree.provider.answer(*answer)
    await tree.reached(submitted.turn_id, "response_finalized")
    return submitted.turn_id


async def test_a_turn_runs_to_its_answer_and_the_next_sees_it(tmp_path: Path) -> None:
    async with running(tmp_path) as tree:
        branch = await tree.new_branch(system="Be brief.")
        await talk(tree, branch, "one", "a ", "b")
        turn = await tree.storage.turn(await talk(tree, branch, "two", "c"))
        request = tree.provider.requests[1]
        assert request.system.startswith("Be brief.")
        assert [m.rendered_text for m in request.messages] == ["one", "a b", "two"]
        assert turn.final_assistant_message is not None
        assert turn.final_assistant_message.rendered_text == "c"
        assert turn.steps[0].outcome == Completed()


async def test_a_second_message_conflicts_while_the_first_responds_unless_it_queues(tmp_path: Path) -> None:
    async with running(tmp_path) as tree:
        branch = await tree.new_branch()
        first = await tree.branches.ask(branch, said("one"))
        with pytest.raises(Conflict) as caught:
            await tree.branches.ask(branch, said("two"))
        assert caught.value.data["active_turn_id"] == first.turn_id
        queued = await tree.branches.ask(branch, said("three", queue=True))
        assert queued.turn_seq == 2
        await tree.provider.answer("a")
        await tree.provider.answer("b")
        await tree.reached(queued.turn_id, "response_finalized")
        assert [m.rendered_text for m in tree.provider.requests[1].messages] == ["one", "a", "three"]


async def test_the_next_message_is_welcome_the_moment_the_answer_is_final(tmp_path: Path) -> None:
    async with running(tmp_path) as tree:
        branch = await tree.new_branch()
        for i in range(20):
            await talk(tree, branch, f"m{i}", "ok")  # submits as soon as the milestone can be seen


async def test_pipelined_messages_keep_their_order_even_while_the_branch_wakes(tmp_path: Path) -> None:
    async with running(tmp_path) as tree:
        branch = await tree.new_branch()
        answers = [tree.branches.ask(branch, said(f"m{i}", queue=True)) for i in range(20)]
        async with trio.open_nursery() as nursery:
            for answer in reversed(answers):
                nursery.start_soon(_wait, answer)
        turns = (await tree.storage.list_turns(branch, 0, 100)).turns
        assert [t.user_message.rendered_text for t in turns] == [f"m{i}" for i in range(20)]


async def _wait(answer: object) -> None:
    await answer  # type: ignore[misc]


async def test_cancel_keeps_what_was_said(tmp_path: Path) -> None:
    async with running(tmp_path) as tree:
        branch = await tree.new_branch()
        turn_id = (await tree.branches.ask(branch, said("go"))).turn_id
        await tree.provider.say.send("half ")
        await tree.provider.say.send("way")
        await tree.reached(turn_id, "responding")
        await until(lambda: tree.shown(branch) == 8)
        await tree.branches.ask(branch, Cancel(turn_id))
        turn = await tree.reached(turn_id, "failed")
        assert (turn.phase, turn.partial_text, turn.incomplete) == ("failed", "half way", True)
        assert turn.error is not None
        assert (turn.error.code, turn.error.data) == (-32800, {"code": "cancelled"})
        assert turn.steps[0].outcome == CancelledOutcome()
        await talk(tree, branch, "and now?", "fine")
        prompt = [m.rendered_text for m in tree.provider.requests[1].messages]
        assert prompt[0] == "go"
        assert "incomplete" in prompt[1]
        assert prompt[1].endswith("half way")


async def test_a_queued_turn_can_be_cancelled_and_never_runs(tmp_path: Path) -> None:
    async with running(tmp_path) as tree:
        branch = await tree.new_branch()
        live = await tree.branches.ask(branch, said("live"))
        waiting = await tree.branches.ask(branch, said("waiting", queue=True))
        await tree.branches.ask(branch, Cancel(waiting.turn_id))
        assert (await tree.storage.turn(waiting.turn_id)).phase == "failed"
        await tree.provider.answer("x")
        await tree.reached(live.turn_id, "response_finalized")
        await talk(tree, branch, "next", "y")
        assert len(tree.provider.requests) == 2
        prompt = [m.rendered_text for m in tree.provider.requests[1].messages]
        assert prompt[:2] == ["live", "x"]
        assert "waiting" in prompt[2]


async def test_a_stream_without_its_terminal_event_is_incomplete(tmp_path: Path) -> None:
    async with running(tmp_path) as tree:
        branch = await tree.new_branch()
        turn_id = (await tree.branches.ask(branch, said("go"))).turn_id
        await tree.provider.say.send("tidy ")
        await tree.provider.say.send(tree.provider.CUT)
        turn = await tree.reached(turn_id, "failed", "response_finalized")
        assert (turn.phase, turn.partial_text) == ("failed", "tidy ")
        assert turn.error is not None
        assert (turn.error.code, (turn.error.data or {})["code"]) == (-32005, "incomplete")
        assert isinstance(turn.steps[0].outcome, Incomplete)


async def test_a_provider_error_fails_the_turn_with_its_own_words(tmp_path: Path) -> None:
    async with running(tmp_path) as tree:
        branch = await tree.new_branch()
        turn_id = (await tree.branches.ask(branch, said("go"))).turn_id
        await tree.provider.say.send(ProviderError("set KEY", provider="x", code="missing_key", env="KEY"))
        turn = await tree.reached(turn_id, "failed")
        assert turn.error is not None
        assert turn.error.code == -32005
        assert (turn.error.data or {})["env"] == "KEY"
        assert not turn.incomplete
        await talk(tree, branch, "again", "ok")
        assert "was not answered" in tree.provider.requests[1].messages[0].rendered_text


async def test_a_bug_in_a_provider_fails_only_its_turn_and_names_an_incident(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as tree:
        branch = await tree.new_branch()
        turn_id = (await tree.branches.ask(branch, said("go"))).turn_id
        await tree.provider.say.send(RuntimeError("secret detail"))
        turn = await tree.reached(turn_id, "failed")
        assert turn.error is not None
        assert turn.error.code == -32603
        assert "secret detail" not in turn.error.message
        assert (turn.error.data or {})["incident"] in caplog.text
        await talk(tree, branch, "again", "ok")


async def test_retry_asks_again_and_the_failed_turn_leaves_the_prompt(tmp_path: Path) -> None:
    async with running(tmp_path) as tree:
        branch = await tree.new_branch()
        turn_id = (await tree.branches.ask(branch, said("go"))).turn_id
        await tree.provider.say.send("hal")
        await tree.provider.say.send(tree.provider.CUT)
        failed = await tree.reached(turn_id, "failed")
        retried = await tree.branches.ask(branch, Retry(turn=failed, model=None, keyed=None))
        await tree.provider.answer("whole")
        turn = await tree.reached(retried.turn_id, "response_finalized")
        assert turn.retry_of == turn_id
        assert [m.rendered_text for m in tree.provider.requests[1].messages] == ["go"]
        with pytest.raises(InvalidState):
            await tree.branches.ask(branch, Retry(turn=turn, model=None, keyed=None))
        await talk(tree, branch, "next", "ok")
        assert [m.rendered_text for m in tree.provider.requests[2].messages] == ["go", "whole", "next"]


async def test_a_repeated_key_is_answered_even_while_its_turn_responds(tmp_path: Path) -> None:
    async with running(tmp_path) as tree:
        branch = await tree.new_branch()
        key = Once.of(branch, "k", "turn.submit", "x")
        first = await tree.branches.ask(branch, said("x", keyed=key))
        assert await tree.branches.ask(branch, said("x", keyed=key)) == first
        with pytest.raises(Conflict):
            await tree.branches.ask(branch, said("y", keyed=Once.of(branch, "other", "turn.submit", "y")))
        assert len((await tree.storage.list_turns(branch, 0, 9)).turns) == 1


async def test_stopping_interrupts_what_is_live_and_what_waits(tmp_path: Path) -> None:
    async with running(tmp_path) as tree:
        branch = await tree.new_branch()
        live = (await tree.branches.ask(branch, said("live"))).turn_id
        waiting = (await tree.branches.ask(branch, said("waiting", queue=True))).turn_id
        await tree.provider.say.send("some words")
        await until(lambda: tree.shown(branch) == 10)
    async with running(tmp_path) as tree:
        for turn_id, partial in ((live, "some words"), (waiting, None)):
            turn = await tree.storage.turn(turn_id)
            assert (turn.phase, turn.partial_text) == ("failed", partial)
            assert turn.error is not None
            assert (turn.error.code, turn.error.data) == (-32001, {"code": "interrupted"})
        assert await tree.storage.unfinished_turns() == []
        assert tree.provider.requests == [], "nothing runs again by itself"


async def test_pins_are_in_every_prompt_word_for_word(tmp_path: Path) -> None:
    async with running(tmp_path) as tree:
        branch = await tree.new_branch(system="Base.")
        pin = "Never touch  the `auth/` flow — ünïcode kept."
        await tree.branches.ask(branch, AddPin(pin, None))
        await talk(tree, branch, "x", "y")
        assert pin in tree.provider.requests[0].system
        fork = await tree.branches.ask(branch, Fork(1, None, False, None))
        await talk(tree, fork.id, "on the fork", "z")
        assert pin in tree.provider.requests[1].system
        assert [m.rendered_text for m in tree.provider.requests[1].messages] == ["x", "y", "on the fork"]


async def test_a_message_too_large_for_the_window_fails_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as tree:
        branch = await tree.new_branch()
        turn_id = (await tree.branches.ask(branch, said("huge " * 20_000, model="small"))).turn_id
        turn = await tree.reached(turn_id, "failed")
        assert turn.error is not None
        assert turn.error.code == -32004
        await talk(tree, branch, "still alive?", "yes")


async def test_unknown_branches_and_models_are_named(tmp_path: Path) -> None:
    async with running(tmp_path) as tree:
        with pytest.raises(NotFound):
            await tree.branches.ask("nope", said("x"))
        branch = await tree.new_branch()
        with pytest.raises(InvalidParams) as caught:
            await tree.branches.ask(branch, said("x", model="gpt-9"))
        assert "small" in caught.value.message
        assert await tree.branches.ask(branch, SelectModel("small", None)) == "recall"
        assert (await tree.branches.ask(branch, Preview(message("user", "x")))).budget.model_limit == 8_192


async def test_the_stored_request_proves_what_was_sent(tmp_path: Path) -> None:
    async with running(tmp_path) as tree:
        branch = await tree.new_branch(system="S")
        for i in range(3):
            await talk(tree, branch, f"m{i}", f"a{i}")
        fork = await tree.branches.ask(branch, Fork(2, None, False, None))
        turn = await tree.storage.turn(await talk(tree, fork.id, "new", "z"))
        stored = await tree.storage.step_request(turn.steps[0].id)
        said_then = [m.rendered_text for m in tree.provider.requests[-1].messages]
        texts = [msgspec.json.decode(d)["blocks"][0]["text"] for d in stored.messages]
        assert texts == said_then == ["m0", "a0", "m1", "a1", "new"]
        digests = [digest(d) for d in stored.messages]
        system = stored.system.decode()
        assert system.startswith("S\n")
        proof = request_hash(stored.model_id, system, digests, stored.max_output_tokens, stored.memory)
        assert stored.request_hash == proof


async def test_the_journal_of_an_ended_step_moves_into_the_database(tmp_path: Path) -> None:
    async with running(tmp_path) as tree:
        branch = await tree.new_branch()
        turn = await tree.storage.turn(await talk(tree, branch, "x", "one ", "two"))
        path = journals.path_of(tree.world.streams, turn.steps[0].id)
        await until(lambda: not path.exists())
        step = await tree.storage.step(turn.steps[0].id, {}, None)
        assert [line["event_type"] for line in step.response] == ["ctx.start", "text", "text", "end"]
        assert [line["seq"] for line in step.response] == [0, 1, 2, 3]
