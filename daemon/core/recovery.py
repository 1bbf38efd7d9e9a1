"""What an interrupted step amounts to, judged from the lines of its journal alone.

Deterministic: recovering twice, or after a crash during recovery, reaches the same verdict.
"""

from collections.abc import Iterable, Sequence

import msgspec

from contextinfinity.daemon.core.transcript import Answer, Effect
from contextinfinity.protocol.errors import ErrorObject
from contextinfinity.protocol.model import Completed, Failed, Incomplete, Outcome, Paused


class Verdict(msgspec.Struct, frozen=True):
    """`error` is None if the answer is whole and the turn can be finalised."""

    answer: Answer
    outcome: Outcome
    error: ErrorObject | None


INTERRUPTED = ErrorObject(-32001, "the daemon stopped while this turn was under way; `ctx retry` (turn.retry) asks again",
                          {"code": "interrupted"})  # fmt: skip


def judge(effects: Iterable[Sequence[Effect]], error: ErrorObject | None) -> Verdict:
    """Terminal event: whole. Error line: failed, text kept. Neither: incomplete."""
    answer = Answer()
    for group in effects:
        for effect in group:
            answer.apply(effect)
    return verdict(answer, error, INTERRUPTED)


def verdict(answer: Answer, error: ErrorObject | None, cut_off: ErrorObject) -> Verdict:
    """The same judgement for a live stream, where `cut_off` says how it ended without its terminal event."""
    if error is not None:
        word = str((error.data or {}).get("code", "provider_error"))
        return Verdict(answer, Failed(word, error.message), error)
    match answer.outcome:
        case None:
            return Verdict(answer, Incomplete(cut_off.message), cut_off)
        case Completed() | Incomplete("max_tokens"):
            return Verdict(answer, answer.outcome, None)
        case Paused(reason):
            return Verdict(answer, answer.outcome, ErrorObject(-32005, "the model asked for a tool, and tools are disabled",
                                                               {"code": reason}))  # fmt: skip
        case Incomplete(reason):
            return Verdict(answer, answer.outcome, ErrorObject(-32005, f"the answer is incomplete: {reason}",
                                                               {"code": "incomplete", "reason": reason}))  # fmt: skip
        case Failed(code, message):
            return Verdict(answer, answer.outcome, ErrorObject(-32005, message, {"code": code}))
        case other:
            return Verdict(answer, other, cut_off)
