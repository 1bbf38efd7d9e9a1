"""Clients are kept, shared, bounded, and never closed under a stream."""

from contextlib import AsyncExitStack

import pytest
import trio

from contextinfinity.daemon.providers.base import Endpoint
from contextinfinity.daemon.providers.clients import Clients
from contextinfinity.daemon.providers.faults import Faults


class Client:
    def __init__(self, name: str | None) -> None:
        self.name = name
        self.closed = False

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self.closed = True


class World:
    def __init__(self, limit: int = 2) -> None:
        self.made: list[Client] = []
        self.clients = Clients(self._build, limit)

    def _build(self, endpoint: Endpoint, key: str, faults: Faults) -> Client:
        self.made.append(Client(endpoint.base_url))
        return self.made[-1]

    async def use(self, stack: AsyncExitStack, name: str, key: str = "k", model: str = "m") -> Client:
        where = Endpoint(model, base_url=name, api_key=key)
        client = await stack.enter_async_context(self.clients.lease(where, key, Faults("p", where, "E", name)))
        assert isinstance(client, Client)
        return client

    async def visit(self, name: str, key: str = "k", model: str = "m") -> Client:
        async with AsyncExitStack() as stack:
            return await self.use(stack, name, key, model)

    def open(self) -> list[str | None]:
        return [c.name for c in self.made if not c.closed]


async def test_one_client_per_endpoint_and_key_whatever_the_model() -> None:
    world = World()
    assert await world.visit("a") is await world.visit("a", model="other")
    assert await world.visit("a", key="other") is not await world.visit("a")


async def test_the_least_recently_used_is_closed() -> None:
    world = World()
    for name in "abac":
        await world.visit(name)
    assert world.open() == ["a", "c"]


async def test_a_client_in_use_is_not_closed_until_it_is_released() -> None:
    world = World()
    async with AsyncExitStack() as stack:
        for name in "ab":
            await world.use(stack, name)
        await world.visit("c")
        assert world.open() == ["a", "b"]
        async with AsyncExitStack() as third:
            await world.use(third, "d")
            assert world.open() == ["a", "b", "d"]


async def test_simultaneous_first_uses_build_once() -> None:
    world = World()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(world.visit, "a")
    assert len(world.made) == 1


async def test_closing_happens_even_when_cancelled() -> None:
    world = World(limit=0)
    with trio.CancelScope() as scope:
        async with AsyncExitStack() as stack:
            await world.use(stack, "a")
            scope.cancel()
    assert world.open() == []


async def test_aclose_closes_all_and_the_next_use_starts_afresh() -> None:
    world = World()
    first = await world.visit("a")
    await world.clients.aclose()
    assert world.open() == []
    assert await world.visit("a") is not first


async def test_a_build_that_fails_is_tried_again() -> None:
    world = World()
    build = world.clients._build

    def fail(*_: object) -> None:
        raise OSError("no")

    world.clients._build = fail
    with pytest.raises(OSError, match="no"):
        await world.visit("a")
    world.clients._build = build
    assert (await world.visit("a")).name == "a"
