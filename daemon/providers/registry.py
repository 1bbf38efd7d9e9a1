"""The providers by name, each imported when it is first asked for, because most homes use one.

The composition root calls `aclose` when the last stream has ended.
"""

import importlib

from contextinfinity.daemon.providers.base import Provider
from contextinfinity.daemon.providers.sdk import Adapter

CLASSES = {
    "anthropic": ("anthropic", "Anthropic"),
    "openai": ("openai_responses", "OpenAIResponses"),
    "openai_chat": ("openai_chat", "OpenAIChat"),
    "recall": ("recall", "Recall"),
}

_made: dict[str, Provider] = {}


def provider(name: str) -> Provider:
    """The one instance of this provider; `ValueError` names those that exist."""
    if name not in CLASSES:
        raise ValueError(f"there is no provider {name!r}; choose one of {', '.join(CLASSES)}")
    if name not in _made:
        module, kind = CLASSES[name]
        _made[name] = getattr(importlib.import_module(f"contextinfinity.daemon.providers.{module}"), kind)()
    return _made[name]


async def aclose() -> None:
    """Close the connections of every provider; they can be used again afterwards."""
    for made in _made.values():
        if isinstance(made, Adapter):
            await made.aclose()
