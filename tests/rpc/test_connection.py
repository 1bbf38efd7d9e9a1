"""One connection: order, concurrency, cancellation, half-close, and what is left when the client is gone."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from contextinfinity.daemon.rpc import connection as connections
from contextinfinity.daemon.rpc import server as servers
from contextinfinity.daemon.runtime.actor import ActorGone, AskTimeout, MailboxFull
from contextinfinity.protocol import jsonrpc
from contextinfinity.protocol.codec import Framing, frame
from contextinfinity.protocol.errors import Conflict
from tests.rpc.serving import (
    TRANSPORTS,
    UNIX,
    Answers,
    Playground,
    Transport,
    cancel,
    everything,
    notification,
    request,
    serving,
    text_message,
)
from tests.support.daemon import Daemon
from tests.support.wire import TrioWire

every_transport = pytest.mark.parametrize("transport", TRANSPORTS)
every_framing = pytest.mark.parametrize("transport", UNIX)


def framed(transport: Transport, *documents: Any) -> bytes:
    return b"".join(frame(Framing(transport), json.dumps(document).encode()) for document in documents)


async def living() -> int:
    """Tasks alive once everything has come to rest."""
    await wait_all_tasks_blocked(0.002)
    return trio.lowlevel.current_statistics().tasks_living


# order and concurrency


@every_framing
async def test_requests_start_in_the_order_of_arrival(tmp_path: Path, transport: Transport) -> None:
    play, names = Playground(), [str(i) for i in range(40)]
    kinds = ["hold", "hold_plain", "hold"]
    async with serving(tmp_path, play.table()) as served, served.peer(transport) as peer:
        assert isinstance(peer, TrioWire)
        await peer.raw(framed(transport, *(request(n, kinds[int(n) % 3], name=n) for n in names)))
        await wait_all_tasks_blocked()
        assert play.started == names


@every_transport
async def test_members_of_batches_start_in_the_order_of_arrival(tmp_path: Path, transport: Transport) -> None:
    play, names = Playground(), [str(i) for i in range(20)]
    async with serving(tmp_path, play.table()) as served, served.peer(transport) as peer:
        await peer.send([request(n, "hold", name=n) for n in names[:8]])
        await peer.send([notification("hold_plain", name=n) for n in names[8:12]])
        await peer.send([request(n, "hold", name=n) for n in names[12:]])
        await wait_all_tasks_blocked(0.002)
        assert play.started == names


@every_transport
async def test_answers_come_when_they_are_ready(tmp_path: Path, transport: Transport) -> None:
    play = Playground()
    async with serving(tmp_path, play.table()) as served, served.peer(transport) as peer:
        answers = Answers(peer)
        for name in ("a", "b", "c"):
            await peer.send(request(name, "hold", name=name))
        await peer.send(request("quick", "echo", value=1))
        assert await answers.result("quick") == 1
        for name in ("c", "a", "b"):
            play.release(name)
            assert await answers.result(name) == name
        assert answers.order == ["quick", "c", "a", "b"]


@every_transport
async def test_a_batch_is_answered_at_once_when_all_of_it_is_done(tmp_path: Path, transport: Transport) -> None:
    play = Playground()
    async with serving(tmp_path, play.table()) as served, served.peer(transport) as peer:
        await peer.send([request(1, "hold", name="x"), request(2, "echo", value="y"), request(3, "ping")])
        assert await everything(peer) == []
        play.release("x")
        (batch,) = await everything(peer)
        assert {answer["id"]: answer["result"] for answer in batch} == {1: "x", 2: "y", 3: "pong"}


async def test_ids_come_back_as_they_were(tmp_path: Path) -> None:
    async with serving(tmp_path, Playground().table()) as served, served.peer("lines") as peer:
        for ident in (0, -1, 1.5, 2**80, "", "ü🌍", "0", None):
            await peer.send(request(ident, "echo"))
            assert (await peer.receive())["id"] == ident


async def test_a_notification_is_never_answered(tmp_path: Path) -> None:
    play = Playground()
    async with serving(tmp_path, play.table()) as served, served.peer("lines") as peer:
        for sent in (
            notification("echo", value=1), notification("fail"), notification("no.such"), notification("typed", number="x"),
            notification("ping"), notification("unspeakable"), notification("hold", name="n"),
        ):  # fmt: skip
            await peer.send(sent)
        assert await everything(peer) == []
        assert play.started == ["n"]


# cancellation


@every_transport
async def test_a_request_can_be_cancelled(tmp_path: Path, transport: Transport) -> None:
    play = Playground()
    async with serving(tmp_path, play.table()) as served, served.peer(transport) as peer:
        answers = Answers(peer)
        for ident in (1, "1", 2):
            await peer.send(request(ident, "hold", name=repr(ident)))
        await wait_all_tasks_blocked(0.002)
        await peer.send(cancel("1"))
        assert await answers.code("1") == -32800
        assert play.cancelled == ["'1'"]
        play.release("1", "2")
        assert await answers.result(1) == "1"
        assert await answers.result(2) == "2"


@every_framing
async def test_a_cancel_in_the_same_chunk_finds_its_request(tmp_path: Path, transport: Transport) -> None:
    play = Playground()
    async with serving(tmp_path, play.table()) as served, served.peer(transport) as peer:
        assert isinstance(peer, TrioWire)
        sent = [request(1, "hold", name="a"), request(2, "hold_plain", name="b"), cancel(2), cancel(1)]
        await peer.raw(framed(transport, *sent, request(3, "hold", name="c")))
        answers = Answers(peer)
        assert await answers.code(1) == -32800
        assert await answers.code(2) == -32800
        await wait_all_tasks_blocked()
        assert play.started == ["c"], "what is cancelled before its turn never starts"
        play.release("c")
        assert await answers.result(3) == "c"


@every_framing
@pytest.mark.parametrize("kind", ["hold", "hold_plain"])
async def test_the_very_first_request_can_be_cancelled_in_its_own_chunk(
    tmp_path: Path, transport: Transport, kind: str
) -> None:
    play = Playground()
    async with serving(tmp_path, play.table()) as served, served.peer(transport) as peer:
        assert isinstance(peer, TrioWire)
        await peer.raw(framed(transport, request(1, kind, name="a"), cancel(1)))
        (answer,) = await everything(peer)
        assert (answer["id"], answer["error"]["code"]) == (1, -32800)
        assert play.finished == []


@every_transport
async def test_a_member_of_a_batch_can_be_cancelled(tmp_path: Path, transport: Transport) -> None:
    play = Playground()
    async with serving(tmp_path, play.table()) as served, served.peer(transport) as peer:
        await peer.send([request(1, "hold", name="a"), request(2, "hold", name="b"), notification("echo")])
        await wait_all_tasks_blocked(0.002)
        await peer.send([cancel(1)])
        assert await everything(peer) == []
        play.release("b")
        (batch,) = await everything(peer)
        outcomes = {answer["id"]: answer.get("result") or answer["error"]["code"] for answer in batch}
        assert outcomes == {1: -32800, 2: "b"}


async def test_a_cancel_of_nothing_is_ignored(tmp_path: Path) -> None:
    play = Playground()
    async with serving(tmp_path, play.table()) as served, served.peer("lines") as peer:
        await peer.send(request(1, "hold", name="a"))
        nested: Any = []
        for _ in range(600):
            nested = [nested]
        for params in ({"id": 2}, {"id": "1"}, {"id": None}, {"id": 1.0}, {}, [1], {"id": nested}, {"id": {"id": 1}}):
            await peer.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": params})
        await peer.send({"jsonrpc": "2.0", "method": "$/cancelRequest"})
        await peer.send(b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"\xff":1,"id":2}}')
        assert await everything(peer) == []
        assert play.cancelled == []
        play.release("a")
        assert (await everything(peer))[0]["result"] == "a"
        await peer.send(cancel(1))
        await peer.send(request(1, "echo", value="again"))
        assert (await everything(peer))[0]["result"] == "again", "the id is free again"


@pytest.mark.parametrize("depth", range(900, 1000, 3))
async def test_a_cancel_nested_to_the_edge_harms_nobody(tmp_path: Path, depth: int) -> None:
    deep = b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":' + b"[" * depth + b"]" * depth + b"}}"
    async with serving(tmp_path, Playground().table()) as served, served.peer("lines") as peer:
        await peer.send(deep)
        await peer.send(b"[" + deep + b"]")
        assert all(answer["error"]["code"] == -32700 for answer in await everything(peer))


@every_transport
async def test_a_cancel_with_an_id_of_its_own_is_told_so(tmp_path: Path, transport: Transport) -> None:
    async with serving(tmp_path, Playground().table()) as served, served.peer(transport) as peer:
        await peer.send(request(5, "$/cancelRequest", id=1))
        await peer.send([request(6, "$/cancelRequest", id=1)])
        single, (member,) = await everything(peer)
        assert (single["id"], single["error"]["code"]) == (5, -32600)
        assert (member["id"], member["error"]["code"]) == (6, -32600)
        assert "notification" in single["error"]["message"]


# end of input


@every_framing
async def test_after_a_half_close_everything_is_answered_then_comes_the_end(tmp_path: Path, transport: Transport) -> None:
    play = Playground()
    async with serving(tmp_path, play.table()) as served, served.peer(transport) as peer:
        assert isinstance(peer, TrioWire)
        sent = [request(1, "hold", name="a"), request(2, "echo", value="b"), [request(3, "hold", name="c")], request(4, "ping")]
        await peer.raw(framed(transport, *sent))
        await peer.half_close()
        quick = [await peer.receive(), await peer.receive()]
        assert {answer["id"] for answer in quick} == {2, 4}
        await wait_all_tasks_blocked(0.002)
        play.release("a", "c")
        late = [await peer.receive(), await peer.receive()]
        assert sorted(json.dumps(answer) for answer in late) == [
            json.dumps([{"jsonrpc": "2.0", "id": 3, "result": "c"}]),
            json.dumps({"jsonrpc": "2.0", "id": 1, "result": "a"}),
        ]
        assert await peer.receive() is None


@pytest.mark.parametrize("method", ["ping", "echo"])
async def test_the_last_line_needs_no_newline(tmp_path: Path, method: str) -> None:
    async with serving(tmp_path, Playground().table()) as served, served.peer("lines") as peer:
        assert isinstance(peer, TrioWire)
        await peer.raw(framed("lines", request(1, "ping"))[:-1])
        await peer.raw(b"\n" + json.dumps(request(2, method)).encode())
        await peer.half_close()
        answers = Answers(peer)
        await answers.result(1)
        await answers.result(2)
        assert await peer.receive() is None


@every_framing
async def test_a_peer_that_says_nothing_is_let_go(tmp_path: Path, transport: Transport) -> None:
    async with serving(tmp_path, Playground().table()) as served, served.peer(transport) as peer:
        assert isinstance(peer, TrioWire)
        await peer.raw(b"" if transport == "lines" else b"Content-Length: 10\r\n\r\n{")
        await peer.half_close()
        assert await peer.receive() is None


async def test_a_half_closed_client_that_goes_away_is_noticed(tmp_path: Path, autojump_clock: MockClock) -> None:
    play = Playground()
    async with serving(tmp_path, play.table()) as served:
        before = await living()
        peer = await served.unix()
        await peer.send(request(1, "hold", name="a"))
        await peer.half_close()
        with trio.move_on_after(20):
            await peer.receive()
        assert play.cancelled == [], "it may still read"
        await peer.aclose()
        await trio.sleep(2)
        assert play.cancelled == ["a"]
        assert served.clients == set()
        assert await living() == before


@every_transport
async def test_nothing_is_left_of_a_client_that_vanishes(tmp_path: Path, transport: Transport) -> None:
    play = Playground()
    async with serving(tmp_path, play.table()) as served:
        before = await living()
        async with served.peer(transport) as peer:
            for i in range(20):
                await peer.send(request(i, "hold", name=f"single {i}"))
            await peer.send([request(i, "hold", name=f"member {i}") for i in range(20)])
            await peer.send(b'{"jsonrpc":"2.0","method":"hold","params":{"name":"note"}}')
            await wait_all_tasks_blocked(0.002)
            assert len(served.clients) == 1
        await served.only(0)
        assert await living() == before
        assert len(play.started) == len(play.cancelled) == 41


@every_framing
async def test_what_was_sent_before_vanishing_still_takes_effect_in_order(tmp_path: Path, transport: Transport) -> None:
    play, names = Playground(), [str(i) for i in range(30)]
    async with serving(tmp_path, play.table()) as served:
        peer = await served.unix(Framing(transport))
        await peer.raw(framed(transport, *(request(n, "hold_plain", name=n) for n in names)))
        await peer.aclose()
        await wait_all_tasks_blocked(0.002)
        assert play.started == names


async def test_half_open_clients_disturb_nobody(tmp_path: Path) -> None:
    async with serving(tmp_path, Playground().table()) as served:
        before = await living()
        silent = [await served.unix() for _ in range(50)]
        beginnings = [b"", b"{", b'{"jsonrpc":', b"Content-Length: 100\r\n", b"Content-Length: 100\r\n\r\n{", b"["]
        for i, peer in enumerate(silent):
            await peer.raw(beginnings[i % len(beginnings)])
        async with served.peer("lines") as peer:
            await peer.send(request(1, "echo", value="fine"))
            assert (await peer.receive())["result"] == "fine"
        for peer in silent:
            await peer.aclose()
        await served.only(0)
        assert await living() == before


async def test_requests_that_are_over_are_forgotten(tmp_path: Path) -> None:
    play = Playground()
    async with serving(tmp_path, play.table()) as served, served.peer("lines") as peer:
        for i in range(200):
            await peer.send(request(f"id {i}", "echo"))
            await peer.send([request(f"member {i}", "hold", name=str(i)), cancel(f"member {i}")])
        assert len(await everything(peer)) == 400
        (connection,) = play.connections
        assert connection.outstanding == 0
        assert connection._running == {}


# limits


async def test_more_requests_than_may_be_in_flight(tmp_path: Path) -> None:
    play, most = Playground(), connections.MOST_REQUESTS
    async with serving(tmp_path, play.table()) as served, served.peer("lines") as peer:
        assert isinstance(peer, TrioWire)
        await peer.raw(framed("lines", *(request(i, "hold", name=str(i)) for i in range(most + 5))))
        await peer.send([request("member", "echo"), notification("echo"), cancel(3)])
        await peer.send(cancel(4))
        refused = await everything(peer)
        by_id = {one["id"]: one["error"] for answer in refused for one in (answer if isinstance(answer, list) else [answer])}
        assert {ident: error["code"] for ident, error in by_id.items()} == {
            **{most + i: -32001 for i in range(5)}, "member": -32001, 3: -32800, 4: -32800,
        }  # fmt: skip
        assert by_id["member"]["data"] == {"code": "unavailable", "retry_after": 1}
        await peer.send(request("there is room again", "echo", value=1))
        play.release(*(str(i) for i in range(most) if i not in (3, 4)))
        answered = await everything(peer)
        assert len(answered) == most - 1
        assert {"jsonrpc": "2.0", "id": "there is room again", "result": 1} in answered


async def test_the_limit_counts_the_members_of_a_batch(tmp_path: Path) -> None:
    play, most = Playground(), connections.MOST_REQUESTS
    async with serving(tmp_path, play.table()) as served, served.peer("lines") as peer:
        await peer.send([request(i, "hold", name=str(i)) for i in range(most)])
        await peer.send([request(i, "hold", name=str(i)) for i in range(most, most + 50)])
        await wait_all_tasks_blocked(0.002)
        assert len(play.started) == most
        play.release(*play.started)
        refused, served_batch = await everything(peer)
        assert [answer["error"]["code"] for answer in refused] == [-32001] * 50
        assert sum("result" in answer for answer in served_batch) == most


async def test_a_batch_of_more_than_it_may_hold_is_refused_whole_and_cheaply(tmp_path: Path) -> None:
    play = Playground()
    async with serving(tmp_path, play.table()) as served, served.peer("lines") as peer:
        for members in (b"1," * 4_000_000 + b"1", b",".join([b"{}"] * (jsonrpc.MOST_IN_BATCH + 1))):
            await peer.send(b"[" + members + b"]")
            answer = await peer.receive()
            assert answer["error"]["code"] == -32600
            assert str(jsonrpc.MOST_IN_BATCH) in answer["error"]["message"]
        await peer.send(request(1, "ping"))
        assert (await peer.receive())["result"] == "pong"


async def test_more_clients_than_there_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MOST_CLIENTS", 2)
    async with serving(tmp_path, Playground().table()) as served, served.peer("lines") as one, served.peer("lines") as two:
        for peer in (one, two):
            await peer.send(request(1, "ping"))
            assert (await peer.receive())["result"] == "pong"
        async with served.peer("lines") as three:
            assert await three.receive() is None
        assert isinstance(two, TrioWire)
        await two.aclose()
        await wait_all_tasks_blocked(0.002)
        async with served.peer("lines") as three:
            await three.send(request(1, "ping"))
            assert (await three.receive())["result"] == "pong"


async def test_another_users_client_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "peer_uid", lambda _: 4_000_000)
    async with serving(tmp_path, Playground().table()) as served, served.peer("lines") as peer:
        assert await peer.receive() is None
        assert served.clients == set()


# what handlers do wrong


@every_transport
@pytest.mark.parametrize(
    ("error", "code", "data"),
    [
        (Conflict("busy", active_turn_id="t"), -32003, {"code": "conflict", "active_turn_id": "t"}),
        (MailboxFull("branch 1"), -32001, {"code": "unavailable", "retry_after": 1}),
        (ActorGone("store has stopped"), -32001, {"code": "unavailable", "retry_after": 1}),
        (AskTimeout("no answer"), -32001, {"code": "unavailable", "retry_after": 1}),
    ],
)
async def test_expected_errors_keep_their_meaning(
    tmp_path: Path, transport: Transport, error: Exception, code: int, data: dict[str, Any]
) -> None:
    play = Playground()
    play.error = error
    async with serving(tmp_path, play.table()) as served, served.peer(transport) as peer:
        await peer.send(request(1, "fail"))
        answer = (await peer.receive())["error"]
        assert (answer["code"], answer["data"]) == (code, data)


@every_transport
@pytest.mark.parametrize("method", ["fail", "unspeakable"])
async def test_a_bug_is_an_incident_and_its_traceback_stays_here(
    tmp_path: Path, transport: Transport, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    play = Playground()
    play.error = RuntimeError("a secret of the daemon")
    async with serving(tmp_path, play.table()) as served, served.peer(transport) as peer:
        await peer.send(request(1, method))
        text = json.dumps(answer := await peer.receive())
        assert answer["error"]["code"] == -32603
        incident = answer["error"]["data"]["incident"]
        assert "secret" not in text
        assert "Traceback" not in text
        (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
        assert incident in record.getMessage()
        assert record.exc_info is not None
        await peer.send(request(2, "echo", value="still here"))
        assert (await peer.receive())["result"] == "still here"


# clients that do not read


async def fill(peer: TrioWire) -> None:
    """Ask for more than the socket holds and read none of it."""
    for i in range(8):
        await peer.send(request(i, "echo", value="x" * 200_000))
    await wait_all_tasks_blocked(0.01)


async def test_a_client_that_does_not_read_slows_nobody(tmp_path: Path) -> None:
    async with serving(tmp_path, Playground().table()) as served, served.peer("lines") as deaf, served.peer("lines") as peer:
        assert isinstance(deaf, TrioWire)
        await fill(deaf)
        await peer.send(request(1, "echo", value="fine"))
        assert (await peer.receive())["result"] == "fine"
        answers = Answers(deaf)
        for i in range(8):
            assert len(await answers.result(i)) == 200_000


@every_transport
async def test_a_client_that_does_not_read_cannot_keep_the_daemon_from_stopping(
    tmp_path: Path, transport: Transport, autojump_clock: MockClock
) -> None:
    asked = json.dumps(request(1, "echo", value="x" * 1_000_000)).encode()
    async with serving(tmp_path, Playground().table()) as served:
        if transport == "websocket":
            deaf, _ = await served.handshake()
            data = text_message(asked)
        else:
            deaf = (await served.unix()).stream
            data = frame(Framing(transport), asked)
        with trio.move_on_after(1):  # until the server, too, takes no more
            for _ in range(8):
                await deaf.send_all(data)
        await wait_all_tasks_blocked(0.01)
        assert len(served.clients) == 1
        began = trio.current_time()
    assert trio.current_time() - began <= 2 * connections.LAST_WORD_SECONDS
    await deaf.aclose()


@pytest.mark.slow
@pytest.mark.e2e
def test_a_daemon_stops_in_time_and_says_goodbye_whoever_does_not_read(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, daemon.wire() as deaf, daemon.wire() as wire:
        deaf.call("events.subscribe")
        for _ in range(200):
            deaf.post("rpc.discover")
        assert wire.call("daemon.shutdown") == {}
        assert wire.receive() is None
        assert daemon.process is not None
        assert daemon.process.wait(10) == 0


async def test_frames_stay_whole_when_requests_end_all_around_them(tmp_path: Path) -> None:
    play = Playground()
    async with serving(tmp_path, play.table()) as served, served.peer("lines") as peer:
        for i in range(20):
            await peer.send(request(f"held {i}", "hold", name=str(i)))
            await peer.send(request(i, "echo", value=str(i) * 100_000))
        await wait_all_tasks_blocked(0.01)
        for i in range(20):
            await peer.send(cancel(f"held {i}"))
        answers = Answers(peer)
        for i in range(20):
            assert await answers.result(i) == str(i) * 100_000
            assert await answers.code(f"held {i}") == -32800
