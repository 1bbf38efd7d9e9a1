"""The official SDKs reading a streamed answer as their manuals show it: the baseline of `stream`.

Each entry of `READERS` makes a client for an address and gives a function that reads one answer and counts its bytes.
"""

import warnings
from collections.abc import Awaitable, Callable
from typing import Any

Reader = Callable[[], Awaitable[int]]

SAID = [{"role": "user", "content": "hello"}]
MODEL = "test-1"
MOST = 4096


def anthropic(url: str) -> Reader:
    from anthropic import AsyncAnthropic

    client = AsyncAnthropic(api_key="test", base_url=url, max_retries=0, http_client=_http())

    async def read() -> int:
        size = 0
        create = client.messages.create(model=MODEL, messages=SAID, max_tokens=MOST, stream=True)
        async with await create as stream:
            async for event in stream:
                if event.type == "content_block_delta" and event.delta.type == "text_delta":
                    size += len(event.delta.text.encode())
        return size

    return read


def openai(url: str) -> Reader:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(api_key="test", base_url=url, max_retries=0, http_client=_http())

    async def read() -> int:
        size = 0
        create = client.responses.create(
            model=MODEL, input=SAID, max_output_tokens=MOST, store=False, truncation="disabled", stream=True
        )
        async with await create as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    size += len(event.delta.encode())
        return size

    return read


def openai_chat(url: str) -> Reader:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(api_key="test", base_url=url, max_retries=0, http_client=_http())

    async def read() -> int:
        size = 0
        create = client.chat.completions.create(model=MODEL, messages=SAID, max_tokens=MOST, stream=True)
        async with await create as stream:
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    size += len(chunk.choices[0].delta.content.encode())
        return size

    return read


READERS: dict[str, Callable[[str], Reader]] = {"anthropic": anthropic, "openai": openai, "openai_chat": openai_chat}


def _http() -> Any:
    import httpx2

    warnings.simplefilter("ignore", ResourceWarning)  # the SDKs leave generators behind, which trio reports
    return httpx2.AsyncClient(trust_env=False, follow_redirects=False)
