"""Checks everything that can be checked: every hash re-derived, every invariant, journals against steps, outbox against turns.

One function, `check`, serves `store.verify`, backups and the tests; it reads a snapshot and changes nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import apsw
import msgspec
import zstandard

from contextinfinity.daemon.core import chain
from contextinfinity.daemon.core.assembly import request_hash
from contextinfinity.daemon.core.indexing import overlap_of
from contextinfinity.daemon.core.milestones import NEEDS, NEEDS_END, Fact
from contextinfinity.daemon.storage import blobs, branches, chunks, journals, messages, migrations, steps
from contextinfinity.daemon.storage.connection import DAMAGE, Row, Tx, open_reader
from contextinfinity.daemon.storage.rows import FACTS, facts
from contextinfinity.protocol.model import VerifyReport

MOST_PROBLEMS = 1000


def check(path: Path, streams: Path, anchors: Mapping[str, str] | None = None, *, index: bool = True) -> VerifyReport:
    """Verify a database file; damage is a problem in the report, never an exception.

    Without `index` only what cannot be made anew is looked at.
    """
    checked: Counter[str] = Counter()
    problems: list[str] = []
    heads: dict[str, str] = {}
    try:
        db = open_reader(path)
    except apsw.Error as error:
        return VerifyReport(ok=False, checked={}, problems=(f"the database cannot be opened: {error}",), anchors={})
    try:
        files = journals.list_steps(streams)  # before the snapshot, which then has the step of every one
        db.execute("BEGIN").fetchall()
        tx = Tx(db)
        for name, one in _CHECKS.items():
            if index or name != "index":
                _collect(problems, one(tx, checked), name)
        _collect(problems, _journals(tx, checked, files), "journals")
        _collect(problems, _anchored(tx, anchors or {}), "anchors")
        heads = {row[0]: row[1].hex() for row in tx.rows("SELECT id, link FROM branches")}
    except Exception as error:  # noqa: BLE001 - whatever damage does, it is reported
        problems.append(f"reading stopped: {error}")
    finally:
        db.close()
    return VerifyReport(ok=not problems, checked=dict(checked), problems=tuple(problems[:MOST_PROBLEMS]), anchors=heads)


def _collect(problems: list[str], found: Iterator[str], name: str) -> None:
    """Run one check to its end; what is too damaged to be read is a problem of its own."""
    try:
        for problem in found:
            if len(problems) < MOST_PROBLEMS:
                problems.append(f"{name}: {problem}")
    except DAMAGE as error:
        problems.append(f"{name}: the database is damaged: {error}")
    except Exception as error:  # noqa: BLE001 - whatever damaged content makes of the readers is a finding
        problems.append(f"{name}: stored content cannot be read: {error}")


def _pages(tx: Tx, checked: Counter[str]) -> Iterator[str]:
    for (line,) in tx.rows("PRAGMA integrity_check(100)"):
        if line != "ok":
            yield line
    for table, rowid, parent, _ in tx.rows("PRAGMA foreign_key_check"):
        yield f"row {rowid} of {table} points at no row of {parent}"
    checked["pages"] += tx.rows("PRAGMA page_count")[0][0]


def _schema(tx: Tx, checked: Counter[str]) -> Iterator[str]:
    """Tables, indexes and triggers are those that the migrations made: a damaged trigger would protect nothing."""
    everything = "SELECT type, name, tbl_name, sql FROM sqlite_schema"
    db = apsw.Connection(":memory:")
    try:
        newest = tx.rows("SELECT max(version) FROM migrations")[0][0]
        migrations.migrate(db, Path(), "", migrations.MIGRATIONS[:newest])
        wanted = db.execute(everything).fetchall()
    finally:
        db.close()
    found = set(tx.rows(everything))
    for row in wanted:
        checked["schema"] += 1
        if row not in found:
            yield f"the {row[0]} {row[1]} is not as it was made"


def _texts(tx: Tx, checked: Counter[str]) -> Iterator[str]:
    """Every text can be read, also where no hash covers it."""
    for (table,) in tx.rows("SELECT name FROM sqlite_schema WHERE sql LIKE 'CREATE TABLE%'"):
        columns = [r[0] for r in tx.rows("SELECT name FROM pragma_table_info(?) WHERE type IN ('TEXT', 'ANY')", table)]
        if columns:
            try:
                checked["texts"] += sum(1 for _ in tx.each(f"SELECT {', '.join(columns)} FROM {table}"))
            except UnicodeDecodeError as error:
                yield f"a text in {table} cannot be read: {error}"


_REFERENCES = (
    ("events", "session_id", "sessions"),
    ("events", "branch_id", "branches"),
    ("events", "turn_id", "turns"),
    ("turns", "state_before", "states"),
    ("turns", "context_state", "states"),
    ("turns", "state_after", "states"),
    ("turns", "retry_of", "turns"),
    ("external_ids", "turn_id", "turns"),
    ("branches", "base_state", "states"),
)


def _references(tx: Tx, checked: Counter[str]) -> Iterator[str]:
    """What names something else, names something that exists, also where the schema does not ask for it."""
    for table, column, target in _REFERENCES:
        sql = f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL AND {column} NOT IN (SELECT id FROM {target})"
        for (name,) in tx.rows(sql):
            yield f"{table}.{column} names {name!r}, which is none of the {target}"


def _blobs(tx: Tx, checked: Counter[str]) -> Iterator[str]:
    for n, hashed in tx.rows("SELECT n, hash FROM blobs"):
        row = tx.row("SELECT data FROM blobs WHERE n = ?", n)
        checked["blobs"] += 1
        try:
            if row is None or blobs.digest(blobs.expand(row[0])) != hashed:
                yield f"blob {hashed.hex()} does not match its hash"
        except zstandard.ZstdError:
            yield f"blob {hashed.hex()} cannot be expanded"


def _links(tx: Tx, checked: Counter[str]) -> Iterator[str]:
    for branch_id, base, head, count in tx.rows("SELECT id, base_link, link, link_seq FROM branches"):
        previous, expected = bytes(base), 0
        for seq, kind, turn_id, salt, hashed, link in tx.rows(
            "SELECT seq, kind, turn_id, salt, content_hash, link FROM chain WHERE branch_id = ? ORDER BY seq", branch_id
        ):
            expected += 1
            checked["links"] += 1
            where = f"link {seq} of branch {branch_id}"
            if seq != expected:
                yield f"{where} should be {expected}"
                return
            if chain.link(previous, kind, turn_id, hashed) != link:
                yield f"{where} does not follow from the one before it"
            if chain.content_hash(salt, _linked_content(tx, kind, turn_id)) != hashed:
                yield f"{where}: the {kind} content of turn {turn_id} was changed"
            previous = bytes(link)
        if (previous, expected) != (head, count):
            yield f"branch {branch_id} does not end at its head link"


def _linked_content(tx: Tx, kind: str, turn_id: str) -> bytes:
    column = {"accepted": "user_message", "finalized": "final_assistant_message", "failed": "partial_text"}[kind]
    row = tx.row(f"SELECT {column} FROM turns WHERE id = ?", turn_id)
    if row is None:
        return b"missing"
    return blobs.get(tx, row[0]) if row[0] is not None else b""


def _forks(tx: Tx, checked: Counter[str]) -> Iterator[str]:
    """A fork starts from its parent's link at the fork; a session's first branch from nothing."""
    for branch_id, parent, base, forked_at in tx.rows("SELECT id, parent_id, base_link, forked_at_turn_seq FROM branches"):
        checked["branches"] += 1
        if parent is None:
            if base != chain.GENESIS:
                yield f"branch {branch_id} has no parent but does not start a chain"
        elif branches.link_at(tx, parent, forked_at) != base:
            yield f"branch {branch_id} starts from a link that its parent does not have at turn {forked_at}"


def _sequences(tx: Tx, checked: Counter[str]) -> Iterator[str]:
    """Turn numbers have no holes or doubles, and heads point at states that exist and cover no future."""
    for branch_id, after, upto, head in tx.rows(
        "SELECT id, coalesce(forked_at_turn_seq, 0), turn_seq, head_state FROM branches"
    ):
        seqs = [r[0] for r in tx.rows("SELECT turn_seq FROM turns WHERE branch_id = ? ORDER BY turn_seq", branch_id)]
        checked["turns"] += len(seqs)
        if seqs != list(range(after + 1, upto + 1)):
            yield f"branch {branch_id} should have turns {after + 1} to {upto}, it has {len(seqs)}"
        state = tx.row("SELECT covers_to_turn_seq FROM states WHERE id = ?", head)
        if state is None or state[0] > upto:
            yield f"the head of branch {branch_id} is no state of its past"
    for session_id, active in tx.rows("SELECT id, active_branch FROM sessions"):
        checked["sessions"] += 1
        if tx.row("SELECT 1 FROM branches WHERE id = ? AND session_id = ?", active, session_id) is None:
            yield f"the active branch of session {session_id} is not one of its own"


def _milestones(tx: Tx, checked: Counter[str]) -> Iterator[str]:
    """Facts are legal, and what they promise is there: an answer or an error, and a link for each thing said."""
    linked = {(r[0], r[1]): r[2] for r in tx.rows("SELECT turn_id, kind, count(*) FROM chain GROUP BY turn_id, kind")}
    answer = "t.final_assistant_message IS NOT NULL OR t.imported IS NOT NULL"  # an imported turn may have one side only
    for row in tx.rows(f"SELECT t.id, {answer}, t.error IS NOT NULL, {FACTS} FROM turns t"):
        turn_id, answered, failed = row[0], bool(row[1]), bool(row[2])
        collected = facts(row[3:])
        for fact in collected:
            if not _is_legal(fact, collected):
                yield f"turn {turn_id} is {fact} without what must come before"
        if answered != ("response_finalized" in collected) or failed != ("failed" in collected):
            yield f"turn {turn_id} has an answer or an error that its milestones deny"
        wanted = {"accepted"} | ({"finalized"} if answered else set()) | ({"failed"} if failed else set())
        if any(linked.get((turn_id, kind), 0) != (kind in wanted) for kind in ("accepted", "finalized", "failed")):
            yield f"turn {turn_id} does not have exactly one link for each thing said"
        checked["milestones"] += len(collected)


def _is_legal(fact: Fact, collected: frozenset[Fact]) -> bool:
    over = collected & {"response_finalized", "failed"}
    return NEEDS[fact] <= collected and len(over) < 2 and (fact not in NEEDS_END or bool(over))


def _outbox(tx: Tx, checked: Counter[str]) -> Iterator[str]:
    """Every fact was reported exactly once, in the transaction that made it."""
    told: Counter[tuple[str, str]] = Counter()
    for kind, turn_id, data in tx.rows("SELECT type, turn_id, data FROM events WHERE type IN ('turn.accepted', 'turn.phase')"):
        phase = "accepted" if kind == "turn.accepted" else msgspec.json.decode(data)["phase"]
        told[(turn_id, phase)] += 1
        checked["events"] += 1
    for turn_id, finalized, failed in tx.rows("SELECT id, finalized_at IS NOT NULL, failed_at IS NOT NULL FROM turns"):
        expected = {"accepted": 1, "response_finalized": finalized, "failed": failed}
        for phase, times in expected.items():
            if told[(turn_id, phase)] != times:
                yield f"turn {turn_id}: {phase} was reported {told[(turn_id, phase)]} times instead of {times}"
    indexed = tx.rows(
        "SELECT t.id, count(e.id) FROM turns t LEFT JOIN events e ON e.turn_id = t.id AND e.type = 'turn.indexed' "
        "WHERE t.indexed_at IS NOT NULL GROUP BY t.id HAVING count(e.id) != 1"
    )
    for turn_id, times in indexed:
        yield f"turn {turn_id}: indexed was reported {times} times instead of 1"
    for kind, column in (("step.started", "started_at"), ("step.ended", "ended_at")):
        facts_made = tx.rows(f"SELECT count(*) FROM steps WHERE {column} IS NOT NULL")[0][0]
        reported = tx.rows("SELECT count(*) FROM events WHERE type = ?", kind)[0][0]
        if facts_made != reported:
            yield f"{facts_made} times {kind}, but {reported} events"


def _steps(tx: Tx, checked: Counter[str]) -> Iterator[str]:
    """Requests can be rebuilt and proven; a final answer is what its step said."""
    for step_id, owner in tx.rows("SELECT id, owner FROM steps"):
        checked["steps"] += 1
        tx.owner = owner
        stored = steps.request(tx, step_id)
        digests = [blobs.digest(document) for document in stored.messages]
        proof = request_hash(stored.model_id, stored.system.decode(), digests, stored.max_output_tokens, stored.memory)
        if proof != stored.request_hash:
            yield f"the request of step {step_id} cannot be proven"
    rows = tx.rows(
        "SELECT t.id, t.final_assistant_message, s.items FROM turns t JOIN steps s ON s.turn_id = t.id "
        "WHERE t.finalized_at IS NOT NULL AND s.ended_at IS NOT NULL"
    )
    for turn_id, answer, items in rows:
        if _said(blobs.get(tx, items)) != messages.decode(blobs.get(tx, answer)).rendered_text:
            yield f"the answer of turn {turn_id} is not what its step said"
    for turn_id, count in tx.rows(
        "SELECT t.id, count(s.id) FROM turns t LEFT JOIN steps s ON s.turn_id = t.id AND s.ended_at IS NOT NULL "
        "WHERE t.finalized_at IS NOT NULL AND t.responding_at IS NOT NULL AND t.imported IS NULL "
        "GROUP BY t.id HAVING count(s.id) = 0"
    ):
        yield f"turn {turn_id} is final but has {count} ended steps"


def _said(items: bytes) -> str:
    return "".join(
        block["text"] for item in msgspec.json.decode(items) for block in item.get("blocks", ()) if block["type"] == "text"
    )


def _index(tx: Tx, checked: Counter[str]) -> Iterator[str]:
    """What search works on is what the transcript gives: the same chunks, and of each passage the same terms."""
    for turn_id, recipe in tx.rows(
        "SELECT t.id, (SELECT min(c.recipe) FROM chunks c WHERE c.source_turn = t.id) FROM turns t "
        "JOIN events e ON e.turn_id = t.id AND e.type = 'turn.indexed' AND json_extract(e.data, '$.degraded') IS NULL "
        "WHERE t.indexed_at IS NOT NULL"
    ):
        overlap = overlap_of(recipe) if recipe is not None else 0
        if overlap is not None:
            yield from _indexed(tx, checked, turn_id, overlap)
    for n, dim, done_to in tx.rows("SELECT n, dim, done_to FROM vector_spaces"):
        wrong = tx.rows(
            "SELECT p.n FROM passages p LEFT JOIN passage_vectors v ON v.space = ? AND v.passage = p.n "
            "WHERE p.n <= ? AND length(v.vector) IS NOT ? LIMIT 10",
            n,
            done_to,
            2 * dim,
        )
        checked["vectors"] += tx.rows("SELECT count(*) FROM passage_vectors WHERE space = ?", n)[0][0]
        for (passage,) in wrong:
            yield f"passage {passage} has no vector of {dim} numbers in space {n}"


def _indexed(tx: Tx, checked: Counter[str], turn_id: str, overlap: int) -> Iterator[str]:
    wanted = {
        (c.role, c.start, c.end, c.summary, c.chunk_type, c.token_est, c.content_hash, c.speaker, int(c.asks), c.at): tuple(
            (p.start, p.end, p.terms) for p in c.passages
        )
        for c in chunks.of_transcript(tx, turn_id, overlap)
    }
    rows = tx.rows(
        "SELECT n, role, start, end, summary, chunk_type, token_est, content_hash, speaker, asks, at FROM chunks "
        "WHERE source_turn = ?",
        turn_id,
    )
    found = {
        row[1:]: tuple(tx.rows("SELECT start, end, terms FROM passages WHERE chunk = ? ORDER BY n", row[0])) for row in rows
    }
    checked["chunks"] += len(rows)
    counted = tx.row("SELECT 1 FROM turns WHERE id = ? AND chunk_count IS NOT ?", turn_id, len(rows))
    if counted is not None:
        yield f"turn {turn_id} does not have as many chunks as it had: `ctx reindex` makes them again"
    missing = {(row[4], row[6]) for row in wanted} - {(row[4], row[6]) for row in found}
    if missing:
        yield f"turn {turn_id} is indexed, but {len(missing)} of its chunks are missing: `ctx reindex` makes them again"
    for row in found.keys() - wanted.keys():
        yield f"a chunk of turn {turn_id} ({row[4]}) is not what the transcript gives"
    for row, passages in found.items():
        if row in wanted and passages != wanted[row]:
            yield f"the passages of a chunk of turn {turn_id} are not what the transcript gives"


def _jobs(tx: Tx, checked: Counter[str]) -> Iterator[str]:
    for job_id, state, turn_id in tx.rows("SELECT id, state, turn_id FROM jobs"):
        checked["jobs"] += 1
        if turn_id is not None and tx.row("SELECT 1 FROM turns WHERE id = ?", turn_id) is None:
            yield f"job {job_id} ({state}) is about a turn that does not exist"


def _journals(tx: Tx, checked: Counter[str], files: list[str]) -> Iterator[str]:
    """A packed journal is whole; a file belongs to a step that still needs it."""
    for step_id, packed in tx.each("SELECT id, response FROM steps WHERE response IS NOT NULL"):
        checked["journals"] += 1
        lines = [journals.decode_line(piece) for piece in blobs.expand(packed).split(b"\n")[:-1]]
        if [line.seq if line is not None else None for line in lines] != list(range(len(lines))):
            yield f"the packed journal of step {step_id} was changed or has a gap"
    for step_id in files:
        checked["journals"] += 1
        if tx.row("SELECT 1 FROM steps WHERE id = ?", step_id) is None:
            yield f"journal {step_id}.jsonl belongs to no step"


def _anchored(tx: Tx, anchors: Mapping[str, str]) -> Iterator[str]:
    """A link that was written down elsewhere is still in its chain: only this can show that the newest turns are gone."""
    for branch_id, link in anchors.items():
        wanted = bytes.fromhex(link)
        row: Row | None = tx.row("SELECT 1 FROM chain WHERE branch_id = ? AND link = ?", branch_id, wanted)
        if row is None and tx.row("SELECT 1 FROM branches WHERE id = ? AND base_link = ?", branch_id, wanted) is None:
            yield f"branch {branch_id} no longer has the link {link[:16]}… it once had: turns are missing or were changed"


_CHECKS: dict[str, Callable[[Tx, "Counter[str]"], Iterator[str]]] = {
    "pages": _pages,
    "schema": _schema,
    "texts": _texts,
    "references": _references,
    "blobs": _blobs,
    "links": _links,
    "forks": _forks,
    "sequences": _sequences,
    "milestones": _milestones,
    "outbox": _outbox,
    "steps": _steps,
    "index": _index,
    "jobs": _jobs,
}
