"""Waiting for something that no event announces, by asking often; the test's own deadline bounds it."""

import time
from collections.abc import Callable

import trio


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for happens in a thread or on disk
        await trio.sleep(0.001)


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(0.005)
