"""`python -m bench.recall --data FILE … [--long]`: how often a question finds its message, beside plain full-text search.

A data file is a list of {id, messages, questions}, a question names its evidence by external ids; each conversation is
imported into a real daemon and searched within its session. `--long` adds the sets that `long_messages` makes.
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from bench import long_messages
from bench.fulltext import FullText
from bench.process import daemon
from bench.table import load, machine
from bench.wire import Wire, connect
from contextinfinity.daemon.embedders import models

MOST = 10
SEED = 7
FIELDS = ("role", "text", "created_at", "external_id", "speaker")
CONFIGS = {"no model": "none", "model": "local"}
BARE = "FTS5"
POLL_S = 0.1

Conversation = Mapping[str, Any]


@dataclass
class Score:
    """Of a kind of question in one system: the reciprocal of the first rank of evidence, 0 for none among the first ten."""

    found: list[float] = field(default_factory=list)

    @property
    def any10(self) -> float:
        return 100 * sum(rank > 0 for rank in self.found) / len(self.found)

    @property
    def mrr(self) -> float:
        return sum(self.found) / len(self.found)

    def __str__(self) -> str:
        return f"{self.any10:.1f} / {self.mrr:.3f}"


@dataclass(frozen=True)
class DataSet:
    name: str
    conversations: Sequence[Conversation]


class Scores:
    """By data set, kind of question and system."""

    def __init__(self) -> None:
        self.all: dict[tuple[str, str, str], Score] = {}
        self.seconds: dict[tuple[str, str], list[float]] = {}

    def add(self, name: str, kind: str, system: str, found: Sequence[str], evidence: Sequence[str]) -> int:
        rank = next((i for i, one in enumerate(found, 1) if one in evidence), 0)
        for which in (kind, ""):
            self.all.setdefault((name, which, system), Score()).found.append(1 / rank if rank else 0.0)
        return rank

    def holds(self, name: str, system: str) -> bool:
        """Whether plain full-text search is better in neither figure."""
        ours, bare = self.all[name, "", system], self.all[name, "", BARE]
        return ours.any10 >= bare.any10 and ours.mrr >= bare.mrr

    def kinds(self, name: str) -> list[str]:
        """Without the sum of all, which is the empty one."""
        return sorted({kind for known, kind, _ in self.all if known == name and kind})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.recall", description=__doc__.split("\n")[0])
    parser.add_argument("--data", action="append", type=Path, default=[], metavar="FILE", help="conversations with questions")
    parser.add_argument("--questions", type=int, metavar="N", help="so many of each conversation, drawn at random")
    parser.add_argument("--long", action="store_true", help="also the sets with long messages; a --data file also diluted")
    parser.add_argument("--without-model", action="store_true", help="only words: no embedder")
    parser.add_argument("--ranks", type=Path, metavar="FILE", help="write each question's ranks as JSON lines")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a whole set is below plain full-text search")
    options = parser.parse_args()
    sets = [DataSet(path.stem, json.loads(path.read_text())) for path in options.data]
    if options.long:
        diluted = [DataSet(f"{one.name}, diluted", long_messages.dilute(one.conversations)) for one in sets]
        sets += [DataSet("long messages", long_messages.conversations()), *diluted]
    if not sets:
        parser.error("nothing to measure: give --data or --long")
    begin, loads = time.monotonic(), [load()]
    scores, ranks = Scores(), open(options.ranks or os.devnull, "w")  # noqa: SIM115
    systems = [name for name, embedder in CONFIGS.items() if embedder == "none" or not options.without_model]
    with ranks:
        for one in sets:
            asked = _asked(one, options.questions)
            _bare(one, asked, scores, ranks.write)
            for system in systems:
                print(f"{one.name}, {system}: {len(asked)} questions …", file=sys.stderr)
                _ours(one, asked, system, scores, ranks.write)
    loads.append(load())
    if options.json:
        print(json.dumps(_document(scores), indent=2))
    else:
        print(_table(scores, sets, [BARE, *systems]))
        print(f"\n{machine()}; load {loads[0]} before, {loads[1]} after; {time.monotonic() - begin:.0f} s")
    short = [f"{one.name}, {system}" for one in sets for system in systems if not scores.holds(one.name, system)]
    for name in short:
        print(f"SHORT of plain full-text search: {name}", file=sys.stderr)
    return int(options.strict and bool(short))


def _asked(one: DataSet, most: int | None) -> list[tuple[int, Mapping[str, Any]]]:
    """The questions, each with the number of its conversation."""
    found = []
    for number, conversation in enumerate(one.conversations):
        questions = conversation["questions"]
        if most is not None:
            questions = random.Random(SEED).sample(questions, min(most, len(questions)))
        found += [(number, question) for question in questions]
    return found


Note = Callable[[str], Any]


def _note(note: Note, name: str, system: str, number: int, question: Mapping[str, Any], rank: int) -> None:
    note(json.dumps({"set": name, "system": system, "conversation": number, **question, "rank": rank}) + "\n")


def _bare(one: DataSet, asked: Sequence[tuple[int, Mapping[str, Any]]], scores: Scores, note: Note) -> None:
    indexes = [FullText(conversation["messages"]) for conversation in one.conversations]
    for number, question in asked:
        found = indexes[number].search(question["question"], MOST)
        rank = scores.add(one.name, str(question["category"]), BARE, found, question["evidence"])
        _note(note, one.name, BARE, number, question, rank)


def _ours(one: DataSet, asked: Sequence[tuple[int, Mapping[str, Any]]], system: str, scores: Scores, note: Note) -> None:
    config = f'[retrieval]\nembedder = "{CONFIGS[system]}"\n'
    with daemon(config, {"CTX_MODELS": str(models.folder(os.environ))}) as running:
        trio.run(_search, running.socket, one, asked, system, scores, note)


async def _search(
    path: Path, one: DataSet, asked: Sequence[tuple[int, Mapping[str, Any]]], system: str, scores: Scores, note: Note
) -> None:
    async with connect(path) as wire:
        sessions = [await _import(wire, conversation) for conversation in one.conversations]
        state = await _quiet(wire)
        if CONFIGS[system] != "none" and state["memory"].get("degraded"):
            raise RuntimeError(f"there is no embedder to measure: {state['memory']['degraded']}")
        seconds = scores.seconds.setdefault((one.name, system), [])
        for number, question in asked:
            request = wire.request("memory.search", query=question["question"], session_id=sessions[number], top_k=MOST)
            begin = time.perf_counter()
            answer = await wire.exchange(request)
            seconds.append(time.perf_counter() - begin)
            found = [hit["external_ids"][0] for hit in json.loads(answer)["result"]["results"] if hit["external_ids"]]
            rank = scores.add(one.name, str(question["category"]), system, found, question["evidence"])
            _note(note, one.name, system, number, question, rank)


async def _import(wire: Wire, conversation: Conversation) -> str:
    messages = [{name: m[name] for name in FIELDS if name in m} for m in conversation["messages"]]
    made = await wire.call("transcript.import", format="jsonl", title=conversation["id"], messages=messages)
    assert made["messages"] == len(messages), made
    return str(made["session_id"])


async def _quiet(wire: Wire) -> dict[str, Any]:
    """Wait until everything is indexed and embedded."""
    while True:
        state: dict[str, Any] = await wire.call("daemon.status")
        if not state["jobs"]["pending"] and not state["jobs"]["running"]:
            return state
        await trio.sleep(POLL_S)


def _table(scores: Scores, sets: Sequence[DataSet], systems: Sequence[str]) -> str:
    lines = [
        "any@10 / MRR | questions | " + " | ".join(systems) + " | search p50, p95",
        "--- | ---: | " + " | ".join("---:" for _ in systems) + " | ---:",
    ]
    for one in sets:
        for kind in ("", *scores.kinds(one.name)):
            found = [scores.all[one.name, kind, system] for system in systems]
            cells = [kind or f"**{one.name}**", str(len(found[0].found)), *map(str, found)]
            lines.append(" | ".join([*cells, _times(scores, one.name, systems) if not kind else ""]))
    return "\n".join(f"| {line} |" for line in lines)


def _times(scores: Scores, name: str, systems: Sequence[str]) -> str:
    shown = []
    for system in systems:
        taken = sorted(scores.seconds.get((name, system), []))
        if taken:
            shown.append(f"{taken[len(taken) // 2] * 1e3:.1f}, {taken[int(len(taken) * 0.95)] * 1e3:.1f} ms")
    return "; ".join(shown)


def _document(scores: Scores) -> list[dict[str, Any]]:
    return [
        {"set": name, "kind": kind or None, "system": system, "questions": len(s.found), "any@10": s.any10, "mrr": s.mrr}
        for (name, kind, system), s in scores.all.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
