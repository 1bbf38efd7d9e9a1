"""A conversation as simple as it can be: lists and dictionaries that say what a daemon must answer.

It knows nothing of disks, crashes or streams; whatever happens to the daemon, the two must agree.
"""

from dataclasses import dataclass, field
from typing import Any

UNFINISHED = ("accepted", "context_prepared", "responding")
Document = dict[str, Any]
LATER = ("timed_out", "indexed", "created_chunks")
"""What is said of a turn and may change after it is over."""


def settled(turn: Document) -> Document:
    """A turn as it stays once it is over."""
    return {k: v for k, v in turn.items() if k not in LATER}


@dataclass
class TurnModel:
    id: str
    seq: int
    text: str
    retry_of: str | None = None
    ended: Document | None = None
    """As it was when it was over; it never changes after that."""


@dataclass
class BranchModel:
    id: str
    session: str
    model: str
    inherited: list[TurnModel] = field(default_factory=list)
    own: list[TurnModel] = field(default_factory=list)
    pins: dict[str, str] = field(default_factory=dict)
    keys: dict[str, tuple[str, Document]] = field(default_factory=dict)

    @property
    def turns(self) -> list[TurnModel]:
        return [*self.inherited, *self.own]

    @property
    def under_way(self) -> TurnModel | None:
        """The turn that may still be answered."""
        return self.own[-1] if self.own and self.own[-1].ended is None else None


@dataclass
class SessionModel:
    id: str
    title: str | None
    active: str


class Conversations:
    def __init__(self) -> None:
        self.sessions: dict[str, SessionModel] = {}
        self.branches: dict[str, BranchModel] = {}

    def created(self, answer: Document) -> None:
        session, branch = answer["session"], answer["branch"]
        self.sessions[session["id"]] = SessionModel(session["id"], session.get("title"), branch["id"])
        self.branches[branch["id"]] = BranchModel(branch["id"], session["id"], branch["model"])

    def submitted(self, branch: BranchModel, answer: Document, text: str, retry_of: str | None = None) -> TurnModel:
        assert answer["turn_seq"] == len(branch.turns) + 1, "numbers have no holes"
        assert all(answer["turn_id"] != turn.id for other in self.branches.values() for turn in other.own), "a new turn is new"
        turn = TurnModel(answer["turn_id"], answer["turn_seq"], text, retry_of)
        branch.own.append(turn)
        return turn

    def ended(self, turn: TurnModel, answer: Document) -> None:
        assert answer["phase"] not in UNFINISHED, f"turn {turn.id} is still {answer['phase']}"
        assert turn.ended in (None, settled(answer)), "what was over does not change"
        turn.ended = settled(answer)

    def forked(self, source: BranchModel, at: int, answer: Document, *, activated: bool) -> None:
        assert (answer["parent_id"], answer["forked_at_turn_seq"], answer["model"]) == (source.id, at, source.model)
        self.branches[answer["id"]] = BranchModel(
            answer["id"], source.session, source.model, source.turns[:at], [], dict(source.pins)
        )
        if activated:
            self.sessions[source.session].active = answer["id"]

    # What the daemon must answer now.

    def check_turns(self, branch: BranchModel, listed: list[Document]) -> None:
        found = [(t["turn_seq"], t["id"], t["user_message"]["rendered_text"], t.get("retry_of")) for t in listed]
        assert found == [(t.seq, t.id, t.text, t.retry_of) for t in branch.turns]
        for turn, answer in zip(branch.turns, listed, strict=True):
            assert turn.ended in (None, settled(answer)), "what was over does not change"

    def check_pins(self, branch: BranchModel, listed: list[Document]) -> None:
        assert [(pin["id"], pin["text"]) for pin in listed] == list(branch.pins.items())

    def check_sessions(self, listed: list[Document]) -> None:
        found = {s["id"]: (s.get("title"), s["active_branch"]) for s in listed}
        assert found == {s.id: (s.title, s.active) for s in self.sessions.values()}

    def check_branches(self, session: SessionModel, listed: list[Document]) -> None:
        mine = [b for b in self.branches.values() if b.session == session.id]
        found = [(b["id"], b["model"], b["turn_seq"], b["active"]) for b in listed]
        assert found == [(b.id, b.model, len(b.turns), b.id == session.active) for b in mine]
