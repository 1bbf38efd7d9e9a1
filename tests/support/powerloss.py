"""A disk that remembers: every write, truncate, sync and change of a folder, so that a power cut can be had at any of them.

`Disk` records what SQLite does through a VFS and what journals do through `os`; `Platter` says what a power cut leaves of it.
"""

import contextlib
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw

SECTORS = (512, 4096)


class Write(NamedTuple):
    file: int
    offset: int
    data: bytes


class Truncate(NamedTuple):
    file: int
    size: int


class Sync(NamedTuple):
    """What was written to the file before is on disk."""

    file: int


class FailedSync(NamedTuple):
    """What was written before is on disk or not, and no later sync changes that: the system forgot that it was unwritten."""

    file: int


class Named(NamedTuple):
    """A change of a folder: names that now mean a file, or nothing."""

    folder: str
    names: tuple[tuple[str, int | None], ...]


class SyncFolder(NamedTuple):
    folder: str


class Mark(NamedTuple):
    """Something the program under test said at this moment."""

    what: Any


Change = Write | Truncate
Operation = Change | Sync | FailedSync | Named | SyncFolder | Mark
Fault = Callable[[str, str], BaseException | None]
"""Asked before each (operation, name): the error it shall fail with, if any."""


class Disk:
    """The record of one run under a folder, and the place where faults come from."""

    def __init__(self, root: Path, fault: Fault | None = None) -> None:
        self.root = root
        self.fault = fault
        self.log: list[Operation] = []
        self.before: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}
        self._count = 0
        for path in sorted(p for p in root.rglob("*") if p.is_file() and not p.name.endswith("-shm")):
            self.before[self.name(path)] = path.read_bytes()
            self._files[self.name(path)] = self._number()

    def _number(self) -> int:
        self._count += 1
        return self._count

    def name(self, path: str | Path) -> str:
        return os.path.relpath(path, self.root)

    def mark(self, what: Any) -> None:
        self.note(Mark(what))

    def note(self, operation: Operation) -> None:
        with self._lock:
            self.log.append(operation)

    def attempt(self, operation: str, name: str) -> None:
        error = self.fault(operation, name) if self.fault is not None else None
        if error is not None:
            raise error

    def opened(self, path: str | Path) -> int:
        """The number of the file with this name, which is new if there was none."""
        name = self.name(path)
        if name not in self._files:
            self._files[name] = self._number()
            self.note(Named(os.path.dirname(name), ((name, self._files[name]),)))
        return self._files[name]

    def removed(self, path: str | Path) -> None:
        name = self.name(path)
        if self._files.pop(name, None) is not None:
            self.note(Named(os.path.dirname(name), ((name, None),)))

    def synced_folder(self, path: str | Path) -> None:
        name = self.name(path)
        self.note(SyncFolder("" if name == "." else name))

    # what the program under test uses

    @contextlib.contextmanager
    def as_default(self, name: str = "powerloss") -> Iterator[None]:
        """SQLite files opened inside go through here; those that stay open go on doing so."""
        usual = apsw.vfs_names()[0]
        vfs = _RecordingVFS(name, self)
        apsw.randomness(0)  # asks the VFS for a new seed
        try:
            yield
        finally:
            apsw.set_default_vfs(usual)
            apsw.randomness(0)
            vfs.unregister()

    @property
    def os(self) -> "RecordingOs":
        return RecordingOs(self)


JOURNALS = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL


class _RecordingVFS(apsw.VFS):
    def __init__(self, name: str, disk: Disk) -> None:
        super().__init__(name, "unix", makedefault=True)
        self._disk = disk

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if name is None:
            return apsw.VFSFile("unix", name, flags)
        return _RecordingFile(name, flags, self._disk)

    def xRandomness(self, numbytes: int) -> bytes:
        return random.Random(0).randbytes(numbytes)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self._disk.removed(filename)
        if syncdir:
            self._disk.synced_folder(os.path.dirname(filename))


class _RecordingFile(apsw.VFSFile):
    def __init__(self, name: str | apsw.URIFilename, flags: list[int], disk: Disk) -> None:
        asked = flags[0]
        super().__init__("unix", name, flags)
        self._path = name if isinstance(name, str) else name.filename()
        self._disk = disk
        self._name = disk.name(self._path)
        self._file = disk.opened(self._path)
        # SQLite syncs the folder with the first sync of a journal that it may have created, and of no other file.
        self._names_with_sync = bool(asked & JOURNALS and asked & apsw.SQLITE_OPEN_CREATE)

    def xLock(self, level: int) -> None:
        try:
            super().xLock(level)
        except apsw.IOError:
            # A read-only connection that closes tries a lock it cannot get; SQLite shrugs, an exception would not.
            raise apsw.BusyError from None

    def xRead(self, amount: int, offset: int) -> bytes:
        self._disk.attempt("read", self._name)
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:
        self._disk.attempt("write", self._name)
        super().xWrite(data, offset)
        self._disk.note(Write(self._file, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        self._disk.attempt("truncate", self._name)
        super().xTruncate(newsize)
        self._disk.note(Truncate(self._file, newsize))

    def xSync(self, flags: int) -> None:
        try:
            self._disk.attempt("sync", self._name)
        except BaseException:
            self._disk.note(FailedSync(self._file))
            raise
        super().xSync(flags)
        self._disk.note(Sync(self._file))
        if self._names_with_sync:
            self._names_with_sync = False
            self._disk.synced_folder(os.path.dirname(self._path))


class RecordingOs:
    """Stands in for the module `os` where journals are written."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._open: dict[int, tuple[Path, int | None]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        fd = os.open(path, flags, mode)
        self._open[fd] = (Path(path), self._disk.opened(path) if flags & os.O_CREAT else None)
        return fd

    def write(self, fd: int, data: Any) -> int:
        path, file = self._open[fd]
        assert file is not None
        self._disk.attempt("write", self._disk.name(path))
        end = os.fstat(fd).st_size
        written = os.write(fd, data)
        self._disk.note(Write(file, end, bytes(data[:written])))
        return written

    def fsync(self, fd: int) -> None:
        path, file = self._open[fd]
        self._disk.attempt("sync", self._disk.name(path))
        if file is None:
            self._disk.synced_folder(path)
        else:
            self._disk.note(Sync(file))

    def close(self, fd: int) -> None:
        del self._open[fd]
        os.close(fd)

    def unlink(self, path: Path) -> None:
        if path.exists():
            os.unlink(path)
            self._disk.removed(path)


class _Content:
    """A file as the disk has it for certain, and the changes since that it may or may not have."""

    def __init__(self, data: bytes = b"") -> None:
        self.certain = bytearray(data)
        self.pending: list[Change] = []

    def settle(self) -> None:
        for change in self.pending:
            _apply(self.certain, change)
        self.pending.clear()


class Platter:
    """What is on disk for certain after a prefix of the log, and what a power cut at that moment may leave."""

    def __init__(self, before: dict[str, bytes] | None = None, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self._files: dict[int, _Content] = {}
        self._names: dict[str, int] = {}
        self._renaming: dict[str, list[Named]] = {}
        for number, (name, data) in enumerate((before or {}).items(), 1):
            self._files[number] = _Content(data)
            self._names[name] = number

    def apply(self, operation: Operation) -> None:
        match operation:
            case Write(file) | Truncate(file):
                self._files.setdefault(file, _Content()).pending.append(operation)
            case Sync(file):
                self._files.setdefault(file, _Content()).settle()
            case FailedSync(file):
                content = self._files.setdefault(file, _Content())
                content.pending = [c for c in content.pending if self._rng.random() < 0.5]
                content.settle()
            case Named(folder):
                self._renaming.setdefault(folder, []).append(operation)
            case SyncFolder(folder):
                for change in self._renaming.pop(folder, ()):
                    _rename(self._names, change)

    @property
    def uncertain(self) -> bool:
        return bool(self._renaming) or any(content.pending for content in self._files.values())

    def cut(self, rng: random.Random) -> dict[str, bytes]:
        """One of the states in which a power cut may leave the files."""
        names = dict(self._names)
        sector = rng.choice(SECTORS)
        for changes in self._renaming.values():
            for change in _some(rng, changes):
                _rename(names, change)
        return {name: self._left_of(self._files.get(file), rng, sector) for name, file in names.items()}

    @staticmethod
    def _left_of(content: _Content | None, rng: random.Random, sector: int) -> bytes:
        if content is None:
            return b""
        if not content.pending:
            return bytes(content.certain)
        left = bytearray(content.certain)
        torn = rng.random() < 0.5
        for change in _some(rng, content.pending):
            for piece in _tear(change, sector) if torn else (change,):
                if not torn or rng.random() < 0.7:
                    _apply(left, piece)
        return bytes(left)


def _some(rng: random.Random, changes: Sequence[Any]) -> Sequence[Any]:
    """Those that reached the disk: all, none, the first few, or any."""
    match rng.randrange(6):
        case 0:
            return changes
        case 1:
            return ()
        case 2 | 3:
            return changes[: rng.randrange(len(changes) + 1)]
        case _:
            return [c for c in changes if rng.random() < 0.5]


def _tear(change: Change, sector: int) -> Iterator[Change]:
    if isinstance(change, Truncate):
        yield change
        return
    at, data = change.offset, change.data
    while data:
        room = sector - at % sector
        yield Write(change.file, at, data[:room])
        at, data = at + room, data[room:]


def _apply(content: bytearray, change: Change) -> None:
    if isinstance(change, Truncate):
        if change.size < len(content):
            del content[change.size :]
        else:
            content.extend(bytes(change.size - len(content)))
        return
    if len(content) < change.offset:
        content.extend(bytes(change.offset - len(content)))
    content[change.offset : change.offset + len(change.data)] = change.data


def _rename(names: dict[str, int], change: Named) -> None:
    for name, file in change.names:
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


def lay_out(files: dict[str, bytes], root: Path) -> None:
    """Make a folder hold exactly these files."""
    for path in [p for p in root.rglob("*") if p.is_file()]:
        path.unlink()
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def power_cuts(disk: Disk, count: int, seed: int, part: int = 0, parts: int = 1) -> Iterator[tuple[int, dict[str, bytes]]]:
    """`count` power cuts over the whole log, each as (operations done before it, files left by it).

    A moment at which nothing is uncertain has one outcome and is cut once; the others share the rest evenly. With `parts`,
    only that share of the moments is cut.
    """
    rng = random.Random(f"{seed} {part}")
    shares = _shares(disk, count, seed)
    platter = Platter(disk.before, seed)
    for moment, share in enumerate(shares):
        if moment:
            platter.apply(disk.log[moment - 1])
        if moment % parts == part:
            for _ in range(share):
                yield moment, platter.cut(rng)


def _shares(disk: Disk, count: int, seed: int) -> list[int]:
    platter = Platter(disk.before, seed)
    uncertain = [False]
    for operation in disk.log:
        platter.apply(operation)
        uncertain.append(platter.uncertain)
    certain = len(uncertain) - sum(uncertain)
    left, moments = max(0, count - certain), max(1, sum(uncertain))
    whole, rest = divmod(left, moments)
    extra = set(random.Random(seed).sample([i for i, u in enumerate(uncertain) if u], min(rest, sum(uncertain))))
    return [whole + (i in extra) if u else 1 for i, u in enumerate(uncertain)]


def io_error(operation: str) -> BaseException:
    """What SQLite makes of a disk that answers EIO."""
    codes = {
        "read": apsw.SQLITE_IOERR_READ,
        "write": apsw.SQLITE_IOERR_WRITE,
        "truncate": apsw.SQLITE_IOERR_TRUNCATE,
        "sync": apsw.SQLITE_IOERR_FSYNC,
    }
    return apsw.exception_for(codes[operation])


class FailOnce:
    """The n-th operation fails once; without n it only counts."""

    def __init__(self, nth: int | None = None, operations: Sequence[str] = ("read", "write", "sync", "truncate")) -> None:
        self.nth = nth
        self.seen = 0
        self.hit: tuple[str, str] | None = None
        self.paused = False
        self._operations = operations

    def __call__(self, operation: str, name: str) -> BaseException | None:
        if self.paused or operation not in self._operations:
            return None
        self.seen += 1
        if self.seen != self.nth:
            return None
        self.hit = (operation, name)
        return io_error(operation)
