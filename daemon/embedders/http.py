"""The embedder behind an address: Ollama, text-embeddings-inference, or whatever speaks OpenAI's dialect.

`dialects` says what goes over the wire; every error here is worded so that neither key nor text nor answer is in it.
"""

import hashlib
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

import msgspec
import numpy as np
import trio

from contextinfinity.daemon.config import EmbedderSettings, Network
from contextinfinity.daemon.embedders.base import (
    DEFAULT_THRESHOLD,
    MAX_CHARACTERS,
    EmbedderError,
    FindKey,
    Vectors,
    clean,
    unit,
)
from contextinfinity.daemon.embedders.dialects import DIALECTS
from contextinfinity.protocol.errors import Fault

if TYPE_CHECKING:
    import httpx2

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_ENV = "OPENAI_API_KEY"
BATCH, TEI_BATCH = 64, 32
"""A TEI server takes no more at once unless it was started with another limit."""
CONNECT_S = 5.0
READ_S = 30.0
ANSWER_S = 120.0
CLOSE_S = 5.0
LARGEST = 1e15  # its square is still a float32
MAX_ANSWER_BYTES = 64 * 1024 * 1024
THRESHOLDS = {"text-embedding-3-small": 0.72}

HINTS = {
    400: "check `model` and `style`",
    404: "check `url`, `model` and `style`",
    413: "the server allows smaller requests only",
    422: "check `model` and `style`",
    429: "it limits the rate of requests: wait and retry",
}


@dataclass(frozen=True)
class Timeouts:
    """Seconds to connect, of silence, and for a whole answer."""

    connect: float = CONNECT_S
    read: float = READ_S
    answer: float = ANSWER_S


class HttpEmbedder:
    """The key is asked for at the first use and again after the server refused it."""

    def __init__(
        self,
        name: str,
        settings: EmbedderSettings,
        network: Network,
        find_key: FindKey | None = None,
        timeouts: Timeouts = Timeouts(),
    ) -> None:
        self._name = name
        self._settings = settings
        self._find_key = find_key
        self._timeouts = timeouts
        self._style = "openai" if settings.kind == "openai" else settings.style
        self._dialect = DIALECTS[self._style]
        base = settings.url or (OPENAI_URL if settings.kind == "openai" else "")
        if not _usable(base):
            raise EmbedderError(f"embedder {name!r} needs an address such as http://127.0.0.1:11434: set `url` in config.toml")
        self._url = base.rstrip("/") + self._dialect.path
        self._shown = f"{name} ({shown(base)})"
        self._env = settings.api_key_env or (OPENAI_ENV if settings.kind == "openai" else "")
        self._connections = _Connections(network, self._timeouts)
        self._key: str | None = None
        self._dim: int | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def space(self) -> str:
        model = self._settings.model
        kind = "openai" if self._settings.kind == "openai" else f"http:{self._style}"
        prefix = self._settings.query_prefix
        marks = f":{hashlib.sha256(prefix.encode()).hexdigest()[:8]}" if prefix else ""
        return f"{kind}:{model}:chars{MAX_CHARACTERS}{marks}"

    @property
    def threshold(self) -> float:
        if self._settings.threshold is not None:
            return self._settings.threshold
        return THRESHOLDS.get(self._settings.model, DEFAULT_THRESHOLD)

    async def documents(self, texts: Sequence[str]) -> Vectors:
        most = TEI_BATCH if self._settings.style == "tei" and self._settings.kind == "http" else BATCH
        parts = [await self._embed(texts[start : start + most]) for start in range(0, len(texts), most)]
        return np.concatenate(parts) if parts else np.empty((0, self._dim or 0), dtype=np.float32)

    async def query(self, text: str) -> Vectors:
        row: Vectors = (await self._embed([self._settings.query_prefix + text]))[0]
        return row

    async def rest(self) -> None:
        self._key = self._dim = None
        await self._connections.close()

    async def _embed(self, texts: Sequence[str]) -> Vectors:
        headers = await self._headers()
        body = msgspec.json.encode(self._dialect.ask(self._settings.model, [clean(text) or " " for text in texts]))
        answer = await self._post(body, headers)
        # Thousands of numbers take milliseconds to read.
        rows = await trio.to_thread.run_sync(self._read, answer, len(texts))
        if self._dim not in (None, rows.shape[1]):
            raise self._wrong(f"its vectors have {rows.shape[1]} numbers now and had {self._dim}: was its model changed?")
        self._dim = rows.shape[1]
        return rows

    async def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        if self._find_key is None:
            return headers
        if self._key is None:
            try:
                key = (await self._find_key()).strip()
            except Fault as fault:
                raise EmbedderError(fault.message) from None
            if not key:
                raise EmbedderError(f"embedder {self._name!r} needs an API key: {self._where_to_put_it()}")
            if not (key.isascii() and key.isprintable()):
                raise EmbedderError(
                    f"the API key of embedder {self._name!r} holds a character no key has: {self._where_to_put_it()}"
                )
            self._key = key
        return headers | {"Authorization": f"Bearer {self._key}"}

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        import httpx2

        try:
            with trio.fail_after(self._timeouts.answer):
                async with (
                    self._connections.lease() as client,
                    client.stream("POST", self._url, content=body, headers=headers) as response,
                ):
                    if response.status_code != 200:
                        self._refuse(response.status_code)
                    answer = bytearray()
                    with trio.CancelScope() as enough:
                        async for piece in response.aiter_bytes():
                            answer += piece
                            if len(answer) > MAX_ANSWER_BYTES:
                                enough.cancel()  # leaving the loop would strand generators that httpx2 never closes
                    if len(answer) > MAX_ANSWER_BYTES:
                        raise self._wrong("it sends far more than was asked for")
                    return bytes(answer)
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, trio.TooSlowError) as error:
            # The reason is found in the class alone: what an error says may quote the address, a header or the body.
            raise self._failure(error) from None

    def _refuse(self, status: int) -> NoReturn:
        hint = HINTS.get(status, "retry in a moment" if status >= 500 else "check its settings")
        if 300 <= status < 400:
            hint = "it redirects: set `url` to the final address"
        if status in (401, 403):
            self._key = None
            hint = f"it does not accept the API key: {self._where_to_put_it()}"
        raise EmbedderError(f"{self._shown} answers with status {status}: {hint}")

    def _where_to_put_it(self) -> str:
        if not self._env:
            return "set `api_key_env` in config.toml to the variable that holds it"
        return f"set {self._env}" + (" or run `ctx auth set openai`" if self._env == OPENAI_ENV else "")

    def _failure(self, error: BaseException) -> EmbedderError:
        import httpx2

        if isinstance(error, httpx2.InvalidURL | httpx2.UnsupportedProtocol):
            return EmbedderError(f"the address of embedder {self._name!r} is not usable: correct `url` in config.toml")
        if _certificate(error):
            return self._wrong("its certificate is not trusted: set network.ca_file to the authority that signed it")
        if isinstance(error, httpx2.ProxyError):
            return self._wrong("the proxy does not let it through: check network.proxy")
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return EmbedderError(f"{self._shown} cannot be reached: start it, or check `url` and the network")
        if isinstance(error, httpx2.TimeoutException | trio.TooSlowError):
            return self._wrong("it is silent for too long: retry, or check the server")
        return self._wrong(f"the connection broke ({type(error).__name__}): retry, or check the server")

    def _read(self, answer: bytes, count: int) -> Vectors:
        try:
            rows = self._dialect.read(answer)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise self._wrong(f"it does not answer as {self._style} does: check `url` and `style`") from None
        if len(rows) != count:
            raise self._wrong(f"it answered {count} texts with {len(rows)} vectors")
        if not rows[0] or any(len(row) != len(rows[0]) for row in rows):
            raise self._wrong("its vectors differ in length or are empty")
        vectors = np.array(rows, dtype=np.float64)
        if not np.abs(vectors).max() < LARGEST:  # not so for NaN either
            raise self._wrong("a vector holds a number that is not finite")
        return unit(vectors.astype(np.float32))

    def _wrong(self, what: str) -> EmbedderError:
        return EmbedderError(f"{self._shown}: {what}")


class _Connections:
    """One client, made at the first use; `close` waits for nobody, the last user of a client that is let go closes it."""

    def __init__(self, network: Network, timeouts: Timeouts) -> None:
        self._network = network
        self._timeouts = timeouts
        self._current: _Entry | None = None
        self._making = trio.Lock()

    @asynccontextmanager
    async def lease(self) -> "AsyncIterator[httpx2.AsyncClient]":
        async with self._making:
            if self._current is None:
                self._current = _Entry(await trio.to_thread.run_sync(self._make))
            entry = self._current
            entry.users += 1
        try:
            yield entry.client
        finally:
            entry.users -= 1
            await self._dispose(entry)

    async def close(self) -> None:
        async with self._making:
            entry, self._current = self._current, None
        if entry is not None:
            await self._dispose(entry)

    async def _dispose(self, entry: "_Entry") -> None:
        if entry is self._current or entry.users:
            return
        with trio.move_on_after(CLOSE_S, shield=True):
            await entry.client.aclose()

    def _make(self) -> "httpx2.AsyncClient":
        """In a thread: the import and the authorities' certificates take a while."""
        import httpx2

        seconds = self._timeouts
        try:
            return httpx2.AsyncClient(
                trust_env=False,
                follow_redirects=False,
                proxy=self._network.proxy,
                verify=ssl.create_default_context(cafile=self._network.ca_file) if self._network.ca_file else True,
                timeout=httpx2.Timeout(seconds.read, connect=seconds.connect),
            )
        except (OSError, ValueError, httpx2.InvalidURL):
            raise EmbedderError("network.ca_file or network.proxy is not usable: correct config.toml") from None


@dataclass
class _Entry:
    client: "httpx2.AsyncClient"
    users: int = 0


def shown(url: str) -> str:
    """An address without what may be secret in it."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or "no host"
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "no usable address"
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}{parts.path}"


def _usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _certificate(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False
