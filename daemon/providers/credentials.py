"""Where API keys come from: handed over by a client, the environment, a systemd credential, or the system's key store.

Keys live in memory only; nothing here logs, stores or prints one.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import trio

log = logging.getLogger(__name__)

SERVICE = "contextinfinity"
KEYRING_DEADLINE = 5.0


class Credentials:
    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._provided: dict[str, str] = {}
        self._keyring_hangs = False

    def provide(self, provider: str, key: str) -> None:
        """Keep a key for as long as the daemon runs."""
        self._provided[provider] = key

    def at_hand(self, provider: str, variable: str | None) -> str | None:
        """A key that is known without asking the key store."""
        if provider in self._provided:
            return self._provided[provider]
        if variable is None:
            return None
        return self._environ.get(variable) or self._from_systemd(variable)

    async def find(self, provider: str, variable: str | None) -> str | None:
        key = self.at_hand(provider, variable)
        if key is not None or variable is None or self._keyring_hangs:
            return key
        limiter = trio.CapacityLimiter(1)  # its own, because a key store that hangs keeps its thread
        with trio.move_on_after(KEYRING_DEADLINE):
            return await trio.to_thread.run_sync(_from_keyring, provider, abandon_on_cancel=True, limiter=limiter)
        self._keyring_hangs = True
        log.warning("the system's key store does not answer and is not asked again until the daemon restarts")
        return None

    def _from_systemd(self, variable: str) -> str | None:
        folder = self._environ.get("CREDENTIALS_DIRECTORY")
        if not folder:
            return None
        try:
            return (Path(folder) / variable).read_text(encoding="utf-8").strip() or None
        except OSError:
            return None


def _from_keyring(provider: str) -> str | None:
    import keyring
    from keyring.errors import KeyringError

    try:
        return keyring.get_password(SERVICE, provider)
    except (KeyringError, RuntimeError, OSError):
        return None
