"""Names give providers, and no SDK is imported before it is needed."""

import subprocess
import sys

import pytest

from contextinfinity.daemon.providers import registry
from tests.providers.calls import ADAPTERS, REQUEST, call, endpoint
from tests.support.provider_server import ProviderServer


def test_every_name_gives_its_provider_and_always_the_same() -> None:
    for name in ("anthropic", "openai", "openai_chat", "recall"):
        assert registry.provider(name).name == name
        assert registry.provider(name) is registry.provider(name)


def test_an_unknown_name_lists_those_that_exist() -> None:
    with pytest.raises(ValueError, match=r"'gemini'.*anthropic, openai, openai_chat, recall"):
        registry.provider("gemini")


async def test_closed_providers_can_be_used_again(server: ProviderServer) -> None:
    for name in ADAPTERS:
        adapter = registry.provider(name)
        assert isinstance(adapter, ADAPTERS[name])
        for _ in range(2):
            assert (await call(adapter, endpoint(server, adapter), REQUEST)).error is None
            await registry.aclose()
    assert len({seen.connection for seen in server.requests}) == 6


def test_sdks_are_imported_lazily() -> None:
    program = """
import sys
from contextinfinity.daemon.providers import registry
for name in registry.CLASSES:
    registry.provider(name)
print(sorted({"anthropic", "openai", "httpx2", "pydantic"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
