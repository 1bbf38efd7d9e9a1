"""What holds for every adapter over an SDK, against a server that speaks its real wire format."""

import gc
import logging
import threading
import traceback
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from contextinfinity.daemon.core.transcript import Answer, Ended, StopReason
from contextinfinity.daemon.providers import sdk
from contextinfinity.daemon.providers.base import ModelRequest, RawEvent
from contextinfinity.daemon.providers.sdk import Adapter
from contextinfinity.protocol.blocks import Message, Unknown, message
from contextinfinity.protocol.model import Completed, Failed, Incomplete
from tests.providers.calls import ADAPTERS, KEY, REQUEST, call, endpoint, self_signed
from tests.support import wire_formats as wires
from tests.support.provider_server import ProviderServer, Reply

FUTURE = {"anthropic": "weather_report", "openai": "response.weather.delta", "openai_chat": "weather.report"}


async def test_an_answer_arrives_whole(server: ProviderServer, adapter: Adapter) -> None:
    result = await call(adapter, endpoint(server, adapter))
    assert result.error is None
    assert result.answer.text() == "Hello, wörld 🌍"
    assert result.answer.outcome == Completed()
    assert result.answer.usage["input_tokens"] == 25
    assert result.answer.usage["output_tokens"] == 4
    assert result.answer.bytes == len("Hello, wörld 🌍".encode())
    assert server.violations == []


async def test_what_is_sent_is_the_body_and_the_key_is_not_in_it(server: ProviderServer, adapter: Adapter) -> None:
    await call(adapter, endpoint(server, adapter))
    assert [seen.body for seen in server.requests] == [adapter.body(REQUEST)]
    assert KEY not in str(adapter.body(REQUEST))
    assert KEY in server.requests[0].headers["authorization"]


async def test_every_event_is_kept_as_it_was_on_the_wire(server: ProviderServer, adapter: Adapter) -> None:
    wire = adapter.name
    result = await call(adapter, endpoint(server, adapter))
    sent = [
        *wires.opening(wire, "model-x", noise=True),
        *(wires.delta(wire, "model-x", text) for text in Reply().deltas),
        *wires.closing(wire, "model-x", "Hello, wörld 🌍", "end", 4),
    ]
    kept = [event.payload for event in result.events]
    assert kept[: len(sent)] == [payload for _, payload in sent]
    assert [event for event in result.events if event.type in adapter.terminal] == [result.events[-1]]


async def test_an_event_of_the_future_is_kept_and_means_nothing(server: ProviderServer, adapter: Adapter) -> None:
    result = await call(adapter, endpoint(server, adapter))
    strange = [event for event in result.events if event.type == FUTURE[adapter.name]]
    assert len(strange) == 1
    assert list(adapter.normalise(strange[0])) == []


@pytest.mark.parametrize("payload", [{}, {"type": None}, {"choices": None}, {"choices": [5]}, {"usage": "many"}])
def test_normalise_survives_any_payload(payload: dict[str, Any]) -> None:
    kinds = [k for a in ADAPTERS.values() for k in (*a.terminal, a.text_event)]
    for kind in [*kinds, "message_delta", "message_start", "content_block_start", "response.output_item.done"]:
        for make in ADAPTERS.values():
            effects = make().normalise(RawEvent(kind, {"type": kind, **payload}))
            assert all(isinstance(e, Ended) and e.outcome is None for e in effects)


async def test_a_journal_read_back_gives_the_same_answer(server: ProviderServer, adapter: Adapter) -> None:
    result = await call(adapter, endpoint(server, adapter))
    again = Answer()
    for line in [msgspec.json.encode(event) for event in result.events]:
        for effect in adapter.normalise(msgspec.json.decode(line, type=RawEvent)):
            again.apply(effect)
    assert (again.text(), again.outcome, again.usage) == (
        result.answer.text(),
        result.answer.outcome,
        result.answer.usage,
    )


async def test_the_length_limit_is_an_incomplete_answer(server: ProviderServer, adapter: Adapter) -> None:
    server.script(Reply(stop="length"))
    result = await call(adapter, endpoint(server, adapter))
    assert result.answer.outcome == Incomplete("max_tokens")


async def test_a_refusal_is_a_failure(server: ProviderServer, adapter: Adapter) -> None:
    server.script(Reply(stop="refusal"))
    result = await call(adapter, endpoint(server, adapter))
    assert isinstance(result.answer.outcome, Failed)
    assert result.answer.outcome.code == "refusal"
    assert result.answer.text() == "Hello, wörld 🌍"


async def test_a_tidy_end_without_the_terminal_event_is_no_end(server: ProviderServer, adapter: Adapter) -> None:
    server.script(Reply(ending="clean"))
    result = await call(adapter, endpoint(server, adapter))
    assert result.error is None
    assert result.answer.outcome is None
    assert result.answer.text() == "Hello, wörld 🌍"


@pytest.mark.parametrize("ending", ["cut", "cut_mid_event"])
async def test_a_cut_connection_is_an_error_and_keeps_the_text(server: ProviderServer, adapter: Adapter, ending: Any) -> None:
    server.script(Reply(ending=ending))
    result = await call(adapter, endpoint(server, adapter))
    assert result.error is not None
    assert result.error.data["code"] == "connection"
    assert result.error.data["retryable"] is True
    assert result.answer.text() == "Hello, wörld 🌍"
    assert result.answer.outcome is None


@pytest.mark.parametrize("garbage", [b"data: {oops\n\n", b"data: [1]\n\n", b'event: x\ndata: "\xff"\n\n'])
async def test_malformed_json_is_an_error_and_keeps_the_text(server: ProviderServer, adapter: Adapter, garbage: bytes) -> None:
    server.script(Reply(extra=(garbage,)))
    result = await call(adapter, endpoint(server, adapter))
    assert result.error is not None
    assert result.error.data["code"] == "malformed_stream"
    assert result.answer.text() == "Hello, wörld 🌍"
    assert result.answer.outcome is None


async def test_a_page_that_is_no_event_stream_names_the_base_url(server: ProviderServer, adapter: Adapter) -> None:
    server.script(Reply(body=b"<html>welcome</html>", content_type="text/html"))
    result = await call(adapter, endpoint(server, adapter))
    assert result.error is not None
    assert result.error.data["code"] == "malformed_stream"
    assert "base_url" in result.error.message
    assert "text/html" in result.error.message


@pytest.mark.parametrize(
    ("status", "kind", "said", "code", "retryable"),
    [
        (400, "invalid_request_error", "bad field", "bad_request", False),
        (400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum", "too_large", False),
        (400, "context_length_exceeded", "no", "too_large", False),
        (401, "authentication_error", f"invalid key {KEY}", "authentication", False),
        (402, "billing_error", "pay first", "permission", False),
        (403, "permission_error", "not yours", "permission", False),
        (404, "not_found_error", "model: model-x", "not_found", False),
        (408, "timeout_error", "slow", "timeout", True),
        (413, "request_too_large", "too much", "too_large", False),
        (429, "rate_limit_error", "slow down", "rate_limited", True),
        (429, "insufficient_quota", "quota is used up", "permission", False),
        (500, "api_error", "oops", "server_error", True),
        (503, "api_error", "busy", "overloaded", True),
        (529, "overloaded_error", "Overloaded", "overloaded", True),
        (599, "what", "?", "server_error", True),
    ],
)
async def test_http_errors_become_words(
    server: ProviderServer, adapter: Adapter, status: int, kind: str, said: str, code: str, retryable: bool
) -> None:
    server.script(Reply(status=status, kind=kind, message=said))
    result = await call(adapter, endpoint(server, adapter))
    assert result.error is not None
    assert result.error.data["code"] == code
    assert result.error.data["status"] == status
    assert result.error.data["retryable"] is retryable
    assert result.error.data["provider"] == adapter.name
    assert said.removesuffix(KEY) in result.error.message
    assert len(server.requests) == 1, "retries are not the SDK's business"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "9", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
async def test_retry_after_is_passed_on(
    server: ProviderServer, adapter: Adapter, headers: dict[str, str], seconds: float | None
) -> None:
    server.script(Reply(status=429, kind="rate_limit_error", headers=headers))
    result = await call(adapter, endpoint(server, adapter))
    assert result.error is not None
    assert result.error.data.get("retry_after") == seconds


@pytest.mark.parametrize("body", [b"", b"<html>Bad gateway</html>", b"gateway down", b'{"error": null}', b'["x"]'])
async def test_an_error_page_of_any_shape_is_still_one_sentence(server: ProviderServer, adapter: Adapter, body: bytes) -> None:
    server.script(Reply(status=502, body=body))
    result = await call(adapter, endpoint(server, adapter))
    assert result.error is not None
    assert result.error.data["code"] == "server_error"
    assert "<" not in result.error.message
    assert "\n" not in result.error.message


async def test_an_echoed_key_is_told_to_nobody(
    server: ProviderServer, adapter: Adapter, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger(adapter.module).setLevel(logging.DEBUG)
    caplog.set_level(logging.DEBUG)
    echo = wires.sse(*wires.error_event(adapter.name, "api_error", f"your key is {KEY}"))
    server.script(Reply(status=401, kind="authentication_error", message=f"bad key: {KEY}"), Reply(extra=(echo,)))
    for _ in range(2):
        result = await call(adapter, endpoint(server, adapter))
        assert result.error is not None
        assert "[key]" in result.error.message
        told = [result.error.message, str(result.error.data), str(result.events), caplog.text]
        told += traceback.format_exception(result.error)
        assert KEY not in "".join(told)
        assert result.error.__cause__ is None
        assert result.error.__context__ is None
    assert "Be brief." not in caplog.text


async def test_an_error_event_is_kept_then_raised(server: ProviderServer, adapter: Adapter) -> None:
    kind = "overloaded_error" if adapter.name == "anthropic" else "rate_limit_exceeded"
    event = wires.error_event(adapter.name, kind, "Too busy")
    server.script(Reply(extra=(wires.sse(*event),)))
    result = await call(adapter, endpoint(server, adapter))
    code = "overloaded" if adapter.name == "anthropic" else "rate_limited"
    assert result.error is not None
    assert result.error.data["code"] == code
    assert result.error.data["retryable"] is True
    assert result.events[-1] == RawEvent("error", event[1])
    assert result.answer.outcome == Failed(code, "Too busy")
    assert result.answer.text() == "Hello, wörld 🌍"


async def test_nothing_of_the_environment_reaches_the_wire(
    server: ProviderServer, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC", "OPENAI"):
        monkeypatch.setenv(f"{name}_CUSTOM_HEADERS", "X-Leak: leaked\nAuthorization: Bearer leaked")
        monkeypatch.setenv(f"{name}_BASE_URL", "http://leaked.invalid")
        monkeypatch.setenv(f"{name}_API_KEY", "leaked")
    for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, "leaked")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://leaked.invalid:1")
    result = await call(adapter, endpoint(server, adapter, headers={"X-Team": "blue"}))
    assert result.error is None
    headers = server.requests[0].headers
    assert "leaked" not in str(headers)
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["x-team"] == "blue"


async def test_the_configured_proxy_is_used(server: ProviderServer, adapter: Adapter) -> None:
    proxy = f"http://127.0.0.1:{server.port}"
    path = "" if adapter.name == "anthropic" else "/v1"
    result = await call(adapter, endpoint(server, adapter, base_url=f"http://model.invalid{path}", proxy=proxy))
    assert result.answer.outcome == Completed()
    assert server.requests[0].path.startswith("http://model.invalid/v1/")


async def test_a_redirect_is_not_followed(server: ProviderServer, adapter: Adapter) -> None:
    with ProviderServer() as elsewhere:
        path = next(path for path, wire in wires.PATHS.items() if wire == adapter.name)
        target = f"http://127.0.0.1:{elsewhere.port}{path}"
        server.script(Reply(status=307, headers={"location": target}))
        result = await call(adapter, endpoint(server, adapter))
        assert elsewhere.requests == []
    assert result.error is not None
    assert "base_url" in result.error.message


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"base_url": "model.example/v1"}, "base_url"),
        ({"base_url": "http://[/"}, "base_url"),
        ({"ca_file": "/nonexistent/ca.pem"}, "ca_file"),
        ({"proxy": "nonsense"}, "proxy"),
        ({"headers": {"X-Name": "zoë\n"}}, "header"),
        ({"api_key": "sk-ключ-ключ"}, "ctx auth set"),
    ],
)
async def test_a_setting_that_cannot_work_is_named(
    server: ProviderServer, adapter: Adapter, settings: dict[str, Any], word: str
) -> None:
    result = await call(adapter, endpoint(server, adapter, **settings))
    assert result.error is not None
    assert word in result.error.message
    assert result.error.data["retryable"] is False
    assert "ключ" not in result.error.message
    assert server.requests == []


async def test_an_endpoint_that_is_not_there_is_a_connection_error(server: ProviderServer, adapter: Adapter) -> None:
    with ProviderServer() as gone:
        where = endpoint(gone, adapter)
    result = await call(adapter, where)
    assert result.error is not None
    assert result.error.data["code"] == "connection"
    assert result.error.data["retryable"] is True
    assert "127.0.0.1" in result.error.message


async def test_the_ca_file_decides_whom_to_trust(adapter: Adapter, tmp_path: Path) -> None:
    tls, ca_file = self_signed(tmp_path)
    with ProviderServer(tls=tls) as server:
        refused = await call(adapter, endpoint(server, adapter))
        assert refused.error is not None
        assert refused.error.data["code"] == "connection"
        assert refused.error.data["retryable"] is False
        assert "ca_file" in refused.error.message
        assert server.requests == []
        trusted = await call(adapter, endpoint(server, adapter, ca_file=ca_file))
        assert trusted.answer.outcome == Completed()


@pytest.mark.parametrize("name", list(ADAPTERS))
async def test_silence_is_a_timeout(server: ProviderServer, name: str) -> None:
    adapter = ADAPTERS[name](idle_timeout=0.05)
    server.script(Reply(pause_after=2))
    result = await call(adapter, endpoint(server, adapter))
    server.resume()
    await adapter.aclose()
    assert result.error is not None
    assert result.error.data["code"] == "timeout"
    assert result.answer.text() == "Hello, "


async def test_deltas_arrive_while_the_provider_still_speaks(server: ProviderServer, adapter: Adapter) -> None:
    server.script(Reply(pause_after=2))
    text = ""
    async with aclosing(adapter.stream(REQUEST, endpoint(server, adapter))) as stream:
        async for event in stream:
            for effect in adapter.normalise(event):
                text += getattr(effect, "text", "")
            if text == "Hello, ":
                assert await trio.to_thread.run_sync(server.paused.wait, 30)
                server.resume()
    assert text == "Hello, wörld 🌍"


async def test_cancelling_stops_at_once_and_the_client_stays_usable(server: ProviderServer, adapter: Adapter) -> None:
    where = endpoint(server, adapter)
    server.script(Reply(pause_after=1))
    finished = False
    async with trio.open_nursery() as nursery:

        async def consume() -> None:
            nonlocal finished
            await call(adapter, where)
            finished = True

        nursery.start_soon(consume)
        assert await trio.to_thread.run_sync(server.paused.wait, 30)
        nursery.cancel_scope.cancel()
    assert not finished
    server.resume()
    result = await call(adapter, where)
    assert result.answer.outcome == Completed()
    gc.collect()


async def test_a_stream_given_up_half_way_ends_at_once_and_leaves_nothing_behind(
    server: ProviderServer, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdk, "DRAIN_S", 60)
    where = endpoint(server, adapter)
    server.script(Reply(pause_after=1))
    with trio.fail_after(30):
        async with aclosing(adapter.stream(REQUEST, where)) as stream:
            async for event in stream:
                if event.type == adapter.text_event:
                    break
    server.resume()
    gc.collect()  # a generator or socket left open would warn here, and warnings are errors
    assert (await call(adapter, where)).answer.outcome == Completed()


async def test_the_next_turn_uses_the_same_connection(server: ProviderServer, adapter: Adapter) -> None:
    for _ in range(3):
        await call(adapter, endpoint(server, adapter))
    assert len({seen.connection for seen in server.requests}) == 1


async def test_a_connection_held_open_after_the_end_does_not_hold_the_answer(server: ProviderServer, adapter: Adapter) -> None:
    server.script(Reply(ending="held_open"))
    with trio.fail_after(30):
        result = await call(adapter, endpoint(server, adapter))
    server.resume()
    assert result.error is None
    assert result.answer.outcome == Completed()


async def test_many_streams_share_a_client(server: ProviderServer, adapter: Adapter) -> None:
    texts = []

    async def one() -> None:
        texts.append((await call(adapter, endpoint(server, adapter))).answer.text())

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(one)
    assert texts == ["Hello, wörld 🌍"] * 8


async def test_the_sdk_is_set_up_outside_the_loop(
    server: ProviderServer, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    made = adapter.client

    def record(module: Any, **settings: Any) -> Any:
        threads.append(threading.current_thread())
        assert settings["max_retries"] == 0
        assert settings["timeout"].connect == 10
        assert settings["timeout"].read == 120
        return made(module, **settings)

    monkeypatch.setattr(adapter, "client", record)
    await call(adapter, endpoint(server, adapter))
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


DIALOGUES = {
    "plain": (("user", "a"), ("assistant", "b"), ("user", "c")),
    "two in a row": (("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d"), ("user", "e")),
    "assistant first": (("assistant", "a"), ("user", "b")),
    "silence": (("user", "a"), ("assistant", "  \n"), ("user", "c")),
    "silent end": (("user", "a"), ("assistant", "b"), ("user", "")),
    "nothing": (),
}


@pytest.mark.parametrize("dialogue", DIALOGUES.values(), ids=list(DIALOGUES))
@pytest.mark.parametrize("system", ["", "Be brief."])
async def test_every_history_is_acceptable(
    server: ProviderServer, adapter: Adapter, dialogue: tuple[tuple[Any, str], ...], system: str
) -> None:
    request = ModelRequest("model-x", system, tuple(message(*said) for said in dialogue), 0)
    result = await call(adapter, endpoint(server, adapter), request)
    assert server.violations == []
    assert result.answer.outcome == Completed()
    sent = str(server.requests[0].body)
    assert all(text in sent for _, text in dialogue if text.strip())


async def test_a_message_without_text_is_no_message(server: ProviderServer, adapter: Adapter) -> None:
    picture = Message("assistant", (Unknown("x", {"type": "hologram"}),), "")
    request = ModelRequest("model-x", "", (message("user", "a"), picture, message("user", "b")), 100)
    await call(adapter, endpoint(server, adapter), request)
    assert server.violations == []
    assert "a\n\nb" in str(server.requests[0].body.values()).replace("\\n", "\n")


def test_an_estimate_grows_with_the_words() -> None:
    for make in ADAPTERS.values():
        longer = msgspec.structs.replace(REQUEST, system=REQUEST.system + "x" * 300)
        assert make().estimate(longer) == make().estimate(REQUEST) + 100


def test_a_stop_reason_alone_ends_nothing() -> None:
    answer = Answer()
    answer.apply(StopReason(Completed()))
    assert answer.outcome is None
    answer.apply(Ended())
    assert answer.outcome == Completed()
