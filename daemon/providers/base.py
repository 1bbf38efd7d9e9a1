"""What every model provider offers: an estimate, the exact request body, a stream of raw events, and their meaning.

`normalise` is pure, because recovery reads the same raw events back from a journal. See `core.transcript` for effects.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

import msgspec

from contextinfinity.daemon.core.transcript import Effect
from contextinfinity.daemon.core.untrusted import Artifact
from contextinfinity.protocol.blocks import Message


class Endpoint(msgspec.Struct, frozen=True):
    """Where and how a model is reached. The key lives here and in the SDK's client, nowhere else."""

    model_id: str
    base_url: str | None = None
    api_key: str | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = {}
    proxy: str | None = None
    ca_file: str | None = None

    def __repr__(self) -> str:
        return f"Endpoint({self.model_id})"


class ModelRequest(msgspec.Struct, frozen=True):
    """One call in our own terms, the same for every provider; the last message is the user's."""

    model_id: str
    system: str
    messages: tuple[Message, ...]
    max_output_tokens: int
    memory: tuple[Artifact, ...] = ()
    """What memory brought back, for a provider that is no model; the messages hold it already."""


class RawEvent(msgspec.Struct, frozen=True):
    """A provider's own event, as it is journalled."""

    type: str
    payload: dict[str, Any]


class Provider(Protocol):
    """One provider's wire, bound to nothing: endpoint and request come with each call."""

    name: str

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """The JSON that is sent, without credentials."""
        ...

    def estimate(self, request: ModelRequest) -> int:
        """About how many tokens the request costs."""
        ...

    def stream(self, request: ModelRequest, endpoint: Endpoint) -> AsyncGenerator[RawEvent, None]:
        """The provider's events as they come; failures are raised as `ProviderError`."""
        ...

    def normalise(self, event: RawEvent) -> Sequence[Effect]:
        """What an event means; one that is not known means nothing and is never fatal."""
        ...
