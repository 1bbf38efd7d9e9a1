"""What the adapters over official SDKs share: lazy import, one client per endpoint, the stream, the dialogue's shape.

Each adapter adds its request, its events and their meaning; `faults` words the errors, `sse` cuts the bytes.
"""

import importlib
import logging
import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from types import MappingProxyType
from typing import Any, ClassVar

import trio

from contextinfinity.daemon.core.tokens import estimate_message, estimate_text
from contextinfinity.daemon.core.transcript import Effect
from contextinfinity.daemon.providers.base import Endpoint, ModelRequest, RawEvent
from contextinfinity.daemon.providers.clients import Clients
from contextinfinity.daemon.providers.faults import Faults, host_of
from contextinfinity.daemon.providers.sse import BrokenStream, SseReader, parse
from contextinfinity.protocol.blocks import Message
from contextinfinity.protocol.errors import ProviderError

CONNECT_S = 10.0
IDLE_S = 120.0
DRAIN_S = 0.25
KEEPALIVE_S = 60.0
CONTINUED = "(The conversation continues.)"
NO_TEXT = "(A message without text.)"

_printable = re.compile(r"[\x20-\x7e]*")


class Adapter(ABC):
    """A provider reached through its SDK. Exhaust `stream` or close it: `async with aclosing(p.stream(...)) as events`."""

    name: str
    module: ClassVar[str]
    env: ClassVar[str]
    default_url: ClassVar[str]
    terminal: ClassVar[frozenset[str]]
    text_event: ClassVar[str]

    def __init__(self, *, connect_timeout: float = CONNECT_S, idle_timeout: float = IDLE_S) -> None:
        self._timeouts = (connect_timeout, idle_timeout)
        self._clients = Clients(self._build)

    @abstractmethod
    def body(self, request: ModelRequest) -> dict[str, Any]: ...

    @abstractmethod
    def normalise(self, event: RawEvent) -> Sequence[Effect]: ...

    @abstractmethod
    def client(self, sdk: Any, **settings: Any) -> Any:
        """The SDK's client from the settings that all SDKs share."""

    @abstractmethod
    def resource(self, client: Any) -> Any:
        """The part of the client whose `create` makes the call."""

    def estimate(self, request: ModelRequest) -> int:
        return estimate_text(request.system) + sum(map(estimate_message, request.messages))

    def event_type(self, name: str | None, payload: dict[str, Any]) -> str:
        kind = payload.get("type")
        return kind if isinstance(kind, str) else name or "message"

    def is_stop(self, event: RawEvent) -> bool:
        """Whether a clean end of the connection after this event is an end of the answer too."""
        return False

    def key(self, endpoint: Endpoint, faults: Faults) -> str:
        key = (endpoint.api_key or "").strip()
        if not key:
            raise faults.make("missing_key")
        return key

    async def stream(self, request: ModelRequest, endpoint: Endpoint) -> AsyncGenerator[RawEvent, None]:
        base_url = endpoint.base_url or self.default_url
        faults = Faults(self.name, endpoint, self.env, base_url)
        key = self.key(endpoint, faults)
        _check(key, base_url, endpoint, faults)
        failure: ProviderError | None = None
        async with self._clients.lease(endpoint, key, faults) as client:
            sdk, httpx2 = importlib.import_module(self.module), importlib.import_module("httpx2")
            create = self.resource(client).with_streaming_response.create
            try:
                async with (
                    create(**self.body(request)) as response,
                    aclosing(self._read(response.http_response, faults)) as events,
                ):
                    async for event in events:
                        yield event
                        if event.type == "error":
                            raise faults.of_event(event.payload)
            except (sdk.APITimeoutError, httpx2.TimeoutException):
                failure = faults.make("timeout")
            except sdk.APIStatusError as error:
                failure = faults.of_status(error.status_code, error.response.headers, error.body)
            except BrokenStream as error:
                failure = faults.make("malformed_stream", note=str(error))
            except sdk.APIError as error:
                failure = _connection_fault(error.__cause__, faults, httpx2)
            except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError) as error:
                failure = _connection_fault(error, faults, httpx2)
        # Raised here, outside the handlers, so that no SDK exception with its request headers hangs on to it.
        if failure is not None:
            raise failure

    async def _read(self, http: Any, faults: Faults) -> AsyncGenerator[RawEvent, None]:
        """The events of a response's bytes.

        The SDKs' typed iterators are not used: they hide what they do not know and the end marker, cost 2 to 9 times
        as much per event, and leave generators to the garbage collector, which trio reports as a leak.
        """
        reader = SseReader()
        seen = stopped = ended = False
        chunks = http.aiter_bytes()
        try:
            async for chunk in chunks:
                for name, data in reader.feed(chunk):
                    event = self.event(name, data, faults)
                    seen = True
                    stopped = stopped or self.is_stop(event)
                    ended = event.type in self.terminal
                    yield event
                    if ended:
                        return
        finally:
            await _leave(chunks, ended)
        content_type = http.headers.get("content-type", "nothing")
        if not seen and "text/event-stream" not in content_type:
            raise BrokenStream(f"the answer is {content_type}, not an event stream")
        if stopped:
            yield self.clean_end()

    def clean_end(self) -> RawEvent:
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close every client; streams must have ended."""
        await self._clients.aclose()

    def event(self, name: str | None, data: bytes, faults: Faults) -> RawEvent:
        """An event as it is kept. The key, should the provider echo it, is not."""
        payload = parse(faults.redact_bytes(data))
        return RawEvent(self.event_type(name, payload), payload)

    def _build(self, endpoint: Endpoint, key: str, faults: Faults) -> Any:
        """Runs in a worker thread: imports, and reads certificates."""
        sdk, httpx2 = importlib.import_module(self.module), importlib.import_module("httpx2")
        # The SDKs' own switch in the environment would log request bodies.
        logging.getLogger(self.module).setLevel(logging.WARNING)
        connect, idle = self._timeouts
        timeout = httpx2.Timeout(idle, connect=connect, pool=connect)
        try:
            verify = ssl.create_default_context(cafile=endpoint.ca_file) if endpoint.ca_file else True
            http = httpx2.AsyncClient(
                trust_env=False,
                follow_redirects=False,
                proxy=endpoint.proxy,
                verify=verify,
                limits=httpx2.Limits(max_keepalive_connections=8, keepalive_expiry=KEEPALIVE_S),
            )
        except (OSError, ValueError, ImportError, httpx2.InvalidURL):
            raise faults.make("setting", note="its ca_file or proxy is not usable") from None
        base_url = endpoint.base_url or self.default_url
        client = self.client(
            sdk, api_key=key, base_url=base_url, max_retries=0, timeout=timeout, default_headers={}, http_client=http
        )
        # There is no public way to keep *_CUSTOM_HEADERS of the environment out.
        client._custom_headers = dict(endpoint.headers)
        _ = self.resource(client).with_streaming_response
        return client


def alternating(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """User and assistant in turn, the user first and last, nobody silent: the shape that every model accepts."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        text = message.rendered_text
        if not text.strip():
            continue
        if turns and turns[-1]["role"] == message.role:
            turns[-1]["content"] += f"\n\n{text}"
        else:
            turns.append({"role": message.role, "content": text})
    if not turns or turns[-1]["role"] != "user":
        turns.append({"role": "user", "content": NO_TEXT})
    if turns[0]["role"] != "user":
        turns.insert(0, {"role": "user", "content": CONTINUED})
    return turns


def token_counts(usage: Any, names: Mapping[str, str] = MappingProxyType({})) -> dict[str, int]:
    """The whole numbers of a usage report, by our names where we have one."""
    counts: dict[str, int] = {}
    if not isinstance(usage, dict):
        return counts
    for name, value in usage.items():
        if isinstance(value, dict):
            counts |= token_counts(value, names)
        elif isinstance(value, int) and not isinstance(value, bool):
            counts[names.get(name, name)] = value
    return counts


def _check(key: str, base_url: str, endpoint: Endpoint, faults: Faults) -> None:
    """What would otherwise surface as an encoding error that quotes the secret, or not at all."""
    if not _printable.fullmatch(key):
        raise faults.make("authentication", note="the key holds characters that no key has")
    if not (base_url.startswith(("http://", "https://")) and host_of(base_url)):
        raise faults.make("setting", note="base_url must start with http:// or https://")
    for name, value in endpoint.headers.items():
        if not (_printable.fullmatch(name) and _printable.fullmatch(value)):
            raise faults.make("setting", note="a header holds characters that headers cannot carry")


async def _leave(chunks: AsyncGenerator[bytes, None], ended: bool) -> None:
    """Be done with a body: after the end read what is left, so that the connection can be used again; else cancel.

    Closing the generator instead would strand another one inside httpx2 that it never closes.
    """
    with trio.move_on_after(DRAIN_S) as scope, suppress(importlib.import_module("httpx2").HTTPError):
        if not ended:
            scope.cancel()
        async for _ in chunks:
            pass


def _connection_fault(error: BaseException | None, faults: Faults, httpx2: Any) -> ProviderError:
    # The other transport errors may quote headers.
    note = str(error) if isinstance(error, httpx2.ConnectError | httpx2.ProxyError) else ""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return faults.make("certificate", note=error.verify_message)
        error = error.__cause__ or error.__context__
    return faults.make("connection", note=note)
