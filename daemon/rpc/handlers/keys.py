"""The idempotency of a call, for every handler that changes something."""

from typing import Any

from contextinfinity.daemon.storage.idempotency import Once
from contextinfinity.protocol.methods import NAMES, Params


def keyed(scope: str, params: Params[Any]) -> Once | None:
    """A key counts within the branch, or within the method where there is no branch."""
    key: str | None = getattr(params, "idempotency_key", None)
    return Once.of(scope, key, NAMES[type(params)], params)
