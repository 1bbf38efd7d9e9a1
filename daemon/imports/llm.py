"""The logs of Simon Willison's llm: a database of responses, each the answer to one prompt of a conversation.

Newer versions keep messages as chains, which `llm_chains` reads; a response that is also a turn there is taken from there.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contextinfinity.daemon.imports import llm_chains, tables
from contextinfinity.daemon.imports.base import Conversation, Damaged, Item, Record, Said, Skipped, sources
from contextinfinity.daemon.imports.content import arguments_of, moment, said, string
from contextinfinity.daemon.imports.reading import flowing
from contextinfinity.protocol.blocks import Block, Reasoning, Role, Text, ToolResult, ToolUse

AGENT = "llm"
EXPECTED = "the logs.db that `llm logs path` names"


class Llm:
    name = "llm"
    description = "the logs.db of Simon Willison's llm"
    append_only = False

    def files(self, path: Path) -> list[Path]:
        return sources(path, ("logs.db",), EXPECTED)

    def read(self, path: Path, offset: int = 0) -> Iterator[Record]:
        with path.open("rb"):
            return flowing(tables.items(path, _database))


def _database(db: tables.Tables) -> Iterator[Item]:
    chained = llm_chains.is_in(db)
    if not chained and "responses" not in db.names:
        yield Damaged("the database", f"no logged responses in it: give {EXPECTED}")
        return
    if "responses" in db.names:
        order = "ORDER BY coalesce(conversation_id, id), datetime_utc, id"
        legacy = "WHERE id NOT IN (SELECT id FROM turns)" if chained else ""
        names = dict(map(tuple, db.rows("SELECT id, name FROM conversations"))) if "conversations" in db.names else {}
        for row in db.rows(f"SELECT * FROM responses {legacy} {order}"):
            response = {key: row[key] for key in row.keys()}  # noqa: SIM118 (a row iterates over its values)
            yield from _response(db, response, names)
    if chained:
        yield from llm_chains.chains(db, AGENT)


def _response(db: tables.Tables, response: dict[str, Any], names: dict[Any, Any]) -> Iterator[Item]:
    number, at = str(response.get("id")), moment(response.get("datetime_utc"))
    key = string(response.get("conversation_id")) or number
    yield Conversation(key=key, title=string(names.get(key)), created_at=at, agent=AGENT)
    if string(response.get("system")):
        yield Skipped(f"response {number}", "the system prompt")

    def one(role: Role, part: str, blocks: list[Block]) -> Iterator[Item]:
        if blocks:
            message = said(role, blocks, f"{number}:{part}", at)
            yield Said(conversation=key, message=message, continues=role == "assistant")

    prompt = string(response.get("prompt"))
    yield from one("user", "prompt", [*_fragments(db, number), *([Text(prompt)] if prompt else [])])
    yield from one("assistant", "results", _results(db, number))
    reasoning, text = string(response.get("reasoning")), string(response.get("response"))
    answer: list[Block] = [Reasoning(summary=reasoning)] if reasoning else []
    answer += [Text(text)] if text else []
    yield from one("assistant", "response", answer + _calls(db, number))


def _fragments(db: tables.Tables, number: str) -> list[Block]:
    """Texts the prompt was given by reference."""
    if not {"prompt_fragments", "fragments"} <= db.names:
        return []
    sql = """SELECT content FROM prompt_fragments JOIN fragments ON fragments.id = fragment_id
        WHERE response_id = ? ORDER BY "order" """
    return [Text(content) for (content,) in db.rows(sql, number) if string(content)]


def _calls(db: tables.Tables, number: str) -> list[Block]:
    if "tool_calls" not in db.names:
        return []
    rows = db.rows("SELECT id, name, arguments, tool_call_id FROM tool_calls WHERE response_id = ? ORDER BY id", number)
    return [
        ToolUse(string(call) or f"{number}:{position}", string(name) or "", arguments_of(given))
        for position, (_, name, given, call) in enumerate(rows)
    ]


def _results(db: tables.Tables, number: str) -> list[Block]:
    """What the tools said to the calls of the response before, which is what this one answers to."""
    columns = db.columns("tool_results")
    if not columns:
        return []
    failure = "exception" if "exception" in columns else "NULL"
    sql = f"SELECT id, output, tool_call_id, {failure} FROM tool_results WHERE response_id = ? ORDER BY id"
    return [
        ToolResult(string(call) or f"{number}:{position}", (Text(output),) if string(output) else (), failed is not None)
        for position, (_, output, call, failed) in enumerate(db.rows(sql, number))
    ]
