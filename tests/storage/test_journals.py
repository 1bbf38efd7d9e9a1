"""Journal files: what was written comes back, a torn or damaged tail costs only itself."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextinfinity.daemon.storage.journals import JournalFile, Line, encode_line, list_steps, path_of, read_lines, read_raw

LINES = [Line("2026-01-01T00:00:00.000Z", "recall", "recall.delta", i, {"text": f"wörd {i}"}) for i in range(5)]
WHOLE = b"".join(encode_line(line) + b"\n" for line in LINES)


def test_lines_round_trip(tmp_path: Path) -> None:
    file = JournalFile(path_of(tmp_path, "s1"))
    for line in LINES:
        file.write(encode_line(line) + b"\n")
    JournalFile.sync([file])
    file.close()
    assert read_lines(file.path) == LINES
    assert list_steps(tmp_path) == ["s1"]
    assert file.path.stat().st_mode & 0o777 == 0o600


@given(cut=st.integers(0, len(WHOLE)), junk=st.binary(max_size=20))
@settings(max_examples=300, deadline=None)
def test_a_torn_tail_costs_only_itself(tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes) -> None:
    path = tmp_path_factory.mktemp("j") / "s.jsonl"
    path.write_bytes(WHOLE[:cut] + junk.replace(b"\n", b""))
    whole = WHOLE[:cut].count(b"\n")
    lines = read_lines(path)
    assert lines[:whole] == LINES[:whole]
    assert len(lines) <= whole + 1
    assert read_raw(path) == b"".join(encode_line(line) + b"\n" for line in LINES[:whole])


def test_lines_after_a_gap_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"".join(encode_line(line) + b"\n" for line in (LINES[0], LINES[2])))
    assert read_lines(path) == LINES[:1]


def test_a_missing_journal_has_no_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "no.jsonl") == []
    assert read_raw(tmp_path / "no.jsonl") == b""
