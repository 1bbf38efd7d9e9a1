"""The embedded provider: no key, no network, no model; it answers by quoting what memory brought back for the question.

`core.quoting` cuts the quotes; its events stream and are journalled like any other provider's.
"""

import re
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import trio

from contextinfinity.daemon.core.assembly import original_words
from contextinfinity.daemon.core.quoting import LIMIT, Quote, Source, best_quotes, opening
from contextinfinity.daemon.core.tokens import estimate_message, estimate_text
from contextinfinity.daemon.core.transcript import Effect, Ended, TextDelta, UsageReport
from contextinfinity.daemon.core.untrusted import Artifact
from contextinfinity.daemon.providers.base import Endpoint, ModelRequest, RawEvent
from contextinfinity.protocol.blocks import Message, message
from contextinfinity.protocol.model import Completed

DELTA = "recall.delta"
END = "recall.end"
WORDS_PER_DELTA = 4
INLINE_CHARS = 20_000
NO_MODEL = "No language model is configured for this conversation, so I only quote what was said."
NOTICE = (
    f"{NO_MODEL} To have one, run `ctx auth set anthropic`, then `ctx ask -m sonnet`; "
    'default_model = "sonnet" under [general] in config.toml makes it the model of new conversations (`ctx ask --new`).'
)
REMINDER = "(No language model is configured for this conversation.)"
QUOTING = "From memory:"
NOTED = "Noted. Your words are kept, and nothing said before matches them."

_word = re.compile(r"\s*\S+\s*")
_question_word = re.compile(
    r"(?:what|who|whom|whose|which|when|where|why|how|did|does|do|is|are|was|were|can|could)\b", re.IGNORECASE
)
_date = re.compile(r"\d{4}-\d\d-\d\d")


class Recall:
    name = "recall"

    def body(self, request: ModelRequest) -> dict[str, Any]:
        return {
            "model": request.model_id,
            "system": request.system,
            "messages": [{"role": m.role, "content": m.rendered_text} for m in request.messages],
        }

    def estimate(self, request: ModelRequest) -> int:
        return estimate_text(request.system) + sum(map(estimate_message, request.messages))

    async def stream(self, request: ModelRequest, endpoint: Endpoint) -> AsyncGenerator[RawEvent, None]:
        size = sum(len(m.rendered_text) for m in request.messages)
        # A long history takes tens of milliseconds, too long for the loop.
        text = answer(request) if size <= INLINE_CHARS else await trio.to_thread.run_sync(answer, request)
        pieces = _word.findall(text)
        for i in range(0, len(pieces), WORDS_PER_DELTA):
            yield RawEvent(DELTA, {"text": "".join(pieces[i : i + WORDS_PER_DELTA])})
            await trio.lowlevel.checkpoint()
        usage = {"input_tokens": self.estimate(request), "output_tokens": estimate_text(text)}
        yield RawEvent(END, {"usage": usage})

    def normalise(self, event: RawEvent) -> Sequence[Effect]:
        match event.type, event.payload:
            case "recall.delta", {"text": str(text)}:
                return (TextDelta(0, text),)
            case "recall.end", payload:
                return (UsageReport(payload.get("usage", {})), Ended(Completed()))
        return ()


def answer(request: ModelRequest) -> str:
    """The whole answer, from the messages alone: the same request always gives the same text."""
    *earlier, last = request.messages or (message("user", ""),)
    told = any(m.role == "assistant" and NO_MODEL in m.rendered_text for m in earlier)
    quotes = _quotes(last.rendered_text, request.memory, earlier)
    said = f"{QUOTING}\n\n" + "\n".join(map(_line, quotes)) if quotes else NOTED
    return f"{said}\n\n{REMINDER if told else NOTICE}"


def _quotes(question: str, memory: Sequence[Artifact], earlier: Sequence[Message]) -> list[Quote]:
    """Sentences of what memory brought back, best first; without memory, of the conversation as far as it is in the prompt."""
    found = [
        Source(original_words(a.text), a.role == "user", a.at, a.turn_id, a.session_id)
        for a in reversed(memory)
        if a.role == "user" or not _is_own(a.text)
    ]
    near = {a.turn_id for a in memory if a.chunk_id}
    said = [
        Source(original_words(m.rendered_text), m.role == "user", m.created_at)
        for m in earlier
        if m.role == "user" or not _is_own(m.rendered_text)
    ]
    quotes = best_quotes(question, found or said)
    if not quotes and found and _asks(question):  # nothing shares its words, but something is near in meaning
        close = (opening(source) for source in reversed(found) if source.turn_id in near)
        quotes = [quote for quote in close if quote is not None][:LIMIT]
    return quotes


def _asks(text: str) -> bool:
    """A statement is not answered by what is merely near to it."""
    return text.rstrip().endswith(("?", "？")) or bool(_question_word.match(text.lstrip()))  # noqa: RUF001


def _is_own(text: str) -> bool:
    """Whether this is an answer of ours: quoting it would only quote the quote."""
    return NO_MODEL in text or text.rstrip().endswith(REMINDER)


def _line(quote: Quote) -> str:
    source = quote.source
    date = _date.match(source.created_at or "")
    where = f"; turn {source.turn_id}, session {source.session_id}" if source.turn_id else ""
    return f"> “{quote.text}” ({'you' if source.by_user else 'assistant'}, {date.group() if date else 'earlier'}{where})"
