"""The stand-in refuses what the real providers refuse, and runs as a process of its own."""

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.providers.calls import ADAPTERS, REQUEST, call, endpoint
from tests.support.provider_server import ProviderServer, spawn
from tests.support.wire_formats import PATHS

HEADERS = {"content-type": "application/json", "authorization": "Bearer k", "anthropic-version": "2023-06-01"}
SAID = [{"role": "user", "content": "hi"}]
GOOD: dict[str, dict[str, Any]] = {
    "anthropic": {"model": "m", "max_tokens": 5, "messages": SAID, "stream": True},
    "openai": {
        "model": "m",
        "max_output_tokens": 16,
        "input": SAID,
        "stream": True,
        "store": False,
        "truncation": "disabled",
    },
    "openai_chat": {"model": "m", "max_tokens": 5, "messages": SAID, "stream": True},
}
ROLES = ["system", "user"], ["user", "user"], ["assistant", "user"], ["user", "assistant"]
BAD: list[tuple[str, dict[str, Any]]] = [
    *((wire, {"model": ""}) for wire in GOOD),
    *((wire, {"stream": False}) for wire in GOOD),
    *((wire, {"surprise": 1}) for wire in GOOD),
    *((wire, {"input" if wire == "openai" else "messages": []}) for wire in GOOD),
    *((wire, {"input" if wire == "openai" else "messages": [{"role": "user", "content": " "}]}) for wire in GOOD),
    *((wire, {"input" if wire == "openai" else "messages": [{"role": "boss", "content": "x"}]}) for wire in GOOD),
    *(("anthropic", {"messages": [{"role": role, "content": "x"} for role in roles]}) for roles in ROLES),
    ("anthropic", {"max_tokens": 0}),
    ("anthropic", {"max_tokens": None}),
    ("anthropic", {"system": ""}),
    ("openai", {"max_output_tokens": 15}),
    ("openai", {"store": True}),
    ("openai", {"truncation": "auto"}),
    ("openai_chat", {"messages": [*SAID, {"role": "system", "content": "x"}]}),
]


def _post(server: ProviderServer, wire: str, body: dict[str, Any]) -> int:
    path = next(path for path, name in PATHS.items() if name == wire)
    url = f"http://127.0.0.1:{server.port}{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), HEADERS)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.mark.parametrize("wire", list(GOOD))
def test_a_good_request_is_answered(server: ProviderServer, wire: str) -> None:
    assert _post(server, wire, GOOD[wire]) == 200
    assert server.violations == []


@pytest.mark.parametrize(("wire", "change"), BAD)
def test_a_bad_request_is_refused_and_remembered(server: ProviderServer, wire: str, change: dict[str, Any]) -> None:
    assert _post(server, wire, GOOD[wire] | change) == 400
    assert len(server.violations) >= 1


async def test_it_runs_as_a_process_of_its_own(server: ProviderServer) -> None:
    with spawn(deltas=300, text="ab ") as base_url:
        for name, make in ADAPTERS.items():
            adapter = make()
            result = await call(adapter, endpoint(server, adapter, base_url=base_url(name)), REQUEST)
            await adapter.aclose()
            assert result.answer.text() == "ab " * 300
