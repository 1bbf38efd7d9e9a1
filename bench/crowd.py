"""Twenty clients at once, a branch each, against one client alone: words accepted and durable per second.

Every client submits with `queue: true`, waits for the acknowledgement and submits again; both sides send as many messages
per round, rounds alternate, and the clock runs from the common start to the last acknowledgement. Clients share one trio
process, which is busy for a small part of the time. Once with the embedded provider, whose answers are worked on
meanwhile, and once with words that queue behind a model that is still thinking, so that accepting is all there is to do.
"""

import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from statistics import median

import trio

from bench.process import Daemon, daemon
from bench.submit import WORDS
from bench.table import Row
from bench.wire import Wire, connect, result
from tests.support.provider_server import ProviderServer, Reply

CLIENTS = 20
MESSAGES = 200
ROUNDS = 5
SETTLE_S = 0.3


def measure() -> list[Row]:
    with daemon() as running:
        alone, crowd = trio.run(_measure, running)
    with thinking_model() as config, daemon(config) as running:
        alone_queued, crowd_queued = trio.run(_measure, running)
    return [
        Row("accepts, 20 clients / one", median(crowd), "/s", median(alone), 2.0, ">="),
        Row("  behind a model that thinks", median(crowd_queued), "/s", median(alone_queued)),
    ]


@contextmanager
def thinking_model() -> Iterator[str]:
    """The configuration of a model that takes its time; as the only one it is the default."""
    with ProviderServer(Reply(pause_after=0)) as server:
        yield (
            f'[models.thinker]\nprovider = "openai_chat"\nmodel_id = "thinker-1"\n'
            f'base_url = "{server.base_url("openai_chat")}"\n'
        )


async def _measure(running: Daemon) -> tuple[list[float], list[float]]:
    await _round(running, CLIENTS, MESSAGES)
    pairs = [(await _round(running, 1, MESSAGES), await _round(running, CLIENTS, MESSAGES)) for _ in range(ROUNDS)]
    return [alone for alone, _ in pairs], [crowd for _, crowd in pairs]


async def _round(running: Daemon, clients: int, messages: int) -> float:
    async with AsyncExitStack() as stack:
        talkers = [Talker(await stack.enter_async_context(connect(running.socket))) for _ in range(clients)]
        for talker in talkers:
            await talker.begin()
        await trio.sleep(SETTLE_S)
        begin = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for talker in talkers:
                nursery.start_soon(talker.talk, messages // clients)
        taken = time.perf_counter() - begin
        for talker in talkers:
            await talker.end()
    await trio.sleep(SETTLE_S)
    return messages / taken


class Talker:
    """A client with a branch of its own."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._branch = ""
        self._turns: list[str] = []

    async def begin(self) -> None:
        """The first words wake the branch, outside the timed part."""
        created = await self._wire.call("session.create")
        self._branch = created["branch"]["id"]
        self._thinks = created["branch"]["model"] != "recall"
        await self.talk(1)
        if not self._thinks:
            await self._wire.call("turn.wait", turn_id=self._turns[0])

    async def talk(self, messages: int) -> None:
        requests = [
            self._wire.request("turn.submit", branch_id=self._branch, content=f"{i}: {WORDS}", queue=True)
            for i in range(messages)
        ]
        for request in requests:
            self._turns.append(result(await self._wire.exchange(request))["turn_id"])

    async def end(self) -> None:
        """Wait until everything is answered, or take back what never will be."""
        if self._thinks:
            for turn in reversed(self._turns):
                await self._wire.call("turn.cancel", turn_id=turn)
        else:
            await self._wire.call("turn.wait", turn_id=self._turns[-1])
