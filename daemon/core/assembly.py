"""Puts together what the model sees, in an order whose beginning stays the same from turn to turn, within a budget.

Pure: the branch actor brings the parts; an `Assembled` only exists if it fits.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from contextinfinity.daemon.core import untrusted
from contextinfinity.daemon.core.limits import Limits
from contextinfinity.daemon.core.packing import Packed
from contextinfinity.daemon.core.tokens import MESSAGE_OVERHEAD, estimate_message, estimate_text
from contextinfinity.protocol.blocks import Message, Text, message
from contextinfinity.protocol.errors import ContextTooLarge
from contextinfinity.protocol.model import Budget, Turn, Usage

DIGEST_CHARACTERS = 80
UNANSWERED = "[An earlier message was not answered: "
INCOMPLETE = "[This answer is incomplete: "
WARN, ALARM = 70, 90
RETRIEVAL_SHARE = 3
"""In a small window memory may take a third of what the recent turns would have."""


class Reserves(msgspec.Struct, frozen=True):
    """What the configuration keeps free, and how much of a large window is used at all."""

    response_tokens: int
    margin_tokens: int | None
    working_set_tokens: int
    retrieval_tokens: int = 0


class Entry(msgspec.Struct, frozen=True):
    """A message as it goes into prompts, measured and hashed once."""

    message: Message
    document: bytes
    digest: bytes
    tokens: int


class Piece(msgspec.Struct, frozen=True):
    """An earlier turn as it goes into prompts; `verbatim` if its messages are the stored ones, word for word."""

    turn_id: str
    turn_seq: int
    entries: tuple[Entry, ...]
    tokens: int
    verbatim: bool


class Oversized(msgspec.Struct, frozen=True):
    """What cannot be sent: it needs `usage.used` tokens, and there is room for `usage.budget`."""

    system: str
    pins: tuple[str, ...]
    new: Entry
    budget: Budget
    usage: Usage


class Assembled(msgspec.Struct, frozen=True):
    system: str
    pieces: tuple[Piece, ...]
    new: Entry
    pins: tuple[str, ...]
    budget: Budget
    usage: Usage
    max_output_tokens: int
    prefix_hash: str
    packed: Packed = Packed()
    memory: str = ""

    def pending(self) -> tuple[Message, ...]:
        return tuple(e.message for piece in self.pieces for e in piece.entries)


def entry(said: Message, document: bytes) -> Entry:
    return Entry(said, document, hashlib.sha256(document).digest(), estimate_message(said))


def request_hash(model_id: str, system: str, digests: Sequence[bytes], max_output_tokens: int, memory: str = "") -> bytes:
    """Proves a rebuilt request: it covers every word that was sent."""
    head = f"{model_id}\0{max_output_tokens}\0".encode() + hashlib.sha256(system.encode()).digest()
    quotes = hashlib.sha256(memory.encode()).digest() if memory else b""
    return hashlib.sha256(head + b"".join(digests) + quotes).digest()


def is_verbatim(turn: Turn) -> bool:
    """Whether an earlier turn appears in prompts word for word: it was answered, or it was imported as it is."""
    return turn.final_assistant_message is not None or turn.error is None


def prompt_messages(turn: Turn) -> tuple[Message, ...]:
    """How an earlier turn appears in a prompt: whole, with its incomplete answer labelled, or as one line if it failed."""
    if is_verbatim(turn):
        return tuple(m for m in (turn.user_message, turn.final_assistant_message) if m is not None and m.blocks)
    if turn.partial_text:
        label = f"{INCOMPLETE}{turn.error.message if turn.error else 'it was cut off'}]\n"
        return (turn.user_message, message("assistant", label + turn.partial_text, created_at=turn.created_at))
    words = " ".join(turn.user_message.rendered_text.split())
    short = words if len(words) <= DIGEST_CHARACTERS else words[:DIGEST_CHARACTERS] + "…"
    return (message("user", f"{UNANSWERED}{short}]", created_at=turn.created_at),)


def original_words(text: str) -> str:
    """What was said in a message of a prompt, without the label that `prompt_messages` may have put to it."""
    if text.startswith(UNANSWERED):
        return text[len(UNANSWERED) :].removesuffix("]")
    return text.partition("]\n")[2] if text.startswith(INCOMPLETE) else text


def with_memory(made: Assembled, packed: Packed, marker: str) -> Assembled:
    """The same with quotes from memory in front of the user's words."""
    memory = untrusted.wrap(marker, packed.artifacts)
    if not memory:
        return made
    cost = estimate_text(memory)
    return msgspec.structs.replace(
        made,
        packed=packed,
        memory=memory,
        usage=usage(made.usage.used + cost, made.usage.budget),
    )


def last_message(memory: str, said: Message) -> Message:
    """The user's words as they are sent: behind what memory brought back."""
    return message("user", (Text(memory), *said.blocks), created_at=said.created_at) if memory else said


def compose_system(base: str, pins: Sequence[str]) -> str:
    """System text, the rule about quotes, and pins word for word; pins are the user's own, so they are instructions too."""
    parts = [*([base] if base else []), untrusted.RULE]
    if pins:
        parts.append("The user pinned the following; it always holds:\n" + "\n".join(f"- {pin}" for pin in pins))
    return "\n\n".join(parts)


def input_budget(limits: Limits, reserves: Reserves) -> Budget:
    reserve = min(reserves.response_tokens, limits.max_output)
    margin = reserves.margin_tokens
    if margin is None:
        margin = max(1500, limits.context_window // 20)
    return Budget(0, 0, reserve, margin, limits.context_window, limits.source)


def available(budget: Budget) -> int:
    return max(0, budget.model_limit - budget.response_reserve - budget.safety_margin)


def assemble(
    base_system: str, pins: Sequence[str], recent: Sequence[Piece], new: Entry, limits: Limits, reserves: Reserves
) -> Assembled:
    """The newest of `recent` (in order) that fit the working set, then the new message.

    Raises `ContextTooLarge` if system, pins and the new message alone are more than the model takes.
    """
    made = measure(base_system, pins, recent, new, limits, reserves)
    if isinstance(made, Oversized):
        required, room = made.usage.used, made.usage.budget
        raise ContextTooLarge(
            f"this needs about {required} tokens and the model has room for {room}: "
            "shorten the message or the pins, or choose a model with a larger window",
            required=required,
            budget=room,
            suggestions=["shorten the message", "remove pins", "choose a model with a larger window"],
        )
    return made


def measure(
    base_system: str, pins: Sequence[str], recent: Sequence[Piece], new: Entry, limits: Limits, reserves: Reserves
) -> Assembled | Oversized:
    """What would be sent, or that it does not fit."""
    budget = input_budget(limits, reserves)
    room = available(budget)
    system = compose_system(base_system, pins)
    required = estimate_text(system) + MESSAGE_OVERHEAD + new.tokens
    if required > room:
        return Oversized(system, tuple(pins), new, budget, usage(required, room))
    left = max(0, min(room, reserves.working_set_tokens) - required)
    retrieval = min(reserves.retrieval_tokens, left // RETRIEVAL_SHARE)
    left -= retrieval
    first = len(recent)
    while first > 0 and recent[first - 1].tokens <= left:
        first -= 1
        left -= recent[first].tokens
    pieces = tuple(recent[first:])
    used = required + sum(piece.tokens for piece in pieces)
    return Assembled(
        system=system,
        pieces=pieces,
        new=new,
        pins=tuple(pins),
        budget=msgspec.structs.replace(budget, base_tokens=used - new.tokens, retrieval_budget=retrieval),
        usage=usage(used, room),
        max_output_tokens=budget.response_reserve,
        prefix_hash=_prefix_hash(system, pieces),
    )


def usage(used: int, room: int) -> Usage:
    percent = 100 * used / room if room else 100.0
    severity = 0 if percent < WARN else 1 if percent <= ALARM else 2
    return Usage(used, room, round(percent, 1), severity, f"{_compact(used)} / {_compact(room)} ({percent:.0f}%)")


def _compact(tokens: int) -> str:
    if tokens < 1000:
        return str(tokens)
    thousands = tokens / 1000
    return f"{thousands:.1f}k" if thousands < 10 and tokens % 1000 else f"{thousands:.0f}k"


def _prefix_hash(system: str, pieces: Sequence[Piece]) -> str:
    digest = hashlib.sha256(system.encode())
    digest.update(b"".join(e.digest for piece in pieces for e in piece.entries))
    return digest.hexdigest()
