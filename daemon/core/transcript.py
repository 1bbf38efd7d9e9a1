"""Turns a provider's normalised effects into the answer they add up to: blocks, visible text, usage, outcome.

The same accumulator serves the live stream and the recovery of a journal, so both reach the same answer.
"""

import msgspec

from contextinfinity.protocol.blocks import AssistantMessage, Block, Text, TranscriptItem, render
from contextinfinity.protocol.model import Incomplete, Outcome


class TextDelta(msgspec.Struct, frozen=True):
    """Visible text for the block with this index."""

    block: int
    text: str


class WholeBlock(msgspec.Struct, frozen=True):
    """A block that arrives complete: reasoning, or a kind that is kept as unknown."""

    block: int
    content: Block


class UsageReport(msgspec.Struct, frozen=True):
    """Token counts as the provider states them; later reports overwrite earlier ones key by key."""

    tokens: dict[str, int]


class StopReason(msgspec.Struct, frozen=True):
    """How the answer will have ended, once the terminal event confirms it: some providers say the two apart."""

    outcome: Outcome


class Ended(msgspec.Struct, frozen=True):
    """The provider's terminal event. Without it an answer is incomplete, however tidy the connection's end.

    It brings its outcome or confirms the last `StopReason`.
    """

    outcome: Outcome | None = None


Effect = TextDelta | WholeBlock | UsageReport | StopReason | Ended

UNEXPLAINED = Incomplete("the provider gave no reason for the end")


class Answer:
    """Everything a step has said so far."""

    def __init__(self) -> None:
        self._texts: dict[int, list[str]] = {}
        self._whole: dict[int, Block] = {}
        self.usage: dict[str, int] = {}
        self.outcome: Outcome | None = None
        self.bytes = 0
        self._stop: Outcome = UNEXPLAINED

    def apply(self, effect: Effect) -> None:
        match effect:
            case TextDelta(block, text):
                self._texts.setdefault(block, []).append(text)
                self.bytes += len(text.encode())
            case WholeBlock(block, content):
                self._whole[block] = content
            case UsageReport(tokens):
                self.usage |= tokens
            case StopReason(outcome):
                self._stop = outcome
            case Ended(outcome):
                self.outcome = self._stop if outcome is None else outcome

    def blocks(self) -> tuple[Block, ...]:
        texts: dict[int, Block] = {i: Text("".join(parts)) for i, parts in self._texts.items()}
        return tuple(block for _, block in sorted((self._whole | texts).items()))

    def text(self) -> str:
        return render(self.blocks())

    def items(self) -> tuple[TranscriptItem, ...]:
        blocks = self.blocks()
        return (AssistantMessage(blocks),) if blocks else ()
