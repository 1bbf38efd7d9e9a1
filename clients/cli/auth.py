"""`ctx auth`: providers' keys in the system's key store, or for a while in the daemon's memory; never in a file of ours."""

import os
import sys
from typing import TYPE_CHECKING

import click

from contextinfinity.clients.api import Client
from contextinfinity.clients.cli.base import Settings, group, settings, under
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.output import columns, dump, line, note
from contextinfinity.clients.errors import DaemonUnreachable
from contextinfinity.protocol.methods import CredentialProvide, ModelList
from contextinfinity.protocol.model import ModelInfo

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

SERVICE = "contextinfinity"
VARIABLES = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}


@group("ctx auth set anthropic", "ctx auth status")
def auth() -> None:
    """Keep providers' keys in the system's key store."""


@under(
    auth,
    "ctx auth set anthropic",
    "pass show openai | ctx auth set openai",
    "ctx auth set openai --session-only",
    name="set",
)
@click.argument("provider")
@click.option("--session-only", is_flag=True, help="Only for the running daemon's memory, until it stops.")
def set_key(provider: str, session_only: bool) -> None:
    """Store the key of PROVIDER, typed unseen or piped in. A daemon that runs gets it at once."""
    shared = settings()
    store = None if session_only else _key_store(provider)
    key = _ask_for_key(provider)
    if store is not None:
        store.set_password(SERVICE, provider, key)
    told = _provide(shared if session_only else shared._replace(autostart=False), provider, key, needed=session_only)
    if shared.json:
        dump({"provider": provider, "stored": store is not None, "daemon": told})
    else:
        where = f"in {store.name}" if store is not None else "until the daemon stops"
        line(f"The key of {provider} is kept {where}{'; the running daemon has it' if told and store else ''}.")


@under(auth, "ctx auth remove anthropic")
@click.argument("provider")
def remove(provider: str) -> None:
    """Remove the key of PROVIDER from the key store."""
    store = _key_store(provider)
    there = store.get_password(SERVICE, provider) is not None
    if there:
        store.delete_password(SERVICE, provider)
    if settings().json:
        dump({"provider": provider, "removed": there})
    else:
        line(f"Removed the key of {provider}." if there else f"There was no key of {provider}.")
    if there:
        note("a daemon that runs keeps its copy until ctx daemon stop")


@under(auth, "ctx auth status", "ctx auth status --json")
def status() -> None:
    """Show which keys are there.

    Looks in the key store, in your environment and in the daemon, and never prints the keys themselves.
    """
    shared = settings()
    models = _models(shared)
    known = {**VARIABLES, **{m.provider: m.api_key_env for m in models or () if m.api_key_env}}
    store = _usable_store()
    rows = []
    for provider, variable in sorted(known.items()):
        held = [m.key_present for m in models or () if m.provider == provider and m.key_present is not None]
        rows.append(
            {
                "provider": provider,
                "variable": variable,
                "key_store": store is not None and store.get_password(SERVICE, provider) is not None,
                "environment": bool(os.environ.get(variable)),
                "daemon": any(held) if held else None,
            }
        )
    if shared.json:
        dump({"key_store": store.name if store else None, "providers": rows})
        return
    line(f"key store: {store.name if store else 'none that can be used'}")
    words = {True: "yes", False: "no", None: "unknown"}
    table = [
        (str(r["provider"]), words[r["key_store"]], words[r["environment"]], words[r["daemon"]], str(r["variable"]))  # type: ignore[index]  # rows are JSON-like on purpose
        for r in rows
    ]
    columns(table, ("PROVIDER", "KEY STORE", "ENVIRONMENT", "DAEMON", "VARIABLE"))


def _ask_for_key(provider: str) -> str:
    if sys.stdin.isatty():
        key = str(click.prompt(f"Key of {provider}", hide_input=True, err=True))
    else:
        key = sys.stdin.buffer.readline().decode()
    key = key.strip()
    if not key or not key.isprintable() or " " in key:
        raise click.UsageError("that is no key: it must be one line without blanks")
    return key


def _provide(shared: Settings, provider: str, key: str, *, needed: bool) -> bool:
    async def work(client: Client) -> bool:
        await client.call(CredentialProvide(provider=provider, key=key))
        return True

    try:
        return run(shared, work)
    except DaemonUnreachable:
        if needed:
            raise
        return False


def _models(shared: Settings) -> tuple[ModelInfo, ...] | None:
    async def work(client: Client) -> tuple[ModelInfo, ...]:
        return (await client.call(ModelList())).models

    try:
        return run(shared._replace(autostart=False), work)
    except DaemonUnreachable:
        return None


def _key_store(provider: str) -> "KeyringBackend":
    store = _usable_store()
    if store is None:
        variable = VARIABLES.get(provider, f"{provider.upper()}_API_KEY")
        raise click.ClickException(
            f"this system has no key store that can be used; set {variable} in the daemon's environment, "
            f"or hand the key to the running daemon: ctx auth set {provider} --session-only"
        )
    return store


def _usable_store() -> "KeyringBackend | None":
    import keyring  # a quarter of a second, and only needed here
    from keyring.errors import KeyringError

    store = keyring.get_keyring()
    try:
        usable = store.priority > 0
        if usable:
            store.get_password(SERVICE, "probe")
    except (KeyringError, RuntimeError, OSError):
        return None
    return store if usable else None
