"""What a running daemon says about itself, gathered for `ctx doctor` and judged; `checkup` looks at everything else."""

import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from platform import python_version

import msgspec

from contextinfinity.clients.api import Client, connect
from contextinfinity.clients.cli import auth
from contextinfinity.clients.cli.checkup import Finding, is_small, restore_hint
from contextinfinity.clients.cli.connection import own_version
from contextinfinity.clients.cli.embedder import DEFAULT_MODEL
from contextinfinity.clients.cli.output import counted
from contextinfinity.clients.cli.progress import waiting as working
from contextinfinity.clients.cli.redaction import is_variable
from contextinfinity.clients.cli.status import duration
from contextinfinity.clients.endpoint import Endpoint
from contextinfinity.clients.errors import BadAnswer, ClientError, DaemonSilent, NobodyListens
from contextinfinity.protocol.errors import Fault
from contextinfinity.protocol.methods import DaemonPing, DaemonStatus, EmbedderList, ModelList, StoreVerify
from contextinfinity.protocol.model import EmbedderInfo, MemoryStatus, ModelInfo, Pong, Status, VerifyReport

CONNECT_TIMEOUT, CALL_TIMEOUT = 3.0, 10.0
PROBLEMS_SHOWN = 3


class Vitals(msgspec.Struct):
    """What the daemon answered; `trouble` are the sentences it gave instead of an answer."""

    pong: Pong | None = None
    status: Status | None = None
    models: tuple[ModelInfo, ...] | None = None
    embedders: tuple[EmbedderInfo, ...] | None = None
    verified: VerifyReport | None = None
    silent: bool = False
    trouble: list[str] = []


async def take(endpoint: Endpoint) -> Vitals:
    """Ask whoever listens; nobody is started, and no answer is no error."""
    found = Vitals()
    try:
        async with connect(endpoint.unix, connect_timeout=CONNECT_TIMEOUT, call_timeout=CALL_TIMEOUT) as client:
            found.pong = await client.call(DaemonPing())
            await _ask(client, endpoint, found)
    except DaemonSilent as error:
        found.silent = True
        found.trouble.append(str(error))
    except NobodyListens:
        pass
    except (ClientError, Fault) as error:
        found.trouble.append(str(error))
    return found


async def _ask(client: Client, endpoint: Endpoint, found: Vitals) -> None:
    try:
        found.status = await client.call(DaemonStatus())
    except (Fault, BadAnswer) as error:
        found.trouble.append(str(error))
    try:
        found.models = (await client.call(ModelList())).models
    except (Fault, BadAnswer) as error:
        found.trouble.append(str(error))
    try:
        found.embedders = (await client.call(EmbedderList())).embedders
    except (Fault, BadAnswer) as error:
        found.trouble.append(str(error))
    if is_small(endpoint.home):
        async with working("verifying the database"):
            try:
                found.verified = await client.call(StoreVerify(), timeout=None)
            except (Fault, BadAnswer) as error:
                found.trouble.append(str(error))


def judge(vitals: Vitals, endpoint: Endpoint) -> Iterator[Finding]:
    yield from daemon(vitals, endpoint)
    yield from versions(vitals)
    if vitals.status is not None:
        yield from health(vitals.status)
        if vitals.status.memory is not None:
            yield from memory(vitals.status.memory, vitals.embedders or ())
    if vitals.verified is not None:
        yield from integrity(vitals.verified, endpoint)
    if vitals.models is not None:
        yield from default_model(vitals.models)
    yield key_store(vitals.models)


def daemon(vitals: Vitals, endpoint: Endpoint) -> Iterator[Finding]:
    status = vitals.status
    if vitals.silent:
        fix = "ctx daemon logs may say why; end it with kill, by the pid under lock, and start again"
        yield Finding("daemon", "problem", vitals.trouble[0], fix)
        return
    if vitals.pong is None and not vitals.trouble:
        yield Finding("daemon", "ok", "none runs; the next command starts one")
    for message in vitals.trouble:
        yield Finding("daemon", "problem", message, "ctx daemon logs shows more; ctx verify shows how far damage goes")
    if status is None:
        return
    if os.path.realpath(status.home) != os.path.realpath(endpoint.home):
        message = f"the daemon at {endpoint.unix} serves {status.home}, not {endpoint.home}"
        yield Finding("daemon", "warning", message, "choose both with --home and --socket, or only the home")
    modes = [
        word for word, on in (("starting", not status.ready), ("read-only", status.read_only), ("locked", status.locked)) if on
    ]
    if modes:
        fix = (
            "until that is over nothing can be said; a read-only daemon was started so: ctx daemon stop, then start it without"
        )
        yield Finding("daemon", "warning", f"pid {status.pid} is {', '.join(modes)}", fix)
    else:
        yield Finding("daemon", "ok", f"runs as pid {status.pid} for {duration(status.uptime_s)}")


def versions(vitals: Vitals) -> Iterator[Finding]:
    mine = own_version()
    if vitals.pong is None:
        yield Finding("version", "ok", f"ctx {mine}, Python {python_version()}")
    elif vitals.pong.version != mine:
        message = f"ctx is {mine}, the daemon {vitals.pong.version}"
        yield Finding("version", "warning", message, "ctx daemon stop, when it is idle; the next command starts the new one")
    else:
        yield Finding("version", "ok", f"ctx and the daemon are {mine}, Python {python_version()}")


def installed(package: str) -> str | None:
    """The version of a library beside this client; the daemon that runs may have been started from elsewhere."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def health(status: Status) -> Iterator[Finding]:
    for warning in status.warnings:
        yield Finding("warning", "warning", warning, "ctx status repeats it; a setting is changed in config.toml")
    troubled = 0
    for actor in status.actors:
        if actor.state == "running" and not actor.restarts:
            continue
        troubled += 1
        again = f", restarted {actor.restarts} times" if actor.restarts else ""
        message = f"{actor.name} is {actor.state}{again}, {actor.mailbox} messages wait"
        if actor.state in ("parked", "stopped"):
            yield Finding("actors", "problem", message, "ctx daemon logs shows why; ctx daemon stop lets it begin anew")
        else:
            yield Finding("actors", "warning", message, "ctx daemon logs shows why")
    if not troubled:
        yield Finding("actors", "ok", f"all {len(status.actors)} run, none was restarted")
    jobs = status.jobs
    counts = f"{jobs.pending} pending, {jobs.running} running, {jobs.failed} parked"
    if jobs.failed:
        yield Finding(
            "jobs", "problem", counts, "ctx daemon logs shows why they failed; ctx verify, whether anything is missing"
        )
    else:
        yield Finding("jobs", "ok", counts)


def memory(status: MemoryStatus, embedders: tuple[EmbedderInfo, ...]) -> Iterator[Finding]:
    """Search works without an embedder as well, so nothing here is worse than a warning."""
    chosen = next((e for e in embedders if e.chosen), None)
    if chosen is not None and chosen.installed is False:
        message = f"{chosen.model} is not installed, so search goes by words alone"
        usual = "" if chosen.model == DEFAULT_MODEL else f" {chosen.model}"
        yield Finding("embedder", "warning", message, f"ctx embedder install{usual}")
    elif status.degraded is not None:
        fix = "ctx embedder list shows what is there, ctx daemon logs what went wrong"
        yield Finding("memory", "warning", status.degraded, fix)
    elif chosen is not None:
        yield Finding("embedder", "ok", f"{chosen.name} ({chosen.model})")
    elif embedders:
        yield Finding("embedder", "ok", "none is chosen: search goes by words alone")
    waiting = f"{counted(status.unindexed_turns, 'turn')} to be indexed, {counted(status.unembedded, 'passage')} to be embedded"
    if status.degraded is None:
        yield Finding("memory", "ok", f"{counted(status.passages, 'passage')}; {waiting}")


def integrity(report: VerifyReport, endpoint: Endpoint) -> Iterator[Finding]:
    if report.ok:
        turns, links = report.checked.get("turns", 0), report.checked.get("links", 0)
        yield Finding("integrity", "ok", f"every hash holds: {turns:,} turns, {links:,} links")
        return
    shown = "; ".join(dict.fromkeys(report.problems[:PROBLEMS_SHOWN]))
    rest = len(report.problems) - PROBLEMS_SHOWN
    more = f"; and {rest} more, see ctx verify" if rest > 0 else ""
    yield Finding("integrity", "problem", f"{shown}{more}", restore_hint(endpoint.home))


def default_model(models: tuple[ModelInfo, ...]) -> Iterator[Finding]:
    for model in models:
        if not model.default:
            continue
        if model.key_present is False and model.api_key_env is not None:
            variable = model.api_key_env if is_variable(model.api_key_env) else "the variable that api_key_env names"
            fix = f"ctx auth set {model.provider}, or start the daemon with {variable} in its environment"
            yield Finding("model", "problem", f"{model.name}, the default, has no key", fix)
        elif model.provider == "recall":
            yield Finding("model", "ok", f"{model.name}: quotes what was said, needs no key")
        else:
            yield Finding("model", "ok", f"{model.name}, the default, {'has its key' if model.api_key_env else 'needs no key'}")


def key_store(models: tuple[ModelInfo, ...] | None) -> Finding:
    store = auth._usable_store()
    if store is not None:
        return Finding("key store", "ok", store.name)
    if any(model.default and model.key_present is False for model in models or ()):
        fix = "put the key in the daemon's environment, or hand it over for now: ctx auth set PROVIDER --session-only"
        return Finding("key store", "warning", "this system has none that can be used", fix)
    return Finding("key store", "ok", "none that can be used, and none is needed")
