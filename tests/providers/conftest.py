"""A scripted provider, and each adapter over an SDK in turn."""

from collections.abc import AsyncIterator, Iterator

import pytest

from contextinfinity.daemon.providers.sdk import Adapter
from tests.providers.calls import ADAPTERS
from tests.support.provider_server import ProviderServer


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer() as server:
        yield server


@pytest.fixture(params=list(ADAPTERS))
async def adapter(request: pytest.FixtureRequest) -> AsyncIterator[Adapter]:
    adapter = ADAPTERS[request.param]()
    yield adapter
    await adapter.aclose()
