"""The websocket's door: who may come in, and that nobody at it can shut it for others."""

import gc
import json
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock
from trio_websocket import ConnectionClosed

from contextinfinity.daemon.rpc import websocket as websockets
from contextinfinity.daemon.rpc.websocket import WebsocketGate
from tests.rpc.serving import TOKEN, Playground, Served, request, serving, text_message
from tests.support.daemon import Daemon

BEARER = f"Bearer {TOKEN}".encode()


async def works(served: Served) -> bool:
    """Whether somebody with the token is served."""
    async with served.websocket() as peer:
        await peer.send(request(1, "echo", value="fine"))
        return (await peer.receive())["result"] == "fine"


async def status(served: Served, *lines: bytes, **options: bytes | None) -> int:
    stream, answer = await served.handshake(*lines, **options)  # type: ignore[arg-type]
    await stream.aclose()
    return int(answer.split(b" ", 2)[1]) if answer else 0


# the token


@pytest.mark.parametrize("scheme", [b"Bearer", b"bearer", b"BEARER "])
async def test_the_token_is_taken_from_the_header(tmp_path: Path, scheme: bytes) -> None:
    async with (
        serving(tmp_path, Playground().table()) as served,
        served.websocket(headers=[(b"Authorization", scheme + b" " + TOKEN.encode())]) as peer,
    ):
        await peer.send(request(1, "ping"))
        assert (await peer.receive())["result"] == "pong"
        assert peer.connection.subprotocol is None


async def test_the_token_is_taken_from_a_subprotocol(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, Playground().table()) as served,
        served.websocket(headers=[], subprotocols=["contextinfinity.v1", f"token.{TOKEN}"]) as peer,
    ):
        assert peer.connection.subprotocol == "contextinfinity.v1", "never the token itself"
        await peer.send(request(1, "ping"))
        assert (await peer.receive())["result"] == "pong"


@pytest.mark.parametrize(
    "line",
    [
        b"X: no token at all",
        b"Authorization: Bearer",
        b"Authorization: Bearer ",
        b"Authorization: Bearer wrong",
        b"Authorization: " + BEARER[:-1],
        b"Authorization: " + BEARER + b"x",
        b"Authorization: Basic " + TOKEN.encode(),
        b"Authorization: " + TOKEN.encode(),
        "Authorization: Bearer gehëim-🔑".encode(),
        b"Authorization: Bearer \xff\xfe",
        b"Sec-WebSocket-Protocol: contextinfinity.v1",
        b"Sec-WebSocket-Protocol: contextinfinity.v1, token.",
        b"Sec-WebSocket-Protocol: contextinfinity.v1, token.wrong",
        b"Sec-WebSocket-Protocol: contextinfinity.v1, " + TOKEN.encode(),
    ],
)
async def test_without_the_token_nobody_comes_in(tmp_path: Path, line: bytes) -> None:
    async with serving(tmp_path, Playground().table()) as served:
        stream, answer = await served.handshake(line, token=None)
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"run/token" in await stream.receive_some()
        await stream.aclose()
        assert served.clients == set()
        assert await works(served)


async def test_a_token_in_the_address_is_not_one(tmp_path: Path) -> None:
    async with serving(tmp_path, Playground().table()) as served:
        assert await status(served, token=None, path=b"/rpc?token=" + TOKEN.encode()) == 401


# Host, Origin and path


@pytest.mark.parametrize("host", [b"127.0.0.1", b"127.0.0.1:8765", b"localhost", b"localhost:1", b"[::1]", b"[::1]:8765"])
async def test_hosts_of_this_machine_are_served(tmp_path: Path, host: bytes) -> None:
    async with serving(tmp_path, Playground().table()) as served:
        assert await status(served, host=host) == 101


@pytest.mark.parametrize(
    "host",
    [b"example.org", b"example.org:8765", b"127.0.0.1.example.org", b"localhost.example.org", b"0.0.0.0", b"", b"192.168.0.1"],
)
async def test_other_hosts_are_refused_whatever_they_know(tmp_path: Path, host: bytes) -> None:
    async with serving(tmp_path, Playground().table()) as served:
        assert await status(served, host=host) == 403
        assert await works(served)


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (b"https://app.example.org", 101),
        (b"https://app.example.org:444", 403),
        (b"http://app.example.org", 403),
        (b"https://evil.example.org", 403),
        (b"https://app.example.org.evil.com", 403),
        (b"http://127.0.0.1", 403),
        (b"null", 403),
        (b"", 403),
    ],
)
async def test_browsers_come_in_only_from_configured_origins(tmp_path: Path, origin: bytes, expected: int) -> None:
    async with serving(tmp_path, Playground().table(), origins=["https://app.example.org"]) as served:
        assert await status(served, b"Origin: " + origin) == expected
        assert await status(served) == 101, "a program that is no browser sends none"


async def test_no_origin_is_configured_by_default(tmp_path: Path) -> None:
    async with serving(tmp_path, Playground().table()) as served:
        assert await status(served, b"Origin: http://localhost") == 403


@pytest.mark.parametrize(
    ("path", "expected"), [(b"/rpc", 101), (b"/rpc?x=1", 101), (b"/", 404), (b"/rpc/", 404), (b"/RPC", 404)]
)
async def test_there_is_one_endpoint(tmp_path: Path, path: bytes, expected: int) -> None:
    async with serving(tmp_path, Playground().table()) as served:
        assert await status(served, path=path) == expected


def test_the_gate_says_why() -> None:
    gate = WebsocketGate(TOKEN, [])
    token = {"authorization": f"Bearer {TOKEN}"}
    assert gate.refusal("/rpc", "localhost:1", token, []) is None
    assert gate.refusal("/rpc", "localhost", token | {"origin": "http://x"}, []) == (
        403,
        "this Origin is not allowed; configure [websocket] allowed_origins",
    )
    assert gate.refusal("/rpc", "localhost", {"authorization": "Bearer \udcff"}, []) is not None


# nobody shuts the door for others


RUBBISH = {
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03rubbish\r\n\r\n",
    "plain HTTP": b"GET /rpc HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "POST": b"POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
    "JSON": b'{"jsonrpc":"2.0","method":"ping","id":1}\n\r\n\r\n',
    "nothing": b"",
    "half a handshake": b"GET /rpc HTTP/1.1\r\nHost: loc",
}


@pytest.mark.parametrize("rubbish", RUBBISH)
@pytest.mark.parametrize("polite", [True, False], ids=["waits", "hangs up"])
async def test_rubbish_instead_of_a_handshake(tmp_path: Path, rubbish: str, polite: bool, autojump_clock: MockClock) -> None:
    async with serving(tmp_path, Playground().table()) as served, served.websocket() as bystander:
        stream = await trio.open_tcp_stream("127.0.0.1", served.port)
        await stream.send_all(RUBBISH[rubbish])
        if polite:
            await stream.send_eof()
            while await stream.receive_some():
                pass
        await stream.aclose()
        await bystander.send(request(1, "echo", value="undisturbed"))
        assert (await bystander.receive())["result"] == "undisturbed"
        assert await works(served)


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("Sec-WebSocket-Protocol: contextinfinity.v1, token.gehëim".encode(), {}),
        (b"Sec-WebSocket-Protocol: \xff", {}),
        ("Sec-WebSocket-Extensions: ëxt".encode(), {}),
        (b"X: y", {"host": b"\xff\xfe"}),
        (b"X: y", {"host": b"xn--\xff"}),
        (b"X: y", {"host": b"a" * 300}),
        (b"X: y", {"path": "/rpc?ü".encode()}),
        (b"X: y", {"token": None, "path": b"/\xff"}),
    ],
)
async def test_a_handshake_that_cannot_be_read_is_one_clients_problem(
    tmp_path: Path, line: bytes, options: dict[str, bytes | None]
) -> None:
    """These fail inside the library, before our own code is asked."""
    async with serving(tmp_path, Playground().table()) as served, served.websocket() as bystander:
        assert await status(served, line, **options) in (0, 400, 401, 403)
        await bystander.send(request(1, "echo", value="undisturbed"))
        assert (await bystander.receive())["result"] == "undisturbed"
        assert await works(served)


async def test_a_client_that_never_finishes_its_handshake_is_let_go(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path, Playground().table()) as served:
        stream = await trio.open_tcp_stream("127.0.0.1", served.port)
        await stream.send_all(b"GET /rpc HTTP/1.1\r\n")
        began = trio.current_time()
        assert await stream.receive_some() == b""
        assert trio.current_time() - began <= websockets.HANDSHAKE_SECONDS + 1
        await stream.aclose()


async def test_a_bug_in_serving_one_client_does_not_stop_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = websockets.Connection.received
    async with serving(tmp_path, Playground().table()) as served, served.websocket() as bystander:
        await bystander.send(request(1, "ping"))
        await bystander.receive()

        async def fail(*_: object) -> bytes | None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(websockets.Connection, "received", fail)
        async with served.websocket() as unlucky:
            await unlucky.send(request(1, "ping"))
            with pytest.raises(ConnectionClosed):
                await unlucky.receive()
        monkeypatch.setattr(websockets.Connection, "received", broken)
        await bystander.send(request(2, "echo", value="undisturbed"))
        assert (await bystander.receive())["result"] == "undisturbed"
        assert await works(served)
        await served.only(1)
        assert "a websocket client failed" in caplog.text


async def test_a_server_that_is_stopped_at_once_leaves_no_socket_open(tmp_path: Path) -> None:
    for i in range(20):  # whether it has begun to serve by then is chance; a socket left open is a warning, thus an error
        (tmp_path / str(i)).mkdir()
        async with serving(tmp_path / str(i), Playground().table()):
            pass
    gc.collect()


async def test_a_message_over_the_limit_closes_its_own_connection_with_1009(tmp_path: Path) -> None:
    limit = 100_000
    async with serving(tmp_path, Playground().table(), max_frame=limit) as served, served.websocket() as bystander:
        async with served.websocket() as peer:
            await peer.send(request(1, "echo", value="x" * (limit - 200)))
            assert len((await peer.receive())["result"]) == limit - 200
            await peer.connection.send_message("x" * (limit + 1))
            with pytest.raises(ConnectionClosed) as closed:
                await peer.receive()
            assert closed.value.reason is not None
            assert closed.value.reason.code == 1009
        await bystander.send(request(1, "echo", value="undisturbed"))
        assert (await bystander.receive())["result"] == "undisturbed"
        await served.only(1)


async def test_a_message_in_pieces_is_one_document(tmp_path: Path) -> None:
    async with serving(tmp_path, Playground().table()) as served:
        stream, _ = await served.handshake()
        payload = json.dumps(request(1, "echo", value="in pieces")).encode()
        for byte in text_message(payload):
            await stream.send_all(bytes([byte]))
        answer = b""
        while b"in pieces" not in answer:
            answer += await stream.receive_some()
        await stream.aclose()


# what is not for the network


@pytest.mark.slow
@pytest.mark.e2e
def test_keys_are_not_taken_over_the_websocket(tmp_path: Path) -> None:
    with Daemon(tmp_path, config="[websocket]\nenabled = true\n") as daemon:
        endpoint = json.loads((daemon.home / "run" / "endpoint.json").read_text())
        token = (daemon.home / "run" / "token").read_text().strip()
        port = int(endpoint["websocket"].split(":")[2].split("/")[0])
        answer = trio.run(provide_key, port, token)
        assert answer["error"]["code"] == -32010
        assert "Unix socket" in answer["error"]["message"]
        assert "s3cret" not in json.dumps(answer) + daemon.logs
        with daemon.wire() as wire:
            assert wire.call("credential.provide", provider="anthropic", key="s3cret") == {}


async def provide_key(port: int, token: str) -> dict[str, dict[str, object]]:
    served = Served(Path(), port, set())
    async with served.websocket(headers=[(b"Authorization", f"Bearer {token}".encode())]) as peer:
        await peer.send(request(1, "credential.provide", provider="anthropic", key="s3cret"))
        found: dict[str, dict[str, object]] = await peer.receive()
        return found


async def test_the_limit_of_clients_counts_at_this_door_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websockets, "MOST_CLIENTS", 1)
    async with serving(tmp_path, Playground().table()) as served:
        async with served.websocket() as first:
            assert await status(served, b"Authorization: " + BEARER) == 503
            await first.send(request(1, "ping"))
            assert (await first.receive())["result"] == "pong"
        await served.only(0)
        assert await works(served)
