"""A real daemon killed at every named place, while a client submits and an answer streams; then it must keep its promises."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from contextinfinity.daemon.actors.embedding import CONTEXT_SHARE
from contextinfinity.daemon.core.indexing import in_context, spoken
from contextinfinity.daemon.core.jobs import MOST_ATTEMPTS
from contextinfinity.daemon.embedders.base import Vectors, unit
from contextinfinity.daemon.runtime import failpoints
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage import migrations, vectors, verify
from contextinfinity.daemon.storage.connection import Tx, open_reader, open_writer
from tests.crash.promises import EMBEDDER, GONE, Ledger, check, check_indexing_again, check_recovery, replay, rest, turns_of
from tests.crash.provider import SlowProvider
from tests.support.daemon import POLL, Daemon
from tests.support.embedding_server import MODEL, EmbeddingServer, vector
from tests.support.model_check import settled
from tests.support.wire import Wire

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ROOT = Path(__file__).absolute().parents[2]
POLICIES = ("buffered", "write_ahead")
ROUNDS = 4
KILLED = -9
AT_ONCE = 5
MOST_PASSAGES = 10_000
EVERY = tuple(range(1, int(os.environ.get("CTX_STATEMENTS", "0")) + 1))

# Which time of reaching it kills: the first, and some later ones where it is reached again and again.
STREAMING = {
    "turn.responding": (2,),
    "turn.streaming": (1, 61, 90),
    "turn.streamed": (1,),
    "turn.sealed": (2,),
    "turn.recorded": (1,),
    "journal.before_write": (1, 9),
    "journal.after_write": (1, 6),
    "journal.after_sync": (1, 8),
    "journal.after_folder_sync": (1, 2),
}
STORING = {
    "store.statement": EVERY or (1, 2, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 37, 40, 95),
    "store.before_commit": (3, 6, 7, 8, 9, 10, 12, 15),
    "store.after_commit": (3, 6, 7, 8, 9, 10, 12, 15),
    "turn.acknowledged": (1, 3),
    "turn.assembled": (2,),
    "pack.before": (1,),
    "pack.stored": (1,),
    "pack.removed": (2,),
    "backup.copied": (2,),
    "backup.verified": (1,),
}
INDEXING = {
    "index.begun": (1, 4),
    "index.prepared": (1, 4),
    "index.stored": (1, 4),
}
EMBEDDING = {
    "embed.made": (1, 3),
    "embed.stored": (1, 3),
    "embed.finished": (1, 3),
}
IMPORTING = {
    "import.prepared": (1, 3),
    "import.stored": (1, 3),
}
RECOVERING = {
    "recovery.begun": (1,),
    "recovery.judged": (2,),
    "recovery.finished": (1,),
    "index.again": (1,),
    "store.statement": EVERY or tuple(range(2, 40, 5)),
    "store.before_commit": (1, 2, 4, 6),
    "store.after_commit": (1, 2, 4, 6),
    "pack.before": (1,),
    "pack.stored": (1,),
    "pack.removed": (1,),
}


def test_the_names_are_those_in_the_code() -> None:
    source = "".join(path.read_text() for path in sorted((ROOT / "daemon").rglob("*.py")))
    assert set(re.findall(r'failpoints\.hit\("([^"]+)"\)', source)) == set(failpoints.NAMES)
    assert source.count("failpoints.hit(") == len(re.findall(r'failpoints\.hit\("', source)), "names are literal"


def test_every_name_is_killed_at() -> None:
    killed_at = {*STREAMING, *STORING, *INDEXING, *EMBEDDING, *IMPORTING, *RECOVERING, "migration.statement"}
    assert killed_at == set(failpoints.NAMES)


def test_a_place_that_is_not_armed_lets_pass() -> None:
    for name in failpoints.NAMES:
        failpoints.hit(name)


@pytest.fixture(scope="module")
def provider() -> Iterator[SlowProvider]:
    with SlowProvider() as running:
        yield running


def armed(daemon: Daemon, place: str) -> None:
    """Start it with a place to die at; it may die before it answers."""
    daemon.env[failpoints.VARIABLE] = place
    process = daemon.launch()
    del daemon.env[failpoints.VARIABLE]
    while process.poll() is None:
        try:
            with daemon.wire() as wire:
                wire.call("daemon.ping")
            return
        except OSError:
            try:
                process.wait(POLL)
            except subprocess.TimeoutExpired:
                continue


def died(daemon: Daemon, place: str) -> None:
    assert daemon.process is not None
    try:
        code = daemon.process.wait(10)
    except subprocess.TimeoutExpired:
        daemon.kill9()
        raise AssertionError(f"{place} was never reached") from None
    assert code == KILLED, f"{place}: exit code {code}\n{daemon.logs}"


def converse(daemon: Daemon, ledger: Ledger, *, backups: bool = False, rounds: int = ROUNDS) -> None:
    """Two branches: one answer streams while the other is asked; pins, forks, queued and cancelled turns. Until it dies."""
    try:
        with daemon.wire() as wire, ledger.listening(wire):
            first, second = ledger.session(wire), ledger.session(wire, system="Be brief.")
            for number in range(rounds):
                asked = ledger.submit(wire, first, f"first {number}")
                _until_it_streams(wire, asked)
                keyed = ledger.submit(wire, second, f"second {number}", idempotency_key=f"key {number}")
                ledger.pin(wire, first, f"pin {number}")
                queued = ledger.submit(wire, second, f"queued {number}", queue=True)
                if backups:
                    wire.call("store.backup")
                ledger.wait(wire, asked)
                ledger.wait(wire, keyed)
                _until_it_streams(wire, queued)
                ledger.cancel(wire, queued)
                ledger.fork(wire, second)
    except GONE:
        pass


def _until_it_streams(wire: Wire, turn_id: str) -> None:
    wire.until(lambda e: e.get("turn_id") == turn_id and (e["type"] == "stream.delta" or e["data"].get("phase") == "failed"))


def take_over(daemon: Daemon, ledger: Ledger, rounds: int = ROUNDS) -> None:
    """One client imports batch after batch, and every other time the batch before again. Until the daemon dies."""
    try:
        with daemon.wire() as wire:
            session = ledger.history(wire, "from elsewhere")
            for number in range(rounds):
                batch = history(number)
                ledger.take_over(wire, session, [*(history(number - 1) if number % 2 else []), *batch])
    except GONE:
        pass


def history(number: int, exchanges: int = 5) -> list[Any]:
    """A few exchanges; the same number, the same words."""
    names = range(number * exchanges, (number + 1) * exchanges)
    said = [(role, f"{role[0]}{n}") for n in names for role in ("user", "assistant")]
    at = {"created_at": "2025-03-04T05:06:07Z"} if number % 2 else {}  # not everything says when it was said
    return [{"role": role, "text": f"what {name} is about", "external_id": name, **at} for role, name in said]


def in_parallel(tmp_path: Path, ordinals: tuple[int, ...], case: Callable[[Path, int], None]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = []
        for ordinal in ordinals:
            folder = tmp_path / str(ordinal)
            folder.mkdir()
            running.append(pool.submit(_named, case, folder, ordinal))
        for one in running:
            one.result()


def _named(case: Callable[[Path, int], None], folder: Path, ordinal: int) -> None:
    try:
        case(folder, ordinal)
    except BaseException as error:
        error.add_note(f"at the {ordinal}. time, in {folder}")
        raise


def crash(folder: Path, provider: SlowProvider, policy: str, place: str) -> tuple[Daemon, Ledger]:
    """A home that a daemon left when it died there, and what its client knows."""
    daemon = Daemon(folder, provider.config(policy))
    ledger = Ledger(provider.answer, write_ahead=policy == "write_ahead")
    try:
        armed(daemon, place)
        if daemon.alive:
            converse(daemon, ledger, backups=place.startswith("backup"))
    finally:
        if daemon.process is not None:
            died(daemon, place)
    return daemon, ledger


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", STREAMING)
def test_killed_while_an_answer_streams(tmp_path: Path, provider: SlowProvider, name: str, policy: str) -> None:
    def case(folder: Path, ordinal: int) -> None:
        check_recovery(*crash(folder, provider, policy, f"{name}:{ordinal}"))

    in_parallel(tmp_path, STREAMING[name], case)


@pytest.mark.parametrize("name", STORING)
def test_killed_while_something_is_stored(tmp_path: Path, provider: SlowProvider, name: str) -> None:
    def case(folder: Path, ordinal: int) -> None:
        daemon, ledger = crash(folder, provider, POLICIES[ordinal % 2], f"{name}:{ordinal}")
        for backup in (daemon.home / "backups").glob("*.db"):
            report = verify.check(backup, folder)
            assert report.ok, report.problems
        check_recovery(daemon, ledger)

    in_parallel(tmp_path, STORING[name], case)


@pytest.mark.parametrize("name", INDEXING)
def test_killed_while_a_turn_is_indexed(tmp_path: Path, provider: SlowProvider, name: str) -> None:
    def case(folder: Path, ordinal: int) -> None:
        daemon, ledger = crash(folder, provider, POLICIES[ordinal % 2], f"{name}:{ordinal}")
        check_recovery(daemon, ledger)
        if ordinal == 1:
            check_indexing_again(daemon, ledger)

    in_parallel(tmp_path, INDEXING[name], case)


@pytest.mark.parametrize("name", EMBEDDING)
def test_killed_while_vectors_are_made(tmp_path: Path, provider: SlowProvider, name: str) -> None:
    """Afterwards every passage has its vector, once, and no vector is of another passage."""

    def case(folder: Path, ordinal: int) -> None:
        with EmbeddingServer() as server:
            daemon = Daemon(folder, provider.config("buffered", embedder(server)))
            ledger = Ledger(provider.answer)
            place = f"{name}:{ordinal}"
            armed(daemon, place)
            converse(daemon, ledger)
            died(daemon, place)
            check_recovery(daemon, ledger)
            assert set(server.violations) <= {"the body is not JSON"}, "only a kill may cut a request short"
        check_vectors(daemon.home / "contextinfinity.db")

    in_parallel(tmp_path, EMBEDDING[name], case)


def embedder(server: EmbeddingServer) -> str:
    """The part of a configuration that makes a daemon ask this server."""
    settings = f'kind = "http"\nstyle = "ollama"\nurl = "{server.url()}"\nmodel = "{MODEL}"\n'
    return f'[retrieval]\nembedder = "{EMBEDDER}"\n[embedders.{EMBEDDER}]\n{settings}'


def check_vectors(database: Path) -> None:
    """Every passage has a vector, made of what it says."""
    db = open_reader(database)
    try:
        tx = Tx(db)
        (space,) = vectors.spaces(tx)
        assert space.ready
        assert vectors.backlog(tx, space.done_to) == 0
        passages = {one.n: one for one in vectors.unembedded(tx, 0, MOST_PASSAGES)}
        numbers, made = vectors.after(tx, space.n, 0, MOST_PASSAGES)
    finally:
        db.close()
    assert numbers == sorted(passages)
    for number, row in zip(numbers, np.frombuffer(made, np.float16).reshape(-1, space.dim), strict=True):
        one = passages[number]
        text = spoken(one.speaker, one.at, one.text)
        wanted = _vector(text) + (CONTEXT_SHARE * _vector(in_context(one.before, text)) if one.before else 0)
        assert np.allclose(row, unit(wanted), atol=0.01), f"passage {number} has the vector of something else"


def _vector(text: str) -> Vectors:
    return unit(np.array(vector(text), np.float32))


@pytest.mark.parametrize("name", IMPORTING)
def test_killed_while_a_history_is_imported(tmp_path: Path, provider: SlowProvider, name: str) -> None:
    """After the crash the same is imported again: every message is there exactly once, in its order."""

    def case(folder: Path, ordinal: int) -> None:
        daemon, ledger = Daemon(folder, provider.config("buffered")), Ledger(provider.answer)
        place = f"{name}:{ordinal}"
        armed(daemon, place)
        take_over(daemon, ledger)
        died(daemon, place)
        (offered,) = ledger.offered.values()
        assert len(offered) == ordinal * 10
        check_recovery(daemon, ledger)

    in_parallel(tmp_path, IMPORTING[name], case)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], tuple[Daemon, Ledger]]]:
    """Copies of one home as it was left: two answers in mid-stream, one whole but not recorded, three turns in line."""
    with SlowProvider(gap=0.02) as provider:
        yield _crashed(tmp_path_factory.mktemp("crashed"), provider)


def _crashed(folder: Path, provider: SlowProvider) -> Callable[[Path], tuple[Daemon, Ledger]]:
    daemon = Daemon(folder, provider.config("write_ahead"))
    ledger = Ledger(provider.answer, write_ahead=True)
    armed(daemon, "turn.sealed:2")
    with daemon.wire() as wire, ledger.listening(wire):
        branches = [ledger.session(wire) for _ in range(3)]
        ledger.wait(wire, ledger.submit(wire, branches[0], "the first"))
        for branch in branches:
            _until_it_streams(wire, ledger.submit(wire, branch, f"to {branch}"))
            ledger.submit(wire, branch, f"in line on {branch}", queue=True)
        with suppress(GONE):
            wire.until(lambda _: False)
    died(daemon, "turn.sealed:2")

    def copy(target: Path) -> tuple[Daemon, Ledger]:
        made = Daemon(target, provider.config("write_ahead"))
        shutil.copytree(daemon.home, made.home, dirs_exist_ok=True, ignore=shutil.ignore_patterns("run"))
        return made, ledger

    return copy


@pytest.mark.parametrize("name", RECOVERING)
def test_killed_in_recovery(tmp_path: Path, crashed: Callable[[Path], tuple[Daemon, Ledger]], name: str) -> None:
    def case(folder: Path, ordinal: int) -> None:
        daemon, ledger = crashed(folder)
        place = f"{name}:{ordinal}"
        armed(daemon, place)
        died(daemon, place)
        check_recovery(daemon, ledger)

    in_parallel(tmp_path, RECOVERING[name], case)


def recovered(daemon: Daemon, ledger: Ledger) -> list[Any]:
    """Everything that recovery decided, without times and hashes, which no two runs share."""
    daemon.start()
    check(daemon, ledger)
    rest(daemon)
    with daemon.wire() as wire:
        turns = [turn for branch in ledger.branches for turn in turns_of(wire, branch)]
        steps = [wire.call("step.get", step_id=step["id"]) for turn in turns for step in turn["steps"]]
        events = sorted((e["type"], e.get("turn_id") or "", msgspec.json.encode(e["data"])) for e in replay(wire))
    daemon.stop()
    return [_timeless([settled(turn) for turn in turns]), _timeless(steps), events]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if not k.endswith("_at")}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", ["recovery.begun", "recovery.judged", "recovery.finished", "store.before_commit"])
def test_recovery_that_crashes_three_levels_deep_decides_the_same(
    tmp_path: Path, crashed: Callable[[Path], tuple[Daemon, Ledger]], name: str
) -> None:
    straight, ledger = crashed(tmp_path / "a")
    deep, _ = crashed(tmp_path / "b")
    for level in range(3):
        place = f"{name}:{1 if name != 'store.before_commit' else level + 2}"
        armed(deep, place)
        died(deep, place)
    assert recovered(straight, ledger) == recovered(deep, ledger)


STATEMENTS = sum(len(migrations.statements(script)) for _, script in migrations.MIGRATIONS)


def test_killed_in_the_first_migrations(tmp_path: Path, provider: SlowProvider) -> None:
    def case(folder: Path, ordinal: int) -> None:
        daemon, ledger = crash(folder, provider, "buffered", f"migration.statement:{ordinal}")
        daemon.start()
        converse(daemon, ledger, rounds=1)
        daemon.kill9()
        check_recovery(daemon, ledger)

    in_parallel(tmp_path, (1, 2, STATEMENTS // 2, STATEMENTS - 1, STATEMENTS), case)


def test_killed_in_a_later_migration(tmp_path: Path, provider: SlowProvider) -> None:
    """A home of the first schema: the backup from before is there, and the migration is all or nothing."""
    later = len(migrations.statements(migrations.MIGRATIONS[-1][1]))

    def case(folder: Path, ordinal: int) -> None:
        daemon = Daemon(folder, provider.config("buffered"))
        db = open_writer(daemon.home / "contextinfinity.db")
        migrations.migrate(db, daemon.home / "backups", now(), migrations.MIGRATIONS[:-1])
        db.close()
        place = f"migration.statement:{ordinal}"
        armed(daemon, place)
        died(daemon, place)
        assert list((daemon.home / "backups").glob("before-*.db"))
        daemon.start()
        ledger = Ledger(provider.answer)
        converse(daemon, ledger, rounds=1)
        daemon.kill9()
        check_recovery(daemon, ledger)

    in_parallel(tmp_path, EVERY or (1, 2, later // 3, later // 2, later - 1, later), case)


def test_a_recovery_that_crashes_more_often_than_a_job_is_tried(
    tmp_path: Path, crashed: Callable[[Path], tuple[Daemon, Ledger]]
) -> None:
    """The turns get their outcome all the same, and what was given up is to be seen as parked."""
    daemon, ledger = crashed(tmp_path)
    for _ in range(MOST_ATTEMPTS + 1):
        armed(daemon, "recovery.judged:1")
        died(daemon, "recovery.judged:1")
    daemon.start()
    with daemon.wire() as wire:
        assert wire.call("store.verify")["ok"]
        assert wire.call("daemon.status")["jobs"]["failed"] == 1
        turns = [turn for branch in ledger.branches for turn in turns_of(wire, branch)]
        assert {turn["id"] for turn in turns} >= ledger.said.keys()
        assert {turn["phase"] for turn in turns} == {"failed", "response_finalized"}
    rest(daemon)
    daemon.stop()


def test_a_client_that_hears_everything_is_told_nothing_twice(tmp_path: Path, provider: SlowProvider) -> None:
    """The checks themselves hold for a daemon that never crashed."""
    daemon, ledger = Daemon(tmp_path, provider.config("write_ahead")), Ledger(provider.answer, write_ahead=True)
    with daemon:
        converse(daemon, ledger, rounds=2)
        check(daemon, ledger)
    assert len(ledger.said) == 6
    assert len(ledger.ended) == 6
    assert all(ledger.durable.values())
