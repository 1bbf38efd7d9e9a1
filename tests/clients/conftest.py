"""A scripted daemon and a `ctx` that talks to it, for the modules that do not need theirs to be special."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contextinfinity.clients.cli.main import main
from contextinfinity.clients.errors import DaemonUnreachable
from tests.clients.fake import FakeDaemon
from tests.clients.shell import Ctx, Result


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon().in_thread(tmp_path / "s.sock") as fake:
        yield fake


@pytest.fixture
def ctx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ctx:
    """Run a command line in this process, in a directory of its own, with the given standard input."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CTX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CTX_SOCKET", str(tmp_path / "s.sock"))
    monkeypatch.setenv("TZ", "Europe/Berlin")

    async def never(*args: Any, **options: Any) -> None:
        raise DaemonUnreachable("a real daemon would have been started")

    monkeypatch.setattr("contextinfinity.clients.autostart.start", never)

    def run(*args: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        code = main(list(args))
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run
