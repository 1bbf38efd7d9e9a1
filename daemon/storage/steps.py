"""Steps: one provider call each, its request kept as a recipe over blobs and its raw response as the packed journal."""

from typing import Any

import msgspec

from contextinfinity.daemon.core import untrusted
from contextinfinity.daemon.core.content import searchable
from contextinfinity.daemon.core.packing import Quoted, quote
from contextinfinity.daemon.core.untrusted import Artifact
from contextinfinity.daemon.storage import blobs, branches, chunks, messages
from contextinfinity.daemon.storage.connection import Tx
from contextinfinity.protocol.blocks import TranscriptItem
from contextinfinity.protocol.errors import NotFound
from contextinfinity.protocol.model import Outcome, Step, StepSummary, StreamBytes


class Turns(msgspec.Struct, frozen=True, tag="turns"):
    """Both messages of each of these turns of the lineage, as they are stored."""

    first: int
    last: int


class Part(msgspec.Struct, frozen=True, tag="part"):
    """A message that was made for the prompt and is kept as a blob."""

    hash: bytes


class Recipe(msgspec.Struct, frozen=True):
    """A request as references to what is stored: words are stored once, however many prompts they were in.

    The last message, the user's, is the turn's own and goes without saying; `memory` is quoted in front of it.
    """

    system: bytes
    messages: list[Turns | Part]
    model_id: str
    max_output_tokens: int
    context: dict[str, Any]
    memory: tuple[Quoted, ...] = ()


class NewStep(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    turn_id: str
    step_index: int
    provider: str
    model_id: str
    recipe: Recipe
    parts: dict[bytes, bytes]
    request_hash: bytes
    at: str


class EndedStep(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    outcome: Outcome
    items: tuple[TranscriptItem, ...]
    usage: dict[str, int]
    displayed: int
    durable: int


class StoredRequest(msgspec.Struct, frozen=True):
    """A request put together again from its parts."""

    step_id: str
    provider: str
    model_id: str
    system: bytes
    messages: list[bytes]
    max_output_tokens: int
    context: dict[str, Any]
    request_hash: bytes
    memory: str
    quoted: tuple[tuple[Quoted, Artifact], ...]


def insert(tx: Tx, step: NewStep) -> None:
    for hashed, data in step.parts.items():
        blobs.keep(tx, hashed, data)
    tx.run(
        "INSERT INTO steps(id, owner, turn_id, step_index, provider, model_id, request, request_hash, started_at) "
        "VALUES (?,?,?,?,?,?,?,?,?)",
        step.id,
        tx.owner,
        step.turn_id,
        step.step_index,
        step.provider,
        step.model_id,
        blobs.put(tx, msgspec.json.encode(step.recipe)),
        step.request_hash,
        step.at,
    )


def end(tx: Tx, ended: EndedStep, at: str) -> bool:
    """Write down how a step ended; False if it never began or was over already."""
    if tx.row("SELECT 1 FROM steps WHERE id = ? AND ended_at IS NULL", ended.id) is None:
        return False
    tx.run(
        "UPDATE steps SET ended_at = ?, outcome = ?, items = ?, usage = ?, stream_displayed_bytes = ?, "
        "stream_durable_bytes = ? WHERE id = ? AND ended_at IS NULL",
        at,
        msgspec.json.encode(ended.outcome).decode(),
        blobs.put(tx, msgspec.json.encode(ended.items)),
        msgspec.json.encode(ended.usage).decode(),
        ended.displayed,
        ended.durable,
        ended.id,
    )
    return True


def pack(tx: Tx, raw: dict[str, bytes]) -> list[str]:
    """Keep the journals of ended steps; those that are kept now, whose files may go."""
    return [step_id for step_id, journal in raw.items() if _pack(tx, step_id, journal)]


def _pack(tx: Tx, step_id: str, journal: bytes) -> bool:
    tx.run(
        "UPDATE steps SET response = ? WHERE id = ? AND ended_at IS NOT NULL AND response IS NULL",
        blobs.compress(journal),
        step_id,
    )
    return tx.row("SELECT 1 FROM steps WHERE id = ? AND response IS NOT NULL", step_id) is not None


def summaries(tx: Tx, turn_id: str) -> tuple[StepSummary, ...]:
    rows = tx.rows(
        "SELECT id, step_index, provider, model_id, outcome, started_at, ended_at FROM steps "
        "WHERE turn_id = ? ORDER BY step_index",
        turn_id,
    )
    return tuple(
        StepSummary(
            id=r[0], step_index=r[1], provider=r[2], model_id=r[3], outcome=_outcome(r[4]), started_at=r[5], ended_at=r[6]
        )
        for r in rows
    )


def request(tx: Tx, step_id: str) -> StoredRequest:
    row = tx.row(
        "SELECT s.provider, s.request, s.request_hash, t.branch_id, t.user_message, t.id FROM steps s "
        "JOIN turns t ON t.id = s.turn_id WHERE s.id = ? AND s.owner = ?",
        step_id,
        tx.owner,
    )
    if row is None:
        raise NotFound(f"no step with id {step_id!r}", kind="step", id=step_id)
    recipe = msgspec.json.decode(blobs.get(tx, row[1]), type=Recipe)
    documents: list[bytes] = []
    for part in recipe.messages:
        if isinstance(part, Part):
            documents.append(blobs.fetch(tx, part.hash))
        else:
            documents += _documents(tx, row[3], part)
    documents.append(blobs.get(tx, row[4]))
    system = blobs.fetch(tx, recipe.system)
    quoted = tuple((one, artifact(tx, one)) for one in recipe.memory)
    memory = untrusted.wrap(untrusted.mark(secret(tx), row[5]), [made for _, made in quoted])
    return StoredRequest(
        step_id, row[0], recipe.model_id, system, documents, recipe.max_output_tokens, recipe.context, row[2], memory, quoted
    )


def secret(tx: Tx) -> bytes:
    """What the marks around quotes are made with; it never leaves the database."""
    row = tx.row("SELECT value FROM meta WHERE key = 'memory_secret'")
    assert row is not None
    return bytes(row[0])


def artifact(tx: Tx, quoted: Quoted) -> Artifact:
    """A quote put together again from what was said."""
    row = tx.row(
        "SELECT session_id, created_at, user_message, final_assistant_message, partial_text FROM turns WHERE id = ?",
        quoted.turn_id,
    )
    assert row is not None
    said = next(m for m in chunks.both_sides(tx, row[2], row[3], row[4], row[1]) if m.role == quoted.role)
    whole = searchable(said)[quoted.begin : quoted.begin + quoted.length]
    words = quote(whole, quoted.summary, quoted.form, quoted.start, quoted.end)
    at = said.created_at or row[1]
    return Artifact(quoted.chunk_id, quoted.turn_id, row[0], quoted.role, said.speaker or said.role, at, words)


def _documents(tx: Tx, branch_id: str, turns: Turns) -> list[bytes]:
    """What was said in each of a range of turns, in order; an imported turn may have one side only."""
    found: list[bytes] = []
    for segment in branches.lineage(tx, branch_id):
        rows = tx.rows(
            "SELECT user_message, final_assistant_message FROM turns WHERE branch_id = ? AND turn_seq BETWEEN ? AND ? "
            "ORDER BY turn_seq",
            segment.branch_id,
            max(turns.first, segment.after + 1),
            min(turns.last, segment.upto),
        )
        found += [blobs.get(tx, column) for row in rows for column in row if column is not None]
    return [document for document in found if messages.decode(document).blocks]


def get(tx: Tx, step_id: str, body: dict[str, Any], journal: bytes | None) -> Step:
    """The step with the request as it was sent; `journal` stands in while the response is not packed yet."""
    row = tx.row(
        "SELECT id, turn_id, step_index, provider, model_id, outcome, request_hash, items, usage, "
        "stream_displayed_bytes, stream_durable_bytes, started_at, ended_at, response FROM steps WHERE id = ?",
        step_id,
    )
    assert row is not None
    raw = blobs.expand(row[13]) if row[13] is not None else journal or b""
    return Step(
        id=row[0],
        turn_id=row[1],
        step_index=row[2],
        provider=row[3],
        model_id=row[4],
        outcome=_outcome(row[5]),
        request=body,
        request_hash=row[6].hex(),
        response=tuple(_lines(raw)),
        items=msgspec.json.decode(blobs.get(tx, row[7]), type=tuple[TranscriptItem, ...]) if row[7] is not None else (),
        usage=msgspec.json.decode(row[8], type=dict[str, int]) if row[8] is not None else {},
        stream=StreamBytes(row[9] or 0, row[10] or 0),
        started_at=row[11],
        ended_at=row[12],
    )


def _outcome(column: str | None) -> Outcome | None:
    return msgspec.json.decode(column, type=Outcome) if column is not None else None


def _lines(raw: bytes) -> list[dict[str, Any]]:
    lines = []
    for line in raw.splitlines():
        try:
            lines.append(msgspec.json.decode(line, type=dict[str, Any]))
        except msgspec.DecodeError:  # the torn last line of an interrupted journal
            break
    return lines
