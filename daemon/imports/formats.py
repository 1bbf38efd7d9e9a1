"""The list of formats, and which of them a path looks like; the modules beside it read them.

Looking needs only the beginning of a file: what is not recognised has to be named by the user.
"""

import zipfile
from itertools import islice
from pathlib import Path
from typing import Any

from contextinfinity.daemon.imports import tables
from contextinfinity.daemon.imports.archive import NAMES, ZIP, is_conversations
from contextinfinity.daemon.imports.base import Format
from contextinfinity.daemon.imports.chatgpt import ChatGPT
from contextinfinity.daemon.imports.claude import Claude
from contextinfinity.daemon.imports.claude_code import TITLES, ClaudeCode
from contextinfinity.daemon.imports.codex import WRAPPED, Codex
from contextinfinity.daemon.imports.content import string
from contextinfinity.daemon.imports.jsonl import Jsonl
from contextinfinity.daemon.imports.llm import Llm
from contextinfinity.daemon.imports.opencode import OpenCode
from contextinfinity.daemon.imports.reading import BLANK, BOM, head

_formats: tuple[Format, ...] = (Jsonl(), ChatGPT(), Claude(), ClaudeCode(), Codex(), OpenCode(), Llm())
FORMATS: dict[str, Format] = {one.name: one for one in _formats}

HEAD = 2**20
# What below a folder tells its format, the most particular first.
TELLING = ("**/rollout-*.jsonl", *NAMES, "*.zip", "logs.db", "*.jsonl", "*/*.jsonl", "projects/*/*.jsonl", "*.ndjson", "*.json")
TRIED = 20
KEYS = {
    frozenset(("mapping",)): "chatgpt",
    frozenset(("chat_messages",)): "claude",
    frozenset(("info", "messages")): "opencode",
}


def detect(path: Path) -> str:
    """The name of the format a path looks like; `ValueError` lists the formats if it is none of them."""
    path.stat()
    if not path.is_dir() and not path.is_file():
        raise ValueError(f"{path} is neither a file nor a folder")
    name = _folder(path) if path.is_dir() else _file(path)
    if name is None:
        raise ValueError(f"{path} is in no format known here: name one of {', '.join(FORMATS)}")
    return name


def _folder(path: Path) -> str | None:
    stored = path / "storage" if (path / "storage").is_dir() else path
    if (path / "opencode.db").is_file() or ((stored / "session").is_dir() and (stored / "message").is_dir()):
        return "opencode"
    for pattern in TELLING:
        for file in islice(sorted(path.glob(pattern)), TRIED):
            if file.is_file() and (name := _file(file)):
                return name
    return None


def _file(path: Path) -> str | None:
    with path.open("rb") as file:
        start = file.read(HEAD)
    if start.startswith(tables.MAGIC):
        return _database(path)
    if start.startswith(ZIP):
        return _zip(path)
    start = start.removeprefix(BOM).lstrip(BLANK)
    if start.startswith(b"["):
        return _document(start)
    for value in head(path):
        if name := _line(value):
            return name
    return _document(start) if start.startswith(b"{") else None


def _database(path: Path) -> str | None:
    try:
        with tables.opened(path) as db:
            names = db.names
    except tables.FAULTS:
        return None
    if {"session", "message", "part"} <= names:
        return "opencode"
    return "llm" if "responses" in names or {"threads", "turns", "messages"} <= names else None


def _zip(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            for name in sorted(filter(is_conversations, archive.namelist())):
                with archive.open(name) as member:
                    if found := _document(member.read(HEAD).removeprefix(BOM).lstrip(BLANK)):
                        return found
    except Exception:  # noqa: BLE001 (whatever a damaged archive makes of itself, it tells us no format)
        return None
    return None


def _document(start: bytes) -> str | None:
    """By the keys of a document too long to be decoded for this."""
    at = {start.find(mark): name for mark, name in ((b'"chat_messages"', "claude"), (b'"mapping"', "chatgpt"))}
    known = sorted((position, name) for position, name in at.items() if position >= 0)
    if known:
        return known[0][1]
    if start.startswith(b"{"):
        return "opencode" if b'"info"' in start and b'"messages"' in start else None
    return "jsonl" if b'"role"' in start and (b'"text"' in start or b'"content"' in start) else None


def _line(value: dict[str, Any]) -> str | None:
    kind = string(value.get("type"))
    for keys, name in KEYS.items():
        if keys <= value.keys():
            return name
    if (kind in WRAPPED or kind == "response_item") and isinstance(value.get("payload"), dict):
        return "codex"
    if value.get("record_type") == "state" or {"id", "timestamp", "instructions"} <= value.keys():
        return "codex"
    if kind == "message" and isinstance(value.get("content"), list):
        return "codex"
    if "sessionId" in value or (kind in TITLES and "leafUuid" in value):
        return "claude_code"
    if kind in ("user", "assistant") and isinstance(value.get("message"), dict):
        return "claude_code"
    return "jsonl" if "role" in value and ("text" in value or "content" in value) else None
