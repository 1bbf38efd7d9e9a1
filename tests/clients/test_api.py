"""The typed client against a scripted daemon, on trio and on asyncio alike."""

import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from contextinfinity.clients import api
from contextinfinity.clients.api import Client, connect
from contextinfinity.clients.errors import BadAnswer, DaemonSilent, DaemonUnreachable
from contextinfinity.protocol import jsonrpc
from contextinfinity.protocol.errors import Conflict, Fault, InternalError, InvalidRequest, UnknownFault
from contextinfinity.protocol.methods import DaemonPing, SessionGet, Submitted, TurnSubmit, TurnWait
from contextinfinity.protocol.model import Pong
from tests.clients.fake import NO_ANSWER, FakeDaemon, Peer

Run = Callable[[Callable[[], Awaitable[None]]], None]
SUBMIT = TurnSubmit(branch_id="B", content="hello")


@pytest.fixture(params=["trio", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    async def guarded(work: Callable[[], Awaitable[None]]) -> None:
        with anyio.fail_after(20):
            await work()

    return lambda work: anyio.run(guarded, work, backend=request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ctxd.sock"


@pytest.fixture
def daemon() -> FakeDaemon:
    return FakeDaemon()


def test_a_call_knows_its_method_and_its_result(run: Run, daemon: FakeDaemon, path: Path) -> None:
    daemon.answers("turn.submit", {"turn_id": "T", "turn_seq": 7, "a_field_of_tomorrow": 1})

    async def work() -> None:
        async with daemon.serving(path), connect(path) as client:
            assert await client.call(DaemonPing()) == Pong("0.1.0", 1, ())
            assert await client.call(SUBMIT) == Submitted("T", 7)
        assert daemon.called("turn.submit") == [{"branch_id": "B", "content": "hello"}]

    run(work)


def test_raw_calls_pass_plain_values(run: Run, daemon: FakeDaemon, path: Path) -> None:
    daemon.on("any.thing", lambda peer, params: {"got": params})

    async def work() -> None:
        async with daemon.serving(path), connect(path) as client:
            assert await client.call_raw("any.thing", {"x": [1, None]}) == {"got": {"x": [1, None]}}

    run(work)


def test_a_fault_of_the_daemon_is_raised_again_as_its_class_and_alone(run: Run, daemon: FakeDaemon, path: Path) -> None:
    daemon.refuses("turn.submit", Conflict("busy", active_turn_id="T1"))

    async def work() -> None:
        async with daemon.serving(path):
            # Around the whole block: an exception group would not be caught here.
            with pytest.raises(Conflict, match="busy") as caught:
                async with connect(path) as client:
                    await client.call(SUBMIT)
            assert caught.value.data == {"code": "conflict", "active_turn_id": "T1"}

    run(work)


def test_a_code_of_tomorrow_is_an_unknown_fault(run: Run, daemon: FakeDaemon, path: Path) -> None:
    class Tomorrow(Fault):
        code, word = -31_999, "tomorrow"

    del Fault.by_code[-31_999]
    daemon.refuses("turn.submit", Tomorrow("new"))

    async def work() -> None:
        async with daemon.serving(path), connect(path) as client:
            with pytest.raises(UnknownFault) as caught:
                await client.call(SUBMIT)
            assert caught.value.error.code == -31_999

    run(work)


def test_answers_in_any_order_reach_their_callers(run: Run, daemon: FakeDaemon, path: Path) -> None:
    released: dict[str, anyio.Event] = {}

    async def answer(peer: Peer, params: dict[str, Any]) -> Any:
        if params["session_id"] == "first":
            await released["first"].wait()
        else:
            released["first"].set()
        return {"id": params["session_id"], "created_at": "", "active_branch": "B", "turns": 0}

    async def work() -> None:
        released["first"] = anyio.Event()
        daemon.on("session.get", answer)
        order: list[str] = []

        async def ask(client: Client, name: str) -> None:
            assert (await client.call(SessionGet(session_id=name))).id == name
            order.append(name)

        async with daemon.serving(path), connect(path) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(ask, client, "first")
            await daemon.was_asked("session.get")
            tasks.start_soon(ask, client, "second")
        assert sorted(order) == ["first", "second"]

    run(work)


def test_nobody_there(run: Run, path: Path, tmp_path: Path) -> None:
    async def refused(where: Path, words: str) -> None:
        with pytest.raises(DaemonUnreachable, match=words):
            async with connect(where):
                raise AssertionError("connected to nothing")

    async def work() -> None:
        await refused(path, "no socket")
        await refused(left_over, "left over")
        await refused(tmp_path / ("x" * 200), "cannot connect")

    left_over = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(left_over))
    run(work)


def test_a_silent_daemon_meets_the_deadline_and_is_told(run: Run, daemon: FakeDaemon, path: Path) -> None:
    daemon.answers("turn.submit", NO_ANSWER)

    async def work() -> None:
        async with daemon.serving(path), connect(path, call_timeout=0.1) as client:
            with pytest.raises(DaemonSilent, match=r"turn\.submit within 0\.1 s"):
                await client.call(SUBMIT)
            await client.call(DaemonPing(), timeout=5)
            assert daemon.called("$/cancelRequest") == [{"id": 1}]

    run(work)


def test_a_wait_gets_its_own_time_before_the_deadline_counts(path: Path) -> None:
    client = Client(None, path, 60.0)  # type: ignore[arg-type]
    wait = TurnWait(turn_id="T", timeout_s=5)
    assert client._default_timeout("turn.wait", wait.timeout_s) == 65
    assert client._default_timeout("turn.wait", None) == 360
    assert client._default_timeout("turn.submit", None) == 60
    assert Client(None, path, None)._default_timeout("turn.wait", 5) is None  # type: ignore[arg-type]


def test_a_cancelled_call_is_cancelled_in_the_daemon_and_the_connection_lives(run: Run, daemon: FakeDaemon, path: Path) -> None:
    daemon.answers("turn.wait", NO_ANSWER)

    async def work() -> None:
        async with daemon.serving(path), connect(path) as client:
            with anyio.move_on_after(0.05) as scope:
                await client.call(TurnWait(turn_id="T"))
            assert scope.cancelled_caught
            await client.call(DaemonPing())
            assert daemon.called("$/cancelRequest") == [{"id": 1}]

    run(work)


def test_losing_the_connection_fails_every_call_and_subscription(run: Run, daemon: FakeDaemon, path: Path) -> None:
    async def hang_up(peer: Peer, params: dict[str, Any]) -> Any:
        await peer.stream.aclose()
        return NO_ANSWER

    daemon.answers("events.subscribe", {"subscription_id": "S", "cursor": 0})
    daemon.answers("turn.wait", NO_ANSWER)
    daemon.on("turn.submit", hang_up)
    failed: list[str] = []

    async def wait(client: Client) -> None:
        with pytest.raises(DaemonUnreachable, match="lost"):
            await client.call(TurnWait(turn_id="T"))
        failed.append("wait")

    async def listen(client: Client) -> None:
        async with client.subscribe() as events:
            with pytest.raises(DaemonUnreachable, match="lost"):
                await anext(events)
        failed.append("events")

    async def work() -> None:
        async with daemon.serving(path), connect(path) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait, client)
                tasks.start_soon(listen, client)
                await daemon.was_asked("turn.wait")
                await daemon.was_asked("events.subscribe")
                with pytest.raises(DaemonUnreachable, match="lost"):
                    await client.call(SUBMIT)
            with pytest.raises(DaemonUnreachable):
                await client.call(DaemonPing())
        assert sorted(failed) == ["events", "wait"]

    run(work)


@pytest.mark.parametrize(
    "garbage",
    [b"{oops", b'"text"', b"[1]", b'{"jsonrpc":"2.0","method":"event","params":{"x":1}}', b"\xff\xfe"],
)
def test_garbage_ends_the_connection_with_a_sentence(run: Run, daemon: FakeDaemon, path: Path, garbage: bytes) -> None:
    async def rave(peer: Peer, params: dict[str, Any]) -> Any:
        await peer.send(garbage)
        return NO_ANSWER

    daemon.on("turn.submit", rave)

    async def work() -> None:
        async with daemon.serving(path), connect(path) as client:
            with pytest.raises(DaemonUnreachable, match="not understood"):
                await client.call(SUBMIT)

    run(work)


@pytest.mark.parametrize("stray", [b'{"jsonrpc":"2.0","id":99,"result":1}', b'{"id":[1],"result":1}', b'{"method":"news"}'])
def test_stray_documents_are_ignored(run: Run, daemon: FakeDaemon, path: Path, stray: bytes) -> None:
    async def answer(peer: Peer, params: dict[str, Any]) -> Any:
        await peer.send(stray)
        return {"turn_id": "T", "turn_seq": 1}

    daemon.on("turn.submit", answer)

    async def work() -> None:
        async with daemon.serving(path), connect(path) as client:
            assert await client.call(SUBMIT) == Submitted("T", 1)

    run(work)


def test_a_result_of_the_wrong_shape_names_the_method(run: Run, daemon: FakeDaemon, path: Path) -> None:
    daemon.answers("turn.submit", {"turn_id": 5})

    async def work() -> None:
        async with daemon.serving(path), connect(path) as client:
            with pytest.raises(BadAnswer, match=r"turn\.submit"):
                await client.call(SUBMIT)
            await client.call(DaemonPing())

    run(work)


def test_an_answer_without_result_or_error_is_an_error(run: Run, daemon: FakeDaemon, path: Path) -> None:
    async def half_answer(peer: Peer, params: dict[str, Any]) -> Any:
        await peer.send(b'{"jsonrpc":"2.0","id":1}')
        return NO_ANSWER

    daemon.on("any.thing", half_answer)

    async def work() -> None:
        async with daemon.serving(path), connect(path) as client:
            with pytest.raises(InternalError, match="neither result nor error"):
                await client.call_raw("any.thing")

    run(work)


def test_a_refusal_without_an_id_reaches_whoever_waits(run: Run, daemon: FakeDaemon, path: Path) -> None:
    async def refuse(peer: Peer, params: dict[str, Any]) -> Any:
        await peer.send(jsonrpc.failure(jsonrpc.NULL, InvalidRequest("over the limit").to_error()))
        return NO_ANSWER

    daemon.on("turn.submit", refuse)

    async def work() -> None:
        async with daemon.serving(path), connect(path) as client:
            with pytest.raises(InvalidRequest, match="over the limit"):
                await client.call(SUBMIT)
            await client.call(DaemonPing())

    run(work)


def test_events_come_in_order_even_before_the_answer_to_subscribe(run: Run, daemon: FakeDaemon, path: Path) -> None:
    async def subscribe(peer: Peer, params: dict[str, Any]) -> Any:
        await peer.event("S", 4, "turn.accepted", "T")
        await peer.event("other", 4, "turn.accepted", "X")
        return {"subscription_id": "S", "cursor": 3}

    daemon.on("events.subscribe", subscribe)
    daemon.answers("events.unsubscribe", {})

    async def work() -> None:
        async with daemon.serving(path), connect(path) as client:
            async with client.subscribe(branch_id="B", since=3) as events:
                await daemon.peers[0].event("S", 5, "turn.phase", "T", phase="done")
                seen = [await anext(events), await anext(events)]
                assert [(e.cursor, e.type, e.turn_id) for e in seen] == [(4, "turn.accepted", "T"), (5, "turn.phase", "T")]
                assert events.cursor == 5
                assert events.drain() == []
            assert daemon.called("events.subscribe") == [{"branch_id": "B", "since": 3}]
            assert daemon.called("events.unsubscribe") == [{"subscription_id": "S"}]

    run(work)


def test_a_slow_consumer_delays_no_answer_and_loses_no_durable_event(run: Run, daemon: FakeDaemon, path: Path) -> None:
    durable = 40

    async def subscribe(peer: Peer, params: dict[str, Any]) -> Any:
        number = len(daemon.called("events.subscribe"))
        name, since = f"S{number}", params.get("since", 0)
        for cursor in range(since + 1, durable + 1):
            await peer.event(name, cursor, "turn.accepted", "T")
            await peer.event(name, cursor, "stream.delta", "T", text="x")
        return {"subscription_id": name, "cursor": durable}

    daemon.on("events.subscribe", subscribe)
    daemon.answers("events.unsubscribe", {})

    async def work() -> None:
        async with daemon.serving(path), connect(path) as client, client.subscribe(since=0, buffer=8) as events:
            await client.call(DaemonPing())
            seen = []
            async for event in events:
                seen.append(event)
                if event.cursor == durable and event.type == "turn.accepted":
                    break
        cursors = [e.cursor for e in seen if e.type == "turn.accepted"]
        assert cursors == list(range(1, durable + 1)), "durable events come once each, in order"
        lagged = [e for e in seen if e.type == "lagged"]
        assert len(lagged) > 1
        assert all(e.data == {"reset": True} for e in lagged)
        assert [p.get("since") for p in daemon.called("events.subscribe")][:3] == [0, 4, 8]

    run(work)


def test_a_durable_event_that_comes_again_is_shown_once(run: Run, daemon: FakeDaemon, path: Path) -> None:
    async def subscribe(peer: Peer, params: dict[str, Any]) -> Any:
        for cursor in (4, 5, 4, 5, 6):
            await peer.event("S", cursor, "turn.accepted", "T")
            await peer.event("S", cursor, "stream.delta", "T", text="x")
        return {"subscription_id": "S", "cursor": 6}

    daemon.on("events.subscribe", subscribe)
    daemon.answers("events.unsubscribe", {})

    async def work() -> None:
        async with daemon.serving(path), connect(path) as client, client.subscribe(since=3) as events:
            await client.call(DaemonPing())
            first = await anext(events)
            seen = [first, *events.drain()]
        assert [e.cursor for e in seen if e.type == "turn.accepted"] == [4, 5, 6]
        assert len([e for e in seen if e.type == "stream.delta"]) == 5

    run(work)


@pytest.mark.parametrize("reset", [True, False])
def test_when_the_daemon_says_lagged_without_reset_the_subscription_is_renewed(
    run: Run, daemon: FakeDaemon, path: Path, reset: bool
) -> None:
    async def subscribe(peer: Peer, params: dict[str, Any]) -> Any:
        number = len(daemon.called("events.subscribe"))
        if number == 1:
            await peer.event("S1", 1, "turn.accepted", "T")
            await peer.event("S1", 1, "lagged", **({"reset": True} if reset else {}))
            await peer.event("S1", 9, "turn.phase", "T", phase="first subscription")
        else:
            await peer.event("S2", 2, "turn.phase", "T", phase="second subscription")
        return {"subscription_id": f"S{number}", "cursor": 9}

    daemon.on("events.subscribe", subscribe)
    daemon.answers("events.unsubscribe", {})

    async def work() -> None:
        async with daemon.serving(path), connect(path) as client, client.subscribe(since=0) as events:
            seen = [await anext(events) for _ in range(3)]
        assert [e.type for e in seen] == ["turn.accepted", "lagged", "turn.phase"]
        assert seen[1].data == {"reset": True}
        renewed = [] if reset else [{"since": 1}]
        assert daemon.called("events.subscribe")[1:] == renewed
        assert seen[2].cursor == (9 if reset else 2)

    run(work)


def test_a_daemon_that_reads_nothing_cannot_hold_a_sender_for_ever(
    run: Run, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "SEND_TIMEOUT", 0.2)

    async def work() -> None:
        async with await anyio.create_unix_listener(path), connect(path) as client:
            with pytest.raises(DaemonUnreachable, match="read nothing"):
                await client.call_raw("x", {"text": "x" * 8_000_000})

    run(work)


def test_the_client_imports_neither_trio_nor_the_daemon() -> None:
    check = (
        "import sys, contextinfinity.clients.api, contextinfinity.clients.autostart;"
        "print([m for m in sys.modules if m == 'trio' or m.startswith('contextinfinity.daemon')])"
    )
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
