"""The archives that chat services export: JSON arrays of conversations, as files or inside the .zip they come in.

`chatgpt` and `claude` say what one conversation means; a damaged one does not take the others with it.
"""

import fnmatch
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from contextinfinity.daemon.imports.base import Damaged, Item, sources
from contextinfinity.daemon.imports.content import entries
from contextinfinity.daemon.imports.reading import UnreadableError, elements

NAMES = ("conversations.json", "conversations-*.json")
ZIP = b"PK"

Parse = Callable[[dict[str, Any], str], Iterator[Item]]


def archives(path: Path, expected: str) -> list[Path]:
    """The files of an unpacked archive, or else the packed ones."""
    try:
        return sources(path, NAMES, expected)
    except ValueError:
        return sources(path, ("*.zip",), expected)


def documents(path: Path) -> Iterator[tuple[str, bytes] | Damaged]:
    """What holds conversations at a path, each with the words that lead to it."""
    with path.open("rb") as file:
        if file.read(2) != ZIP:
            file.seek(0)
            yield "", file.read()
            return
        try:
            archive = zipfile.ZipFile(file)
            found = [info for info in archive.infolist() if is_conversations(info.filename)]
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            yield Damaged("the archive", f"not a readable zip file ({type(error).__name__})")
            return
        if not found:
            yield Damaged("the archive", "no conversations.json in it")
        for info in sorted(found, key=lambda info: info.filename):
            try:
                data = archive.read(info)
            except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError) as error:
                yield Damaged(f"conversations in {info.filename}", f"not readable ({type(error).__name__})")
            else:
                yield (f"{info.filename}, " if len(found) > 1 else ""), data


def is_conversations(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name.rsplit("/", 1)[-1], pattern) for pattern in NAMES)


def conversations(path: Path, parse: Parse) -> Iterator[Item]:
    for document in documents(path):
        if isinstance(document, Damaged):
            yield document
            continue
        prefix, data = document
        try:
            for where, value in elements(data):
                yield from _conversation(value, f"{prefix}{where}", parse)
        except UnreadableError as error:
            yield Damaged(f"{prefix}the document", str(error))


def _conversation(value: object, where: str, parse: Parse) -> Iterator[Item]:
    match value:
        case UnreadableError():
            yield Damaged(where, str(value))
        case {"conversations": list(inner)}:
            for number, one in enumerate(entries(inner), 1):
                yield from parse(one, f"{where}, {number}")
        case dict():
            yield from parse(value, where)
        case _:
            yield Damaged(where, "not a JSON object")
