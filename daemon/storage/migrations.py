"""The schema as a list of migrations; each runs with its own record in one transaction, after a backup of what was there.

A database from a newer version is refused, naming both versions and the backup.
"""

from pathlib import Path

import apsw

from contextinfinity.daemon.runtime import failpoints
from contextinfinity.daemon.storage import journals
from contextinfinity.protocol.errors import InvalidState

FOUNDATION = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;

CREATE TABLE sessions (
  n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
  title TEXT, active_branch TEXT NOT NULL, system TEXT, cwd TEXT, project TEXT, agent TEXT,
  created_at TEXT NOT NULL, updated_at TEXT NOT NULL, used INTEGER NOT NULL);
CREATE INDEX sessions_by_use ON sessions(owner, used DESC, n DESC);

CREATE TABLE branches (
  n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  parent_id TEXT REFERENCES branches(id), forked_at_turn_seq INTEGER, label TEXT,
  base_state TEXT NOT NULL, head_state TEXT NOT NULL, head_seq INTEGER NOT NULL, turn_seq INTEGER NOT NULL,
  model TEXT NOT NULL, base_link BLOB NOT NULL, link_seq INTEGER NOT NULL, link BLOB NOT NULL, created_at TEXT NOT NULL);
CREATE INDEX branches_by_session ON branches(session_id);

CREATE TABLE states (
  n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions(id), branch_id TEXT NOT NULL REFERENCES branches(id),
  state_seq INTEGER NOT NULL, covers_to_turn_seq INTEGER NOT NULL, parent_id TEXT REFERENCES states(id),
  summary TEXT NOT NULL, pinned_facts TEXT NOT NULL, token_count_est INTEGER NOT NULL,
  made_by TEXT NOT NULL, schema_version INTEGER NOT NULL, created_at TEXT NOT NULL,
  UNIQUE (branch_id, state_seq));

CREATE TABLE turns (
  n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions(id), branch_id TEXT NOT NULL REFERENCES branches(id),
  turn_seq INTEGER NOT NULL, state_before TEXT NOT NULL, retry_of TEXT, model TEXT NOT NULL, tz TEXT,
  user_message ANY NOT NULL, created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
  context_state TEXT, context_at TEXT, responding_at TEXT, finalized_at TEXT, failed_at TEXT,
  state_after TEXT, indexed_at TEXT,
  final_assistant_message ANY, partial_text ANY, incomplete INTEGER, error TEXT,
  UNIQUE (branch_id, turn_seq));
CREATE INDEX turns_unfinished ON turns(branch_id) WHERE finalized_at IS NULL AND failed_at IS NULL;
CREATE INDEX turns_retries ON turns(retry_of) WHERE retry_of IS NOT NULL;

CREATE TABLE steps (
  n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
  turn_id TEXT NOT NULL REFERENCES turns(id), step_index INTEGER NOT NULL,
  provider TEXT NOT NULL, model_id TEXT NOT NULL, request ANY NOT NULL, request_hash BLOB NOT NULL,
  started_at TEXT NOT NULL, ended_at TEXT, outcome TEXT, items ANY, usage TEXT,
  stream_displayed_bytes INTEGER, stream_durable_bytes INTEGER, response BLOB,
  UNIQUE (turn_id, step_index));
CREATE INDEX steps_unpacked ON steps(id) WHERE response IS NULL;

CREATE TABLE chain (
  branch_id TEXT NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL, turn_id TEXT NOT NULL,
  salt BLOB, content_hash BLOB NOT NULL, link BLOB NOT NULL,
  PRIMARY KEY (branch_id, seq)) WITHOUT ROWID;

CREATE TABLE blobs (n INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, data BLOB NOT NULL);

CREATE TABLE pins (
  n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions(id), text TEXT NOT NULL, created_at TEXT NOT NULL);
CREATE TABLE pin_log (
  n INTEGER PRIMARY KEY, branch_id TEXT NOT NULL REFERENCES branches(id), pin_id TEXT NOT NULL REFERENCES pins(id),
  action TEXT NOT NULL CHECK (action IN ('added', 'removed')), created_at TEXT NOT NULL);
CREATE INDEX pin_log_by_branch ON pin_log(branch_id);

CREATE TABLE events (
  id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, type TEXT NOT NULL,
  session_id TEXT NOT NULL, branch_id TEXT NOT NULL, turn_id TEXT, data TEXT NOT NULL, created_at TEXT NOT NULL);

CREATE TABLE idempotency (
  owner TEXT NOT NULL, scope TEXT NOT NULL, key TEXT NOT NULL, call_hash BLOB NOT NULL, result TEXT NOT NULL,
  created_at TEXT NOT NULL, PRIMARY KEY (owner, scope, key)) WITHOUT ROWID;
"""

JOBS = """
CREATE TABLE jobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, type TEXT NOT NULL, branch_id TEXT NOT NULL, turn_id TEXT,
  state TEXT NOT NULL CHECK (state IN ('pending', 'running', 'done', 'parked')), attempts INTEGER NOT NULL,
  run_at REAL NOT NULL, lease TEXT, lease_until REAL, last_error TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
CREATE UNIQUE INDEX jobs_live ON jobs(owner, type, branch_id, coalesce(turn_id, '')) WHERE state IN ('pending', 'running');
CREATE INDEX jobs_by_state ON jobs(state, run_at);
"""

MEMORY = """
ALTER TABLE turns ADD COLUMN imported TEXT;
ALTER TABLE turns ADD COLUMN chunk_count INTEGER;
CREATE TRIGGER turns_imported_frozen BEFORE UPDATE OF imported ON turns WHEN NEW.imported IS NOT OLD.imported
  BEGIN SELECT RAISE(ABORT, 'turns: what was written is immutable'); END;
CREATE INDEX turns_unindexed ON turns(branch_id) WHERE indexed_at IS NULL;
CREATE INDEX turns_by_indexing ON turns(indexed_at) WHERE indexed_at IS NOT NULL;
INSERT INTO meta(key, value) VALUES ('memory_secret', randomblob(32)), ('index_generation', 0);

CREATE TABLE chunks (
  n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions(id), branch_id TEXT NOT NULL REFERENCES branches(id),
  source_turn TEXT NOT NULL REFERENCES turns(id), role TEXT NOT NULL, start INTEGER NOT NULL, end INTEGER NOT NULL,
  summary TEXT NOT NULL, chunk_type TEXT NOT NULL, token_est INTEGER NOT NULL, content_hash BLOB NOT NULL,
  speaker TEXT NOT NULL, asks INTEGER NOT NULL, at REAL NOT NULL, recipe INTEGER NOT NULL,
  UNIQUE (source_turn, chunk_type, content_hash));
CREATE INDEX chunks_by_session ON chunks(session_id);
CREATE TABLE passages (
  n INTEGER PRIMARY KEY AUTOINCREMENT, chunk INTEGER NOT NULL REFERENCES chunks(n), start INTEGER NOT NULL,
  end INTEGER NOT NULL, terms BLOB NOT NULL);
CREATE INDEX passages_by_chunk ON passages(chunk);

CREATE TABLE vector_spaces (
  n INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, embedder TEXT NOT NULL, dim INTEGER NOT NULL,
  done_to INTEGER NOT NULL, created_at TEXT NOT NULL, ready_at TEXT);
CREATE TABLE passage_vectors (
  space INTEGER NOT NULL REFERENCES vector_spaces(n), passage INTEGER NOT NULL REFERENCES passages(n), vector BLOB NOT NULL,
  PRIMARY KEY (space, passage)) WITHOUT ROWID;
CREATE TRIGGER passage_vectors_fit BEFORE INSERT ON passage_vectors
  WHEN length(NEW.vector) IS NOT (SELECT 2 * dim FROM vector_spaces WHERE n = NEW.space)
  BEGIN SELECT RAISE(ABORT, 'passage_vectors: a vector has the dimension of its space'); END;

CREATE TABLE retrievals (
  turn_id TEXT NOT NULL REFERENCES turns(id), chunk_id TEXT NOT NULL, rank INTEGER NOT NULL,
  score REAL NOT NULL, similarity REAL, PRIMARY KEY (turn_id, chunk_id)) WITHOUT ROWID;

CREATE TABLE external_ids (
  session_id TEXT NOT NULL REFERENCES sessions(id), external_id TEXT NOT NULL, turn_id TEXT NOT NULL REFERENCES turns(id),
  PRIMARY KEY (session_id, external_id)) WITHOUT ROWID;
CREATE TABLE import_sessions (
  owner TEXT NOT NULL, format TEXT NOT NULL, key TEXT NOT NULL, session_id TEXT NOT NULL REFERENCES sessions(id),
  branch_id TEXT NOT NULL REFERENCES branches(id), PRIMARY KEY (owner, format, key)) WITHOUT ROWID;
CREATE TABLE import_files (
  owner TEXT NOT NULL, format TEXT NOT NULL, path TEXT NOT NULL, offset INTEGER NOT NULL, head BLOB NOT NULL,
  mark TEXT NOT NULL, tail BLOB NOT NULL, sessions TEXT NOT NULL, updated_at TEXT NOT NULL,
  PRIMARY KEY (owner, format, path)) WITHOUT ROWID;
"""

# What was written stays as it was: columns of content may go from NULL to a value once, and nothing may be removed.
WRITE_ONCE = {
    "turns": (
        ("context_state", "context_at", "responding_at", "finalized_at", "failed_at", "state_after", "indexed_at",
         "final_assistant_message", "partial_text", "incomplete", "error"),
        ("id", "owner", "session_id", "branch_id", "turn_seq", "state_before", "retry_of", "model", "tz", "user_message",
         "created_at"),
    ),
    "steps": (
        ("ended_at", "outcome", "items", "usage", "stream_displayed_bytes", "stream_durable_bytes", "response"),
        ("id", "owner", "turn_id", "step_index", "provider", "model_id", "request", "request_hash", "started_at"),
    ),
    "states": ((), ("id", "owner", "session_id", "branch_id", "state_seq", "covers_to_turn_seq", "parent_id", "summary",
                    "pinned_facts", "token_count_est", "made_by", "schema_version", "created_at")),
    "pins": ((), ("id", "owner", "session_id", "text", "created_at")),
    "pin_log": ((), ("branch_id", "pin_id", "action", "created_at")),
    "events": ((), ("id", "owner", "type", "session_id", "branch_id", "turn_id", "data", "created_at")),
    "chain": ((), ("branch_id", "seq", "kind", "turn_id", "salt", "content_hash", "link")),
    "blobs": ((), ("hash", "data")),
    "branches": ((), ("id", "owner", "session_id", "parent_id", "forked_at_turn_seq", "base_state", "base_link", "label",
                      "created_at")),
    "sessions": ((), ("id", "owner", "created_at")),
}  # fmt: skip

# The milestone table of core/milestones.py, as conditions on columns.
MOVES = {
    "context_at": "OLD.failed_at IS NULL",
    "responding_at": "NEW.context_at IS NOT NULL AND OLD.failed_at IS NULL",
    "finalized_at": "NEW.responding_at IS NOT NULL AND OLD.failed_at IS NULL",
    "failed_at": "OLD.finalized_at IS NULL",
    "state_after": "(NEW.finalized_at IS NOT NULL OR NEW.failed_at IS NOT NULL)",
    "indexed_at": "(NEW.finalized_at IS NOT NULL OR NEW.failed_at IS NOT NULL)",
}


def _guards() -> str:
    statements = []
    for table, (once, never) in WRITE_ONCE.items():
        changed = [f"NEW.{c} IS NOT OLD.{c}" for c in never]
        changed += [f"(OLD.{c} IS NOT NULL AND NEW.{c} IS NOT OLD.{c})" for c in once]
        columns = ", ".join((*once, *never))
        statements.append(
            f"CREATE TRIGGER {table}_frozen BEFORE UPDATE OF {columns} ON {table} WHEN {' OR '.join(changed)} "
            f"BEGIN SELECT RAISE(ABORT, '{table}: what was written is immutable'); END;"
        )
        statements.append(
            f"CREATE TRIGGER {table}_kept BEFORE DELETE ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table}: rows are never removed'); END;"
        )
    for column, allowed in MOVES.items():
        statements.append(
            f"CREATE TRIGGER turns_{column} BEFORE UPDATE OF {column} ON turns "
            f"WHEN OLD.{column} IS NULL AND NEW.{column} IS NOT NULL AND NOT ({allowed}) "
            f"BEGIN SELECT RAISE(ABORT, 'turns: illegal milestone {column}'); END;"
        )
    return "\n".join(statements)


MIGRATIONS: list[tuple[str, str]] = [("foundation", FOUNDATION + _guards()), ("jobs", JOBS), ("memory", MEMORY)]


def version(db: apsw.Connection) -> int:
    known = db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'migrations'").fetchall()
    if not known:
        return 0
    newest = db.execute("SELECT coalesce(max(version), 0) FROM migrations").fetchall()[0][0]
    assert isinstance(newest, int)
    return newest


def migrate(db: apsw.Connection, backups: Path, at: str, migrations: list[tuple[str, str]] | None = None) -> list[str]:
    """Bring the schema up to date; the names of the migrations that ran."""
    steps = MIGRATIONS if migrations is None else migrations
    found = version(db)
    if found > len(steps):
        newest = max(backups.glob("before-*.db"), default=None, key=lambda p: p.stat().st_mtime)
        where = f"; the newest backup from before a migration is {newest}" if newest else ""
        raise InvalidState(
            f"this database has schema {found}, made by a newer version; this one knows {len(steps)}: "
            f"install the newer version{where}",
            found=found,
            known=len(steps),
        )
    if 0 < found < len(steps):
        _back_up(db, backups / f"before-{found + 1}-{at.replace(':', '')}.db")
    ran = []
    for number, (name, script) in enumerate(steps[found:], found + 1):
        db.execute("BEGIN IMMEDIATE").fetchall()
        try:
            db.execute(
                "CREATE TABLE IF NOT EXISTS migrations "
                "(version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TEXT NOT NULL)"
            ).fetchall()
            for statement in statements(script):
                failpoints.hit("migration.statement")
                db.execute(statement).fetchall()
            db.execute("INSERT INTO migrations VALUES (?,?,?)", (number, name, at)).fetchall()
            db.execute("COMMIT").fetchall()
        except BaseException:
            db.execute("ROLLBACK").fetchall()
            raise
        ran.append(name)
    return ran


def statements(script: str) -> list[str]:
    """One by one, so that a test can stop between any two."""
    found, begun = [], ""
    for piece in script.split(";"):
        begun += piece + ";"
        if apsw.complete(begun):
            found.append(begun)
            begun = ""
    return found


def _back_up(db: apsw.Connection, path: Path) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    target = apsw.Connection(str(path))
    try:
        with target.backup("main", db, "main") as copy:
            while not copy.done:
                copy.step(1000)
    finally:
        target.close()
    path.chmod(0o600)
    # SQLite does not sync the removal of its rollback journal: one that came back would undo the copy.
    for folder in (path.parent, path.parent.parent):
        journals.sync(folder)
