"""What subscribers are told: durable events, written with the fact they report, and transient ones about live streams.

`cursor` is the id of the last durable event, valid for any filter and across restarts.
"""

from typing import Any, Literal

import msgspec

from contextinfinity.protocol.errors import ErrorObject
from contextinfinity.protocol.model import Outcome, Phase


class EventData(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what an event carries in `data`."""


class TurnAccepted(EventData, frozen=True, kw_only=True):
    """A user's message is on disk."""

    turn_seq: int


class TurnPhase(EventData, frozen=True, kw_only=True):
    """A turn reached a milestone; `error` says why it failed."""

    phase: Phase
    error: ErrorObject | None = None


class StepStarted(EventData, frozen=True, kw_only=True):
    """A provider call begins."""

    step_id: str
    provider: str
    model_id: str


class StepEnded(EventData, frozen=True, kw_only=True):
    """A provider call is over."""

    step_id: str
    outcome: Outcome


class TurnIndexed(EventData, frozen=True, kw_only=True):
    """A turn can be found; `degraded` says what is missing."""

    chunks: int
    degraded: str | None


class ImportProgress(EventData, frozen=True, kw_only=True):
    """An import goes on: what was read of the file under way, and what came of it so far."""

    path: str
    done: int
    total: int
    turns: int


class RecoveryPartial(EventData, frozen=True, kw_only=True):
    """After a crash, this much of an answer was saved."""

    step_id: str
    bytes: int


class BranchCreated(EventData, frozen=True, kw_only=True):
    """A branch exists."""

    parent_id: str | None
    forked_at_turn_seq: int | None
    label: str | None


class PinChanged(EventData, frozen=True, kw_only=True):
    """A pin was added or removed."""

    pin_id: str
    action: Literal["added", "removed"]


class StreamText(EventData, frozen=True, kw_only=True):
    """Text of a live answer: all of it so far when you join (snapshot), then what is new (delta)."""

    step_id: str
    block: int
    text: str
    displayed: int
    durable: int


class StreamDurable(EventData, frozen=True, kw_only=True):
    """More of the shown text is on disk."""

    step_id: str
    displayed: int
    durable: int


class Lagged(EventData, frozen=True, kw_only=True):
    """You read too slowly and missed transient events; `reset` says that snapshots follow."""

    reset: bool = False


DURABLE: dict[str, type[EventData]] = {
    "turn.accepted": TurnAccepted,
    "turn.phase": TurnPhase,
    "step.started": StepStarted,
    "step.ended": StepEnded,
    "turn.indexed": TurnIndexed,
    "recovery.partial": RecoveryPartial,
    "branch.created": BranchCreated,
    "pin.changed": PinChanged,
}
TRANSIENT: dict[str, type[EventData]] = {
    "stream.snapshot": StreamText,
    "stream.delta": StreamText,
    "stream.durable": StreamDurable,
    "import.progress": ImportProgress,
    "lagged": Lagged,
}


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event as the daemon knows it, before it is addressed to a subscription."""

    cursor: int
    type: str
    branch_id: str
    data: dict[str, Any]
    turn_id: str | None = None
    session_id: str | None = None


class Notification(msgspec.Struct, frozen=True, omit_defaults=True):
    """The params of an `event` notification."""

    subscription_id: str
    cursor: int
    type: str
    branch_id: str
    data: dict[str, Any]
    turn_id: str | None = None
    session_id: str | None = None
