"""The model in this process: right vectors in the right order, queries that overtake, memory that comes back."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from contextinfinity.daemon.config import EmbedderSettings
from contextinfinity.daemon.embedders import local, models, onnx
from contextinfinity.daemon.embedders.base import EmbedderError
from contextinfinity.daemon.embedders.catalogue import MODEL, TOKENIZER
from contextinfinity.daemon.embedders.local import LocalEmbedder
from tests.embedders.calls import ARCTIC, ARCTIC_DIM, lengths

SETTINGS = EmbedderSettings("local", ARCTIC)
TEXTS = [
    "The cat sleeps on the warm sofa all afternoon.",
    "Interest rates were raised by the central bank.",
    "ok",
    "We repaired the leaking pipe under the kitchen sink. " * 30,
    "",
    "Ünïcode 🌍 and a lone surrogate \ud800",
]
SAME = 0.98  # int8 vectors depend a little on what runs beside them


def embedder(environ: dict[str, str], **changes: Any) -> LocalEmbedder:
    return LocalEmbedder("local", EmbedderSettings("local", ARCTIC, **changes), environ)


# Without a model.


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([5], [[0]]),
        ([30, 10, 20], [[1, 2, 0]]),
        ([10_000, 1], [[1], [0]]),
        ([256, 256, 256], [[0, 1], [2]]),
        ([1] * 20, [[*range(16)], [*range(16, 20)]]),
    ],
)
def test_pieces_hold_texts_of_like_length_and_bounded_work(sizes: list[int], expected: list[list[int]]) -> None:
    assert list(onnx.pieces(sizes)) == expected


async def test_a_missing_model_says_how_to_get_it(tmp_path: Path) -> None:
    absent = embedder({"CTX_MODELS": str(tmp_path)})
    message = rf"{ARCTIC} is not installed: `ctx embedder install` fetches it; search is lexical until then"
    with pytest.raises(EmbedderError, match=message):
        await absent.documents(["a"])
    with pytest.raises(EmbedderError, match=message):
        await absent.query("a")
    assert (await absent.documents([])).shape == (0, ARCTIC_DIM)
    await absent.rest()


async def test_a_missing_file_of_ones_own_is_named(tmp_path: Path) -> None:
    absent = embedder({}, file=str(tmp_path / "mine.onnx"))
    with pytest.raises(EmbedderError, match=r"mine.onnx of embedder 'local' does not exist"):
        await absent.query("a")
    assert "absent" in absent.space


@pytest.mark.parametrize("broken", [MODEL, TOKENIZER])
async def test_a_file_of_ones_own_that_is_no_model(tmp_path: Path, broken: str, real_model: dict[str, str]) -> None:
    for name, path in models.paths(ARCTIC, real_model).items():
        (tmp_path / name).symlink_to(path)
    (tmp_path / broken).unlink()
    (tmp_path / broken).write_text("{}")
    with pytest.raises(EmbedderError, match=rf"{broken} cannot be used as a"):
        await embedder({}, file=str(tmp_path / MODEL)).query("a")


def test_what_makes_vectors_incomparable_is_in_the_space(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    shutil.copy(tmp_path / "a", tmp_path / TOKENIZER)

    def space(**changes: Any) -> str:
        return embedder({}, **changes).space

    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    spaces = [
        space(),
        space(query_prefix="q: "),
        space(file=a),
        space(file=b),
        space(file=a, tokenizer=b),
        space(file=a, pooling="mean"),
        space(file=a, query_prefix="q: "),
    ]
    assert spaces[0] == "local:snowflake-arctic-embed-s:f93ff225:cls256"
    assert len(set(spaces)) == len(spaces)


def test_the_threshold_is_the_models_unless_configured(tmp_path: Path) -> None:
    assert embedder({}).threshold == 0.62
    assert embedder({}, threshold=0.1).threshold == 0.1
    assert embedder({}, file=str(tmp_path / "x")).threshold == 0.5


# With the real model.


@pytest.mark.slow
async def test_rows_come_in_order_with_unit_length(real_model: dict[str, str]) -> None:
    one = embedder(real_model)
    rows = await one.documents(TEXTS)
    assert rows.shape == (len(TEXTS), ARCTIC_DIM)
    assert rows.dtype == np.float32
    assert lengths(rows) == pytest.approx(1, abs=1e-5)
    for text, row in zip(TEXTS, rows, strict=True):
        (alone,) = await one.documents([text])
        assert float(alone @ row) > SAME


async def test_meaning_is_near(real_model: dict[str, str]) -> None:
    one = embedder(real_model)
    rows = await one.documents(TEXTS)
    for question, expected in (("What did the pet do?", 0), ("monetary policy", 1), ("who fixed the plumbing", 3)):
        query = await one.query(question)
        assert query.shape == (ARCTIC_DIM,)
        assert query.dtype == np.float32
        assert int(np.argmax(rows @ query)) == expected


async def test_a_query_carries_the_prefix(real_model: dict[str, str]) -> None:
    one = embedder(real_model)
    (expected,) = await one.documents(["Represent this sentence for searching relevant passages: who"])
    np.testing.assert_array_equal(await one.query("who"), expected)
    own = embedder(real_model, query_prefix="find: ")
    (expected,) = await one.documents(["find: who"])
    np.testing.assert_array_equal(await own.query("who"), expected)


async def test_only_the_first_256_tokens_count(real_model: dict[str, str]) -> None:
    one = embedder(real_model)
    start = "word " * 254
    (row,) = await one.documents([start])
    (longer,) = await one.documents([start + "completely different ending"])
    np.testing.assert_array_equal(row, longer)


@pytest.mark.slow
async def test_a_file_of_ones_own_with_mean_pooling(real_model: dict[str, str], tmp_path: Path) -> None:
    files = models.paths(ARCTIC, real_model)
    own = embedder({}, file=str(files[MODEL]), tokenizer=str(files[TOKENIZER]), pooling="mean")
    rows = await own.documents(TEXTS)
    assert lengths(rows) == pytest.approx(1, abs=1e-5)
    by_cls = await embedder(real_model).documents(TEXTS)
    assert float(rows[0] @ by_cls[0]) < SAME
    # Padding takes no part in the mean.
    (alone,) = await own.documents([TEXTS[2]])
    assert float(alone @ rows[2]) > SAME


@pytest.mark.slow
async def test_a_file_that_is_replaced_while_in_use_is_refused(real_model: dict[str, str], tmp_path: Path) -> None:
    for name, path in models.paths(ARCTIC, real_model).items():
        shutil.copy(path, tmp_path / name)
    own = embedder({}, file=str(tmp_path / MODEL))
    await own.query("a")
    space = own.space
    tokenizer = json.loads((tmp_path / TOKENIZER).read_text())
    (tmp_path / TOKENIZER).write_text(json.dumps(tokenizer))
    await own.query("a")
    await own.rest()
    with pytest.raises(EmbedderError, match="was replaced: restart the daemon"):
        await own.query("a")
    assert own.space == space


@pytest.mark.slow
async def test_a_query_overtakes_a_running_batch(real_model: dict[str, str]) -> None:
    one = embedder(real_model)
    await one.query("warm")
    order: list[str] = []
    started = trio.Event()

    async def batch() -> None:
        started.set()
        await one.documents([f"message {n} about nothing in particular" for n in range(200)])
        order.append("batch")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(batch)
        await started.wait()
        for _ in range(3):
            await one.query("who was it?")
            order.append("query")
    assert order == ["query", "query", "query", "batch"]


@pytest.mark.slow
async def test_concurrent_first_uses_load_once(real_model: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[onnx.Model] = []

    class Counted(onnx.Model):
        def __init__(self, recipe: onnx.Recipe) -> None:
            super().__init__(recipe)
            loaded.append(self)

    monkeypatch.setattr(local, "Model", Counted)
    one = embedder(real_model)
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(one.query, "a")
            nursery.start_soon(one.documents, ["a", "b"])
    assert len(loaded) == 1
    await one.rest()
    await one.rest()
    await one.query("a")
    assert len(loaded) == 2


async def test_a_cancelled_first_use_leaves_a_usable_model(real_model: dict[str, str]) -> None:
    one = embedder(real_model)
    for delay in (0, 0.01, 0.05):
        with trio.move_on_after(delay):
            await one.documents(TEXTS * 20)
    assert lengths(await one.query("a")) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
async def test_rest_in_the_middle_of_a_batch_does_no_harm(real_model: dict[str, str]) -> None:
    one = embedder(real_model)
    texts = [f"message {n}" for n in range(100)]
    found: list[Any] = []

    async def batch() -> None:
        found.append(await one.documents(texts))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(batch)
        await one.query("warm")
        await one.rest()
    assert lengths(found[0]) == pytest.approx(1, abs=1e-5)


MEMORY = """
import os, sys, trio
from pathlib import Path
from contextinfinity.daemon.config import Network, EmbedderSettings
from contextinfinity.daemon.embedders.registry import make
import contextinfinity.daemon.embedders.local
heavy = {"onnxruntime", "tokenizers", "httpx2"} & set(sys.modules)
assert not heavy, heavy

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6

async def main():
    one = make("local", EmbedderSettings("local", "snowflake-arctic-embed-s"), Network(), os.environ, None)
    before = resident()
    await one.documents([f"message {n} " * 20 for n in range(100)])
    loaded = resident()
    await one.rest()
    print(before, loaded, resident())

trio.run(main)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_rest_gives_memory_back(real_model: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY], env=real_model, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, loaded, rested = map(float, done.stdout.split())
    assert (loaded - rested) > 0.5 * (loaded - before), done.stdout
