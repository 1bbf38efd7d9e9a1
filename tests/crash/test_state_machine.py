"""Any sequence of calls, crashes and restarts against a simple model of a conversation.

`CTX_EXAMPLES` and `CTX_STEPS` make it try more and longer ones.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from contextinfinity.protocol.errors import Conflict, InvalidState, NotFound
from tests.crash.promises import turns_of
from tests.crash.provider import SlowProvider
from tests.support.daemon import Daemon
from tests.support.model_check import UNFINISHED, BranchModel, Conversations, TurnModel

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
EXAMPLES = int(os.environ.get("CTX_EXAMPLES", "8"))
STEPS = int(os.environ.get("CTX_STEPS", "30"))
MODELS = ("recall", "slow")

some = st.integers(0, 1000)
texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40).filter(str.strip)
keys = st.sampled_from(("k1", "k2", "k3"))


class Conversation(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="ctx-"))
        self.provider = SlowProvider(words=30, gap=0.003).__enter__()
        self.daemon = Daemon(self.folder, self.provider.config("write_ahead", '[general]\ndefault_model = "recall"\n'))
        self.model = Conversations()
        self.daemon.start()
        self.wire = self.daemon.wire()

    def teardown(self) -> None:
        try:
            if self.daemon.alive and self.model.branches:
                self.compare()
                assert self.wire.call("store.verify")["ok"]
        finally:
            self.wire.close()
            if self.daemon.alive:
                self.daemon.kill9()
            sys.stderr.write(self.daemon.logs)  # shown with a failure
            self.provider.__exit__()
            shutil.rmtree(self.folder)

    def pick(self, number: int) -> BranchModel:
        return list(self.model.branches.values())[number % len(self.model.branches)]

    def settle(self, branch: BranchModel) -> None:
        turn = branch.under_way
        if turn is not None:
            self.model.ended(turn, self.wire.call("turn.wait", turn_id=turn.id, timeout_s=30))

    # What clients do.

    @initialize()
    def begin(self) -> None:
        self.create(None)

    @rule(title=st.none() | texts)
    def create(self, title: str | None) -> None:
        self.model.created(self.wire.call("session.create", title=title))

    @rule(number=some, text=texts)
    def submit(self, number: int, text: str) -> None:
        branch = self.pick(number)
        try:
            answer = self.wire.call("turn.submit", branch_id=branch.id, content=text)
        except Conflict as fault:
            assert branch.under_way is not None
            assert fault.data["active_turn_id"] == branch.under_way.id
            return
        if branch.under_way is not None:  # it ended by itself meanwhile
            self.settle(branch)
        self.model.submitted(branch, answer, text)

    @rule(number=some, text=texts, key=keys)
    def submit_keyed(self, number: int, text: str, key: str) -> None:
        branch = self.pick(number)
        self.settle(branch)
        before = branch.keys.get(key)
        try:
            answer = self.wire.call("turn.submit", branch_id=branch.id, content=text, idempotency_key=key)
        except Conflict:
            assert before is not None
            assert before[0] != text
            return
        if before is None:
            self.model.submitted(branch, answer, text)
            branch.keys[key] = (text, answer)
        else:
            assert before == (text, answer)

    @rule(number=some, key=keys)
    def repeat(self, number: int, key: str) -> None:
        branch = self.pick(number)
        if key in branch.keys:
            text, first = branch.keys[key]
            assert self.wire.call("turn.submit", branch_id=branch.id, content=text, idempotency_key=key) == first

    @rule(number=some)
    def wait(self, number: int) -> None:
        self.settle(self.pick(number))

    @rule(number=some)
    def cancel(self, number: int) -> None:
        turns = self.pick(number).turns
        if turns:
            turn = turns[number % len(turns)]
            self.model.ended(turn, self.wire.call("turn.cancel", turn_id=turn.id))

    @rule(number=some)
    def retry(self, number: int) -> None:
        branch = self.pick(number)
        self.settle(branch)
        if not branch.own:
            return
        turn = branch.own[number % len(branch.own)]
        try:
            again = self.wire.call("turn.retry", turn_id=turn.id)
        except InvalidState:
            assert turn.ended is not None
            assert turn.ended["phase"] != "failed"
            return
        assert turn.ended is not None
        assert turn.ended["phase"] == "failed"
        self.model.submitted(branch, {"turn_id": again["id"], "turn_seq": again["turn_seq"]}, turn.text, turn.id)

    @rule(number=some, back=st.integers(0, 3), goes_on=st.booleans())
    def fork(self, number: int, back: int, goes_on: bool) -> None:
        branch = self.pick(number)
        self.settle(branch)
        at = max(0, len(branch.turns) - back)
        if goes_on:
            made = self.wire.call("branch.rollback", branch_id=branch.id, to_turn_seq=at)
        else:
            made = self.wire.call("branch.fork", branch_id=branch.id, at_turn_seq=at)
        self.model.forked(branch, at, made, activated=goes_on)

    @rule(number=some)
    def activate(self, number: int) -> None:
        branch = self.pick(number)
        assert self.wire.call("branch.activate", branch_id=branch.id)["active"]
        self.model.sessions[branch.session].active = branch.id

    @rule(number=some, text=texts)
    def pin(self, number: int, text: str) -> None:
        branch = self.pick(number)
        branch.pins[self.wire.call("pin.add", branch_id=branch.id, text=text)["id"]] = text

    @rule(number=some)
    def unpin(self, number: int) -> None:
        branch = self.pick(number)
        if branch.pins:
            pin = list(branch.pins)[number % len(branch.pins)]
            self.wire.call("pin.remove", branch_id=branch.id, pin_id=pin)
            del branch.pins[pin]
            with pytest.raises(NotFound):
                self.wire.call("pin.remove", branch_id=branch.id, pin_id=pin)

    @rule(number=some, title=texts)
    def rename(self, number: int, title: str) -> None:
        session = self.model.sessions[self.pick(number).session]
        self.wire.call("session.rename", session_id=session.id, title=title)
        session.title = title

    @rule(number=some, model=st.sampled_from(MODELS))
    def select_model(self, number: int, model: str) -> None:
        branch = self.pick(number)
        self.wire.call("model.select", branch_id=branch.id, model=model)
        branch.model = model

    # What befalls the daemon.

    @rule()
    def crash(self) -> None:
        self.daemon.kill9()
        self.begin_again()

    @rule(number=some, text=texts)
    def crash_while_submitting(self, number: int, text: str) -> None:
        """The client never hears whether its words arrived; it says them again with the same key, and they are there once."""
        branch, key = self.pick(number), f"unsure {len(self.pick(number).keys)}"
        self.settle(branch)
        self.wire.post("turn.submit", branch_id=branch.id, content=text, idempotency_key=key)
        self.daemon.kill9()
        self.begin_again(submitting=branch)
        answer = self.wire.call("turn.submit", branch_id=branch.id, content=text, idempotency_key=key)
        branch.keys[key] = (text, answer)
        self.model.submitted(branch, answer, text)
        self.compare()

    @rule()
    @precondition(lambda self: any(branch.own for branch in self.model.branches.values()))
    def restart(self) -> None:
        assert self.daemon.stop() == 0
        self.begin_again()

    def begin_again(self, submitting: BranchModel | None = None) -> None:
        self.wire.close()
        self.daemon.start()
        self.wire = self.daemon.wire()
        for branch in self.model.branches.values():
            if branch.under_way is not None:
                self.model.ended(branch.under_way, self.over(branch.under_way))
        self.compare(submitting)

    def over(self, turn: TurnModel) -> dict[str, Any]:
        """Right after a start nothing is under way."""
        found: dict[str, Any] = self.wire.call("turn.get", turn_id=turn.id)
        assert found["phase"] not in UNFINISHED
        return found

    @rule()
    def look(self) -> None:
        self.compare()

    def compare(self, submitting: BranchModel | None = None) -> None:
        model, call = self.model, self.wire.call
        model.check_sessions(call("session.list", limit=1000)["sessions"])
        for branch in model.branches.values():
            if branch is not submitting:
                model.check_turns(branch, turns_of(self.wire, branch.id))
            model.check_pins(branch, call("pin.list", branch_id=branch.id)["pins"])
        for session in model.sessions.values():
            if submitting is None:
                model.check_branches(session, call("branch.list", session_id=session.id)["branches"])


Conversation.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),  # looking for a shorter sequence would take minutes
)
TestConversation = Conversation.TestCase
