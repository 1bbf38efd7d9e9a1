"""Input that is wrong in every way: a clear error each time, the connection goes on, and nobody else notices."""

import json
from pathlib import Path
from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from contextinfinity.protocol.codec import MAX_FRAME, Framing, frame
from tests.rpc.serving import TRANSPORTS, UNIX, Answers, Playground, Transport, WebsocketWire, everything, request, serving
from tests.support.wire import TrioWire

MIB = 1024 * 1024
every_transport = pytest.mark.parametrize("transport", TRANSPORTS)
every_framing = pytest.mark.parametrize("transport", UNIX)


def typed(params: bytes, ident: bytes = b"1") -> bytes:
    return b'{"jsonrpc":"2.0","method":"typed","params":' + params + b',"id":' + ident + b"}"


NESTED = b"[" * 5000 + b"]" * 5000

BAD: dict[str, tuple[bytes, int, int | None, str]] = {
    "missing": (typed(b"{}"), -32602, 1, "number"),
    "no params": (b'{"jsonrpc":"2.0","method":"typed","id":1}', -32602, 1, "number"),
    "wrong type": (typed(b'{"number":"five"}'), -32602, 1, "number"),
    "float for int": (typed(b'{"number":1.5}'), -32602, 1, "number"),
    "null for int": (typed(b'{"number":null}'), -32602, 1, "number"),
    "huge number": (typed(b'{"number":1e999}'), -32602, 1, "typed"),
    "unknown field": (typed(b'{"number":1,"numbre":2}'), -32602, 1, "numbre"),
    "too many by position": (typed(b'[1,"a","b"]'), -32602, 1, "at most 2"),
    "wrong type by position": (typed(b'["a"]'), -32602, 1, "number"),
    "nothing by position": (typed(b"[]"), -32602, 1, "number"),
    "NUL": (typed(b'{"number":1,"text":"a\\u0000b"}'), -32602, 1, "U+0000"),
    "NUL by position": (typed(b'[1,"\\u0000"]'), -32602, 1, "U+0000"),
    "NUL in a name": (typed(b'{"number":1,"\\u0000":2}'), -32602, 1, "U+0000"),
    "NUL and broken text": (typed(b'{"number":1,"text":"\\u0000\\ud800"}'), -32602, 1, "surrogate"),
    "lone surrogate": (typed(b'{"number":1,"text":"\\ud83d"}'), -32602, 1, "surrogate"),
    "surrogates the wrong way": (typed(b'{"number":1,"text":"\\ude00\\ud83d"}'), -32602, 1, "surrogate"),
    "lone surrogate in a name": (typed(b'{"number":1,"\\udc00":1}'), -32602, 1, "surrogate"),
    "lone surrogate in the method": (b'{"jsonrpc":"2.0","method":"\\udc00","id":1}', -32602, 1, "surrogate"),
    "lone surrogate in the id": (typed(b"{}", b'"\\udc00"'), -32602, None, "surrogate"),
    "a control character": (typed(b'{"number":1,"text":"\x00"}'), -32700, None, "JSON"),
    "deep params": (typed(NESTED), -32700, None, "recursion"),
    "deep and without end": (typed(b"[" * 100_000), -32700, None, "recursion"),
    "deep, a little less": (typed(b'{"number":' + b"[" * 900 + b"]" * 900 + b"}"), -32602, 1, "number"),
    "deep batch": (NESTED, -32700, None, "recursion"),
    "unknown method": (b'{"jsonrpc":"2.0","method":"typo","id":1}', -32601, 1, "rpc.discover"),
    "internal name": (b'{"jsonrpc":"2.0","method":"__init__","id":1}', -32601, 1, "__init__"),
    "id of a wrong type": (typed(b"{}", b"{}"), -32600, None, "id"),
}


@every_transport
@pytest.mark.parametrize("case", BAD)
async def test_bad_input_is_an_error_that_says_why(tmp_path: Path, transport: Transport, case: str) -> None:
    sent, code, ident, hint = BAD[case]
    async with serving(tmp_path, Playground().table()) as served, served.peer(transport) as peer:
        await peer.send(sent)
        (answer,) = await everything(peer)
        assert (answer["error"]["code"], answer["id"]) == (code, ident)
        assert hint in answer["error"]["message"]
        await peer.send(request(2, "typed", number=1, text="ü🌍"))
        assert (await peer.receive())["result"] == [1, "ü🌍"]


@every_framing
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (typed(b'{"number":1,"text":"\xff"}'), -32602),
        (typed(b'{"number":1,"\xff":1}'), -32602),
        (typed(b'["\xff"]'), -32602),
        (typed(b"{}", b'"\xff"'), -32700),
        (b'{"jsonrpc":"2.0","method":"\xff","id":1}', -32700),
        (b"\xff\xfe\x00", -32700),
    ],
)
async def test_bytes_that_are_no_text(tmp_path: Path, transport: Transport, sent: bytes, code: int) -> None:
    async with serving(tmp_path, Playground().table()) as served, served.peer(transport) as peer:
        await peer.send(sent)
        (answer,) = await everything(peer)
        assert answer["error"]["code"] == code


async def test_binary_websocket_messages_that_are_no_text(tmp_path: Path) -> None:
    async with serving(tmp_path, Playground().table()) as served, served.peer("websocket") as peer:
        assert isinstance(peer, WebsocketWire)
        for sent in (typed(b"{}", b'"\xff"'), typed(b'{"number":1,"text":"\xff"}'), b"\xff", b""):
            await peer.connection.send_message(sent)
            assert (await peer.receive())["error"]["code"] in (-32700, -32602)


@every_framing
async def test_a_frame_of_17_mib_is_refused_and_the_connection_goes_on(tmp_path: Path, transport: Transport) -> None:
    async with serving(tmp_path, Playground().table()) as served, served.peer(transport) as peer:
        await peer.send(request(1, "echo", value="x" * (17 * MIB)))
        answer = await peer.receive()
        assert (answer["id"], answer["error"]["code"]) == (None, -32600)
        assert str(MAX_FRAME) in answer["error"]["message"]
        assert answer["error"]["data"]["limit"] == MAX_FRAME
        await peer.send(request(2, "ping"))
        assert (await peer.receive())["result"] == "pong"
        await peer.send(request(3, "echo", value="x" * (15 * MIB)))
        assert len((await peer.receive())["result"]) == 15 * MIB


async def test_a_last_line_of_17_mib_is_refused_too(tmp_path: Path) -> None:
    async with serving(tmp_path, Playground().table()) as served, served.peer("lines") as peer:
        assert isinstance(peer, TrioWire)
        await peer.raw(b"x" * (17 * MIB))
        await peer.half_close()
        assert (await peer.receive())["error"]["code"] == -32600
        assert await peer.receive() is None


@pytest.mark.parametrize("head", [b"Content-Length: many\r\n\r\n", b"Content-Type: text\r\n\r\n{}", b"x" * 5000])
async def test_broken_framing_ends_the_connection_after_what_came_before(tmp_path: Path, head: bytes) -> None:
    play = Playground()
    async with serving(tmp_path, play.table()) as served, served.peer("headers") as peer:
        assert isinstance(peer, TrioWire)
        whole = [request(1, "ping"), request(2, "echo", value="fine"), request(3, "hold", name="a")]
        data = b"".join(frame(Framing.HEADERS, json.dumps(one).encode()) for one in whole)
        await peer.raw(data + head)
        answers = Answers(peer)
        assert await answers.result(1) == "pong"
        assert await answers.result(2) == "fine"
        assert "Content-Length" in (await answers.of(None))["error"]["message"]
        await wait_all_tasks_blocked(0.002)
        play.release("a")
        assert await answers.result(3) == "a"
        assert await peer.receive() is None


@every_transport
async def test_one_clients_rubbish_is_not_anothers(tmp_path: Path, transport: Transport) -> None:
    async with serving(tmp_path, Playground().table()) as served, served.peer(transport) as bad, served.peer(transport) as good:
        for sent, *_ in BAD.values():
            await bad.send(sent)
            await good.send(request(1, "echo", value="fine"))
            answer: Any = await good.receive()
            assert answer["result"] == "fine"
        assert len(await everything(bad)) == len(BAD)
