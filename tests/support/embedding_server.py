"""An embedding server on loopback: real sockets, three dialects, and it refuses what the real servers would refuse.

It runs in threads. Its vectors follow from the text alone, so that a test can tell whose row is whose.
"""

import contextlib
import hashlib
import json
import ssl
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

DIM = 8
MODEL = "test-model"
HANG_GUARD_S = 60
PATHS = {"/api/embed": "ollama", "/embed": "tei", "/v1/embeddings": "openai"}
FIELDS = {
    "ollama": {"model": str, "input": list},
    "tei": {"inputs": list, "truncate": bool},
    "openai": {"model": str, "input": list, "encoding_format": str},
}
MAX_TEXTS = {"ollama": 64, "openai": 64, "tei": 32}


@dataclass(frozen=True)
class Reply:
    """How one answer goes wrong; the default is right."""

    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    fault: Literal["", "too few", "mixed dimensions", "not finite", "huge", "other dimension", "empty", "misnumbered"] = ""
    ending: Literal["whole", "cut", "silent"] = "whole"


@dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    dialect: str
    texts: list[str]
    headers: dict[str, str]


def vector(text: str, dim: int = DIM) -> list[float]:
    """What this server makes of a text; not of unit length."""
    return [byte - 127.5 for byte in hashlib.sha256(text.encode()).digest()[:dim]]


class EmbeddingServer:
    """`with EmbeddingServer() as server`; replies are used in order, then right answers for ever."""

    def __init__(self, key: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.key = key
        self.scheme = "https" if tls else "http"
        self.seen: list[Seen] = []
        self.violations: list[str] = []
        self.hold = threading.Event()
        self.arrived = threading.Event()
        self.hold.set()
        self._replies: deque[Reply] = deque()
        self._lock = threading.Lock()
        self._http = _Listener(("127.0.0.1", 0), _Handler)
        self._http.owner = self
        if tls is not None:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> "EmbeddingServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hold.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def url(self, dialect: str = "") -> str:
        return f"{self.scheme}://127.0.0.1:{self._http.server_address[1]}" + ("/v1" if dialect == "openai" else "")

    def script(self, *replies: Reply) -> None:
        self._replies.extend(replies)

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        """The status, the body and the ending for one request."""
        with self._lock:
            found, seen = self._judge(path, headers, body)
            self.violations += found
            if seen is None or found:
                return Reply(400, json.dumps({"error": found}).encode())
            self.seen.append(seen)
            self.arrived.set()
            if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
                return Reply(401, b'{"error": "bad key"}')
            reply = self._replies.popleft() if self._replies else Reply()
        if reply.body is not None or reply.status != 200:
            return reply
        body = _answer(seen.dialect, _rows(seen.texts, reply.fault), reply.fault)
        return Reply(200, body, reply.headers, ending=reply.ending)

    def _judge(self, path: str, headers: dict[str, str], body: bytes) -> tuple[list[str], Seen | None]:
        dialect = PATHS.get(path)
        if dialect is None:
            return [f"no such path: {path}"], None
        if headers.get("content-type") != "application/json":
            return ["content-type is not application/json"], None
        try:
            asked: Any = json.loads(body.decode("utf-8", "strict"))
        except ValueError:
            return ["the body is not JSON"], None
        fields = FIELDS[dialect]
        if not isinstance(asked, dict) or {k: type(v) for k, v in asked.items()} != fields:
            return [f"the fields are not {fields}"], None
        texts = asked["inputs" if dialect == "tei" else "input"]
        found = []
        if not 1 <= len(texts) <= MAX_TEXTS[dialect]:
            found.append(f"{len(texts)} texts")
        if not all(isinstance(text, str) and 0 < len(text) <= 8_000 for text in texts):
            found.append("a text is empty, too long or no text")
        if asked.get("model", MODEL) != MODEL:
            found.append("another model is asked for")
        if asked.get("encoding_format", "float") != "float":
            found.append("another encoding is asked for")
        return found, Seen(dialect, texts, headers)


def _rows(texts: Sequence[str], fault: str) -> list[list[float]]:
    rows = [vector(text, 4 if fault == "other dimension" else DIM) for text in texts]
    if fault == "too few":
        return rows[:-1]
    if fault == "mixed dimensions":
        rows[-1] = rows[-1][:-1]
    if fault == "not finite":
        rows[-1][0] = float("nan")
    if fault == "huge":
        rows[-1][0] = 1e300
    if fault == "empty":
        return [[] for _ in rows]
    return rows


def _answer(dialect: str, rows: list[list[float]], fault: str) -> bytes:
    if dialect == "ollama":
        return json.dumps({"model": MODEL, "embeddings": rows, "total_duration": 1}).encode()
    if dialect == "tei":
        return json.dumps(rows).encode()
    numbered = list(enumerate(rows))
    data = [
        {"object": "embedding", "index": 0 if fault == "misnumbered" else i, "embedding": row} for i, row in reversed(numbered)
    ]
    return json.dumps({"object": "list", "data": data, "model": MODEL, "usage": {"total_tokens": 1}}).encode()


class _Listener(ThreadingHTTPServer):
    owner: EmbeddingServer
    daemon_threads = False
    block_on_close = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is the client's business."""


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    protocol_version = "HTTP/1.1"
    timeout = 2

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.server.owner.answer(self.path, headers, body)
        self.server.owner.hold.wait(HANG_GUARD_S)
        self.close_connection = reply.ending != "whole" or self.server.owner.scheme == "https"
        if reply.ending == "silent":
            with contextlib.suppress(OSError):
                self.connection.recv(1)  # until the client gives up
            return
        text = reply.body or b""
        self.send_response(reply.status)
        for name, value in ({"Content-Type": "application/json", "Content-Length": str(len(text))} | reply.headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text[: len(text) // 2] if reply.ending == "cut" else text)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""
