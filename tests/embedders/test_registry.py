"""An embedder by its configuration, and what can be said of it without starting it."""

from pathlib import Path
from typing import Any

import pytest

from contextinfinity.daemon.config import BUILT_IN_EMBEDDERS, EmbedderSettings, Network
from contextinfinity.daemon.embedders.base import EmbedderError
from contextinfinity.daemon.embedders.http import HttpEmbedder
from contextinfinity.daemon.embedders.registry import describe, make
from tests.embedders.calls import ARCTIC
from tests.support.embedding_server import MODEL, EmbeddingServer


@pytest.mark.parametrize("name", list(BUILT_IN_EMBEDDERS))
def test_every_built_in_embedder_can_be_made(name: str, tmp_path: Path) -> None:
    settings = BUILT_IN_EMBEDDERS[name]
    one = make(name, settings, Network(), {"CTX_MODELS": str(tmp_path)}, None)
    assert one.name == name
    assert settings.model in one.space
    assert 0 < one.threshold < 1


def test_an_unknown_local_model() -> None:
    with pytest.raises(EmbedderError, match="no local model 'nope'"):
        make("local", EmbedderSettings("local", "nope"), Network(), {}, None)


@pytest.mark.parametrize(("variable", "sent"), [(None, False), ("MY_KEY", True)])
async def test_a_server_of_ones_own_gets_a_key_only_by_configuration(variable: str | None, sent: bool) -> None:
    async def find_key() -> str:
        return "k"

    with EmbeddingServer() as server:
        settings = EmbedderSettings("http", MODEL, url=server.url(), api_key_env=variable)
        one = make("http", settings, Network(), {}, find_key)
        assert isinstance(one, HttpEmbedder)
        await one.query("a")
        await one.rest()
        assert ("authorization" in server.seen[0].headers) is sent


def test_describe(tmp_path: Path, real_model: dict[str, str]) -> None:
    def installed(environ: dict[str, str], **settings: Any) -> bool | None:
        return describe("x", EmbedderSettings(**{"kind": "local", "model": ARCTIC} | settings), environ).installed

    assert describe("local", EmbedderSettings("local", ARCTIC), real_model) == ("local", "local", ARCTIC, True)
    empty = {"CTX_MODELS": str(tmp_path)}
    assert installed(empty) is False
    assert installed(empty, model="nope") is False
    assert installed(empty, kind="http") is None
    assert installed(empty, kind="openai") is None
    file = tmp_path / "m.onnx"
    file.touch()
    assert installed(empty, file=str(file)) is False
    (tmp_path / "tokenizer.json").touch()
    assert installed(empty, file=str(file)) is True
