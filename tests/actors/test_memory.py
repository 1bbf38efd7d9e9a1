"""Memory in conversations: what a prompt is given, what it is never given, and that memory never fails a turn."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from contextinfinity.daemon.actors import memory as memory_module
from contextinfinity.daemon.actors.branch import Activate, Cancel, Fork, Preview, Retry, Submit
from contextinfinity.daemon.core import ranking
from contextinfinity.daemon.core.assembly import Assembled, last_message, request_hash
from contextinfinity.daemon.core.untrusted import RULE
from contextinfinity.daemon.storage.blobs import digest
from contextinfinity.protocol.blocks import message
from contextinfinity.protocol.model import RetrievalStats
from tests.support.memory import FakeEmbedder, MemoryTree, down, remembering
from tests.support.waiting import until

FACT = "The build server is called heron-7 and stands in rack 4."
QUESTION = "Which rack is heron-7 in, the build server?"


def last_prompt(tree: MemoryTree, model: str = "far") -> str:
    return tree.driven(model).requests[-1].messages[-1].rendered_text


async def ask(tree: MemoryTree, branch: str, text: str = QUESTION, model: str = "far") -> tuple[str, str]:
    """The turn, and the last message of its prompt."""
    turn = await tree.talk(branch, text, model=model)
    return turn, last_prompt(tree, model)


async def quoted(tree: MemoryTree, turn_id: str) -> list[str]:
    turn = await tree.storage.turn(turn_id)
    return [(await tree.storage.chunk(chunk)).chunk.text for chunk in turn.retrieved]


async def stats(tree: MemoryTree, turn_id: str) -> RetrievalStats:
    turn = await tree.storage.turn(turn_id)
    stored = await tree.storage.step_request(turn.steps[0].id)
    return msgspec.convert(stored.context["retrieval"], RetrievalStats)


async def fill(tree: MemoryTree, branch: str, turns: int = 6) -> None:
    """Push what was said out of a small window."""
    for number in range(turns):
        await tree.talk(branch, f"Filler {number}: " + "soup bread cheese olives " * 100, "noted")


SMALL = {"working_set_tokens": 2500}


async def out_of_the_window(tree: MemoryTree) -> str:
    """A branch on which the fact was said once, too long ago to be in the prompt itself."""
    tree.models.config = msgspec.structs.replace(tree.config, context=msgspec.structs.replace(tree.config.context, **SMALL))
    branch = await tree.new_branch()
    await tree.talk(branch, FACT, "noted")
    await fill(tree, branch)
    return branch


# searching


async def test_a_turn_becomes_searchable_by_both_sides(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        branch = await tree.new_branch(title="Servers")
        turn = await tree.talk(branch, FACT, "Heron-7 has 64 cores.")
        found = await tree.search("where does heron-7 stand?")
        first = found.results[0]
        assert {hit.role for hit in found.results} == {"user", "assistant"}
        assert (first.text, first.turn_id, first.branch_id, first.turn_seq) == (FACT, turn, branch, 1)
        assert (first.session_title, first.speaker, first.rank_text, first.rank_vector) == ("Servers", "user", 1, None)
        assert "heron" in first.why
        assert (found.stats.searched, found.stats.mode, found.stats.embedder) == (2, "text", None)
        assert (await tree.storage.turn(turn)).created_chunks == tuple(
            hit.chunk_id for hit in sorted(found.results, key=lambda hit: hit.role, reverse=True)
        )


async def test_what_is_said_after_a_search_is_found_by_the_next(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        branch = await tree.new_branch()
        for number in range(5):
            await tree.talk(branch, f"Animal {number} is a {'newt' * (number + 1)}.")
            assert (await tree.texts("newt" * (number + 1)))[0] == f"Animal {number} is a {'newt' * (number + 1)}."


async def test_two_searches_at_once_fill_one_index(tmp_path: Path) -> None:
    async with remembering(tmp_path, FakeEmbedder()) as tree:
        branch = await tree.new_branch()
        for number in range(4):
            await tree.talk(branch, f"Fact {number} about heron-{number}.")
        await tree.embedded()
        found: list[list[str]] = []

        async def look() -> None:
            found.append(await tree.texts("heron-2"))

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(look)
        assert len(set(map(tuple, found))) == 1
        assert found[0][0] == "Fact 2 about heron-2."
        await tree.memory.rest()
        assert await tree.texts("heron-2") == found[0], "filled anew it finds the same"


async def test_a_session_a_branch_and_everything_are_different_scopes(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        here, there = await tree.new_branch(), await tree.new_branch()
        await tree.talk(here, "The heron flies at dawn.")
        fork = await tree.branches.ask(here, Fork(1, None, False, None))
        await tree.talk(here, "The heron eats frogs.")
        await tree.talk(fork.id, "The heron builds nests.")
        await tree.talk(there, "The heron is grey.")

        async def found(**where: Any) -> set[str]:
            return {text for text in await tree.texts("heron", most=20, **where) if text != "ok"}

        everything = {"The heron flies at dawn.", "The heron eats frogs.", "The heron builds nests.", "The heron is grey."}
        assert await found() == everything
        assert await found(session_id=await tree.session_of(here)) == everything - {"The heron is grey."}
        assert await found(segments=tuple(await tree.storage.lineage(here))) == {
            "The heron flies at dawn.",
            "The heron eats frogs.",
        }
        assert await found(segments=tuple(await tree.storage.lineage(fork.id))) == {
            "The heron flies at dawn.",
            "The heron builds nests.",
        }
        assert await found(session_id="nowhere") == set()


async def test_a_search_by_vector_alone_without_vectors_is_lexical_and_says_so(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        branch = await tree.new_branch()
        await tree.talk(branch, "Heron means a bird, as far as birds are concerned at all in this house.")
        await tree.talk(branch, "heron heron heron")
        by_words = await tree.texts("heron", mode="text")
        found = await tree.search("heron", mode="vector")
        assert [hit.text for hit in found.results] == by_words
        assert found.stats.mode == "text"
        assert found.stats.degraded is not None


async def test_types_and_dates_limit_what_is_found(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        branch = await tree.new_branch()
        turn = await tree.talk(branch, "We decided to use heron-7.", "```python\ndef heron():\n    return 7\n```")
        assert [hit.role for hit in (await tree.search("heron", chunk_types=("code",))).results] == ["assistant"]
        assert [hit.role for hit in (await tree.search("heron", chunk_types=("decision",))).results] == ["user"]
        assert await tree.texts("heron", chunk_types=("tool_result",)) == []
        at = await tree.storage.moment_of(turn)
        assert at is not None
        assert len(await tree.texts("heron", since=at, until=at + 3600)) == 2
        assert await tree.texts("heron", since=at + 3600) == []
        assert await tree.texts("heron", until=at) == []


# prompts


async def test_the_block_stands_before_the_users_words_and_the_rule_in_the_system_text(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        branch = await out_of_the_window(tree)
        turn, prompt = await ask(tree, branch)
        request = tree.far.requests[-1]
        assert prompt.endswith(f"\n\n{QUESTION}")
        assert prompt.startswith("[memory ")
        assert FACT in prompt
        assert RULE in request.system
        assert all("[memory " not in m.rendered_text for m in request.messages[:-1])
        assert request.memory == (), "only the embedded provider is handed quotes beside the prompt"
        assert FACT in await quoted(tree, turn)
        kept = await stats(tree, turn)
        assert kept.selected == len(await quoted(tree, turn)) > 0
        assert 0 < kept.tokens <= tree.config.budget.max_retrieval_tokens
        assert kept.degraded is not None, "there is no embedder"
        # What is stored is what the user said; the block is in the request alone.
        assert (await tree.storage.turn(turn)).user_message.rendered_text == QUESTION


async def test_the_stored_request_is_proven_quotes_included(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        branch = await out_of_the_window(tree)
        turn_id, _ = await ask(tree, branch)
        turn = await tree.storage.turn(turn_id)
        stored = await tree.storage.step_request(turn.steps[0].id)
        sent = tree.far.requests[-1]
        assert stored.memory
        assert last_message(stored.memory, turn.user_message) == sent.messages[-1]
        proof = request_hash(
            stored.model_id,
            stored.system.decode(),
            [digest(document) for document in stored.messages],
            stored.max_output_tokens,
            stored.memory,
        )
        assert proof == stored.request_hash
        report = await tree.verified()
        assert report.problems == ()


async def test_nothing_is_quoted_that_the_prompt_has_word_for_word(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        branch = await tree.new_branch()
        await tree.talk(branch, FACT, "noted")
        turn, prompt = await ask(tree, branch)
        assert prompt == QUESTION
        assert await quoted(tree, turn) == []
        assert (await stats(tree, turn)).selected == 0


async def test_turns_rolled_back_and_on_sibling_branches_are_never_quoted(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        branch = await tree.new_branch()
        await tree.talk(branch, "Hello there.")
        await tree.talk(branch, FACT, "rolled back soon")
        fork = await tree.branches.ask(branch, Fork(1, None, True, None))
        turn, prompt = await ask(tree, fork.id)
        assert "rack 4" not in prompt
        assert await quoted(tree, turn) == []
        turn, _ = await ask(tree, fork.id, model="recall")
        assert "rack 4" not in "".join(await quoted(tree, turn)), "nor by the embedded provider, which looks everywhere"
        assert "rack 4" not in str(tree.provider.requests[-1])
        tree.configure(scope="everything")
        _, prompt = await ask(tree, fork.id)
        assert "rack 4" not in prompt


async def test_other_sessions_are_quoted_only_if_configured_and_only_their_active_branch(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        other = await tree.new_branch()
        await tree.talk(other, FACT)
        branch = await tree.new_branch()
        _, prompt = await ask(tree, branch)
        assert prompt == QUESTION
        tree.configure(scope="everything")
        fresh = await tree.new_branch()
        _, prompt = await ask(tree, fresh)
        assert FACT in prompt
        away = await tree.branches.ask(other, Fork(0, None, False, None))
        await tree.branches.ask(away.id, Activate(None))
        _, prompt = await ask(tree, await tree.new_branch())
        assert FACT not in prompt, "it was rolled back over there"


async def test_a_turn_that_was_asked_again_is_not_quoted(tmp_path: Path) -> None:
    async with remembering(tmp_path, scope="everything") as tree:
        other = await tree.new_branch()
        words = "Heron-7 is the build server of rack 4, is it?"
        failed = (await tree.branches.ask(other, Submit(said=message("user", words), model="far"))).turn_id
        await tree.far.say.send("The build server heron-7 stands in rack 9.")
        await tree.far.say.send(tree.far.CUT)
        turn = await tree.reached(failed, "failed")
        await tree.indexed(failed)
        _, prompt = await ask(tree, await tree.new_branch())
        assert "rack 9" in prompt
        retried = await tree.branches.ask(other, Retry(turn=turn, model=None, keyed=None))
        await tree.far.answer("The build server heron-7 stands in rack 4.")
        await tree.indexed(retried.turn_id)
        _, prompt = await ask(tree, await tree.new_branch())
        assert "rack 9" not in prompt
        assert "stands in rack 4" in prompt


async def test_the_embedded_provider_sees_everything_and_gets_the_quotes_beside_the_prompt(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        other = await tree.new_branch()
        await tree.talk(other, FACT)
        branch = await tree.new_branch()
        await ask(tree, branch, model="recall")
        request = tree.provider.requests[-1]
        assert request.memory[0].text == FACT
        assert request.messages[-1].rendered_text == QUESTION, "and its prompt holds the bare question"
        assert request.memory[0].session_id == await tree.session_of(other)


async def test_budget_and_switches_of_the_configuration_are_kept(tmp_path: Path) -> None:
    async with remembering(tmp_path, scope="everything", top_k=2) as tree:
        other = await tree.new_branch()
        for number in range(5):
            await tree.talk(other, f"Heron-7 build server rack note {number}. " + "It hums. " * 150)
        turn, prompt = await ask(tree, await tree.new_branch())
        assert 1 <= len(await quoted(tree, turn)) <= 2
        tree.models.config = msgspec.structs.replace(
            tree.config, budget=msgspec.structs.replace(tree.config.budget, max_retrieval_tokens=200)
        )
        turn, prompt = await ask(tree, await tree.new_branch())
        assert 0 < len(prompt.encode()) // 3 <= 200 + 40
        tree.models.config = msgspec.structs.replace(
            tree.config, budget=msgspec.structs.replace(tree.config.budget, max_retrieval_tokens=0)
        )
        turn, prompt = await ask(tree, await tree.new_branch())
        assert prompt == QUESTION


async def test_a_preview_shows_what_a_prompt_would_hold(tmp_path: Path) -> None:
    async with remembering(tmp_path, scope="everything") as tree:
        await tree.talk(await tree.new_branch(), FACT)
        branch = await tree.new_branch()
        made = await tree.branches.ask(branch, Preview(message("user", QUESTION)))
        assert isinstance(made, Assembled)
        assert made.budget.retrieval_budget > 0


# memory never fails a turn


async def test_an_embedder_that_hangs_costs_a_turn_little_and_leaves_the_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_module, "PROMPT_PATIENCE", 0.05)
    embedder = FakeEmbedder()
    async with remembering(tmp_path, embedder, scope="everything") as tree:
        await tree.talk(await tree.new_branch(), FACT)
        await tree.embedded()
        embedder.questions_wait = True
        turn, prompt = await ask(tree, await tree.new_branch())
        assert FACT in prompt
        assert "did not answer in 0.05 s" in str((await stats(tree, turn)).degraded)
        asked = len(embedder.asked)
        turn, prompt = await ask(tree, await tree.new_branch())
        assert FACT in prompt
        assert len(embedder.asked) == asked, "for a while it is not asked again"
        assert "did not answer lately" in str((await stats(tree, turn)).degraded)


async def test_a_search_that_takes_too_long_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "PROMPT_DEADLINE", 0.05)
    async with remembering(tmp_path, scope="everything") as tree:
        await tree.talk(await tree.new_branch(), FACT)

        async def hang(*_: object) -> None:
            await trio.sleep_forever()

        with monkeypatch.context() as patched:
            patched.setattr(tree.storage, "turns_left_out", hang)
            turn, prompt = await ask(tree, await tree.new_branch())
        assert prompt == QUESTION
        assert "longer than" in str((await stats(tree, turn)).degraded)


async def test_an_embedder_that_fails_leaves_the_words(tmp_path: Path) -> None:
    embedder = FakeEmbedder()
    async with remembering(tmp_path, embedder, scope="everything") as tree:
        await tree.talk(await tree.new_branch(), FACT)
        await tree.embedded()
        for failure, said in ((down(), "start it"), (RuntimeError("secret"), "RuntimeError")):
            embedder.failing = failure
            turn, prompt = await ask(tree, await tree.new_branch())
            assert FACT in prompt
            degraded = str((await stats(tree, turn)).degraded)
            assert said in degraded
            assert "secret" not in degraded


@pytest.mark.parametrize("broken", ["passages_after", "located_chunks", "turns_left_out", "lineage"])
async def test_storage_that_fails_leaves_a_turn_without_quotes(
    tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with remembering(tmp_path, FakeEmbedder(), scope="everything") as tree:
        await tree.talk(await tree.new_branch(), FACT)
        await tree.embedded()
        branch = await tree.new_branch()

        async def fail(*_: object, **__: object) -> None:
            raise RuntimeError("the disk sings")

        with monkeypatch.context() as patched:
            patched.setattr(tree.storage, broken, fail)
            turn, prompt = await ask(tree, branch)
        assert prompt == QUESTION
        assert (await tree.storage.turn(turn)).phase == "response_finalized"
        assert "RuntimeError" in str((await stats(tree, turn)).degraded)
        _, prompt = await ask(tree, await tree.new_branch())
        assert FACT in prompt, "the next search is whole again"


async def test_vectors_that_cannot_be_read_leave_the_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with remembering(tmp_path, FakeEmbedder(), scope="everything") as tree:
        await tree.talk(await tree.new_branch(), FACT)
        await tree.embedded()

        async def fail(*_: object, **__: object) -> None:
            raise RuntimeError("the disk sings")

        monkeypatch.setattr(tree.storage, "vectors_after", fail)
        turn, prompt = await ask(tree, await tree.new_branch())
        assert FACT in prompt
        assert "vectors cannot be read" in str((await stats(tree, turn)).degraded)


async def test_a_bug_in_ranking_leaves_a_turn_without_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with remembering(tmp_path, scope="everything") as tree:
        await tree.talk(await tree.new_branch(), FACT)
        with monkeypatch.context() as patched:
            patched.setattr(ranking, "rank", lambda *_: 1 / 0)
            turn, prompt = await ask(tree, await tree.new_branch())
        assert prompt == QUESTION
        assert "ZeroDivisionError" in str((await stats(tree, turn)).degraded)


async def test_storage_that_hangs_during_recall_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "PROMPT_DEADLINE", 0.05)
    async with remembering(tmp_path, scope="everything") as tree:
        await tree.talk(await tree.new_branch(), FACT)
        branch = await tree.new_branch()
        with monkeypatch.context() as patched:
            patched.setattr(tree.storage, "passages_after", _hang)
            turn, prompt = await ask(tree, branch)
        assert prompt == QUESTION
        assert "longer than" in str((await stats(tree, turn)).degraded)
        _, prompt = await ask(tree, await tree.new_branch())
        assert FACT in prompt


async def _hang(*_: object, **__: object) -> None:
    await trio.sleep_forever()


async def test_a_cancel_while_memory_searches_ends_the_turn(tmp_path: Path) -> None:
    embedder = FakeEmbedder()
    async with remembering(tmp_path, embedder, scope="everything") as tree:
        await tree.talk(await tree.new_branch(), FACT)
        await tree.embedded()
        embedder.questions_wait = True
        asked = len(embedder.asked)
        branch = await tree.new_branch()
        turn = (await tree.branches.ask(branch, Submit(said=message("user", QUESTION), model="far"))).turn_id
        await until(lambda: len(embedder.asked) > asked)
        await tree.branches.ask(branch, Cancel(turn))
        failed = await tree.reached(turn, "failed")
        assert failed.error is not None
        assert failed.error.data == {"code": "cancelled"}
        assert not failed.steps
