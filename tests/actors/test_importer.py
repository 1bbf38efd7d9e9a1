"""Imports: every message once and in its exchange, however often, in whatever pieces, and whatever happens to the file."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import trio

from contextinfinity.daemon.actors import importer as importer_module
from contextinfinity.daemon.actors.branch import Fork, Submit
from contextinfinity.daemon.actors.importer import ImportMessages, ImportPath
from contextinfinity.protocol.blocks import Message, message
from contextinfinity.protocol.errors import InvalidParams, NotFound, StorageFull
from contextinfinity.protocol.methods import Imported
from tests.support.memory import MemoryTree, remembering
from tests.support.waiting import until

AT = "2024-05-08T10:00:00Z"


def line(role: str, text: str, **more: object) -> dict[str, object]:
    return {"role": role, "text": text, "created_at": AT, **more}


def exchange(number: int, **more: object) -> list[dict[str, object]]:
    return [line("user", f"question {number}", **more), line("assistant", f"answer {number}", **more)]


def append(path: Path, lines: Iterable[object], end: str = "\n") -> Path:
    with path.open("a") as file:
        file.write("\n".join(json.dumps(one) for one in lines) + end)
    return path


def replace(path: Path, lines: Iterable[object]) -> None:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))


def given(role: str, text: str, ident: str | None = None, at: str | None = AT) -> Message:
    made = message(role, text)  # type: ignore[arg-type]
    return Message(made.role, made.blocks, made.rendered_text, None, at, ident)


async def take(tree: MemoryTree, path: Path, **more: Any) -> Imported:
    return await tree.importer.ask(ImportPath(path=str(path), **more))


async def turns(tree: MemoryTree, branch: str | None) -> list[tuple[str, str | None]]:
    """Both sides of each turn."""
    assert branch is not None
    found, after = [], 0
    while True:
        page = await tree.storage.list_turns(branch, after, 100)
        for turn in page.turns:
            answer = turn.final_assistant_message
            found.append((turn.user_message.rendered_text, answer.rendered_text if answer else None))
        if page.next_cursor is None:
            return found
        after = int(page.next_cursor)


def pairs(*numbers: int) -> list[tuple[str, str | None]]:
    return [(f"question {n}", f"answer {n}") for n in numbers]


def content(path: Path) -> bytes:
    return path.read_bytes()


def look(path: Path) -> tuple[str, int]:
    return hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns


# messages


async def test_messages_become_exchanges_in_a_session_of_their_own(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        mine = await tree.new_branch()
        said = (given("user", "a", "1"), given("assistant", "b", "2"), given("assistant", "c", "3"), given("user", "d", "4"))
        made = await tree.importer.ask(ImportMessages(messages=said, title="Old talk"))
        assert (made.turns, made.messages, made.skipped, made.format) == (3, 4, 0, "jsonl")
        assert await turns(tree, made.branch_id) == [("a", "b"), ("", "c"), ("d", None)]
        assert made.session_id is not None
        session = await tree.storage.session(made.session_id)
        assert (session.title, session.active_branch) == ("Old talk", made.branch_id)
        assert made.branch_id != mine
        assert (await tree.search("b")).results[0].external_ids[0] == "2"
        assert (await tree.verified()).problems == ()


async def test_messages_without_a_time_of_their_own_can_be_proven(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        said = (given("user", "heron-7?", at=None), given("assistant", "rack 4", at=None), given("user", "ta", at=None))
        made = await tree.importer.ask(ImportMessages(messages=said))
        assert made.turns == 2
        report = await tree.verified()
        assert report.problems == ()


async def test_imported_again_into_the_same_session_nothing_doubles(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        said = (given("user", "a"), given("assistant", "b"), given("user", "c", "named"))
        made = await tree.importer.ask(ImportMessages(messages=said))
        more = (*said, given("assistant", "d"))
        again = await tree.importer.ask(ImportMessages(messages=more, session_id=made.session_id))
        assert (again.turns, again.messages, again.skipped) == (1, 1, 3)
        assert [side for turn in await turns(tree, made.branch_id) for side in turn if side] == ["a", "b", "c", "d"]


async def test_a_message_without_name_or_date_is_new_every_time(tmp_path: Path) -> None:
    """Rather a word twice than a word lost: a script may well say "yes" once more."""
    async with remembering(tmp_path) as tree:
        yes = (given("user", "yes", at=None),)
        made = await tree.importer.ask(ImportMessages(messages=yes))
        again = await tree.importer.ask(ImportMessages(messages=yes, session_id=made.session_id))
        assert (again.turns, again.messages, again.skipped) == (1, 1, 0)


async def test_many_equal_messages_are_all_kept(tmp_path: Path) -> None:
    """A long list goes in batches; that two of them say the same makes them neither one nor the other."""
    async with remembering(tmp_path) as tree:
        said = tuple(given(role, "yes", at=None) for _ in range(400) for role in ("user", "assistant"))
        made = await tree.importer.ask(ImportMessages(messages=said))
        assert (made.turns, made.messages, made.skipped) == (400, 800, 0)


async def test_a_name_that_comes_twice_loses_no_other_message(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        said = (given("user", "a", "1"), given("assistant", "b", "2"), given("user", "a", "1"), given("assistant", "c", "3"))
        made = await tree.importer.ask(ImportMessages(messages=said))
        kept = [side for turn in await turns(tree, made.branch_id) for side in turn if side]
        assert kept == ["a", "b", "c"]
        assert (made.messages, made.skipped) == (3, 1)


async def test_batches_keep_exchanges_together(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        said: list[Message] = [given("user", "alone", "x")]  # from here on every batch would end inside an exchange
        for number in range(400):
            said += [given("user", f"question {number}", f"q{number}"), given("assistant", f"answer {number}", f"a{number}")]
        made = await tree.importer.ask(ImportMessages(messages=tuple(said)))
        assert await turns(tree, made.branch_id) == [("alone", None), *pairs(*range(400))]
        path = append(tmp_path / "long.jsonl", [line("user", "alone"), *(one for n in range(400) for one in exchange(n))])
        other = await take(tree, path)
        assert await turns(tree, other.branch_id) == [("alone", None), *pairs(*range(400))]
        assert (await tree.verified()).problems == ()


async def test_an_answer_in_many_steps_is_one_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer_module, "RECORDS", 4)
    session, stamp = "5b3f0e6a-6f1c-4ac6-8a8e-0d6f2f6a9b11", "2026-02-03T10:00:00.000Z"

    def row(kind: str, uuid: str, content: object) -> dict[str, object]:
        told = {"role": kind, "content": content, **({"id": "m1", "type": "message"} if kind == "assistant" else {})}
        common = {"parentUuid": None, "isSidechain": False, "cwd": "/home/ada/shop", "version": "2.1.0"}
        return {**common, "sessionId": session, "type": kind, "message": told, "uuid": uuid, "timestamp": stamp}

    rows = [row("user", "u1", "Run the tests")]
    for step in range(10):
        call = {"type": "tool_use", "id": f"t{step}", "name": "Bash", "input": {"command": f"pytest {step}"}}
        rows.append(row("assistant", f"a{step}", [call]))
        answer = {"tool_use_id": f"t{step}", "type": "tool_result", "content": [{"type": "text", "text": f"{step} passed"}]}
        rows.append(row("user", f"r{step}", [answer]))
    rows += [row("assistant", "end", [{"type": "text", "text": "All green."}]), row("user", "u2", "Thanks")]
    async with remembering(tmp_path) as tree:
        made = await take(tree, append(tmp_path / "code.jsonl", rows))
        assert made.format == "claude_code"
        found = (await tree.storage.list_turns(str(made.branch_id), 0, 10)).turns
        assert [t.user_message.rendered_text for t in found] == ["Run the tests", "Thanks"]
        answer = found[0].final_assistant_message
        assert answer is not None
        assert len(answer.blocks) == 21
        assert answer.rendered_text.endswith("All green.")
        assert made.session_id is not None
        assert (await tree.storage.session(made.session_id)).cwd == "/home/ada/shop"
        assert (await tree.verified()).problems == ()


# files


async def test_a_file_is_read_on_from_where_it_was_left(tmp_path: Path) -> None:
    path = append(tmp_path / "talk.jsonl", [*exchange(1), *exchange(2)])
    async with remembering(tmp_path) as tree:
        first = await take(tree, path)
        before = look(path)
        assert (first.turns, first.messages) == (2, 4)
        nothing = await take(tree, path)
        assert (nothing.turns, nothing.messages) == (0, 0)
        append(path, exchange(3))
        more = await take(tree, path)
        assert (more.turns, more.skipped, more.branch_id) == (1, 0, first.branch_id)
        assert await turns(tree, first.branch_id) == pairs(1, 2, 3)
        assert look(path) != before
        kept = content(path)
    async with remembering(tmp_path) as tree:
        assert (await take(tree, path)).turns == 0, "a new daemon remembers too"
        append(path, exchange(4))
        more = await take(tree, path)
        assert (more.turns, more.skipped) == (1, 0)
        assert await turns(tree, more.branch_id) == pairs(1, 2, 3, 4)
        assert content(path).startswith(kept)


def everything(folder: Path) -> dict[str, tuple[str, int]]:
    return {str(path): look(path) for path in sorted(folder.iterdir())}


async def test_a_source_is_never_changed(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours):
        os.mkdir(folder)
    path = append(theirs / "talk.jsonl", [*exchange(1), {"role": "user"}, *exchange(2)], end="")
    os.chmod(path, 0o444)
    before = everything(theirs)
    async with remembering(ours) as tree:
        for _ in range(2):
            await take(tree, path)
            await take(tree, theirs)
    assert everything(theirs) == before


async def test_half_a_line_at_the_end_waits_until_it_is_whole(tmp_path: Path) -> None:
    path = append(tmp_path / "talk.jsonl", exchange(1))
    whole = json.dumps(line("user", "question 2"))
    append(path, [], end=whole[:20])
    async with remembering(tmp_path) as tree:
        made = await take(tree, path)
        assert (made.turns, made.damaged) == (1, ())
        append(path, [], end=whole[20:] + "\n")
        append(path, [line("assistant", "answer 2")])
        made = await take(tree, path)
        assert made.damaged == ()
        assert await turns(tree, made.branch_id) == pairs(1, 2)


async def test_a_file_that_was_rewritten_is_read_anew_and_keeps_what_was_there(tmp_path: Path) -> None:
    path = append(tmp_path / "talk.jsonl", [*exchange(1, external_id=None), *exchange(2)])
    async with remembering(tmp_path) as tree:
        made = await take(tree, path)
        replace(path, [*exchange(7), *exchange(8), *exchange(9)])
        await take(tree, path)
        assert await turns(tree, made.branch_id) == pairs(1, 2, 7, 8, 9)


async def test_a_file_that_was_cut_short_loses_nothing_here(tmp_path: Path) -> None:
    def many(count: int) -> list[dict[str, object]]:
        return [one for n in range(count) for one in exchange(n)]

    path = append(tmp_path / "talk.jsonl", many(60))
    async with remembering(tmp_path) as tree:
        made = await take(tree, path)
        replace(path, many(40))
        assert len(content(path)) > importer_module.HEAD_BYTES, "its beginning is the same"
        again = await take(tree, path)
        assert (again.turns, again.skipped) == (0, 80)
        append(path, exchange(99))
        await take(tree, path)
        assert await turns(tree, made.branch_id) == pairs(*range(60), 99)


async def test_a_file_that_was_rotated_away_and_begun_anew(tmp_path: Path) -> None:
    path = append(tmp_path / "talk.jsonl", exchange(1))
    async with remembering(tmp_path) as tree:
        first = await take(tree, path)
        os.rename(path, tmp_path / "talk.1.jsonl")
        append(path, exchange(2))
        await take(tree, path)
        assert await turns(tree, first.branch_id) == pairs(1, 2)
        moved = await take(tree, tmp_path / "talk.1.jsonl")
        assert moved.turns == 1, "another path is another conversation, where the messages do not name theirs"


async def test_damaged_lines_are_named_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = append(tmp_path / "talk.jsonl", exchange(1))
    append(path, [], end='{"role": "user", "te\n[1, 2]\n\xff not utf-8 {\n')
    append(path, exchange(2))
    async with remembering(tmp_path) as tree:
        made = await take(tree, path)
        assert await turns(tree, made.branch_id) == pairs(1, 2)
        assert len(made.damaged) == 3
        assert all("talk.jsonl" in place and "line" in place for place in made.damaged)
        assert not any("not utf-8 {" in place for place in made.damaged)
        assert made.skipped == 3


async def test_very_many_damages_are_counted_not_listed(tmp_path: Path) -> None:
    path = append(tmp_path / "talk.jsonl", exchange(1))
    append(path, [], end="{\n" * 500)
    async with remembering(tmp_path) as tree:
        made = await take(tree, path)
        assert len(made.damaged) == importer_module.MOST_NAMED + 1
        assert made.damaged[-1] == "and 400 more"


async def test_two_conversations_in_one_file_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer_module, "RECORDS", 3)
    rows: list[dict[str, object]] = []
    for number in range(6):
        one, two = exchange(number, session="s1"), exchange(number + 100, session="s2")
        rows += [one[0], two[0], one[1], two[1]]  # told in turns
    path = append(tmp_path / "talk.jsonl", rows)
    async with remembering(tmp_path) as tree:
        made = await take(tree, path)
        assert len(made.sessions) == 2
        for session, first in zip(made.sessions, (0, 100), strict=True):
            branch = (await tree.storage.session(session)).active_branch
            assert await turns(tree, branch) == pairs(*range(first, first + 6))
        copy = append(tmp_path / "copy.jsonl", rows[:4] + exchange(50, session="s1"))
        again = await take(tree, copy)
        assert set(again.sessions) == set(made.sessions), "a conversation with a name is the same in any file"


async def test_a_folder_is_read_file_by_file_and_a_bad_file_stops_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "talks"
    folder.mkdir()
    for number in range(3):
        append(folder / f"{number}.jsonl", exchange(number))
    (folder / "empty.jsonl").touch()
    async with remembering(tmp_path) as tree:
        made = await take(tree, folder)
        assert (made.turns, len(made.sessions)) == (3, 3)
        titles = [(await tree.storage.session(s)).title for s in made.sessions]
        assert titles == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [("nowhere.jsonl", None, "nowhere.jsonl cannot be read"), ("notes.txt", "Dear diary", "is in no format known here")],
)
async def test_what_cannot_be_imported_is_named(tmp_path: Path, name: str, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    async with remembering(tmp_path) as tree:
        with pytest.raises(InvalidParams) as caught:
            await take(tree, tmp_path / name)
        assert caught.value.message.startswith("path: ")
        assert said in caught.value.message
        with pytest.raises(InvalidParams) as caught:
            await take(tree, tmp_path, format="telepathy")
        assert "jsonl" in caught.value.message
        with pytest.raises(NotFound):
            await tree.importer.ask(ImportMessages(messages=(given("user", "x"),), session_id="nope"))
        assert (await tree.importer.ask(ImportMessages(messages=()))).turns == 0, "it is still at work"


async def test_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer_module, "RECORDS", 5)
    told: list[dict[str, Any]] = []
    path = append(tmp_path / "talk.jsonl", [one for n in range(20) for one in exchange(n)])
    async with remembering(tmp_path) as tree:
        monkeypatch.setattr(tree.hub, "progress", lambda kind, **values: told.append({"type": kind, **values}))
        await take(tree, path)
    size = path.stat().st_size
    assert len(told) > 5
    assert [one["done"] for one in told] == sorted(one["done"] for one in told)
    assert (told[-1]["done"], told[-1]["total"], told[0]["path"]) == (size, size, str(path))


# branches that are alive


async def test_an_import_into_a_session_whose_turn_is_live(tmp_path: Path) -> None:
    path = append(tmp_path / "talk.jsonl", exchange(1))
    async with remembering(tmp_path) as tree:
        branch = await tree.new_branch()
        session = await tree.session_of(branch)
        await tree.talk(branch, "before", "ok")
        live = (await tree.branches.ask(branch, Submit(said=message("user", "live"), model="far"))).turn_id
        await tree.far.say.send("half ")
        await tree.reached(live, "responding")
        made = await take(tree, path, session_id=session)
        assert (made.branch_id, made.turns) == (branch, 1)
        await tree.far.answer("whole")
        await tree.reached(live, "response_finalized")
        assert await turns(tree, branch) == [("before", "ok"), ("live", "half whole"), *pairs(1)]
        await tree.talk(branch, "after", "fine")
        prompt = [m.rendered_text for m in tree.far.requests[-1].messages]
        assert prompt == ["before", "ok", "live", "half whole", "question 1", "answer 1", "after"]
        assert (await tree.verified()).problems == ()


async def test_the_window_of_a_branch_that_is_awake_sees_what_was_imported(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        branch = await tree.new_branch()
        session = await tree.session_of(branch)
        await tree.talk(branch, "one", "ok")
        await tree.importer.ask(ImportMessages(messages=(given("assistant", "unasked"),), session_id=session))
        await tree.talk(branch, "two", "ok")
        assert [m.rendered_text for m in tree.far.requests[-1].messages] == ["one", "ok", "unasked", "two"]
        fork = await tree.branches.ask(branch, Fork(2, None, True, None))
        await tree.importer.ask(ImportMessages(messages=(given("user", "to the active one"),), session_id=session))
        await tree.talk(fork.id, "three", "ok")
        expected = ["one", "ok", "unasked", "to the active one", "three"]
        assert [m.rendered_text for m in tree.far.requests[-1].messages] == expected
        assert (await tree.verified()).problems == ()


# stopping in the middle


async def test_what_was_written_before_the_disk_was_full_stays_and_a_repetition_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer_module, "RECORDS", 8)
    path = append(tmp_path / "talk.jsonl", [one for n in range(40) for one in exchange(n)])
    async with remembering(tmp_path) as tree:
        real, calls = tree.storage.add_imported, 0

        async def fills_up(*args: Any) -> int:
            nonlocal calls
            calls += 1
            if calls == 4:
                raise StorageFull("the disk is full")
            return await real(*args)

        with monkeypatch.context() as patched:
            patched.setattr(tree.storage, "add_imported", fills_up)
            with pytest.raises(StorageFull):
                await take(tree, path)
        session = (await tree.storage.list_sessions(9, None, None)).sessions[0]
        written = len(await turns(tree, session.active_branch))
        assert 0 < written < 40
        made = await take(tree, path)
        assert made.branch_id == session.active_branch
        assert made.turns == 40 - written
        assert await turns(tree, made.branch_id) == pairs(*range(40))
        assert (await tree.verified()).problems == ()


async def test_who_asked_may_leave_and_the_import_is_done_all_the_same(tmp_path: Path) -> None:
    path = append(tmp_path / "talk.jsonl", [one for n in range(300) for one in exchange(n)])
    async with remembering(tmp_path) as tree:
        with trio.move_on_after(0.01):
            await take(tree, path)
        again = await take(tree, path)  # waits in line behind the first
        session = (await tree.storage.list_sessions(9, None, None)).sessions[0]
        assert len(await turns(tree, session.active_branch)) == 300
        assert again.turns in (0, 300)


# watching


async def test_a_watched_folder_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer_module, "POLL_SECONDS", 0.01)
    folder = tmp_path / "talks"
    folder.mkdir()
    path = append(folder / "a.jsonl", exchange(1))
    async with remembering(tmp_path) as tree:
        tree.watched.append(str(folder))
        await found(tree, "question 1")
        append(path, [line("user", "where is heron-7?"), line("assistant", "in rack 4")])
        await found(tree, "in rack 4")
        append(folder / "b.jsonl", [line("user", "another file about egrets")])
        await found(tree, "egrets")
        replace(path, [line("user", "rewritten about storks")])
        await found(tree, "storks")


async def test_a_watched_place_that_is_not_there_yet_is_complained_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importer_module, "POLL_SECONDS", 0.01)
    path = tmp_path / "later.jsonl"
    async with remembering(tmp_path) as tree:
        tree.watched.append(str(path))
        rounds = 0

        def counted(*args: Any) -> Any:
            nonlocal rounds
            rounds += 1
            return real(*args)

        real = importer_module.detect
        monkeypatch.setattr(importer_module, "detect", counted)
        await until(lambda: rounds >= 5)
        append(path, [line("user", "about herons")])
        await found(tree, "herons")
    complaints = [r for r in caplog.records if "later.jsonl" in r.getMessage()]
    assert len(complaints) == 1


async def found(tree: MemoryTree, text: str) -> None:
    while text not in "".join(await tree.texts(text)):  # noqa: ASYNC110 - nothing tells when a folder has been read
        await trio.sleep(0.005)


async def test_a_file_that_goes_away_while_its_folder_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "talks"
    folder.mkdir()
    append(folder / "a.jsonl", exchange(1))
    gone = append(folder / "b.jsonl", exchange(2))
    real = importer_module._sources

    def listed(*args: Any) -> Any:
        sources = real(*args)
        gone.unlink()
        return sources

    async with remembering(tmp_path) as tree:
        monkeypatch.setattr(importer_module, "_sources", listed)
        made = await take(tree, folder)
        assert made.turns == 1
        assert len(made.damaged) == 1
        assert "b.jsonl" in made.damaged[0]
