"""Embedding: the old space answers until the new one is whole, work goes on after a restart, and failures heal themselves."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from contextinfinity.daemon.actors import embedding as embedding_module
from contextinfinity.daemon.actors import keeper as keeper_module
from contextinfinity.daemon.actors.branch import Submit
from contextinfinity.daemon.actors.keeper import Keeper
from contextinfinity.daemon.runtime.actor import Mailbox, Ref, run_actor
from contextinfinity.protocol.blocks import message
from tests.support.memory import FakeEmbedder, MemoryTree, down, remembering
from tests.support.waiting import until


async def names(tree: MemoryTree) -> list[tuple[str, bool]]:
    return [(space.name, space.ready) for space in await tree.storage.vector_spaces()]


async def degraded(tree: MemoryTree, text: str = "car") -> str | None:
    return (await tree.search(text)).stats.degraded


async def paused_at_documents(tree: MemoryTree, embedder: FakeEmbedder) -> None:
    """Until the embedder is chosen and has been asked for vectors that it does not give yet."""
    embedder.hold = trio.Event()
    tree.configure(embedder=embedder.name)
    await until(lambda: tree.embedding.target is not None and tree.embedding.target.space == embedder.space)
    await until(lambda: embedder.hold.statistics().tasks_waiting == 1)


async def test_meaning_finds_what_no_word_does(tmp_path: Path) -> None:
    async with remembering(tmp_path, FakeEmbedder()) as tree:
        branch = await tree.new_branch()
        for text in ("automobile", "cheese", "thunder", "olive", "feather"):
            await tree.talk(branch, text, text)
        await tree.embedded()
        found = await tree.search("car", most=2)
        assert {hit.text for hit in found.results} == {"automobile"}
        assert found.results[0].rank_text is None
        assert "similarity" in found.results[0].why
        assert (found.stats.mode, found.stats.embedder, found.stats.degraded) == ("hybrid", "local", None)
        assert await tree.texts("car", mode="text") == []
        assert (await tree.texts("car", mode="vector"))[0] == "automobile"
        assert (await tree.verified()).problems == ()


async def test_without_an_embedder_nothing_is_embedded_and_search_says_so(tmp_path: Path) -> None:
    async with remembering(tmp_path) as tree:
        await tree.talk(await tree.new_branch(), "the red car")
        assert (await tree.texts("car"))[0] == "the red car"
        assert "no embedder is chosen" in str(await degraded(tree))
        assert await names(tree) == []
        assert (await tree.search("car", mode="text")).stats.degraded is None, "nobody asked for more"


async def test_an_embedder_that_is_not_installed_is_named_until_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "RETRY_SECONDS", 0.05)
    embedder = FakeEmbedder()
    async with remembering(tmp_path, embedder) as tree:
        tree.fakes.missing.add("local")
        tree.configure()
        await until(lambda: tree.embedding.problem)
        await tree.talk(await tree.new_branch(), "the red car")
        assert "ctx embedder install" in str(await degraded(tree))
        tree.fakes.missing.clear()
        await tree.embedded()
        assert await degraded(tree) is None


async def test_another_embedder_takes_over_when_its_space_is_whole(tmp_path: Path) -> None:
    old, new = FakeEmbedder("old", 16), FakeEmbedder("new", 24)
    async with remembering(tmp_path, old, new) as tree:
        branch = await tree.new_branch()
        await tree.talk(branch, "automobile")
        await tree.embedded()
        await paused_at_documents(tree, new)
        found = await tree.search("car")
        assert (found.stats.embedder, found.results[0].text) == ("old", "automobile")
        assert new.asked == []
        await tree.talk(branch, "feline")  # comes in meanwhile, and goes to the new space only
        assert await names(tree) == [("fake:old", True)]
        new.hold.set()
        await tree.embedded()
        assert await names(tree) == [("fake:new", True)]
        found = await tree.search("cat")
        assert (found.stats.embedder, found.results[0].text) == ("new", "feline")
        assert (await tree.search("car")).results[0].text == "automobile"
        assert (await tree.verified()).problems == ()


async def test_back_to_the_old_embedder_before_the_new_one_was_done(tmp_path: Path) -> None:
    old, new = FakeEmbedder("old", 16), FakeEmbedder("new", 24)
    async with remembering(tmp_path, old, new) as tree:
        branch = await tree.new_branch()
        for number in range(70):  # more than a batch
            await tree.branches.ask(branch, Submit(said=message("user", f"automobile {number}"), model="far", queue=True))
            await tree.far.answer("ok")
        await until_indexed(tree)
        await tree.embedded()
        await paused_at_documents(tree, new)
        tree.configure(embedder="old")
        await until(lambda: tree.embedding.target is old)
        new.hold.set()
        await tree.embedded()
        assert (await tree.search("automobile")).stats.embedder == "old"


async def until_indexed(tree: MemoryTree) -> None:
    while True:
        state = await tree.storage.index_state()
        if not state.unindexed and state.chunks >= 140:
            return
        await trio.sleep(0.001)


async def test_no_embedder_any_more_means_that_no_question_is_sent_anywhere(tmp_path: Path) -> None:
    embedder = FakeEmbedder()
    async with remembering(tmp_path, embedder) as tree:
        await tree.talk(await tree.new_branch(), "automobile")
        await tree.embedded()
        tree.configure(embedder="none")
        await until(lambda: tree.embedding.target is None)
        asked = len(embedder.asked)
        found = await tree.search("automobile")
        assert len(embedder.asked) == asked
        assert found.stats.mode == "text"
        assert "no embedder is chosen" in str(found.stats.degraded)
        tree.configure(embedder="local")
        await tree.embedded()
        assert (await tree.search("car")).stats.mode == "hybrid", "the vectors are still there"


async def test_work_goes_on_after_a_restart_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_module, "BATCH", 4)
    first = FakeEmbedder()
    async with remembering(tmp_path, first) as tree:
        branch = await tree.new_branch()
        first.hold = trio.Event()
        for number in range(6):
            await tree.talk(branch, f"automobile {number}", f"noted {number}")
        for _ in range(2):  # two batches, then no more
            await until(lambda: first.hold.statistics().tasks_waiting == 1)
            first.hold, held = trio.Event(), first.hold
            held.set()
        await until(lambda: first.hold.statistics().tasks_waiting == 1)
        (space,) = await tree.storage.vector_spaces()
        assert 0 < space.done_to < 12
        assert not space.ready
        found = await tree.search("car")
        assert (found.stats.embedder, found.stats.degraded) == ("local", None), "what there is answers already"
    again = FakeEmbedder()
    async with remembering(tmp_path, again) as tree:
        await tree.embedded()
        assert len(first.embedded) > 0 < len(again.embedded)
        assert not set(first.embedded) & set(again.embedded), "what was embedded stays"
        assert (await tree.verified()).problems == ()


async def test_an_embedder_that_is_down_leaves_search_lexical_and_heals_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "RETRY_SECONDS", 0.01)
    embedder = FakeEmbedder()
    embedder.failing = down()
    async with remembering(tmp_path, embedder) as tree:
        await tree.talk(await tree.new_branch(), "the red automobile")
        await until(lambda: tree.embedding.problem == "the embedder is down: start it")
        found = await tree.search("automobile")
        assert found.results[0].text == "the red automobile"
        assert found.stats.mode == "text"
        assert "start it" in str(found.stats.degraded)
        embedder.failing = None
        await tree.embedded()
        assert (await tree.search("car")).results[0].text == "the red automobile"
        assert await degraded(tree) is None


async def test_an_embedder_with_a_bug_is_tried_again_and_never_stops_conversations(tmp_path: Path) -> None:
    embedder = FakeEmbedder()
    embedder.failing = ValueError("bug")
    async with remembering(tmp_path, embedder) as tree:
        branch = await tree.new_branch()
        await tree.talk(branch, "automobile")
        await tree.talk(branch, "another")
        assert (await tree.texts("automobile"))[0] == "automobile"
        embedder.failing = None
        await tree.embedded()


async def test_a_model_that_changed_its_dimension_starts_anew_and_search_never_fails(tmp_path: Path) -> None:
    embedder = FakeEmbedder(dim=16)
    async with remembering(tmp_path, embedder) as tree:
        branch = await tree.new_branch()
        await tree.talk(branch, "automobile")
        await tree.embedded()
        assert (await tree.search("car")).results[0].text == "automobile"
        embedder.dim = 24
        found = await tree.search("automobile")
        assert found.results[0].text == "automobile"
        assert "dimension" in str(found.stats.degraded)
        await tree.talk(branch, "feline")
        await tree.embedded()
        (space,) = await tree.storage.vector_spaces()
        assert space.dim == 24
        found = await tree.search("car")
        assert (found.results[0].text, found.stats.degraded) == ("automobile", None)
        assert (await tree.search("cat")).results[0].text == "feline"
        assert (await tree.verified()).problems == ()


async def test_a_question_without_words_is_not_sent_to_the_embedder(tmp_path: Path) -> None:
    embedder = FakeEmbedder()
    async with remembering(tmp_path, embedder) as tree:
        await tree.talk(await tree.new_branch(), "automobile")
        await tree.embedded()
        asked = len(embedder.asked)
        for text in ("", "  \n "):
            assert await tree.texts(text) == []
        assert len(embedder.asked) == asked


async def test_an_embedder_that_is_slow_to_answer_leaves_the_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_module, "QUERY_DEADLINE", 0.02)
    embedder = FakeEmbedder()
    async with remembering(tmp_path, embedder) as tree:
        await tree.talk(await tree.new_branch(), "automobile")
        await tree.embedded()
        embedder.questions_wait = True
        found = await tree.search("automobile")
        assert (found.results[0].text, found.stats.mode) == ("automobile", "text")
        assert "did not answer" in str(found.stats.degraded)


async def test_the_list_says_what_is_chosen_and_what_answers(tmp_path: Path) -> None:
    old, new = FakeEmbedder("old"), FakeEmbedder("new")
    async with remembering(tmp_path, old, new) as tree:
        await tree.talk(await tree.new_branch(), "automobile")
        await tree.embedded()
        await paused_at_documents(tree, new)
        listed = {one.name: (one.chosen, one.active, one.installed) for one in await tree.embedding.list()}
        assert listed == {"old": (False, True, True), "new": (True, False, True)}
        new.hold.set()
        await tree.embedded()
        listed = {one.name: (one.chosen, one.active, one.installed) for one in await tree.embedding.list()}
        assert listed == {"old": (False, False, True), "new": (True, True, True)}


# the keeper


class Resting:
    """Memory and embedding as far as the keeper knows them."""

    def __init__(self) -> None:
        self.used = trio.current_time()
        self.rests = 0

    async def refresh(self) -> bool:
        return False


class RestingMemory(Resting):
    async def rest(self) -> bool:
        self.rests += 1
        return False


class RestingEmbedding(Resting):
    async def rest(self) -> None:
        self.rests += 1


async def test_models_and_arrays_go_when_nobody_has_asked_for_a_while(autojump_clock: MockClock) -> None:
    memory, embedding = RestingMemory(), RestingEmbedding()
    box = Mailbox("keeper", 10)
    async with trio.open_nursery() as nursery:

        def make() -> Keeper:
            return Keeper(None, memory, embedding, Ref(box), lambda: 300, can_write=lambda: True)  # type: ignore[arg-type]

        await nursery.start(run_actor, make(), box)
        for _ in range(10):
            await trio.sleep(100)
            memory.used = trio.current_time()
        assert (memory.rests, embedding.rests) == (0, 0)
        await trio.sleep(299)
        assert (memory.rests, embedding.rests) == (0, 0)
        await trio.sleep(80)
        assert memory.rests > 0
        assert embedding.rests > 0, "while it was asked through memory it stayed"
        before = embedding.rests
        embedding.used = memory.used = trio.current_time()
        await trio.sleep(290)
        assert embedding.rests == before
        nursery.cancel_scope.cancel()


async def test_a_search_after_a_rest_finds_the_same(tmp_path: Path) -> None:
    embedder = FakeEmbedder()
    async with remembering(tmp_path, embedder) as tree:
        await tree.talk(await tree.new_branch(), "automobile")
        await tree.embedded()
        before = (await tree.search("car")).results
        await tree.memory.rest()
        await tree.embedding.rest()
        assert embedder.rested == 1
        assert (await tree.search("car")).results == before
