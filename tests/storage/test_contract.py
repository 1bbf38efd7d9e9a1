"""What any storage engine must do, said through the interface alone; a second engine runs the same tests."""

import msgspec
import pytest

from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage.idempotency import Once
from contextinfinity.protocol.blocks import Text, Unknown, message
from contextinfinity.protocol.errors import Conflict, ErrorObject, InvalidParams, NotFound
from contextinfinity.protocol.events import DURABLE
from tests.support.stores import Bench, ended, mint, new_turn

OOPS = ErrorObject(-32005, "it broke", {"code": "overloaded"})


async def test_a_session_has_one_active_branch_and_an_empty_state(bench: Bench) -> None:
    made = await bench.session(title="t", cwd="/x", agent="a")
    assert made.session.active_branch == made.branch.id
    assert made.branch.active
    assert made.session.cwd == "/x"
    (state,) = await bench.storage.states(made.branch.id, 10)
    assert (state.state_seq, state.covers_to_turn_seq, state.summary) == (0, 0, "")
    assert made.branch.head_state == state.id


async def test_sessions_are_listed_by_last_use_in_pages(bench: Bench) -> None:
    made = [await bench.session(title=f"t{i}") for i in range(5)]
    await bench.storage.rename_session(made[1].session.id, "used last", None, now())
    await bench.say(made[1].branch.id, "hello")
    first = await bench.storage.list_sessions(2, None, None)
    assert first.sessions[0].title == "used last"
    assert first.next_cursor is not None
    rest = await bench.storage.list_sessions(100, first.next_cursor, None)
    assert len({s.id for s in (*first.sessions, *rest.sessions)}) == 5
    assert rest.next_cursor is None
    assert [s.title for s in (await bench.storage.list_sessions(9, None, "USED")).sessions] == ["used last"]


async def test_a_made_up_cursor_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidParams):
        await bench.storage.list_sessions(2, "nonsense", None)


async def test_what_was_accepted_can_be_read_at_once_byte_for_byte(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    blocks = (Text("größe  🦆\r\n\t"), Unknown("client", {"type": "video", "n": [1, None]}))
    turn = msgspec.structs.replace(new_turn(branch), message=message("user", blocks))
    submitted = await bench.storage.accept_turn(turn)
    read = await bench.storage.turn(submitted.turn_id)
    assert read.user_message == turn.message
    assert (read.phase, read.turn_seq, submitted.turn_seq) == ("accepted", 1, 1)


async def test_a_large_message_comes_back_whole(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    text = "".join(f"line {i} ünï\n" for i in range(50_000))
    submitted = await bench.accept(branch, text)
    assert (await bench.storage.turn(submitted.turn_id)).user_message.rendered_text == text


async def test_milestones_of_a_turn(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn_id = (await bench.accept(branch)).turn_id
    step_id = await bench.begin(turn_id)
    assert (await bench.storage.turn(turn_id)).phase == "responding"
    assert await bench.storage.finalize_response(turn_id, ended(step_id), message("assistant", "yes"), now())
    turn = await bench.storage.turn(turn_id)
    assert turn.phase == "response_finalized"
    assert turn.final_assistant_message is not None
    assert turn.final_assistant_message.rendered_text == "yes"
    assert [s.id for s in turn.steps] == [step_id]


async def test_an_answer_is_recorded_once(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn_id = (await bench.accept(branch)).turn_id
    step_id = await bench.finish(turn_id, "first")
    assert not await bench.storage.finalize_response(turn_id, ended(step_id), message("assistant", "second"), now())
    assert not await bench.storage.fail_turn(turn_id, OOPS, None, "", now())
    turn = await bench.storage.turn(turn_id)
    assert turn.final_assistant_message is not None
    assert turn.final_assistant_message.rendered_text == "first"
    assert [e.type for e in bench.published].count("step.ended") == 1


async def test_a_failed_turn_keeps_its_partial_text_and_error(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn_id = (await bench.accept(branch)).turn_id
    step_id = await bench.begin(turn_id)
    assert await bench.storage.fail_turn(turn_id, OOPS, ended(step_id), "half an ans", now())
    turn = await bench.storage.turn(turn_id)
    assert (turn.phase, turn.incomplete, turn.partial_text, turn.error) == ("failed", True, "half an ans", OOPS)


async def test_an_idempotency_key_answers_like_the_first_time(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    key = Once.of(branch, "k", "turn.submit", {"content": "x"})
    first = await bench.storage.accept_turn(new_turn(branch), key)
    assert await bench.storage.accept_turn(new_turn(branch), key) == first
    assert len((await bench.storage.list_turns(branch, 0, 100)).turns) == 1
    with pytest.raises(Conflict):
        await bench.storage.accept_turn(new_turn(branch), Once.of(branch, "k", "turn.submit", {"content": "y"}))
    other = (await bench.session()).branch.id
    elsewhere = Once.of(other, "k", "turn.submit", {"content": "y"})
    assert (await bench.storage.accept_turn(new_turn(other), elsewhere)).turn_id != first.turn_id


async def test_a_fork_shares_history_and_continues_its_numbers(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    for i in range(1, 6):
        await bench.say(branch, f"w{i}")
    fork = await bench.storage.fork_branch(branch, 3, "try", mint(), now())
    assert (fork.parent_id, fork.forked_at_turn_seq, fork.turn_seq, fork.label) == (branch, 3, 3, "try")
    await bench.say(fork.id, "f4")
    deeper = await bench.storage.fork_branch(fork.id, 2, None, mint(), now())
    await bench.say(deeper.id, "d3")
    assert await _words(bench, branch) == ["w1", "w2", "w3", "w4", "w5"]
    assert await _words(bench, fork.id) == ["w1", "w2", "w3", "f4"]
    assert await _words(bench, deeper.id) == ["w1", "w2", "d3"]
    newest = await bench.storage.latest_turns(fork.id, 5, 3)
    assert [t.user_message.rendered_text for t in newest] == ["f4", "w3", "w2"]


async def test_turns_are_listed_in_pages_across_a_fork(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    for i in range(1, 5):
        await bench.say(branch, f"w{i}")
    fork = (await bench.storage.fork_branch(branch, 2, None, mint(), now())).id
    await bench.say(fork, "f3")
    seen: list[str] = []
    after = 0
    while True:
        page = await bench.storage.list_turns(fork, after, 1)
        seen += [t.user_message.rendered_text for t in page.turns]
        if page.next_cursor is None:
            break
        after = int(page.next_cursor)
    assert seen == ["w1", "w2", "f3"]


async def test_rollback_activates_the_fork_and_deletes_nothing(bench: Bench) -> None:
    made = await bench.session()
    for i in range(3):
        await bench.say(made.branch.id, f"w{i}")
    rolled = await bench.storage.fork_branch(made.branch.id, 1, None, mint(), now(), activate=True)
    assert (await bench.storage.session(made.session.id)).active_branch == rolled.id
    assert len(await _words(bench, made.branch.id)) == 3
    assert [b.id for b in (await bench.storage.list_branches(made.session.id)).branches] == [made.branch.id, rolled.id]


async def test_a_fork_stops_before_an_unfinished_turn(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    await bench.say(branch, "done")
    live = await bench.accept(branch, "live")
    assert (await bench.storage.fork_branch(branch, None, None, mint(), now())).turn_seq == 1
    with pytest.raises(Conflict) as caught:
        await bench.storage.fork_branch(branch, 2, None, mint(), now())
    assert caught.value.data["active_turn_id"] == live.turn_id
    with pytest.raises(InvalidParams):
        await bench.storage.fork_branch(branch, 9, None, mint(), now())


async def test_pins_are_inherited_as_they_are_now(bench: Bench) -> None:
    made = await bench.session()
    branch = made.branch
    for i in range(2):
        await bench.say(branch.id, f"w{i}")
    keep = await bench.storage.add_pin(branch, mint(), "Never touch  `auth/` — ünï.", None, now())
    gone = await bench.storage.add_pin(branch, mint(), "old", None, now())
    await bench.storage.remove_pin(branch, gone.id, None, now())
    fork = await bench.storage.fork_branch(branch.id, 1, None, mint(), now())
    assert [p.text for p in await bench.storage.pins(fork.id)] == ["Never touch  `auth/` — ünï."]
    await bench.storage.remove_pin(fork, keep.id, None, now())
    assert await bench.storage.pins(fork.id) == []
    assert [p.id for p in await bench.storage.pins(branch.id)] == [keep.id]
    with pytest.raises(NotFound):
        await bench.storage.remove_pin(branch, gone.id, None, now())


async def test_events_are_written_with_their_facts_and_replay_in_order(bench: Bench) -> None:
    made = await bench.session()
    other = await bench.session()
    await bench.say(made.branch.id, "x")
    await bench.say(other.branch.id, "y")
    last = bench.published[-1].cursor
    replayed = await bench.storage.events_after(0, last, 1000)
    assert replayed == bench.published
    assert [e.cursor for e in replayed] == sorted({e.cursor for e in replayed})
    mine = await bench.storage.events_after(0, last, 1000, branch_id=made.branch.id)
    assert [e.type for e in mine] == [
        "branch.created",
        "turn.accepted",
        "turn.phase",
        "turn.phase",
        "step.started",
        "step.ended",
        "turn.phase",
    ]
    assert await bench.storage.events_after(0, last, 1000, session_id=made.session.id) == mine
    assert await bench.storage.events_after(mine[-1].cursor, last, 1000, branch_id=made.branch.id) == []


async def test_a_refused_write_leaves_no_event(bench: Bench) -> None:
    before = len(bench.published)
    with pytest.raises(NotFound):
        await bench.accept(mint())
    assert len(bench.published) == before
    assert await bench.storage.events_after(0, 1000, 1000) == []


async def test_unfinished_turns_are_found_with_their_steps(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    await bench.say(branch, "done")
    responding = (await bench.accept(branch)).turn_id
    step_id = await bench.begin(responding)
    waiting = (await bench.accept(branch)).turn_id
    found = await bench.storage.unfinished_turns()
    assert [(u.turn_id, u.step_id) for u in found] == [(responding, step_id), (waiting, None)]
    assert await bench.storage.unfinished_turns(mint()) == []


async def test_a_journal_is_packed_once_its_step_has_ended(bench: Bench) -> None:
    branch = (await bench.session()).branch.id
    turn_id = (await bench.accept(branch)).turn_id
    step_id = await bench.begin(turn_id)
    assert await bench.storage.pack_journals({step_id: b'{"seq":0}\n'}) == []
    await bench.storage.finalize_response(turn_id, ended(step_id), message("assistant", "a"), now())
    assert await bench.storage.pack_journals({step_id: b'{"seq":0}\n', mint(): b"{}", mint(): b""}) == [step_id]
    assert (await bench.storage.step(step_id, {}, None)).response == ({"seq": 0},)


async def test_owners_do_not_see_each_other(bench: Bench) -> None:
    made = await bench.session()
    submitted = await bench.say(made.branch.id, "secret")
    stranger = bench.storage.for_owner("somebody else")
    for attempt in (
        stranger.session(made.session.id),
        stranger.branch(made.branch.id),
        stranger.turn(submitted.turn_id),
        stranger.list_turns(made.branch.id, 0, 10),
        stranger.list_branches(made.session.id),
    ):
        with pytest.raises(NotFound):
            await attempt
    assert (await stranger.list_sessions(10, None, None)).sessions == ()
    assert await stranger.events_after(0, 1 << 60, 10) == []


async def test_unknown_ids_are_not_found(bench: Bench) -> None:
    for attempt in (
        bench.storage.turn("x"),
        bench.storage.branch("x"),
        bench.storage.session("x"),
        bench.storage.step_request("x"),
    ):
        with pytest.raises(NotFound):
            await attempt


async def _words(bench: Bench, branch_id: str) -> list[str]:
    return [t.user_message.rendered_text for t in (await bench.storage.list_turns(branch_id, 0, 1000)).turns]


async def test_every_event_carries_what_its_schema_says(bench: Bench) -> None:
    made = await bench.session()
    await bench.storage.add_pin(made.branch, mint(), "p", None, now())
    await bench.say(made.branch.id, "x")
    failed = (await bench.accept(made.branch.id)).turn_id
    step = await bench.begin(failed)
    await bench.storage.fail_turn(failed, OOPS, ended(step), "half", now(), recovered=True)
    await bench.storage.fork_branch(made.branch.id, 1, "f", mint(), now())
    await bench.index(failed)
    for event in bench.published:
        kind = DURABLE[event.type]
        msgspec.convert(event.data, kind)
        assert event.data.keys() <= set(kind.__struct_fields__)
    assert {e.type for e in bench.published} == DURABLE.keys()
