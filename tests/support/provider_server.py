"""A model provider on loopback: real sockets, three real wire formats, each answer scripted by the test.

It runs in threads, so trio tests and plain programs use it alike; `spawn` and `python -m` give it a process of its own.
"""

import argparse
import contextlib
import functools
import json
import socket
import ssl
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import urlsplit

from tests.support import wire_formats as wires

HANG_GUARD_S = 60
BATCH = 64 * 1024


@dataclass(frozen=True)
class Reply:
    """One answer: its text, and how it goes wrong."""

    deltas: Sequence[str] = ("Hello", ", ", "wörld", " 🌍")
    stop: str = "end"
    ending: Literal["terminal", "clean", "cut", "cut_mid_event", "held_open"] = "terminal"
    pause_after: int | None = None
    """Stop after so many deltas until the test calls `resume`."""
    noise: bool = True
    """A ping and an event of the future among the others."""
    done_marker: bool = True
    extra: Sequence[bytes] = ()
    """Raw bytes sent after the deltas: malformed events, error events."""
    status: int = 200
    kind: str = "invalid_request_error"
    message: str = "refused"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """Sent instead of the provider's own body."""
    content_type: str | None = None


@dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    wire: str
    path: str
    headers: dict[str, str]
    body: Any
    connection: int


class ProviderServer:
    """`with ProviderServer() as server`; replies are used in order, then `default` for ever."""

    def __init__(self, default: Reply | None = None, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.default = default or Reply()
        self.scheme = "https" if tls else "http"
        self.requests: list[Seen] = []
        self.violations: list[str] = []
        self.paused = threading.Event()
        self._go = threading.Event()
        self._replies: deque[Reply] = deque()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._connections = 0
        self._closing = False
        self._http = _Listener(self, port, tls)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> "ProviderServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._go.set()
        self._http.shutdown()
        self._thread.join()
        with self._lock:
            for conn in self._open:
                with contextlib.suppress(OSError):
                    conn.shutdown(socket.SHUT_RDWR)
        self._http.server_close()

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    def base_url(self, wire: str) -> str:
        root = f"{self.scheme}://127.0.0.1:{self.port}"
        return root if wire == "anthropic" else f"{root}/v1"

    def script(self, *replies: Reply) -> None:
        self._replies.extend(replies)

    def resume(self) -> None:
        self._go.set()

    # What the handler threads call.

    def connected(self, conn: socket.socket) -> int:
        with self._lock:
            self._open.add(conn)
            self._connections += 1
            return self._connections

    def disconnected(self, conn: socket.socket) -> None:
        with self._lock:
            self._open.discard(conn)

    def judge(self, seen: Seen) -> Reply:
        """The scripted reply, or the refusal that a request the provider would not take deserves."""
        found = wires.violations(seen.wire, seen.body, seen.headers)
        with self._lock:
            self.requests.append(seen)
            self.violations += [f"{seen.wire}: {v}" for v in found]
            if found:
                return Reply(status=400, message="; ".join(found))
            return self._replies.popleft() if self._replies else self.default

    def wait_for_test(self) -> None:
        self.paused.set()
        self._go.wait(HANG_GUARD_S)
        if not self._closing:
            self._go.clear()
        self.paused.clear()


class _Listener(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True

    def __init__(self, owner: ProviderServer, port: int, tls: ssl.SSLContext | None) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", port), _Handler)
        if tls:
            # The handshake is the handler thread's, or one silent client would stop the others.
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in mid-answer or mid-handshake is part of the tests, any other error is not."""
        if not isinstance(sys.exc_info()[1], ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


class _Cut(ConnectionError):
    pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = self.server.owner.connected(self.connection)
        self.pending = bytearray()

    def finish(self) -> None:
        self.server.owner.disconnected(self.connection)
        with contextlib.suppress(ConnectionError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", "0")))
        # A proxy is asked for a whole URL.
        wire = wires.PATHS.get(urlsplit(self.path).path)
        if wire is None:
            self._whole(404, {}, b"no such path")
            return
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.server.owner.judge(Seen(wire, self.path, headers, body, self.number))
        if reply.status != 200 or reply.body is not None:
            default = json.dumps(wires.error_body(wire, reply.kind, reply.message)).encode()
            self._whole(reply.status, reply.headers, default if reply.body is None else reply.body, reply.content_type)
            return
        try:
            self._stream(wire, body["model"], reply)
        except _Cut:
            self.close_connection = True

    def _whole(self, status: int, headers: dict[str, str], body: bytes, content_type: str | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-type", content_type or "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, wire: str, model: str, reply: Reply) -> None:
        self.send_response(200)
        self.send_header("content-type", reply.content_type or "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in wires.opening(wire, model, reply.noise):
            self._chunk(wires.sse(*event))
        for i, text in enumerate(reply.deltas):
            if i == reply.pause_after:
                self._flush()
                self.server.owner.wait_for_test()
            self._chunk(_delta(wire, model, text))
        for raw in reply.extra:
            self._chunk(raw)
        last = [wires.sse(*e) for e in wires.closing(wire, model, "".join(reply.deltas), reply.stop, len(reply.deltas))]
        match reply.ending:
            case "cut":
                self._flush()
                raise _Cut
            case "cut_mid_event":
                self._chunk(last[0][: len(last[0]) // 2])
                self._flush()
                raise _Cut
            case "terminal" | "held_open":
                for piece in last:
                    self._chunk(piece)
                if reply.done_marker:
                    self._chunk(wires.done(wire))
        if reply.ending == "held_open":
            self._flush()
            self.server.owner.wait_for_test()
        self.pending += b"0\r\n\r\n"
        self._flush()

    def _chunk(self, data: bytes) -> None:
        if data:
            self.pending += b"%x\r\n%b\r\n" % (len(data), data)
        if len(self.pending) > BATCH:
            self._flush()

    def _flush(self) -> None:
        self.wfile.write(self.pending)
        self.pending = bytearray()


@functools.lru_cache(maxsize=256)
def _delta(wire: str, model: str, text: str) -> bytes:
    return wires.sse(*wires.delta(wire, model, text))


@contextlib.contextmanager
def spawn(deltas: int = 2000, text: str = "lorem ipsum dolor ") -> Iterator[Callable[[str], str]]:
    """The server as a process of its own, answering every request alike; gives `base_url(wire)`."""
    command = [sys.executable, "-m", "tests.support.provider_server", "--deltas", str(deltas), "--text", text]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        root = f"http://127.0.0.1:{int(process.stdout.readline())}"
        yield lambda wire: root if wire == "anthropic" else f"{root}/v1"
        assert process.stdin is not None
        process.stdin.close()


def main() -> None:
    """Print the port, then serve until standard input ends."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--deltas", type=int, default=2000)
    parser.add_argument("--text", default="lorem ipsum dolor ")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    with ProviderServer(Reply(deltas=(options.text,) * options.deltas), options.port) as server:
        sys.stdout.write(f"{server.port}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
