"""Whatever bytes come: reading does not raise, what is whole is kept, and reading on gives what reading whole gives."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextinfinity.daemon.imports import reading
from contextinfinity.daemon.imports.formats import FORMATS, detect
from tests.imports import test_chatgpt, test_claude, test_claude_code, test_codex, test_jsonl, test_llm, test_opencode
from tests.imports.harness import check, check_resuming, items, said, write, write_lines

LINED = {
    "jsonl": ("a.jsonl", test_jsonl.LINES),
    "claude_code": (f"{test_claude_code.SESSION}.jsonl", test_claude_code.LINES),
    "codex": (test_codex.NAME, test_codex.LINES),
}
WHOLE: dict[str, Callable[[Path], Path]] = {
    "chatgpt": lambda folder: write(folder / "conversations.json", [test_chatgpt.CONVERSATION] * 2),
    "claude": lambda folder: write(folder / "conversations.json", [test_claude.CONVERSATION] * 2),
    "opencode": lambda folder: test_opencode.write_export(folder / "export.json"),
    "opencode database": lambda folder: test_opencode.write_database(folder / "opencode.db"),
    "llm": lambda folder: test_llm.write_logs(folder / "logs.db", test_llm.RESPONSES, test_llm.TOOLS, test_llm.CHAINS),
}
LINED_BYTES = {name: b"".join(json.dumps(line).encode() + b"\n" for line in lines) for name, (_, lines) in LINED.items()}


def _whole_bytes(make: Callable[[Path], Path]) -> tuple[str, bytes]:
    with TemporaryDirectory() as folder:
        path = make(Path(folder))
        return path.name, path.read_bytes()


VALID: dict[str, tuple[str, bytes]] = {
    **{name: (file, LINED_BYTES[name]) for name, (file, _) in LINED.items()},
    **{name: _whole_bytes(make) for name, make in WHOLE.items()},
}
few = settings(max_examples=60, deadline=None)
a_line = st.binary(max_size=60).map(lambda data: data.replace(b"\n", b"")) | st.sampled_from(
    [b"[{}]", b"[", b"{}", b"null", b'"\\ud800"', b'{"type": "user"}', b"\xff\xfe", b"{" * 5000, b"[" * 200 + b"]" * 200]
)


@pytest.mark.slow
@pytest.mark.parametrize("name", LINED)
@few
@given(data=st.data())
def test_a_damaged_line_takes_no_other_with_it(name: str, data: st.DataObject) -> None:
    file, lines = LINED[name]
    at = data.draw(st.integers(0, len(lines) - 1))
    valid = LINED_BYTES[name].splitlines(keepends=True)
    with TemporaryDirectory() as folder:
        path, others = Path(folder) / file, Path(folder) / "others" / file
        path.write_bytes(b"".join([*valid[:at], data.draw(a_line) + b"\n", *valid[at + 1 :]]))
        write_lines(others, [*lines[:at], {"nothing": 1}, *lines[at + 1 :]])
        kept = [(item.conversation, item.message.role, item.message.blocks) for item in said(items(FORMATS[name], others))]
        found = [(item.conversation, item.message.role, item.message.blocks) for item in said(check(FORMATS[name], path))]
        assert all(item in found for item in kept)
        check_resuming(FORMATS[name], path)


@pytest.mark.slow
@pytest.mark.parametrize("name", VALID)
@few
@given(data=st.data())
def test_no_bytes_make_reading_raise(name: str, data: st.DataObject) -> None:
    file, valid = VALID[name]
    kind = FORMATS[name.split()[0]]
    start, end = sorted((data.draw(st.integers(0, len(valid))), data.draw(st.integers(0, len(valid)))))
    changed = data.draw(st.sampled_from(["cut", "replaced", "inserted", "other"]), label="what happened to the bytes")
    junk = data.draw(st.binary(max_size=40))
    new = {
        "cut": valid[:start],
        "replaced": valid[:start] + junk + valid[start + len(junk) :],
        "inserted": valid[:start] + junk + valid[start:],
        "other": valid[:start] + valid[end:] if data.draw(st.booleans()) else junk,
    }[changed]
    with TemporaryDirectory() as folder:
        path = Path(folder) / file
        path.write_bytes(new)
        check(kind, path)
        if kind.append_only:
            check_resuming(kind, path)
        try:
            assert detect(path) in FORMATS
        except ValueError as error:
            assert "no format known" in str(error)


ODD: list[object] = [None, True, 7, 1e300, "", "text", [], [7], {}, {"type": []}, [{"type": {}}], ["a", None]]


def changes(value: object) -> Iterator[object]:
    """The value with every part of it, one at a time, replaced by something odd."""
    yield from ODD
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from ({**value, key: changed} for changed in changes(inner))
            yield {other: kept for other, kept in value.items() if other != key}
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from ([*value[:at], changed, *value[at + 1 :]] for changed in changes(inner))


@pytest.mark.slow
@pytest.mark.parametrize("name", LINED)
def test_wrong_types_in_lines_are_no_reason_to_stop(name: str, tmp_path: Path) -> None:
    file, lines = LINED[name]
    path = tmp_path / file
    for line in lines:
        write_lines(path, [*lines, *changes(line), *lines])
        found = items(FORMATS[name], path)
        assert len(said(found)) >= 2 * len(said(items(FORMATS[name], write_lines(tmp_path / "valid" / file, lines))))
        write_lines(path, list(changes(line))[len(ODD) :])
        check(FORMATS[name], path)
        with suppress(ValueError):
            detect(path)


@pytest.mark.slow
def test_wrong_types_in_documents_are_no_reason_to_stop(tmp_path: Path) -> None:
    for name, value in (("chatgpt", test_chatgpt.CONVERSATION), ("claude", test_claude.CONVERSATION)):
        found = check(FORMATS[name], write(tmp_path / "conversations.json", [value, *changes(value), value]))
        assert len(said(found)) > len(list(changes(value)))
    export = json.loads(test_opencode.write_export(tmp_path / "export.json").read_text())
    for changed in changes(export):
        check(FORMATS["opencode"], write(tmp_path / "changed.json", changed))


@pytest.mark.parametrize("name", LINED)
def test_a_growing_file_gives_at_every_length_what_it_gives_whole(name: str, tmp_path: Path) -> None:
    file, _ = LINED[name]
    kind, path, valid = FORMATS[name], tmp_path / file, LINED_BYTES[name]
    path.write_bytes(valid)
    whole, taken, offset = said(items(kind, path)), [], 0
    for length in (*range(0, len(valid), 97), len(valid)):
        path.write_bytes(valid[:length])
        for record in kind.read(path, offset):
            taken.append(record.item)
            offset = record.offset
    assert [item.message for item in said(taken)] == [item.message for item in whole]
    assert [item.continues for item in said(taken)] == [item.continues for item in whole]


def test_a_line_too_long_is_damage_and_the_next_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LONGEST_LINE", 100)
    path = tmp_path / "a.jsonl"
    path.write_text('{"role": "user", "text": "' + "x" * 200_000 + '"}\n{"role": "user", "text": "short"}\n')
    found = check(FORMATS["jsonl"], path)
    assert [item.message.rendered_text for item in said(found)] == ["short"]
    check_resuming(FORMATS["jsonl"], path)
