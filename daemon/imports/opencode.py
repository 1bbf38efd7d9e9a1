"""OpenCode's sessions: its database, its older storage folder of small JSON files, or what `opencode export` prints.

All three hold the same objects: a session, its messages, and the parts that messages are made of.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contextinfinity.daemon.imports import tables
from contextinfinity.daemon.imports.base import Conversation, Damaged, Item, Record, Said, Skipped, sources
from contextinfinity.daemon.imports.content import derived_id, entries, image_of, mapping, moment, role_of, said, string
from contextinfinity.daemon.imports.reading import BLANK, BOM, UnreadableError, decode, flowing
from contextinfinity.protocol.blocks import Block, Reasoning, Text, ToolResult, ToolUse, Unknown

AGENT = "opencode"
MILLISECONDS = 1000
EXPECTED = "opencode.db or the storage folder in ~/.local/share/opencode, or a file from `opencode export`"
# Notes on how an answer came about, of which there are several in each.
BOOKKEEPING = {"agent", "compaction", "patch", "retry", "snapshot", "step-finish", "step-start"}

Spoken = tuple[str | None, dict[str, Any], list[dict[str, Any]]]


class OpenCode:
    name = "opencode"
    description = "OpenCode's opencode.db, its older storage folder, or the JSON of `opencode export`"
    append_only = False

    def files(self, path: Path) -> list[Path]:
        if (path / "opencode.db").is_file():
            return [path / "opencode.db"]
        storage = path / "storage" if (path / "storage").is_dir() else path
        return sources(storage, ("session/*/*.json",), EXPECTED)

    def read(self, path: Path, offset: int = 0) -> Iterator[Record]:
        with path.open("rb") as file:
            is_database = file.read(len(tables.MAGIC)) == tables.MAGIC
        return flowing(tables.items(path, _database) if is_database else _files(path))


def _files(path: Path) -> Iterator[Item]:
    try:
        value = _object(path)
    except UnreadableError as error:
        yield Damaged("the document", str(error))
        return
    if "messages" in value:
        said_there = [(mapping(one.get("info")), entries(one.get("parts"))) for one in entries(value.get("messages"))]
        info = mapping(value.get("info"))
        messages: list[Spoken] = [(string(one.get("id")), one, parts) for one, parts in said_there]
        yield from _session(string(info.get("id")) or path.stem, info, messages)
    elif path.parent.parent.name == "session":
        yield from _stored(path, value)
    else:
        yield Damaged("the document", f"no messages in it: give {EXPECTED}")


def _stored(path: Path, session: dict[str, Any]) -> Iterator[Item]:
    """The file names are the ids: sessions were moved to other folders without a change inside the files."""
    storage, key = path.parents[2], path.stem
    messages: list[Spoken] = []
    for file in sorted((storage / "message" / key).glob("*.json")):
        try:
            info = _object(file)
        except (UnreadableError, OSError) as error:
            yield Damaged(f"message/{key}/{file.name}", _why(error))
            continue
        parts: list[dict[str, Any]] = []
        for part in sorted((storage / "part" / file.stem).glob("*.json")):
            try:
                parts.append(_object(part))
            except (UnreadableError, OSError) as error:
                yield Damaged(f"part/{file.stem}/{part.name}", _why(error))
        messages.append((file.stem, info, parts))
    messages.sort(key=lambda message: (_created(message[1]), message[0] or ""))
    yield from _session(key, session, messages)


def _why(error: Exception) -> str:
    return f"not readable ({type(error).__name__})" if isinstance(error, OSError) else str(error)


def _object(path: Path) -> dict[str, Any]:
    value = decode(path.read_bytes().removeprefix(BOM).strip(BLANK))
    if not isinstance(value, dict):
        raise UnreadableError("not a JSON object")
    return value


def _created(value: dict[str, Any]) -> float:
    at = mapping(value.get("time")).get("created")
    return at if isinstance(at, int | float) else 0


def _database(db: tables.Tables) -> Iterator[Item]:
    if not {"session", "message", "part"} <= db.names:
        yield Damaged("the database", f"no sessions in it: give {EXPECTED}")
        return
    for row in list(db.rows("SELECT * FROM session ORDER BY time_created, id")):
        session = {key: row[key] for key in row.keys()}  # noqa: SIM118 (a row iterates over its values)
        info = {
            "title": session.get("title"),
            "directory": session.get("directory"),
            "parentID": session.get("parent_id"),
            "time": {"created": session.get("time_created")},
            "revert": _column(session.get("revert")),
        }
        key = str(session.get("id"))
        messages: list[Spoken] = []
        for number, data in db.rows("SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id", key):
            value = _column(data)
            if value is None:
                yield Damaged(f"message {number}", "not a JSON object")
                continue
            parts: list[dict[str, Any]] = []
            for name, content in db.rows("SELECT id, data FROM part WHERE message_id = ? ORDER BY id", number):
                if (part := _column(content)) is None:
                    yield Damaged(f"part {name}", "not a JSON object")
                else:
                    parts.append(part)
            messages.append((str(number), value, parts))
        yield from _session(key, info, messages)


def _column(data: object) -> dict[str, Any] | None:
    if not isinstance(data, str | bytes):
        return None
    try:
        value = decode(data.encode() if isinstance(data, str) else data)
    except UnreadableError:
        return None
    return value if isinstance(value, dict) else None


def _session(key: str, info: dict[str, Any], messages: list[Spoken]) -> Iterator[Item]:
    if string(info.get("parentID")):
        yield Skipped(f"session {key}", "a subagent's conversation")
        return
    at = moment(_created(info) or None, MILLISECONDS)
    yield Conversation(key=key, title=string(info.get("title")), created_at=at, cwd=string(info.get("directory")), agent=AGENT)
    revert = mapping(info.get("revert"))
    undone = None if revert.get("partID") else string(revert.get("messageID"))
    gone = False
    for place, (given, message, parts) in enumerate(messages, 1):
        name = given or str(place)
        gone = gone or (given is not None and given == undone)
        role = role_of(message.get("role"))
        if gone or role is None or message.get("summary") is True:
            why = "undone" if gone else "its role is neither user nor assistant" if role is None else "a summary"
            yield Skipped(f"message {name}", why)
            continue
        blocks: list[Block] = []
        for number, part in enumerate(parts):
            if part.get("synthetic") is True or part.get("ignored") is True:
                yield Skipped(f"message {name}, part {number + 1}", "put in by the program")
            else:
                blocks += _part(part, f"{name}:{number}")
        created_at = moment(_created(message) or None, MILLISECONDS)
        external_id = given or derived_id(key, role, blocks, created_at, place)
        one = said(role, blocks, external_id, created_at)
        yield Said(conversation=key, message=one, continues=role == "assistant")


def _part(part: dict[str, Any], unnamed: str) -> tuple[Block, ...]:
    match part:
        case {"type": "text", "text": str(text)}:
            return (Text(text),) if text else ()
        case {"type": "reasoning", "text": str(text)}:
            return (Reasoning(summary=text),) if text else ()
        case {"type": "tool", "tool": str(tool)}:
            return _tool(tool, part, string(part.get("callID")) or unnamed)
        case {"type": "file", "mime": str(mime), "url": str(url)} if mime.startswith("image/"):
            return (image_of(url, AGENT, part),)
        case {"type": str(kind)} if kind in BOOKKEEPING:
            return ()
    return (Unknown(AGENT, part),)


def _tool(tool: str, part: dict[str, Any], use: str) -> tuple[Block, ...]:
    """A call and, once it has ended, what came of it."""
    state = mapping(part.get("state"))
    called = ToolUse(use, tool, state.get("input"))
    match state:
        case {"status": "completed"}:
            attached = (block for one in entries(state.get("attachments")) for block in _part({**one, "type": "file"}, use))
            output = string(state.get("output"))
            return called, ToolResult(use, (*((Text(output),) if output else ()), *attached))
        case {"status": "error"}:
            failure = string(state.get("error"))
            return called, ToolResult(use, (Text(failure),) if failure else (), True)
    return (called,)
