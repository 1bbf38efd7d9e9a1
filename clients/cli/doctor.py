"""`ctx doctor`: looks at everything that can go wrong around the daemon and prints the fix; runs without one too."""

import os
import shlex
from pathlib import Path
from typing import Any

import anyio
import click

from contextinfinity.clients.cli import checkup, support, vitals
from contextinfinity.clients.cli.base import command, settings
from contextinfinity.clients.cli.checkup import Finding
from contextinfinity.clients.cli.connection import own_version
from contextinfinity.clients.cli.failures import FAILURE
from contextinfinity.clients.cli.output import clean, dump, line, one_line, style
from contextinfinity.clients.cli.status import size
from contextinfinity.clients.endpoint import find

COLOURS = {"ok": "32", "warning": "33", "problem": "31"}


@command("ctx doctor", "ctx doctor --json | jq '.checks[] | select(.level != \"ok\")'", "ctx doctor --bundle support.tar.gz")
@click.option("--bundle", type=click.Path(path_type=Path), metavar="FILE", help="Also write a .tar.gz to send to somebody.")
def doctor(bundle: Path | None) -> int:
    """Check home, socket, lock, versions, disk, database, backups, configuration and keys, and print what to do.

    Needs no daemon and starts none; with one, its database is verified as well. Exits with 1 if there is a problem;
    warnings alone are 0. The support file holds settings, states and the log, without secrets or anything that was said.
    """
    shared = settings()
    if bundle is not None and os.path.lexists(bundle):
        raise click.UsageError(f"{bundle} exists already; choose another name")
    endpoint = find(shared.home, shared.socket)
    signs = anyio.run(vitals.take, endpoint)
    running = signs.pong is not None
    findings = [*checkup.examine(endpoint, running=running), *vitals.judge(signs, endpoint)]
    problems = sum(finding.level == "problem" for finding in findings)
    members = support.gather(endpoint.home, findings, signs) if bundle is not None else []
    if bundle is not None:
        support.write(bundle, members)
    if shared.json:
        report: dict[str, Any] = {"ok": not problems, "version": own_version(), "home": str(endpoint.home), "checks": findings}
        if bundle is not None:
            files = [{"name": member.name, "about": member.about, "bytes": len(member.content)} for member in members]
            report["bundle"] = {"path": str(bundle.absolute()), "files": files}
        dump(report)
    else:
        _print(findings)
        if bundle is not None:
            _print_bundle(bundle, members)
    return FAILURE if problems else 0


def _print(findings: list[Finding]) -> None:
    for finding in findings:
        label = style(f"{finding.level:<8}", COLOURS[finding.level])
        line(f"{label} {finding.check:<11} {one_line(finding.message)}")
        if finding.fix:
            line(f"{'':<20} {style('fix:', '1')} {one_line(finding.fix)}")
    counts = {level: sum(f.level == level for f in findings) for level in ("problem", "warning")}
    said = [f"{n} {level}{'s' if n != 1 else ''}" for level, n in counts.items() if n]
    line(f"{', '.join(said)}." if said else "All is well.")


def _print_bundle(path: Path, members: list[support.Member]) -> None:
    line(f"\nWrote {clean(str(path.absolute()))}, {size(path.stat().st_size)}. It holds:")
    width = max(len(member.name) for member in members)
    for member in members:
        line(f"  {member.name:<{width}}  {member.about} ({size(len(member.content))})")
    line("No conversations, titles, keys or tokens. Look through it before you send it:")
    line(f"  tar -xzOf {clean(shlex.quote(str(path)))} | less")
