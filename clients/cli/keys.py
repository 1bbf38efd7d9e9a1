"""Handing the daemon a key that only the client's environment has, when a turn failed for want of it.

The daemon keeps such a key in memory; `auth` is the way to keep one for good.
"""

import os
import sys
from typing import Any

import click

from contextinfinity.clients.api import Client
from contextinfinity.clients.cli.output import note
from contextinfinity.protocol.errors import ErrorObject, ProviderError
from contextinfinity.protocol.methods import CredentialProvide


async def offer(client: Client, error: ErrorObject | None, *, provide: bool) -> bool:
    """Whether a missing key was handed over, so that trying again makes sense."""
    data = _missing(error)
    if data is None:
        return False
    env, provider = str(data["env"]), str(data["provider"])
    key = os.environ.get(env)
    if not key or not (provide or _agreed(env, provider)):
        return False
    await client.call(CredentialProvide(provider=provider, key=key))
    note(f"handed {env} to the daemon, which keeps it until it stops; trying again")
    return True


def _missing(error: ErrorObject | None) -> dict[str, Any] | None:
    if error is None or error.code != ProviderError.code or not error.data:
        return None
    wanted = error.data.get("code") == "missing_key" and "env" in error.data and "provider" in error.data
    return error.data if wanted else None


def _agreed(env: str, provider: str) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        note(f"your environment has {env}; --provide-keys hands it to the daemon")
        return False
    return click.confirm(f"The daemon has no key for {provider}. Hand it your {env}?", default=True, err=True)
