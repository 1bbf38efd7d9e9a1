"""`ctx verify`: proof that nothing that was said is lost or changed, and links to write down for later proofs."""

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from contextinfinity.clients.api import Client
from contextinfinity.clients.cli import dbfile
from contextinfinity.clients.cli.base import command, settings
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.failures import FAILURE
from contextinfinity.clients.cli.output import clean, dump, line, note, style
from contextinfinity.clients.cli.progress import waiting
from contextinfinity.clients.errors import DaemonSilent, DaemonUnreachable
from contextinfinity.protocol.methods import StoreVerify
from contextinfinity.protocol.model import VerifyReport

Anchors = dict[str, str]
HINT = "ctx doctor names the newest backup; ctx restore FILE puts it back and keeps what is there now"
_LINK = re.compile(r"[0-9a-f]{64}")
_LAST_WORDS = re.compile(r"(?:ERROR|CRITICAL) \S+: ([^|]*\bis damaged\b.*?)(?: \| |$)")


@command(
    "ctx verify",
    "ctx verify --anchor > ~/elsewhere/links",
    "ctx verify --against ~/elsewhere/links",
    "ctx verify --against /mnt/usb/monday.db --json",
)
@click.option("--anchor", is_flag=True, help="Print the head link of every branch, to be written down elsewhere.")
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also demand every link in FILE: what --anchor printed, the same in JSON, or a backup.",
)
def verify(anchor: bool, against: Path | None) -> int:
    """Re-derive every hash and check every promise that the store makes. Exits with 0 if all holds, with 1 if not.

    The links of a conversation form a chain, so damage and changes show by themselves. That the newest turns are missing
    shows only against a link that was written down elsewhere: by --anchor, or in a backup.
    """
    rounds = read_anchors(against) if against else [{}]
    shared = settings()

    async def work(client: Client) -> VerifyReport:
        async with waiting("verifying"):
            reports = [await client.call(StoreVerify(anchor=wanted or None), timeout=None) for wanted in rounds]
        return _joined(reports)

    try:
        report = run(shared, work)
    except DaemonSilent:
        raise
    except DaemonUnreachable as error:
        report = _unstartable(error)
    if shared.json:
        dump(report)
    else:
        _print(report, against, sum(map(len, rounds)), links=anchor)
    return 0 if report.ok else FAILURE


def _joined(reports: list[VerifyReport]) -> VerifyReport:
    """A file may hold several links of a branch, a call only one: what any of the calls found counts."""
    problems = tuple(dict.fromkeys(p for r in reports[1:] for p in r.problems if p not in reports[0].problems))
    first = reports[0]
    return VerifyReport(
        ok=all(r.ok for r in reports), checked=first.checked, problems=first.problems + problems, anchors=reports[-1].anchors
    )


def _unstartable(error: DaemonUnreachable) -> VerifyReport:
    """A daemon that cannot start because of damage has answered the question; any other failure is raised."""
    found = _LAST_WORDS.search(str(error))
    if found is None:
        raise error
    problem = f"the daemon cannot start: {found[1].strip()}"
    return VerifyReport(ok=False, checked={}, problems=(problem,), anchors={})


def _print(report: VerifyReport, against: Path | None, demanded: int, *, links: bool) -> None:
    say = note if links else line
    if links:
        for branch, link in sorted(report.anchors.items()):
            line(f"{branch} {link}")
    if report.checked:
        say(f"Checked: {', '.join(f'{name} {count:,}' for name, count in report.checked.items())}.")
    if report.ok:
        kept = f" Every link in {clean(str(against))} is still in its chain ({demanded:,})." if against else ""
        say(f"No problems.{kept}")
        return
    count = len(report.problems)
    say(style(f"{count} problem{'s' if count != 1 else ''}:", "31", sys.stderr if links else sys.stdout))
    for problem, times in Counter(report.problems).items():
        say(f"  {clean(problem)}{f' ({times} times)' if times > 1 else ''}")
    say(HINT)


def read_anchors(path: Path) -> list[Anchors]:
    """The links in a file, each branch at most once in every mapping; `UsageError` says what is wrong with it."""
    pairs = _pairs(path)
    if not pairs:
        raise click.UsageError(f"{path} holds no links; ctx verify --anchor prints some")
    rounds: list[Anchors] = []
    for branch, link in dict.fromkeys(pairs):
        place = next((r for r in rounds if branch not in r), None)
        if place is None:
            rounds.append(place := {})
        place[branch] = link
    return rounds


def _pairs(path: Path) -> list[tuple[str, str]]:
    if dbfile.is_database(path):
        kept = dbfile.recorded(path)
        if kept is None:
            raise click.UsageError(f"{path} is a database, but no backup that recorded its links")
        return _checked(kept.anchors, path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise click.UsageError(f"{path} is neither text nor a backup") from None
    if text.lstrip().startswith("{"):
        return _checked(_object(text, path), path)
    pairs = []
    for number, row in enumerate(text.splitlines(), 1):
        words = row.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not _LINK.fullmatch(words[1].lower()):
            raise click.UsageError(f"{path}, line {number}: not a branch and its link of 64 hexadecimal digits")
        pairs.append((words[0], words[1].lower()))
    return pairs


def _object(text: str, path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{path} is not JSON: {error}") from None
    anchors = document.get("anchors", document)
    return anchors if isinstance(anchors, dict) else {"anchors": anchors}


def _checked(anchors: Mapping[str, Any], path: Path) -> list[tuple[str, str]]:
    for branch, link in anchors.items():
        if not isinstance(link, str) or not _LINK.fullmatch(link.lower()):
            raise click.UsageError(f"{path}: {branch!r} does not have a link of 64 hexadecimal digits")
    return [(branch, link.lower()) for branch, link in anchors.items()]
