"""How large a model's window and answer are: by longest matching prefix of its id, unless the configuration says so."""

import msgspec


class Limits(msgspec.Struct, frozen=True):
    context_window: int
    max_output: int
    source: str


FALLBACK = (8_192, 4_096)

KNOWN: dict[str, tuple[int, int]] = {
    "claude-opus-4-5": (200_000, 64_000),
    "claude-opus-4": (200_000, 32_000),
    "claude-sonnet-4": (200_000, 64_000),
    "claude-haiku-4-5": (200_000, 64_000),
    "claude-": (200_000, 8_192),
    "gpt-5.2": (400_000, 128_000),
    "gpt-5": (400_000, 128_000),
    "gpt-4.1": (1_047_576, 32_768),
    "gpt-4o": (128_000, 16_384),
    "gemini-3-pro": (1_048_576, 65_536),
    "gemini-3-flash": (1_048_576, 65_536),
    "recall": (200_000, 4_096),
}


def limits_for(model_id: str, context_limit: int | None, max_output: int | None) -> Limits:
    prefix = max((p for p in KNOWN if model_id.startswith(p)), key=len, default=None)
    window, output = KNOWN[prefix] if prefix is not None else FALLBACK
    source = f"prefix {prefix}" if prefix is not None else "fallback"
    if context_limit is not None or max_output is not None:
        source = "override"
    window = context_limit or window
    return Limits(window, min(max_output or output, window), source)
