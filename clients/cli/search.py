"""`ctx search`: what was said, found by words and by meaning, with the id that `ctx expand` takes."""

import re
import sys
from collections.abc import Callable
from typing import get_args

import click

from contextinfinity.clients.api import Client
from contextinfinity.clients.cli import stdin
from contextinfinity.clients.cli.base import command, settings
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.output import clean, dump, in_colour, line, note, one_line, style, when, who
from contextinfinity.clients.cli.scope import Where, scoped
from contextinfinity.clients.cli.screen import short
from contextinfinity.clients.cli.zone import local_zone
from contextinfinity.protocol.methods import MemoryFound, MemorySearch
from contextinfinity.protocol.model import ChunkType, MemoryHit, SearchStats

TYPES = get_args(ChunkType)
MODES = ("hybrid", "vector", "text")
TITLE = 60
_WORD = re.compile(r"\w+")
_ENDING = re.compile(r"(?:ing|ed|es|s|e|y)$")
_COMMON = frozenset(
    _WORD.findall(
        "a about all an and any are as at be been but by can did do does for from had has have he her his how i if in is it "
        "its me my no not of on or our she so that the their them then there they this to us was we were what when where which "
        "who why will with would you your"
    )
)


@command(
    "ctx search 'build server'",
    "ctx search --here --since '3 days ago' 'what did we decide about the cache?'",
    "ctx search --type decision --type code -k 20 migrations",
    "ctx search --why heron",
    "ctx search --json heron | jq -r '.results[].chunk_id'",
)
@click.argument("query", nargs=-1, required=True)
@click.option("--top", "-k", type=click.IntRange(1, 1000), default=6, show_default=True, metavar="N", help="At most so many.")
@scoped
@click.option("--since", metavar="WHEN", help="Nothing older: 2026-03-01, 'last Tuesday', '3 days ago'.")
@click.option("--until", metavar="WHEN", help="Nothing newer; a day counts whole.")
@click.option("--type", "-t", "types", type=click.Choice(TYPES), multiple=True, help="Only this; may be repeated.")
@click.option("--mode", type=click.Choice(MODES), default="hybrid", show_default=True, help="By meaning, by words, or both.")
@click.option("--diverse", is_flag=True, help="Rather different things than much of the same.")
@click.option("--why", is_flag=True, help="Say what brought each result up.")
def search(
    query: tuple[str, ...],
    top: int,
    where: Where,
    since: str | None,
    until: str | None,
    types: tuple[ChunkType, ...],
    mode: str,
    diverse: bool,
    why: bool,
) -> None:
    """Find what was said, best first: everywhere, or in one session, branch, or this conversation (--here).

    Any text is a valid QUERY, a question as well; - reads it from standard input. ctx expand shows what stood around a
    result.
    """
    text = (stdin.read_all() if query == ("-",) else " ".join(query)).strip()
    if not text:
        raise click.UsageError("nothing to search for: give some words")
    text.encode()  # undecodable arguments fail here, before anything is started
    shared = settings()

    async def work(client: Client) -> MemoryFound:
        scope = await where.scope(client)
        return await client.call(
            MemorySearch(
                query=text,
                session_id=scope.session_id,
                branch_id=scope.branch_id,
                top_k=top,
                mode=mode,  # type: ignore[arg-type]  # click has checked it
                chunk_types=types or None,
                since=since,
                until=until,
                tz=local_zone(),
                diverse=diverse,
            )
        )

    found = run(shared, work)
    if shared.json:
        dump(found)
        return
    if found.stats.degraded:
        _tell_of_less(found.stats)
    if not found.results:
        line("Nothing was found.")
        filtered = bool(since or until or types) or not where.everywhere
        note(
            "without the filters more is looked at"
            if filtered
            else "other words may help; ctx status shows what is not indexed yet"
        )
        return
    mark = _marker(text)
    for number, hit in enumerate(found.results, 1):
        _print(number, hit, mark, why=why)
    if why:
        line(style(_summary(found.stats), "2"))


def _tell_of_less(stats: SearchStats) -> None:
    by_words = "searched by words alone: " if stats.mode == "text" else ""
    note(one_line(f"{by_words}{stats.degraded}"))


def _print(number: int, hit: MemoryHit, mark: Callable[[str], str], *, why: bool) -> None:
    where = one_line(hit.session_title, TITLE) if hit.session_title else short(hit.session_id)
    head = f"{number}. {when(hit.created_at)} · {who(hit.role, hit.speaker)} · {where} · {hit.chunk_type}"
    line(style(head, "1"))
    for row in clean(hit.passage.strip("\n")).split("\n"):
        line(f"   {mark(row)}".rstrip())
    if why:
        line(f"   {style('why', '2')} {one_line(hit.why)}")
        line(f"   {style('by ', '2')} {_scores(hit)}")
    line(f"   {style(f'ctx expand {clean(hit.chunk_id)}', '2')}")
    line()


def _scores(hit: MemoryHit) -> str:
    words = f"words: {_rank(hit.rank_text)}, score {hit.score_text:.3f}"
    if hit.score_vector is None:
        return f"score {hit.score:.3f}; {words}"
    similarity = "" if hit.similarity is None else f", similarity {hit.similarity:.3f}"
    return f"score {hit.score:.3f}; {words}; meaning: {_rank(hit.rank_vector)}, score {hit.score_vector:.3f}{similarity}"


def _rank(rank: int | None) -> str:
    return "no rank" if rank is None else f"rank {rank}"


def _summary(stats: SearchStats) -> str:
    by = f", by {clean(stats.embedder)}" if stats.embedder else ""
    return f"{stats.searched:,} messages looked at, {stats.candidates:,} answer; {stats.mode}{by}, {stats.took_ms:.0f} ms"


def _marker(query: str) -> Callable[[str], str]:
    """Makes the words of the query stand out in a line, and forms of them that end a little differently."""
    pattern = _words_of(query) if in_colour(sys.stdout) else None
    if pattern is None:
        return lambda row: row
    return lambda row: pattern.sub(lambda found: style(found[0], "1;33"), row)


def _words_of(query: str) -> re.Pattern[str] | None:
    words = dict.fromkeys(word for word in _WORD.findall(query.lower()) if word not in _COMMON)
    forms = [_form(word) for word in sorted(words, key=len, reverse=True)]
    return re.compile("|".join(forms), re.IGNORECASE) if forms else None


def _form(word: str) -> str:
    if not word.isascii():
        return re.escape(word)  # perhaps of a script that puts no blanks between words
    stem = _ENDING.sub("", word)
    return rf"\b{stem}\w{{0,4}}\b" if len(stem) > 3 else rf"\b{word}\b"
