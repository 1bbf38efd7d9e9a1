"""Our own lines and arrays: what is kept, in which order, and under which names."""

from pathlib import Path

import pytest

from contextinfinity.daemon.imports.formats import FORMATS, detect
from contextinfinity.protocol.blocks import Image, Reasoning, Text, ToolResult, ToolUse, Unknown
from tests.imports.harness import check, check_resuming, damaged, items, last_known, said, skipped, texts, write, write_lines

JSONL = FORMATS["jsonl"]
LINES: list[dict[str, object]] = [
    {"role": "user", "text": "Where does heron-7 stand?", "created_at": "2026-01-02T03:04:05+01:00", "speaker": "Ada"},
    {"role": "model", "content": "In rack 4.", "external_id": "a-1", "session": "s1", "title": "Servers"},
    {"role": "human", "content": [{"type": "text", "text": "And heron-8?"}], "session": "s1"},
    {"role": "system", "text": "Be brief."},
    {"role": "ai", "text": "In rack 5.", "session": "s1"},
]


def test_lines_become_messages(tmp_path: Path) -> None:
    found = check(JSONL, write_lines(tmp_path / "a.jsonl", LINES))
    assert texts(found) == [
        ("user", "Where does heron-7 stand?"),
        ("assistant", "In rack 4."),
        ("user", "And heron-8?"),
        ("assistant", "In rack 5."),
    ]
    first, second = said(found)[:2]
    assert (first.conversation, first.message.speaker, first.message.created_at) == ("", "Ada", "2026-01-02T02:04:05.000Z")
    assert (second.conversation, second.message.external_id, second.continues) == ("s1", "a-1", False)
    assert (last_known(found).key, last_known(found).title) == ("s1", "Servers")
    assert [item.where for item in skipped(found)] == ["line 4"]


def test_lines_resume_where_they_were_left(tmp_path: Path) -> None:
    check_resuming(JSONL, write_lines(tmp_path / "a.jsonl", LINES * 3))


def test_equal_lines_have_ids_of_their_own(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"role": "user", "text": "yes"}] * 3)
    assert len({item.message.external_id for item in said(check(JSONL, path))}) == 3
    array = write(tmp_path / "b.json", [{"role": "user", "text": "yes"}] * 3)
    assert len({item.message.external_id for item in said(check(JSONL, array))}) == 3


def test_an_array_gives_what_its_lines_would(tmp_path: Path) -> None:
    lines = items(JSONL, write_lines(tmp_path / "a.jsonl", LINES))
    array = check(JSONL, write(tmp_path / "a.json", LINES))
    assert texts(array) == texts(lines)
    assert {record.offset for record in JSONL.read(tmp_path / "a.json")} == {0}


def test_a_cut_array_keeps_what_is_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", LINES)
    path.write_bytes(path.read_bytes()[:-8])
    found = check(JSONL, path)
    assert len(said(found)) == 3
    assert [item.where for item in damaged(found)] == ["item 5"]


def test_an_added_message_does_not_rename_those_before_it(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", LINES)
    before = [item.message for item in said(items(JSONL, path))]
    with path.open("a") as file:
        file.write('{"role": "user", "text": "In rack 5."}\n')
    assert [item.message for item in said(items(JSONL, path))][:-1] == before


def test_a_last_line_is_left_until_it_is_whole(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", LINES[:1])
    begun = path.stat().st_size
    with path.open("a") as file:
        file.write('{"role": "user", "text": "Slow')
    (*_, last) = JSONL.read(path)
    assert (last.offset, len(damaged(items(JSONL, path)))) == (begun, 0)
    with path.open("a") as file:
        file.write('ly."}')
    assert texts(items(JSONL, path, begun)) == [("user", "Slowly.")]
    (*_, last) = JSONL.read(path, begun)
    assert last.offset == path.stat().st_size
    with path.open("a") as file:
        file.write("\nno json\n")
    assert [item.where for item in damaged(items(JSONL, path, last.offset))] == ["line 3"]


def test_damaged_lines_are_named_and_the_others_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    deep = b'{"role": "user", "content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    nested = b'{"role": "user", "content": [{"type": "odd", "in": ' + b"[" * 95 + b"]" * 95 + b"}]}"
    path.write_bytes(
        b"\n".join(
            (
                b'\xef\xbb\xbf{"role": "user", "text": "one"}',
                b'{"role": "user", "text": "\xff secret"}',
                b"",
                b"secret",
                b"[1, 2]",
                deep,
                nested,
                b'\0\0\0{"role": "user", "text": "a\0b\\u0000c\\ud800d"}',
                b'{"role": "user", "text": "last", "created_at": 1e999}',
                b"",
            )
        )
    )
    found = check(JSONL, path)
    assert texts(found) == [("user", "one"), ("user", "a\ufffdb\ufffdc\ufffdd"), ("user", "last")]
    assert [item.where for item in damaged(found)] == ["line 2", "line 4", "line 5", "line 6", "line 7"]
    assert not any("secret" in item.why for item in damaged(found))
    check_resuming(JSONL, path)


def test_wrong_types_are_no_reason_to_stop(tmp_path: Path) -> None:
    odd: list[object] = [None, 1, True, [], [[]], {}, {"type": "text"}, {"type": ["text"]}, "", [{"type": "tool_result"}]]
    names = ("role", "text", "content", "created_at", "external_id", "speaker", "session", "title")
    values = [{"role": "user", "content": "x", name: one} for name in names for one in odd]
    check(JSONL, write_lines(tmp_path / "a.jsonl", values))


def test_blocks_of_every_kind_are_kept(tmp_path: Path) -> None:
    content = [
        {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
        {"type": "tool_use", "id": "t1", "name": "find", "input": {"q": "heron"}},
        {"type": "tool_result", "tool_use_id": "t1", "content": "rack 4", "is_error": True},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        {"type": "hologram", "beam": 1},
        "plain",
    ]
    (one,) = said(check(JSONL, write_lines(tmp_path / "a.jsonl", [{"role": "assistant", "content": content}])))
    assert one.message.blocks == (
        Reasoning("sig", "Hm."),
        ToolUse("t1", "find", {"q": "heron"}),
        ToolResult("t1", (Text("rack 4"),), True),
        Image("image/png", {"type": "base64", "media_type": "image/png", "data": "aGk="}),
        Unknown("jsonl", {"type": "hologram", "beam": 1}),
        Text("plain"),
    )


def test_a_message_that_says_nothing_is_left_out(tmp_path: Path) -> None:
    found = check(JSONL, write_lines(tmp_path / "a.jsonl", [{"role": "user", "text": ""}, {"role": "user"}]))
    assert (said(found), [item.where for item in skipped(found)]) == ([], ["line 1", "line 2"])


def test_files_and_detection(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "b.jsonl", LINES)
    write(tmp_path / "a.json", LINES)
    assert JSONL.files(tmp_path) == [tmp_path / "a.json", path]
    assert JSONL.files(path) == [path]
    assert detect(path) == detect(tmp_path / "a.json") == detect(tmp_path) == "jsonl"
    with pytest.raises(FileNotFoundError):
        JSONL.files(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        items(JSONL, tmp_path / "none")


def test_what_is_no_format_names_them_all(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "a.txt"):
        with pytest.raises(ValueError, match="jsonl, chatgpt, claude, claude_code, codex, opencode, llm"):
            detect(path)
    (tmp_path / "folder").mkdir()
    for kind in FORMATS.values():
        with pytest.raises(ValueError, match="give "):
            kind.files(tmp_path / "folder")
