"""`ctx import` and `ctx import --watch`: what is asked for, what is told of the answer, and going on over a restart."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from contextinfinity.clients.cli import imports, progress
from contextinfinity.clients.cli.main import main
from contextinfinity.daemon.imports.formats import FORMATS
from contextinfinity.protocol.errors import InvalidParams, StorageFull
from contextinfinity.protocol.events import Notification
from tests.clients.fake import NO_ANSWER, FakeDaemon, Peer
from tests.clients.shell import Ctx

DEADLINE = 30.0


def imported(turns: int = 2, **changes: Any) -> dict[str, Any]:
    made = {"session_id": "S1", "branch_id": "B1", "turns": turns, "skipped": 0, "messages": 2 * turns, "format": "jsonl"}
    return {**made, "sessions": ["S1"], **changes}


@pytest.fixture
def files(ctx: Ctx) -> list[str]:
    """Three that are there, in the directory of the command."""
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        Path(name).write_text("{}\n")
    return ["a.jsonl", "b.jsonl", "c.jsonl"]


def test_every_format_of_the_daemon_can_be_named() -> None:
    assert set(imports.FORMATS) == set(FORMATS)


def test_import_sends_absolute_paths_and_says_what_came(ctx: Ctx, daemon: FakeDaemon, files: list[str]) -> None:
    daemon.answers("transcript.import", imported(skipped=1))
    result = ctx("import", "a.jsonl")
    path = str(Path.cwd() / "a.jsonl")
    assert daemon.called("transcript.import") == [{"path": path}]
    assert result.code == 0
    assert result.err == ""
    assert result.out.splitlines() == [
        f"{path} (jsonl): 1 conversation, 2 turns, 4 messages; 1 skipped (there already, or no message).",
        "To read it: ctx log S1",
    ]
    assert daemon.called("events.subscribe") == [], "nobody looks at a progress here"
    ctx("import", "~/work/../work/a.jsonl", "--format", "llm", "--session", "S9", "--title", "Old notes")
    expected = {"path": path, "format": "llm", "session_id": "S9", "title": "Old notes"}
    assert daemon.called("transcript.import")[1] == expected


def test_several_paths_are_told_apart_and_together(ctx: Ctx, daemon: FakeDaemon, files: list[str]) -> None:
    daemon.on("transcript.import", lambda peer, params: imported(sessions=["S1", "S" + params["path"][-7]]))
    shown = ctx("import", *files).out.splitlines()
    assert "(jsonl): 2 conversations, 2 turns, 4 messages." in shown[0]
    assert shown[1] == "To see them: ctx sessions; to find something: ctx search"
    assert shown[-1] == "Together: 4 conversations, 6 turns, 12 messages."
    machine = ctx("import", *files, "--json").json()
    assert machine["total"] == {"sessions": 4, "turns": 6, "messages": 12, "skipped": 0, "damaged": 0}
    assert [one["path"] for one in machine["imports"]] == [str(Path.cwd() / name) for name in files]
    assert machine["imports"][0]["session_id"] == "S1"


def test_damaged_places_are_named_and_the_rest_is_taken(ctx: Ctx, daemon: FakeDaemon, files: list[str]) -> None:
    daemon.answers("transcript.import", imported(damaged=[*(f"line {n}: \x1b[2J" for n in range(25)), "and 900 more"]))
    result = ctx("import", "a.jsonl")
    assert result.code == 0
    rows = result.out.splitlines()
    assert rows[1] == "925 places could not be read:"
    assert rows[2] == "  line 0: ␛[2J"
    assert rows[22] == "  and 905 more"
    assert ctx("import", "a.jsonl", "--json").json()["total"]["damaged"] == 925


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (imported(0, skipped=4, messages=0), 0, "nothing new; 4 skipped (there already, or no message)."),
        ({"session_id": None, "branch_id": None, "turns": 0, "skipped": 0}, 0, "nothing new."),
        (imported(0, skipped=1, damaged=["line 1: torn"]), 0, "line 1: torn"),
        ({"session_id": None, "branch_id": None, "turns": 0, "skipped": 0, "damaged": ["line 1: torn"]}, 1, "line 1: torn"),
    ],
    ids=["all there", "read before", "damaged, the rest there", "all damaged"],
)
def test_only_what_brings_nothing_at_all_is_a_failure(
    ctx: Ctx, daemon: FakeDaemon, files: list[str], answer: dict[str, Any], code: int, words: str
) -> None:
    daemon.answers("transcript.import", answer)
    result = ctx("import", "a.jsonl")
    assert result.code == code
    assert words in result.out
    assert ("nothing that could be imported" in result.err) is (code == 1)
    assert ctx("import", "a.jsonl", "--json").code == code


def test_a_path_that_cannot_be_used_is_1_and_the_others_are_taken(ctx: Ctx, daemon: FakeDaemon, files: list[str]) -> None:
    def answer(peer: Peer, params: dict[str, Any]) -> Any:
        if params["path"].endswith("b.jsonl"):
            raise InvalidParams("b.jsonl is in no format known here")
        return imported()

    daemon.on("transcript.import", answer)
    result = ctx("import", "missing.jsonl", *files)
    assert result.code == 1
    assert result.err.splitlines() == [
        f"ctx: {Path.cwd() / 'missing.jsonl'}: No such file or directory",
        "ctx: b.jsonl is in no format known here",
    ]
    assert "Together: 1 conversation, 4 turns, 8 messages." in result.out
    machine = ctx("import", "missing.jsonl", *files, "--json")
    assert (machine.code, machine.err) == (1, "")
    assert [("error" in one) for one in machine.json()["imports"]] == [True, False, True, False]


def test_paths_that_are_not_there_need_no_daemon(ctx: Ctx) -> None:
    for option in ([], ["--watch"]):
        result = ctx("--no-autostart", "import", "missing", "gone", *option)
        assert result.code == 1
        assert [row.rpartition("/")[2] for row in result.err.splitlines()] == [
            "missing: No such file or directory",
            "gone: No such file or directory",
        ]


@pytest.mark.parametrize(
    ("args", "words"), [([], "Missing argument"), (["x", "--format", "docx"], "docx"), (["a\udc80b"], "not valid UTF-8")]
)
def test_bad_usage_is_2(ctx: Ctx, args: list[str], words: str) -> None:
    result = ctx("--no-autostart", "import", *args)
    assert result.code == 2
    assert words in result.err


def test_what_concerns_more_than_a_path_ends_it(ctx: Ctx, daemon: FakeDaemon, files: list[str]) -> None:
    daemon.refuses("transcript.import", StorageFull("the disk is full"))
    result = ctx("import", *files)
    assert (result.code, result.err) == (1, "ctx: the disk is full\n")
    assert len(daemon.called("transcript.import")) == 1


def test_a_lost_connection_is_3_and_says_that_nothing_is_lost(ctx: Ctx, daemon: FakeDaemon, files: list[str]) -> None:
    daemon.on("transcript.import", hang_up)
    result = ctx("import", "a.jsonl")
    assert result.code == 3
    assert "the same command goes on from there" in result.err
    assert len(result.err.splitlines()) == 1
    nobody = ctx("import", "a.jsonl", "--socket", "nowhere", "--no-autostart")
    assert nobody.code == 3
    assert "goes on from there" not in nobody.err


async def hang_up(peer: Peer, params: dict[str, Any]) -> Any:
    await peer.stream.aclose()
    return NO_ANSWER


def test_progress_is_shown_on_a_terminal(
    ctx: Ctx, daemon: FakeDaemon, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(progress, "DELAY", 0.3)
    monkeypatch.setattr(progress, "can_draw", lambda stream: True)
    monkeypatch.setattr(imports, "can_draw", lambda stream: True)
    daemon.answers("events.subscribe", {"subscription_id": "sub1", "cursor": 1})
    daemon.answers("events.unsubscribe", {})
    path = str(Path.cwd() / "a.jsonl")

    async def answer(peer: Peer, params: dict[str, Any]) -> Any:
        await peer.event("sub1", 1, "import.progress", path=path, done=50, total=200, turns=1)
        await peer.event("sub1", 1, "import.progress", path="/of/somebody/else", done=1, total=2, turns=77)
        await peer.event("sub1", 1, "import.progress", surprise=True)
        await peer.event("sub1", 1, "turn.phase", phase="done")
        await anyio.sleep(0.6)
        return imported()

    daemon.on("transcript.import", answer)
    monkeypatch.setenv("COLUMNS", "400")
    result = ctx("import", "a.jsonl")
    assert result.code == 0
    assert f"importing {path}, 25 %, 1 turn … " in result.err
    assert "77" not in result.err
    assert result.err.endswith("\r\x1b[2K"), "wiped"
    monkeypatch.setenv("COLUMNS", "20")
    narrow = ctx("import", "a.jsonl").err
    assert all(len(part) <= 19 for part in narrow.split("\r\x1b[2K"))


def test_progress_below_a_folder_belongs_to_it(tmp_path: Path) -> None:
    class Said:
        what = ""

        def tell(self, what: str) -> None:
            self.what = what

    async def told(root: str, path: str) -> str:
        async def events() -> Any:
            data = {"path": path, "done": 7, "total": 0, "turns": 2}
            yield Notification("s", 1, "import.progress", "", data)

        said = Said()
        await imports._tell(events(), (root, root), said)  # type: ignore[arg-type]  # stand-ins
        return said.what

    assert anyio.run(told, "/logs", "/logs/a/b.jsonl") == "importing /logs/a/b.jsonl, 2 turns"
    assert anyio.run(told, "/", "/a") == "importing /a, 2 turns"
    assert anyio.run(told, "/logs", "/logs2/b.jsonl") == ""


# watch


class Source:
    """A daemon's memory of how far it read a file: lines are turns, and each comes once."""

    def __init__(self) -> None:
        self.read: dict[str, int] = {}
        self.calls = 0
        self.trouble: Callable[[], None] = lambda: None

    def take(self, peer: Peer, params: dict[str, Any]) -> Any:
        self.calls += 1
        self.trouble()
        rows = Path(params["path"]).read_text().splitlines()
        seen = self.read.get(params["path"], 0)
        self.read[params["path"]] = len(rows)
        damaged = [f"line {n}" for n, row in enumerate(rows, 1) if row == "torn"]
        return imported(len(rows) - seen, damaged=damaged)


class Watching:
    """`ctx import --watch` in a process of its own; what it prints is read by threads."""

    def __init__(self, *args: str) -> None:
        code = (
            "from contextinfinity.clients.cli import watching\nwatching.EVERY = 0.02\n"
            "from contextinfinity.clients.cli.main import main\nraise SystemExit(main())"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "--no-autostart", "import", "--watch", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream, rows), daemon=True)
            for stream, rows in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, rows: list[str]) -> None:
        for row in stream:
            rows.append(row.rstrip("\n"))

    def until(self, met: Callable[[], object]) -> None:
        end = time.monotonic() + DEADLINE
        while not met():
            assert time.monotonic() < end, (self.out, self.err)
            assert self.process.poll() is None, (self.out, self.err)
            time.sleep(0.005)

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(DEADLINE)
        for reader in self._readers:
            reader.join(DEADLINE)
        return code


@pytest.fixture
def watching(ctx: Ctx) -> Iterator[Callable[..., Watching]]:
    begun: list[Watching] = []

    def begin(*args: str) -> Watching:
        begun.append(Watching(*args))
        return begun[-1]

    yield begin
    for one in begun:
        one.process.kill()
        one.wait()
        for stream in (one.process.stdout, one.process.stderr):
            assert stream is not None
            stream.close()


def append(path: str, row: str) -> None:
    with open(path, "a") as file:
        file.write(f"{row}\n")


def test_watch_tells_of_what_is_new_and_ends_well_on_ctrl_c(daemon: FakeDaemon, files: list[str], watching: Any) -> None:
    source = Source()
    daemon.on("transcript.import", source.take)
    watch = watching("a.jsonl", "b.jsonl")
    watch.until(lambda: len(watch.out) == 4)
    calls = source.calls
    watch.until(lambda: source.calls > calls + 6)
    assert len(watch.out) == 4, "nothing is said of calls that brought nothing"
    append("b.jsonl", "{}")
    watch.until(lambda: len(watch.out) == 5)
    assert watch.out[4].endswith(f" {Path.cwd() / 'b.jsonl'}: 1 turn, 2 messages")
    append("a.jsonl", "torn")
    watch.until(lambda: len(watch.out) == 8)
    assert watch.out[6:] == ["1 place could not be read:", "  line 2"]
    calls = source.calls
    watch.until(lambda: source.calls > calls + 6)
    assert watch.interrupt() == 0
    assert watch.out[8:] == ["Watched until now: 1 conversation, 4 turns, 8 messages."]
    assert watch.err == []


def test_watch_as_json_is_a_line_for_each_call_that_brought_something(
    daemon: FakeDaemon, files: list[str], watching: Any
) -> None:  # fmt: skip
    daemon.on("transcript.import", Source().take)
    watch = watching("a.jsonl", "--json")
    watch.until(lambda: len(watch.out) == 1)
    append("a.jsonl", "{}")
    watch.until(lambda: len(watch.out) == 2)
    assert watch.interrupt() == 0
    assert [json.loads(row).get("turns") for row in watch.out] == [1, 1, None]
    assert json.loads(watch.out[2])["total"]["turns"] == 2


def test_watch_goes_on_over_a_restart_of_the_daemon(ctx: Ctx, tmp_path: Path, files: list[str], watching: Any) -> None:
    source = Source()
    with served(tmp_path, source):
        watch = watching("a.jsonl")
        watch.until(lambda: len(watch.out) == 2)
    append("a.jsonl", "{}")
    watch.until(lambda: watch.err)
    with served(tmp_path, source):
        watch.until(lambda: len(watch.out) == 3)
        assert watch.interrupt() == 0
    lost, found = watch.err
    assert lost.endswith("; connecting again"), "said once, however long it takes"
    assert found == "ctx: connected again"
    assert watch.out[-1] == "Watched until now: 1 conversation, 2 turns, 4 messages."


@contextlib.contextmanager
def served(tmp_path: Path, source: Source) -> Iterator[None]:
    daemon = FakeDaemon()
    daemon.on("transcript.import", source.take)
    try:
        with daemon.in_thread(tmp_path / "s.sock"):
            yield
    finally:
        (tmp_path / "s.sock").unlink(missing_ok=True)


def test_watch_can_be_ended_while_no_daemon_answers(ctx: Ctx, tmp_path: Path, files: list[str], watching: Any) -> None:
    with served(tmp_path, Source()):
        watch = watching("a.jsonl")
        watch.until(lambda: len(watch.out) == 2)
    watch.until(lambda: watch.err)
    assert watch.interrupt() == 0
    assert watch.out[-1].startswith("Watched until now: ")


def test_watch_can_be_ended_in_the_first_import(daemon: FakeDaemon, files: list[str], watching: Any) -> None:
    daemon.answers("transcript.import", NO_ANSWER)
    watch = watching("a.jsonl")
    watch.until(lambda: daemon.called("transcript.import"))
    assert watch.interrupt() == 0
    assert watch.out == ["Watched until now: nothing new."]
    assert watch.err == []


def test_watch_complains_once_and_goes_on(daemon: FakeDaemon, files: list[str], watching: Any) -> None:
    source = Source()
    daemon.on("transcript.import", source.take)
    watch = watching("a.jsonl", "missing.jsonl")
    watch.until(lambda: len(watch.out) == 2 and watch.err)
    assert watch.err == [f"ctx: {Path.cwd() / 'missing.jsonl'}: No such file or directory"]

    def full() -> None:
        raise StorageFull("the disk is full")

    source.trouble = full
    watch.until(lambda: len(watch.err) == 2)
    calls = source.calls
    watch.until(lambda: source.calls > calls + 5)
    source.trouble = lambda: None
    append("missing.jsonl", "{}")
    append("a.jsonl", "{}")
    watch.until(lambda: len(watch.out) == 4)
    assert watch.err[1:] == ["ctx: the disk is full"]
    Path("a.jsonl").unlink()
    watch.until(lambda: len(watch.err) == 3)
    assert watch.interrupt() == 0


def test_watch_of_nothing_that_can_be_used_ends(ctx: Ctx, daemon: FakeDaemon, files: list[str]) -> None:
    daemon.refuses("transcript.import", InvalidParams("no format known here"))
    result = ctx("import", "--watch", "a.jsonl", "missing")
    assert result.code == 1
    assert len(result.err.splitlines()) == 2


def test_watch_without_a_daemon_is_3(ctx: Ctx, files: list[str]) -> None:
    assert ctx("--no-autostart", "import", "--watch", "a.jsonl").code == 3


def test_import_is_interrupted_with_130(daemon: FakeDaemon, files: list[str]) -> None:
    daemon.answers("transcript.import", NO_ANSWER)

    def interrupt() -> None:
        anyio.run(daemon.was_asked, "transcript.import")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert main(["--no-autostart", "import", "a.jsonl"]) == 130
    thread.join()
