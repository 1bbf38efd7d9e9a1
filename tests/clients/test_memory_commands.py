"""`ctx search`, `expand`, `timeline`, `chunks`, `reindex` and the memory in `ctx status`, against a scripted daemon."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contextinfinity.clients.cli import output, search, zone
from contextinfinity.protocol.errors import InvalidParams, NotFound
from tests.clients.fake import FakeDaemon
from tests.clients.scripted import AT, Conversation
from tests.clients.shell import Ctx
from tests.clients.test_store_commands import status

CHUNK: dict[str, Any] = {
    "id": "C1",
    "session_id": "S1-SESSION",
    "branch_id": "B1",
    "turn_id": "T1",
    "role": "user",
    "text": "The build server is called heron-7.",
    "summary": "The build server …",
    "chunk_type": "explanation",
    "token_est": 1234,
    "content_hash": "h",
    "created_at": AT,
}
STATS = {"candidates": 3, "searched": 40, "took_ms": 4.2, "mode": "hybrid", "embedder": "local"}


def hit(**changes: Any) -> dict[str, Any]:
    made = {key: CHUNK[key] for key in CHUNK if key not in ("id", "token_est", "content_hash")}
    return made | {
        "chunk_id": "C1",
        "session_title": "about herons",
        "turn_seq": 3,
        "speaker": "user",
        "passage": "The build server\nis called heron-7.",
        "score": 5.25,
        "score_text": 4.0,
        "score_vector": 1.25,
        "similarity": 0.71,
        "rank_text": 1,
        "rank_vector": 2,
        "why": "has build, server (text rank 1); similarity 0.71 (vector rank 2)",
        "external_ids": [],
        **changes,
    }


def found(*hits: dict[str, Any], **stats: Any) -> dict[str, Any]:
    return {"results": list(hits), "stats": STATS | stats}


# search


def test_search_shows_who_said_what_when_and_how_to_expand_it(ctx: Ctx, daemon: FakeDaemon) -> None:
    other = hit(
        chunk_id="C2", role="assistant", speaker="Ada", chunk_type="code", passage="x = 1\n", created_at="2025-11-19T01:00:00Z"
    )
    other.pop("session_title")
    daemon.answers("memory.search", found(hit(), other))
    result = ctx("search", "build", "server")
    assert result.code == 0
    assert result.err == ""
    first, second = result.out.rstrip().split("\n\n")
    assert first.splitlines()[1:] == ["   The build server", "   is called heron-7.", "   ctx expand C1"]
    assert first.splitlines()[0].startswith("1. 2025-11-18 1")
    assert first.splitlines()[0].endswith(" · you · about herons · explanation")
    assert " · Ada · …ESSION · code" in second
    assert daemon.called("memory.search") == [{"query": "build server", "tz": "Europe/Berlin"}]
    assert ctx("search", "x", "--json").json() == found(hit(), other)


def test_search_asks_for_what_the_options_say(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.answers("memory.search", found(hit()))
    options = ["-k", "20", "--type", "code", "--type", "decision", "--mode", "text", "--diverse"]
    assert ctx("search", *options, "--since", "3 days ago", "--until", "2026", "--session", "S1", "x").code == 0
    assert daemon.called("memory.search") == [
        {
            "query": "x",
            "session_id": "S1",
            "top_k": 20,
            "mode": "text",
            "chunk_types": ["code", "decision"],
            "since": "3 days ago",
            "until": "2026",
            "tz": "Europe/Berlin",
            "diverse": True,
        }
    ]


def test_here_is_the_conversation_that_ask_would_go_on_with(ctx: Ctx, daemon: FakeDaemon) -> None:
    Conversation(daemon, cwd=os.getcwd())
    daemon.answers("memory.search", found(hit()))
    daemon.answers("memory.timeline", {"entries": []})
    daemon.answers("memory.chunks", {"chunks": []})
    for args in (["search", "--here", "x"], ["timeline", "--here"], ["chunks", "--here"]):
        assert ctx(*args).code == 0
    for method in ("memory.search", "memory.timeline", "memory.chunks"):
        assert [p["branch_id"] for p in daemon.called(method)] == ["B1"]
        assert "session_id" not in daemon.called(method)[0]
    Conversation(daemon)
    result = ctx("search", "--here", "x")
    assert result.code == 4
    assert "ctx ask" in result.err


@pytest.mark.parametrize("command", ["search x", "timeline", "chunks"])
@pytest.mark.parametrize("both", ["--here --session S", "--here --branch B", "--session S --branch B"])
def test_only_one_place_can_be_named(ctx: Ctx, command: str, both: str) -> None:
    result = ctx("--no-autostart", *command.split(), *both.split())
    assert result.code == 2
    assert "exclude each other" in result.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["search"], "Missing argument"),
        (["search", "  "], "give some words"),
        (["search", "-"], "give some words"),
        (["search", "-k", "0", "x"], "-k"),
        (["search", "--type", "poem", "x"], "poem"),
        (["search", "--mode", "magic", "x"], "magic"),
        (["search", "a\udc80b"], "not valid UTF-8"),
        (["expand"], "Missing argument"),
        (["expand", "C", "-B", "101"], "-B"),
        (["chunks", "-n", "0"], "-n"),
        (["timeline", "-n", "x"], "-n"),
    ],
)
def test_bad_usage_exits_with_2_before_any_daemon_is_needed(ctx: Ctx, args: list[str], words: str) -> None:
    result = ctx("--no-autostart", *args)
    assert result.code == 2, result.err
    assert words in result.err
    assert result.out == ""


def test_search_reads_the_question_from_standard_input(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.answers("memory.search", found(hit()))
    assert ctx("search", "-", stdin="\nwo war\nder Kran? ✓\n".encode()).code == 0
    assert daemon.called("memory.search")[0]["query"] == "wo war\nder Kran? ✓"
    assert ctx("search", "a", "-", stdin=b"unread").code == 0
    assert daemon.called("memory.search")[1]["query"] == "a -"
    assert ctx("search", "--", "--verify").code == 0
    assert daemon.called("memory.search")[2]["query"] == "--verify"


def test_search_says_why(ctx: Ctx, daemon: FakeDaemon) -> None:
    text_only = hit(rank_vector=None, rank_text=None)
    for absent in ("score_vector", "similarity", "rank_vector", "rank_text"):
        text_only.pop(absent)
    daemon.answers("memory.search", found(hit(), text_only))
    shown = ctx("search", "--why", "x").out
    assert "   why has build, server (text rank 1); similarity 0.71 (vector rank 2)\n" in shown
    assert "   by  score 5.250; words: rank 1, score 4.000; meaning: rank 2, score 1.250, similarity 0.710\n" in shown
    assert "   by  score 5.250; words: no rank, score 4.000\n" in shown
    assert shown.endswith("40 messages looked at, 3 answer; hybrid, by local, 4 ms\n")
    assert "rank" not in ctx("search", "x").out


def test_search_tells_plainly_when_it_could_not_look_at_meanings(ctx: Ctx, daemon: FakeDaemon) -> None:
    degraded = "snowflake-arctic-embed-s is not installed: `ctx embedder install` fetches it"
    daemon.answers("memory.search", found(hit(), mode="text", degraded=degraded))
    result = ctx("search", "x")
    assert result.code == 0
    assert result.err == f"ctx: searched by words alone: {degraded}\n"
    machine = ctx("search", "x", "--json")
    assert machine.err == ""
    assert machine.json()["stats"]["degraded"] == degraded


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ([], "ctx status"),
        (["--type", "code"], "the filters"),
        (["-b", "B"], "the filters"),
        (["--since", "1 h"], "the filters"),
    ],
)
def test_finding_nothing_is_no_failure_and_says_what_may_help(
    ctx: Ctx, daemon: FakeDaemon, options: list[str], hint: str
) -> None:
    daemon.answers("memory.search", found())
    result = ctx("search", *options, "x")
    assert (result.code, result.out) == (0, "Nothing was found.\n")
    assert hint in result.err
    assert ctx("search", *options, "x", "--json").json()["results"] == []


def test_a_time_that_the_daemon_does_not_understand_is_one_line(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.refuses("memory.search", InvalidParams("since: not a time: 'soon'"))
    result = ctx("search", "--since", "soon", "x")
    assert (result.code, result.err) == (2, "ctx: since: not a time: 'soon'\n")


def test_what_was_found_cannot_drive_the_terminal(ctx: Ctx, daemon: FakeDaemon) -> None:
    evil = "a\x1b]0;owned\x07\x9bb"
    daemon.answers("memory.search", found(hit(passage=evil, session_title=evil, speaker=evil, why=evil), degraded=evil))
    result = ctx("search", "--why", "x")
    assert "owned" in result.out
    assert not set(result.out + result.err) & {"\x1b", "\x9b", "\x07"}


@pytest.mark.parametrize(
    ("query", "text", "marked"),
    [
        ("what is the build server called", "The Build servers is rebuilt", ["Build", "servers"]),
        ("caching decided topics", "We decide to cache a topic; do not catch it", ["decide", "cache", "topic"]),
        ("heron-7 x", "heron-7, heron-77, x, xy", ["heron", "7", "heron", "x"]),
        ("(.*) [", "anything (.*) [", []),
        ("the and", "the and", []),
        ("クレーン", "大きなクレーンです", ["クレーン"]),
        ("Straße", "Die STRASSE, die Straße", ["Straße"]),
    ],
)
def test_the_words_of_the_query_stand_out(monkeypatch: pytest.MonkeyPatch, query: str, text: str, marked: list[str]) -> None:
    assert search._marker(query)(text) == text, "not where there are no colours"
    monkeypatch.setattr(search, "in_colour", lambda stream: True)
    monkeypatch.setattr(output, "in_colour", lambda stream: True)
    shown = search._marker(query)(text)
    parts = shown.split("\x1b[1;33m")
    assert [part.partition("\x1b[0m")[0] for part in parts[1:]] == marked
    assert shown.replace("\x1b[1;33m", "").replace("\x1b[0m", "") == text


# the time zone


@pytest.mark.parametrize(
    ("tz", "name"),
    [
        ("Europe/Berlin", "Europe/Berlin"),
        (":Asia/Kolkata", "Asia/Kolkata"),
        ("/usr/share/zoneinfo/America/New_York", "America/New_York"),
        ("/usr/share/zoneinfo/posix/Asia/Tokyo", "Asia/Tokyo"),
        ("UTC", "UTC"),
        ("", "UTC"),
        ("UTC+3", "-03:00"),
        ("XYZ-5:30", "+05:30"),
        ("../../etc/passwd", "+00:00"),
    ],
)
def test_the_time_zone_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch, tz: str, name: str) -> None:
    monkeypatch.setenv("TZ", tz)
    time.tzset()
    try:
        assert zone.local_zone() == name
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "make", [lambda link: link.symlink_to("/usr/share/zoneinfo/Asia/Tokyo"), lambda link: link.write_bytes(b"")]
)
def test_without_TZ_the_time_zone_is_that_of_the_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: Callable[[Path], Any]
) -> None:  # fmt: skip
    make(tmp_path / "localtime")
    monkeypatch.delenv("TZ", raising=False)
    monkeypatch.setattr(zone, "LOCALTIME", str(tmp_path / "localtime"))
    monkeypatch.setattr(zone, "_offset", lambda: "+09:00")
    assert zone.local_zone() == ("Asia/Tokyo" if (tmp_path / "localtime").is_symlink() else "+09:00")


# expand, timeline, chunks


def surroundings(text: str = "Before.\nThe build server is called heron-7.\nAfter.") -> dict[str, Any]:
    def message(seq: int, role: str, text: str, **fields: Any) -> dict[str, Any]:
        return {"turn_id": f"T{seq}", "turn_seq": seq, "role": role, "text": text, **fields}

    messages = [
        message(1, "user", "Hm.\x1b[2J"),
        message(2, "user", text, focus=True, created_at=AT, speaker="Ada"),
        message(2, "assistant", "Noted."),
    ]
    return {"chunk": CHUNK, "messages": messages}


def test_expand_shows_the_chunk_among_its_neighbours(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.answers("memory.expand", surroundings())
    result = ctx("expand", "C1", "-B", "5", "--after", "0")
    assert daemon.called("memory.expand") == [{"chunk_id": "C1", "before": 5, "after": 0}]
    first, second, third = result.out.rstrip().split("\n\n")
    assert first == "── 1 · T1 · you\n  Hm.␛[2J"
    assert second.splitlines()[0].startswith(">> 2 · 2025-11-18 1")
    assert second.splitlines()[0].endswith(" · T2 · Ada")
    assert second.splitlines()[1:] == ["  Before.", "> The build server is called heron-7.", "  After."]
    assert third == "── 2 · T2 · assistant\n  Noted."
    assert ctx("expand", "C1", "--json").json() == surroundings()
    assert daemon.called("memory.expand")[1] == {"chunk_id": "C1"}


def test_expand_marks_all_of_a_message_that_does_not_hold_the_chunk_word_for_word(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.answers("memory.expand", surroundings("one\ntwo"))
    assert "> one\n> two\n" in ctx("expand", "C1").out


def test_expand_of_an_unknown_chunk_is_4(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.refuses("memory.expand", NotFound("no chunk with id 'nope'"))
    result = ctx("expand", "nope")
    assert (result.code, result.out, result.err) == (4, "", "ctx: no chunk with id 'nope'\n")


def test_timeline_is_a_line_for_each_message(ctx: Ctx, daemon: FakeDaemon) -> None:
    ids = {"turn_id": "T1", "turn_seq": 1, "session_id": "S1", "branch_id": "B1", "chunk_id": "C1"}
    entry = {**ids, "role": "user", "speaker": "user", "line": "What\nis it?", "created_at": AT}
    daemon.answers("memory.timeline", {"entries": [entry, {**entry, "speaker": "Ada", "chunk_id": "C22"}]})
    result = ctx("timeline", "--branch", "B1", "--around", "yesterday", "-n", "7")
    (asked,) = daemon.called("memory.timeline")
    assert asked == {"branch_id": "B1", "around": "yesterday", "limit": 7, "tz": "Europe/Berlin"}
    assert [row.split(maxsplit=4)[2:] for row in result.out.splitlines()] == [
        ["C1", "you", "What is it?"],
        ["C22", "Ada", "What is it?"],
    ]
    assert len(ctx("timeline", "--json").json()["entries"]) == 2
    assert daemon.called("memory.timeline")[1] == {"limit": 20, "tz": "Europe/Berlin"}
    daemon.answers("memory.timeline", {"entries": []})
    assert "ctx status" in ctx("timeline").out


def chunk_pages(peer: Any, params: dict[str, Any]) -> dict[str, Any]:
    """2,500 of them, at most as many at once as was asked for."""
    begin = int(params.get("cursor", 0))
    end = min(begin + params.get("limit", 100), 2500)
    page: dict[str, Any] = {"chunks": [{**CHUNK, "id": f"C{n}"} for n in range(begin, end)]}
    return page if end == 2500 else {**page, "next_cursor": str(end)}


@pytest.mark.parametrize(("wanted", "got", "calls"), [(3, 3, 1), (1000, 1000, 1), (1500, 1500, 2), (9999, 2500, 3)])
def test_chunks_are_read_page_by_page_up_to_the_limit(
    ctx: Ctx, daemon: FakeDaemon, wanted: int, got: int, calls: int
) -> None:  # fmt: skip
    daemon.on("memory.chunks", chunk_pages)
    result = ctx("chunks", "-n", str(wanted))
    rows = result.out.splitlines()
    assert [row.split()[0] for row in rows] == [f"C{n}" for n in range(got)]
    assert rows[0].split()[1:3] == ["explanation", "1,234"]
    assert rows[0].endswith("The build server …")
    assert len(daemon.called("memory.chunks")) == calls
    assert ("there are more" in result.err) is (got < 2500)
    machine = ctx("chunks", "-n", str(wanted), "--json").json()
    assert len(machine["chunks"]) == got
    assert ("next_cursor" in machine) is (got < 2500)


def test_chunks_can_be_narrowed(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.answers("memory.chunks", {"chunks": []})
    result = ctx("chunks", "-s", "S1", "--turn", "T1", "--type", "code")
    assert "ctx status" in result.out
    assert daemon.called("memory.chunks") == [{"session_id": "S1", "turn_id": "T1", "chunk_type": "code"}]


# reindex


def test_reindex_says_what_is_made_anew_and_how_to_see_it(ctx: Ctx, daemon: FakeDaemon) -> None:
    made = {"job": "J1", "turns": 1, "passages": 3400}
    daemon.answers("store.reindex", made)
    shown = ctx("reindex").out
    assert "1 turn to index, 3,400 passages to embed" in shown
    assert "ctx status" in shown
    assert ctx("reindex", "--embedder", "openai", "--json").json() == made
    assert daemon.called("store.reindex") == [{}, {"embedder": "openai"}]
    daemon.answers("store.reindex", {"job": "J1", "turns": 0, "passages": 0})
    assert ctx("reindex").out == "Nothing is missing from the index.\n"


# status


@pytest.mark.parametrize(
    ("memory", "rows"),
    [
        ({"unindexed_turns": 0, "passages": 1}, ["memory     by words alone, 1 passage"]),
        (
            {"unindexed_turns": 0, "passages": 1234, "embedder": "local", "target": "local", "index_age_s": 185.0},
            ["memory     local, 1,234 passages, last indexed 3 min ago"],
        ),
        (
            {"unindexed_turns": 0, "passages": 5, "embedder": "local", "target": "none", "degraded": "none is chosen"},
            ["memory     by words alone, 5 passages", "           none is chosen"],
        ),
        (
            {"unindexed_turns": 2, "unembedded": 900, "passages": 1234, "embedder": "local", "target": "openai"},
            [
                "memory     local, soon openai, 1,234 passages",
                "           2 turns waiting to be indexed, 900 passages waiting to be embedded",
            ],
        ),
        (
            {"unindexed_turns": 1, "passages": 0, "degraded": "no key\x1b[2J", "watching": ["/a", "/b c"]},
            [
                "memory     by words alone, 0 passages",
                "           1 turn waiting to be indexed",
                "           no key␛[2J",
                "watching   /a",
                "watching   /b c",
            ],
        ),
    ],
)
def test_status_says_how_the_memory_is(
    ctx: Ctx, daemon: FakeDaemon, tmp_path: Path, memory: dict[str, Any], rows: list[str]
) -> None:
    daemon.answers("daemon.status", status(tmp_path, memory={"unembedded": 0, **memory}))
    shown = ctx("status").out.splitlines()
    begin = shown.index(rows[0])
    assert shown[begin : begin + len(rows)] == rows
    assert shown[begin + len(rows)].startswith("clients")
    told = ctx("status", "--json").json()["memory"]
    assert {key: told[key] for key in memory} == memory
