"""Memory with a real `ctxd`: what is said can be found, browsed and quoted, with the words alone and with a real model."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contextinfinity.daemon.embedders import models
from contextinfinity.protocol.errors import Fault, InvalidParams, NotFound
from tests.support.daemon import Daemon
from tests.support.embedding_server import MODEL, EmbeddingServer
from tests.support.waiting import wait_until
from tests.support.wire import Wire

pytestmark = pytest.mark.e2e

ARCTIC = "snowflake-arctic-embed-s"
LEXICAL = '[retrieval]\nembedder = "none"\n'
HERON = "The build server is called heron-7 and stands in rack 4."


class Home:
    """A daemon and a connection to it."""

    def __init__(self, daemon: Daemon, wire: Wire) -> None:
        self.daemon = daemon
        self.wire = wire
        self.call = wire.call

    def session(self, title: str = "Talk") -> tuple[str, str]:
        made = self.call("session.create", title=title)
        return made["session"]["id"], made["branch"]["id"]

    def say(self, branch: str, text: str) -> dict[str, Any]:
        turn = self.call("turn.submit", branch_id=branch, content=text)["turn_id"]
        done: dict[str, Any] = self.call("turn.wait", turn_id=turn, phase="indexed")
        assert done["indexed"], done
        return done

    def take(self, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
        made: dict[str, Any] = self.call("transcript.import", messages=list(messages), **more)
        return made

    def texts(self, query: str, **wanted: Any) -> list[str]:
        return [hit["text"] for hit in self.call("memory.search", query=query, **wanted)["results"]]

    def fault(self, method: str, **params: Any) -> Fault:
        with pytest.raises(Fault) as caught:
            self.call(method, **params)
        return caught.value

    def answering(self, embedder: str) -> bool:
        memory = self.call("daemon.status")["memory"]
        return bool(memory.get("embedder") == embedder and not memory["unembedded"])


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with Daemon(tmp_path, LEXICAL) as daemon, daemon.wire() as wire:
        yield Home(daemon, wire)


def said(role: str, text: str, at: str | None = None, **more: Any) -> dict[str, Any]:
    return {"role": role, "text": text, **({"created_at": at} if at else {}), **more}


def test_scopes_dates_and_types(home: Home) -> None:
    old = home.take(
        said("user", "Where does the heron nest?", "2024-03-01T09:00:00Z", speaker="Ada", external_id="m1"),
        said("assistant", "The heron nests in the reeds.", "2024-03-01T09:01:00Z", external_id="m2"),
        said("user", "We decided to feed the heron on Sundays.", "2024-05-08T22:30:00Z", external_id="m3"),
        title="Birds",
    )
    session, branch = home.session()
    home.say(branch, "The heron is grey.")
    everything = home.call("memory.search", query="heron", top_k=10)
    assert len(everything["results"]) == 4
    hit = next(h for h in everything["results"] if h["external_ids"][:1] == ["m2"])
    assert (hit["session_title"], hit["speaker"], hit["role"], hit["turn_seq"]) == ("Birds", "assistant", "assistant", 1)
    assert hit["external_ids"] == ["m2", "m1", "m3"]
    assert hit["created_at"].startswith("2024-03-01T09:01:00")
    assert "heron" in hit["why"]
    assert everything["stats"]["mode"] == "text"
    assert "no embedder is chosen" in everything["stats"]["degraded"]
    assert home.texts("heron", session_id=session) == home.texts("heron", branch_id=branch) == ["The heron is grey."]
    assert len(home.texts("heron", session_id=old["session_id"])) == 3
    assert home.texts("heron", since="2024-05-01", until="2024-05-31") == ["We decided to feed the heron on Sundays."]
    assert len(home.texts("heron", until="2024-03")) == 2
    assert home.texts("heron", since="yesterday") == ["The heron is grey."]
    assert home.texts("heron", since="2024-05-09", until="2024-05-09") == []
    berlin = home.texts("heron", since="2024-05-09", until="2024-05-09", tz="Europe/Berlin")
    assert berlin == ["We decided to feed the heron on Sundays."], "there it was after midnight"
    assert home.texts("heron", chunk_types=["decision"]) == ["We decided to feed the heron on Sundays."]
    assert home.texts("what did we do with the heron on 8 May 2024?")[0].startswith("We decided")
    assert len(home.texts("heron", top_k=2)) == 2
    assert len(home.texts("heron", top_k=3, diverse=True)) == 3
    assert home.texts("") == home.texts("submarine") == []


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("since", {"since": "when pigs fly"}),
    ("until", {"until": "2024-13-45"}),
    ("tz", {"since": "today", "tz": "Mars/Olympus"}),
    ("tz", {"tz": "../../etc/passwd"}),
    ("top_k", {"top_k": 0}),
    ("top_k", {"top_k": 100_000}),
    ("mode", {"mode": "telepathy"}),
    ("chunk_types", {"chunk_types": ["poem"]}),
]


def test_what_is_wrong_with_a_search_is_named(home: Home) -> None:
    for field, wrong in WRONG:
        error = home.fault("memory.search", query="x", **wrong)
        assert isinstance(error, InvalidParams), wrong
        assert error.code == -32602
        assert field in error.message
    assert home.texts("x") == []


def test_scopes_that_do_not_exist_are_named(home: Home) -> None:
    for params in ({"session_id": "nope"}, {"branch_id": "nope"}):
        assert isinstance(home.fault("memory.search", query="x", **params), NotFound)
    for method in ("memory.get", "memory.expand"):
        assert isinstance(home.fault(method, chunk_id="nope"), NotFound)
    assert "around" in home.fault("memory.timeline", around="when pigs fly").message
    assert "cursor" in home.fault("memory.chunks", cursor="x").message


def test_any_text_is_a_query(home: Home) -> None:
    _, branch = home.session()
    home.say(branch, "漢字 and 🦊 in daemon/core/words.py, said Ünïcode.")
    for text in ('"', "AND OR NOT *", "a:b^2 -x +y", "'; DROP TABLE chunks; --", "\n", "x" * 100_000, "é" * 3000, "()"):
        home.texts(text)
    for text in ("漢字", "🦊", "daemon/core/words.py", "words.py", "ÜNÏCODE"):
        assert len(home.texts(text)) == 1, text


def test_what_surrounds_a_find_can_be_read(home: Home) -> None:
    session, branch = home.session()
    turns = [home.say(branch, f"Sentence number {n} is about egret {n}.") for n in range(1, 6)]
    hit = home.call("memory.search", query="egret 3", top_k=1)["results"][0]
    assert hit["turn_id"] == turns[2]["id"]
    alone = home.call("memory.get", chunk_id=hit["chunk_id"])
    assert alone["chunk"]["text"] == hit["text"]
    assert {m["turn_id"] for m in alone["messages"]} == {turns[2]["id"]}
    around = home.call("memory.expand", chunk_id=hit["chunk_id"], before=1, after=1)
    assert [m["turn_seq"] for m in around["messages"] if m["role"] == "user"] == [2, 3, 4]
    assert [m["text"] for m in around["messages"] if m.get("focus")] == [hit["text"]]
    assert home.call("turn.get", turn_id=turns[2]["id"])["created_chunks"] == [hit["chunk_id"]]

    lines = home.call("memory.timeline", session_id=session)["entries"]
    assert [e["line"] for e in lines] == [f"Sentence number {n} is about egret {n}." for n in range(1, 6)]
    for around_what in (turns[2]["id"], hit["chunk_id"]):
        near = home.call("memory.timeline", session_id=session, around=around_what, limit=2)["entries"]
        assert [e["turn_seq"] for e in near] == [2, 3]
    assert home.call("memory.timeline", around="2020-01-01")["entries"] == lines
    assert home.call("memory.timeline", branch_id=branch, limit=1)["entries"] == lines[-1:]

    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = home.call("memory.chunks", branch_id=branch, limit=2, **({"cursor": cursor} if cursor else {}))
        seen += [c["text"] for c in page["chunks"]]
        cursor = page.get("next_cursor")
        if cursor is None:
            break
    assert seen == [e["line"] for e in lines]


def test_the_embedded_provider_quotes_with_date_turn_and_session(home: Home) -> None:
    made = home.take(said("user", HERON, "2024-05-08T10:00:00Z"), said("assistant", "Noted.", "2024-05-08T10:00:05Z"))
    (turn,) = home.call("turn.list", branch_id=made["branch_id"])["turns"]
    _, branch = home.session()
    answer = home.say(branch, "Which rack is heron-7 in?")
    text = answer["final_assistant_message"]["rendered_text"]
    assert f"“{HERON}” (you, 2024-05-08; turn {turn['id']}, session {made['session_id']})" in text
    context = home.call("turn.context", turn_id=answer["id"])
    assert [q["text"] for q in context["retrieved"]][:1] == [HERON]
    assert context["retrieval"]["selected"] == len(context["retrieved"])
    assert context["user_message"]["rendered_text"] == "Which rack is heron-7 in?"
    assert set(answer["retrieved"]) == {q["chunk_id"] for q in context["retrieved"]}
    assert home.call("store.verify")["problems"] == []


def test_what_search_works_on_can_be_made_again(home: Home) -> None:
    _, branch = home.session()
    home.say(branch, HERON)
    before = home.call("memory.search", query="heron")["results"]
    made = home.call("store.reindex", idempotency_key="k")
    assert made["turns"] == 1
    assert home.call("store.reindex", idempotency_key="k") == made
    wait_until(lambda: home.call("daemon.status")["memory"]["unindexed_turns"] == 0)
    assert home.call("memory.search", query="heron")["results"] == before
    wrong = home.fault("store.reindex", embedder="openai")
    assert isinstance(wrong, InvalidParams)
    assert "ctx embedder use openai" in wrong.message
    listed = {one["name"]: one for one in home.call("embedder.list")["embedders"]}
    assert {"local", "openai", "http"} <= listed.keys()
    assert not any(one.get("chosen") or one.get("active") for one in listed.values())


def test_another_embedder_is_taken_up_on_a_signal(tmp_path: Path) -> None:
    with EmbeddingServer() as server:
        table = f'[embedders.mine]\nkind = "http"\nmodel = "{MODEL}"\nurl = "{server.url()}"\n'
        with Daemon(tmp_path, LEXICAL + table) as daemon, daemon.wire() as wire:
            home = Home(daemon, wire)
            _, branch = home.session()
            home.say(branch, HERON)
            assert server.seen == []
            (daemon.home / "config.toml").write_text(f'[retrieval]\nembedder = "mine"\n{table}')
            os.kill(daemon.pid, signal.SIGHUP)
            wait_until(lambda: home.answering("mine"))
            found = home.call("memory.search", query="heron")
            assert (found["stats"]["mode"], found["stats"]["embedder"]) == ("hybrid", "mine")
            assert found["results"][0]["similarity"] is not None
            listed = {one["name"]: one for one in home.call("embedder.list")["embedders"]}
            assert listed["mine"]["chosen"]
            assert listed["mine"]["active"]
            assert server.violations == []
            asked = len(server.seen)
            (daemon.home / "config.toml").write_text(LEXICAL + table)
            os.kill(daemon.pid, signal.SIGHUP)
            wait_until(lambda: home.call("daemon.status")["memory"]["target"] == "none")
            assert home.texts("heron")
            assert len(server.seen) == asked, "who wants no embedder sends it no questions"
            wait_until(lambda: not home.call("daemon.status")["memory"].get("embedder"), 5)
            assert not any(one.get("active") for one in home.call("embedder.list")["embedders"]), "none of them answers"


def test_a_server_that_is_down_leaves_search_lexical_and_is_found_again(tmp_path: Path) -> None:
    with EmbeddingServer() as server:
        url = server.url()
    table = f'[embedders.mine]\nkind = "http"\nmodel = "{MODEL}"\nurl = "{url}"\n[retrieval]\nembedder = "mine"\n'
    with Daemon(tmp_path, table) as daemon, daemon.wire() as wire:
        home = Home(daemon, wire)
        _, branch = home.session()
        home.say(branch, HERON)
        found = home.call("memory.search", query="heron")
        assert (found["results"][0]["text"], found["stats"]["mode"]) == (HERON, "text")
        assert found["stats"]["degraded"]


@pytest.mark.slow
def test_the_local_model_finds_what_the_words_do_not(tmp_path: Path) -> None:
    if not models.installed(ARCTIC, os.environ):
        pytest.fail(f"{ARCTIC} is not in {models.folder(os.environ)}: run `make model`")
    env = {"CTX_MODELS": str(models.folder(os.environ))}
    with Daemon(tmp_path, "", env) as daemon, daemon.wire() as wire:
        home = Home(daemon, wire)
        pairs = [
            ("My sister adopted a puppy last weekend.", "How sweet, what breed is it?"),
            ("The quarterly revenue report is due on Friday.", "I will remind you on Thursday."),
            ("We repaired the leaking pipe under the sink.", "Good, then the floor will dry."),
            ("The train to Vienna was delayed by two hours.", "Did you still make the concert?"),
        ]
        flat = [said(role, text, f"2024-05-0{n}T10:00:00Z") for n, p in enumerate(pairs, 1)
                for role, text in zip(("user", "assistant"), p, strict=True)]  # fmt: skip
        home.take(*flat)
        wait_until(lambda: home.answering("local"))
        question = "who fixed the plumbing in the kitchen?"
        assert pairs[2][0] not in home.texts(question, mode="text")
        found = home.call("memory.search", query=question)
        assert found["results"][0]["text"] == pairs[2][0]
        assert (found["stats"]["mode"], found["stats"]["embedder"]) == ("hybrid", "local")
        assert found["results"][0].get("rank_text") is None
        assert home.texts("any pets in the family?", mode="vector")[0] == pairs[0][0]
        status = home.call("daemon.status")["memory"]
        assert (status["embedder"], status["unembedded"], status["unindexed_turns"]) == ("local", 0, 0)
        assert home.call("store.verify")["problems"] == []
