"""A provider that takes its time: always the same words, a few milliseconds apart, so that a crash finds it talking."""

import contextlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.support import wire_formats as wires

WIRE = "openai_chat"


class SlowProvider:
    """`with SlowProvider(...) as p`; `p.config(...)` is the configuration of a daemon that asks it."""

    def __init__(self, words: int = 60, gap: float = 0.004) -> None:
        self.words = [f"wörd-{number} " for number in range(words)]
        self.gap = gap
        self.closing = threading.Event()
        self._http = _Listener(self)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def answer(self) -> str:
        return "".join(self.words)

    def config(self, policy: str, more: str = "") -> str:
        """Flushes and syncs often, so that little of a short test passes before something is durable."""
        port = self._http.server_address[1]
        return (
            f'[stream]\npolicy = "{policy}"\nflush_ms = 10\nfsync_ms = 30\n'
            f'[models.slow]\nprovider = "{WIRE}"\nmodel_id = "slow"\nbase_url = "http://127.0.0.1:{port}/v1"\n'
            f"context_limit = 200000\n{more}"
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    request_queue_size = 64

    def __init__(self, owner: SlowProvider) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The other end dies in mid-answer: that is what it is here for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        owner = self.server.owner
        self.rfile.read(int(self.headers.get("content-length", "0")))
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("connection", "close")
        self.end_headers()
        with contextlib.suppress(OSError):
            for event in wires.opening(WIRE, "slow", noise=False):
                self.wfile.write(wires.sse(*event))
            for text in owner.words:
                if owner.closing.is_set():
                    return
                time.sleep(owner.gap)
                self.wfile.write(wires.sse(*wires.delta(WIRE, "slow", text)))
            for event in wires.closing(WIRE, "slow", owner.answer, "end", len(owner.words)):
                self.wfile.write(wires.sse(*event))
            self.wfile.write(wires.done(WIRE))
