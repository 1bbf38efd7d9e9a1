"""An index that somebody damaged while the daemon was stopped: it starts, conversations go on, and it mends itself."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw
import pytest

from contextinfinity.daemon.storage import verify
from tests.crash.promises import Ledger, check, quiet, search
from tests.crash.provider import SlowProvider
from tests.crash.test_failpoints import check_vectors, embedder, history
from tests.support.daemon import Daemon
from tests.support.embedding_server import EmbeddingServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SOME_CHUNKS = "(SELECT n FROM chunks WHERE source_turn IN (SELECT id FROM turns WHERE n % 2))"
SOME_PASSAGES = f"(SELECT n FROM passages WHERE chunk IN {SOME_CHUNKS})"
DAMAGE = {
    "everything": ["DELETE FROM passage_vectors", "DELETE FROM passages", "DELETE FROM chunks", "DELETE FROM vector_spaces"],
    "all chunks and vectors": ["DELETE FROM passage_vectors", "DELETE FROM passages", "DELETE FROM chunks"],
    "all chunks": ["DELETE FROM passages", "DELETE FROM chunks"],
    "one side of every turn": [
        "DELETE FROM passage_vectors WHERE passage IN (SELECT p.n FROM passages p JOIN chunks c ON c.n = p.chunk "
        "WHERE c.role = 'assistant')",
        "DELETE FROM passages WHERE chunk IN (SELECT n FROM chunks WHERE role = 'assistant')",
        "DELETE FROM chunks WHERE role = 'assistant'",
    ],
    "the chunks of some turns": [
        f"DELETE FROM passage_vectors WHERE passage IN {SOME_PASSAGES}",
        f"DELETE FROM passages WHERE chunk IN {SOME_CHUNKS}",
        f"DELETE FROM chunks WHERE n IN {SOME_CHUNKS}",
    ],
    "all passages": ["DELETE FROM passages"],
    "the passages of some turns": [f"DELETE FROM passages WHERE chunk IN {SOME_CHUNKS}"],
    "all vectors": ["DELETE FROM passage_vectors"],
    "some vectors": [f"DELETE FROM passage_vectors WHERE passage IN {SOME_PASSAGES}"],
    "the space of the vectors": ["DELETE FROM passage_vectors", "DELETE FROM vector_spaces"],
}


@pytest.fixture(scope="module")
def provider() -> Iterator[SlowProvider]:
    with SlowProvider(words=20, gap=0.001) as running:
        yield running


def damage(home: Path, statements: Sequence[str]) -> None:
    """As a person with a database tool might; foreign keys are off there."""
    db = apsw.Connection(str(home / "contextinfinity.db"))
    try:
        for statement in statements:
            db.execute(statement).fetchall()
            assert db.changes()
    finally:
        db.close()


@pytest.mark.parametrize("what", DAMAGE)
def test_an_index_that_was_damaged_mends_itself(tmp_path: Path, provider: SlowProvider, what: str) -> None:
    ledger = Ledger(provider.answer)
    with EmbeddingServer() as server:
        daemon = Daemon(tmp_path, provider.config("buffered", embedder(server)))
        with daemon, daemon.wire() as wire:
            branch = ledger.session(wire)
            for number in range(6):
                ledger.wait(wire, ledger.submit(wire, branch, f"about subject-{number}"))
            ledger.take_over(wire, ledger.history(wire, "from elsewhere"), history(0))
            quiet(wire)
        damage(daemon.home, DAMAGE[what])
        assert not verify.check(daemon.home / "contextinfinity.db", daemon.home / "streams").ok or "space" in what
        with daemon:
            with daemon.wire() as wire:
                assert ledger.wait(wire, ledger.submit(wire, branch, "one more subject-6"))["phase"] == "response_finalized"
                quiet(wire)
                search(wire, "subject-3")
            check(daemon, ledger)
        check_vectors(daemon.home / "contextinfinity.db")
