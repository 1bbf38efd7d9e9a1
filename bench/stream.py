"""A stream of 2,000 deltas on its way to a client, through daemon and socket, against the bare SDK in one process.

Both read the same local server in turn, from asking to the last byte of text; the SDK does it as its manual shows.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import msgspec
import trio

from bench.process import Daemon, daemon
from bench.sdk import READERS, Reader
from bench.table import Row
from bench.wire import CHUNK, Wire, connect
from tests.support.provider_server import spawn

DELTAS, TEXT = 2000, "lorem ipsum dolor "
SIZE = DELTAS * len(TEXT)
WIRES = ("anthropic", "openai", "openai_chat")
WARM, ROUNDS = 1, 7


def measure() -> list[Row]:
    with spawn(DELTAS, TEXT) as base_url:
        config = "".join(
            f'[models.{wire}]\nprovider = "{wire}"\nmodel_id = "test-1"\nbase_url = "{base_url(wire)}"\n'
            f'api_key_env = "BENCH_KEY"\n'
            for wire in WIRES
        )
        with daemon(config, {"BENCH_KEY": "test"}) as running:
            return trio.run(_measure, running, base_url)


async def _measure(running: Daemon, base_url: Callable[[str], str]) -> list[Row]:
    rows = []
    for wire in WIRES:
        through: list[float] = []
        bare: list[float] = []
        read = READERS[wire](base_url(wire))
        for number in range(WARM + ROUNDS):
            seconds = await _bare(read), await _through(running, wire)
            if number >= WARM:
                bare.append(SIZE / seconds[0])
                through.append(SIZE / seconds[1])
        rows.append(Row(f"stream, {wire} / bare SDK", median(through) / 1e3, "kB/s", median(bare) / 1e3, 0.7, ">="))
    return rows


async def _bare(read: Reader) -> float:
    begin = time.perf_counter()
    size = await read()
    assert size == SIZE, size
    return time.perf_counter() - begin


class _Data(msgspec.Struct):
    text: str = ""


class _Params(msgspec.Struct):
    type: str = ""
    data: _Data = msgspec.field(default_factory=_Data)


class _Line(msgspec.Struct):
    """What a client must look at to show a stream."""

    method: str | None = None
    params: _Params | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Line).decode


async def _through(running: Daemon, model: str) -> float:
    async with connect(running.socket) as wire:
        branch = (await wire.call("session.create", model=model))["branch"]["id"]
        await wire.call("events.subscribe", branch_id=branch)
        request = wire.request("turn.submit", branch_id=branch, content="hello")
        begin = time.perf_counter()
        await wire.stream.send_all(request)
        await _text(wire)
        taken = time.perf_counter() - begin
    async with connect(running.socket) as wire:
        turn = (await wire.call("turn.list", branch_id=branch))["turns"][0]
        turn = await wire.call("turn.wait", turn_id=turn["id"])
        assert turn["phase"] == "response_finalized", turn
        await running.quiet()
    return taken


async def _text(wire: Wire) -> None:
    size, rest = 0, b""
    while size < SIZE:
        chunk = await wire.stream.receive_some(CHUNK)
        if not chunk:
            raise ConnectionError("the daemon closed the connection")
        *lines, rest = (rest + chunk).split(b"\n")
        for line in map(_decode, lines):
            assert line.error is None, line.error
            if line.params is not None and line.params.type in ("stream.delta", "stream.snapshot"):
                size += len(line.params.data.text.encode())
