"""An embedder by its configuration, each kind imported when it is first asked for.

The composition root makes one of these; `ctx embedder list` shows what `describe` says of all.
"""

from collections.abc import Mapping
from typing import NamedTuple

from contextinfinity.daemon.config import EmbedderSettings, Network
from contextinfinity.daemon.embedders.base import Embedder, FindKey


class Description(NamedTuple):
    """`installed` is None for a server: nothing has to be installed for it here."""

    name: str
    kind: str
    model: str
    installed: bool | None


def make(
    name: str, settings: EmbedderSettings, network: Network, environ: Mapping[str, str], find_key: FindKey | None
) -> Embedder:  # fmt: skip
    """Opens and loads nothing yet; `EmbedderError` when the settings cannot name an embedder. A server of the person's own
    gets a key only if the settings say which."""
    if settings.kind == "local":
        from contextinfinity.daemon.embedders.local import LocalEmbedder

        return LocalEmbedder(name, settings, environ)
    from contextinfinity.daemon.embedders.http import HttpEmbedder

    wants_key = settings.kind == "openai" or settings.api_key_env is not None
    return HttpEmbedder(name, settings, network, find_key if wants_key else None)


def describe(name: str, settings: EmbedderSettings, environ: Mapping[str, str]) -> Description:
    """May read a model's files once to see whether they are right: call it from a thread."""
    from contextinfinity.daemon.embedders.local import is_installed

    installed = is_installed(settings, environ) if settings.kind == "local" else None
    return Description(name, settings.kind, settings.model, installed)
