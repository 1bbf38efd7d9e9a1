"""Servers in three dialects over real sockets: right answers in order, and every failure as one sentence without secrets."""

import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from contextinfinity.daemon.config import EmbedderSettings, Network
from contextinfinity.daemon.embedders.base import EmbedderError
from contextinfinity.daemon.embedders.http import BATCH, TEI_BATCH, HttpEmbedder, Timeouts, shown
from contextinfinity.protocol.errors import ProviderError
from tests.embedders.calls import lengths
from tests.providers.calls import self_signed
from tests.support.embedding_server import DIM, MODEL, EmbeddingServer, Reply, vector

DIALECTS = ("ollama", "tei", "openai")
KEY = "sk-secret-0123456789"
TEXT = "the text of a person"
SHORT, PATIENT = Timeouts(1, 0.5, 2), Timeouts(5, 20, 20)
DIRECT = Network()


async def find_key() -> str:
    return KEY


def expected(*texts: str) -> Any:
    rows = np.array([vector(text) for text in texts])
    return pytest.approx(rows / np.linalg.norm(rows, axis=1, keepdims=True), abs=1e-5)


def expected_row(text: str) -> Any:
    row = np.array(vector(text))
    return pytest.approx(row / np.linalg.norm(row), abs=1e-5)


def settings(url: str, dialect: str, **changes: Any) -> EmbedderSettings:
    style: Any = {} if dialect == "openai" else {"style": dialect}
    return EmbedderSettings("openai" if dialect == "openai" else "http", MODEL, url=url, **style | changes)


class Closing:
    """Makes embedders for a test and lets them rest at its end."""

    def __init__(self) -> None:
        self.made: list[HttpEmbedder] = []

    def __call__(
        self, server: EmbeddingServer, dialect: str, network: Network = DIRECT, timeouts: Timeouts = PATIENT, **changes: Any
    ) -> HttpEmbedder:
        key = find_key if dialect == "openai" or "api_key_env" in changes else None
        one = HttpEmbedder("mine", settings(server.url(dialect), dialect, **changes), network, key, timeouts)
        self.made.append(one)
        return one

    async def aclose(self) -> None:
        for one in self.made:
            await one.rest()


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as server:
        yield server
    assert not server.violations


@pytest.fixture
async def make() -> AsyncIterator[Closing]:
    async with aclosing(Closing()) as closing:
        yield closing


async def error_of(one: HttpEmbedder, texts: tuple[str, ...] = (TEXT, "another")) -> str:
    """The sentence; nothing secret may be anywhere near it."""
    with pytest.raises(EmbedderError) as caught:
        await one.documents(texts)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    sentence = str(caught.value)
    assert KEY not in sentence
    assert TEXT not in sentence
    return sentence


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_documents_and_queries(server: EmbeddingServer, make: Closing, dialect: str) -> None:
    one = make(server, dialect)
    texts = [f"text {n}" for n in range(2 * BATCH + 1)]
    rows = await one.documents(texts)
    assert rows.dtype == np.float32
    assert lengths(rows) == pytest.approx(1, abs=1e-5)
    assert rows == expected(*texts)
    sizes = [len(seen.texts) for seen in server.seen]
    assert sizes == ([TEI_BATCH] * 4 + [1] if dialect == "tei" else [BATCH, BATCH, 1])
    assert (await one.query("who?")) == expected_row("who?")
    assert {seen.dialect for seen in server.seen} == {dialect}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_texts_are_made_fit_to_send(server: EmbeddingServer, make: Closing, dialect: str) -> None:
    rows = await make(server, dialect).documents(["", "x" * 9_000, "lone \ud800", "🌍"])
    assert rows == expected(" ", "x" * 8_000, "lone ?", "🌍")


async def test_no_texts_ask_nobody(server: EmbeddingServer, make: Closing) -> None:
    assert (await make(server, "tei").documents([])).shape == (0, 0)
    assert not server.seen


async def test_a_query_carries_the_prefix(server: EmbeddingServer, make: Closing) -> None:
    one = make(server, "ollama", query_prefix="search_query: ")
    assert (await one.query("who")) == expected_row("search_query: who")


async def test_the_key_goes_to_the_server_and_only_there(caplog: pytest.LogCaptureFixture, make: Closing) -> None:
    caplog.set_level(logging.INFO)
    with EmbeddingServer(KEY) as server:
        assert (await make(server, "openai").query(TEXT)) == expected_row(TEXT)
        assert (await make(server, "tei", api_key_env="MY_KEY").query(TEXT)) == expected_row(TEXT)
        bare = make(server, "ollama")
        assert "set `api_key_env` in config.toml" in await error_of(bare)
        assert ["authorization" in seen.headers for seen in server.seen] == [True, True, False]
        await make.aclose()
    assert KEY not in caplog.text
    assert TEXT not in caplog.text


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (301, "it redirects: set `url` to the final address"),
        (401, "it does not accept the API key: set OPENAI_API_KEY or run `ctx auth set openai`"),
        (403, "it does not accept the API key: set OPENAI_API_KEY"),
        (404, "check `url`, `model` and `style`"),
        (418, "check its settings"),
        (429, "it limits the rate of requests: wait and retry"),
        (500, "retry in a moment"),
    ],
)
async def test_a_status_has_a_hint(server: EmbeddingServer, make: Closing, status: int, hint: str) -> None:
    server.script(Reply(status, f"{KEY} {TEXT} in the body".encode(), {"Location": server.url()}))
    sentence = await error_of(make(server, "openai"))
    assert f"mine ({server.url('openai')}) answers with status {status}: {hint}" in sentence
    assert "body" not in sentence


async def test_a_refused_key_is_asked_for_again() -> None:
    keys = ["old", "new", "unused"]

    async def changing() -> str:
        return keys.pop(0)

    with EmbeddingServer("new") as server:
        one = HttpEmbedder("mine", settings(server.url("openai"), "openai"), Network(), changing)
        with pytest.raises(EmbedderError, match="401"):
            await one.query("a")
        await one.query("a")
        await one.query("a")
        await one.rest()
    assert keys == ["unused"]


@pytest.mark.parametrize(
    ("key", "hint"),
    [("", "needs an API key: set MINE"), (" ", "needs an API key"), ("a\nb", "a character no key has"), ("ä", "no key has")],
)
async def test_a_key_that_cannot_be_one(server: EmbeddingServer, key: str, hint: str) -> None:
    async def unusable() -> str:
        return key

    one = HttpEmbedder("mine", settings(server.url("openai"), "openai", api_key_env="MINE"), Network(), unusable)
    assert hint in await error_of(one)
    assert not server.seen


async def test_a_key_that_is_not_found(server: EmbeddingServer) -> None:
    async def missing() -> str:
        raise ProviderError("openai needs an API key: set X", provider="openai", code="missing_key", retryable=False)

    one = HttpEmbedder("mine", settings(server.url("openai"), "openai"), Network(), missing)
    assert await error_of(one) == "openai needs an API key: set X"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("fault", "hint"),
    [
        ("too few", "it answered 2 texts with 1 vectors"),
        ("mixed dimensions", "differ in length"),
        ("empty", "or are empty"),
        ("not finite", "it does not answer as"),  # NaN is not JSON
        ("huge", "not finite"),
    ],
)
async def test_wrong_vectors_are_refused(server: EmbeddingServer, make: Closing, dialect: str, fault: Any, hint: str) -> None:
    server.script(Reply(fault=fault))
    assert hint in await error_of(make(server, dialect))


async def test_rows_that_are_not_numbered_as_the_texts(server: EmbeddingServer, make: Closing) -> None:
    server.script(Reply(fault="misnumbered"))
    assert "it does not answer as openai does" in await error_of(make(server, "openai"))


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"[]", b"[" * 9_000, b'{"embeddings": [[null]]}', b"\xff"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_answer_that_is_something_else(server: EmbeddingServer, make: Closing, dialect: str, body: bytes) -> None:
    server.script(Reply(body=body))
    sentence = await error_of(make(server, dialect))
    assert "it does not answer as" in sentence or "with 0 vectors" in sentence


async def test_a_change_of_dimension_is_noticed(server: EmbeddingServer, make: Closing) -> None:
    one = make(server, "tei")
    await one.query("a")
    server.script(Reply(fault="other dimension"))
    assert f"its vectors have 4 numbers now and had {DIM}" in await error_of(one)
    await one.query("a")


async def test_nobody_there(make: Closing) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        one = HttpEmbedder("mine", settings(f"http://u:{KEY}@127.0.0.1:{port}", "ollama"), Network())
        assert await error_of(one) == (
            f"mine (http://127.0.0.1:{port}) cannot be reached: start it, or check `url` and the network"
        )
        await one.rest()


@pytest.mark.parametrize(("ending", "hint"), [("cut", "the connection broke"), ("silent", "silent for too long")])
async def test_an_answer_that_does_not_end(server: EmbeddingServer, make: Closing, ending: Any, hint: str) -> None:
    one = make(server, "tei", timeouts=SHORT if ending == "silent" else PATIENT)
    server.script(Reply(ending=ending))
    assert hint in await error_of(one)
    await one.query("it works again")


async def test_an_answer_without_end(server: EmbeddingServer, make: Closing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contextinfinity.daemon.embedders.http.MAX_ANSWER_BYTES", 1_000)
    server.script(Reply(body=b" " * 1_000_000))
    one = make(server, "tei")
    assert "far more than was asked for" in await error_of(one)
    await one.query("it works again")


@pytest.mark.parametrize("url", [None, "", "http://[", "ftp://host", "http://host:99999", "nonsense", "http://"])
def test_an_address_that_is_none(url: str | None) -> None:
    with pytest.raises(EmbedderError, match=r"'mine' needs an address such as .*: set `url`"):
        HttpEmbedder("mine", EmbedderSettings("http", MODEL, url=url), Network())


async def test_an_address_that_only_the_client_refuses() -> None:
    one = HttpEmbedder("mine", settings("http://host\x01", "ollama"), Network())
    assert "is not usable: correct `url`" in await error_of(one)
    await one.rest()


@pytest.mark.parametrize("network", [Network(ca_file="/nowhere"), Network(proxy="nonsense://x")])
async def test_network_settings_that_are_none(server: EmbeddingServer, make: Closing, network: Network) -> None:
    assert "network.ca_file or network.proxy is not usable" in await error_of(make(server, "tei", network))


async def test_the_ca_file_decides_whom_to_trust(make: Closing, tmp_path: Path) -> None:
    tls, ca_file = self_signed(tmp_path)
    with EmbeddingServer(tls=tls) as server:
        assert "set network.ca_file" in await error_of(make(server, "tei"))
        trusting = make(server, "tei", Network(ca_file=ca_file))
        assert (await trusting.query("a")) == expected_row("a")


async def test_the_environments_proxy_is_not_used(
    server: EmbeddingServer, make: Closing, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    await make(server, "tei").query("a")
    one = make(server, "tei", Network(proxy="http://127.0.0.1:1"))
    assert "cannot be reached" in await error_of(one)


async def test_a_query_does_not_wait_for_a_batch(server: EmbeddingServer, make: Closing) -> None:
    one = make(server, "tei", timeouts=Timeouts(1, 20, 20))
    await one.query("warm")
    server.hold.clear()
    server.arrived.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.documents, ["held"])
        await trio.to_thread.run_sync(server.arrived.wait)
        server.arrived.clear()
        nursery.start_soon(one.query, "now")
        assert await trio.to_thread.run_sync(server.arrived.wait, 10)
        server.hold.set()
    assert [seen.texts for seen in server.seen] == [["warm"], ["held"], ["now"]]


async def test_rest_lets_a_running_request_finish(server: EmbeddingServer, make: Closing) -> None:
    one = make(server, "tei", timeouts=Timeouts(1, 20, 20))
    server.hold.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.documents, ["held"])
        await trio.to_thread.run_sync(server.arrived.wait)
        await one.rest()
        server.hold.set()
    await one.query("again")


async def test_a_cancelled_request_leaves_a_usable_embedder(server: EmbeddingServer, make: Closing) -> None:
    one = make(server, "tei", timeouts=Timeouts(1, 20, 20))
    server.hold.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.documents, ["held"])
        await trio.to_thread.run_sync(server.arrived.wait)
        nursery.cancel_scope.cancel()
    server.hold.set()
    await one.query("again")


def test_space_and_threshold() -> None:
    def of(dialect: str, **changes: Any) -> HttpEmbedder:
        return HttpEmbedder("mine", settings("http://h", dialect, **changes), Network())

    spaces = [of(dialect).space for dialect in DIALECTS] + [of("tei", query_prefix="q: ").space]
    assert len(set(spaces)) == len(spaces)
    assert spaces[2] == f"openai:{MODEL}:chars8000"
    assert of("tei").threshold == 0.5
    assert of("tei", threshold=0.3).threshold == 0.3
    small = EmbedderSettings("openai", "text-embedding-3-small")
    assert HttpEmbedder("openai", small, Network(), find_key).threshold == 0.72


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://user:pass@host:1/p?token=x#y", "http://host:1/p"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("http://[", "no usable address"),
        ("http://h:99999", "no usable address"),
    ],
)
def test_what_is_shown_of_an_address(url: str, expected: str) -> None:
    assert shown(url) == expected
