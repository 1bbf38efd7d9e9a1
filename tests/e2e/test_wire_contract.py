"""Corners of the wire contract that only a whole daemon can show."""

from pathlib import Path
from typing import Any

import pytest

from contextinfinity.protocol.errors import Conflict, ContextTooLarge, Fault, InvalidParams
from tests.support.daemon import Daemon
from tests.support.wire import Wire

pytestmark = pytest.mark.e2e

SMALL = """
[models.small]
provider = "recall"
model_id = "small"
context_limit = 8192
[models.other]
provider = "recall"
model_id = "x"
"""
GONE = """
[models.gone]
provider = "openai_chat"
model_id = "x"
base_url = "http://127.0.0.1:9/v1"
[models.r]
provider = "recall"
model_id = "recall"
"""


def say(wire: Wire, branch: str, text: str, **params: Any) -> dict[str, Any]:
    turn_id = wire.call("turn.submit", branch_id=branch, content=text, **params)["turn_id"]
    turn: dict[str, Any] = wire.call("turn.wait", turn_id=turn_id)
    return turn


def test_every_branch_that_is_made_says_how_full_it_is(tmp_path: Path) -> None:
    with Daemon(tmp_path) as d, d.wire() as wire:
        made = wire.call("session.create")["branch"]
        say(wire, made["id"], "hello")
        fork = wire.call("branch.fork", branch_id=made["id"], label="f")
        rolled = wire.call("branch.rollback", branch_id=made["id"], to_turn_seq=0)
        active = wire.call("branch.activate", branch_id=fork["id"])
        for branch in (made, fork, rolled, active, wire.call("branch.get", branch_id=made["id"])):
            assert {"used", "budget", "percent", "severity", "text"} == branch["usage"].keys()
        stream = wire.call("branch.get", branch_id=made["id"])["stream"]
        assert stream["displayed"] == stream["durable"] > 0


def test_a_preview_of_too_much_says_so_and_the_turn_fails_alone(tmp_path: Path) -> None:
    with Daemon(tmp_path, config=SMALL) as d, d.wire() as wire:
        branch = wire.call("session.create", model="small")["branch"]["id"]
        huge = "huge " * 20_000
        preview = wire.call("context.preview", branch_id=branch, content=huge)
        assert preview["status"] == "too_large"
        assert preview["usage"]["used"] > preview["usage"]["budget"]
        assert wire.call("context.preview", branch_id=branch, content="x")["status"] == "ready"
        turn = say(wire, branch, huge)
        assert (turn["phase"], turn["error"]["code"]) == ("failed", -32004)
        assert turn["error"]["data"]["required"] > turn["error"]["data"]["budget"]
        assert say(wire, branch, "still alive?")["phase"] == "response_finalized"


def test_what_the_model_saw_can_be_shown(tmp_path: Path) -> None:
    with Daemon(tmp_path) as d, d.wire() as wire:
        branch = wire.call("session.create", system="Be terse.")["branch"]["id"]
        wire.call("pin.add", branch_id=branch, text="The pin.")
        say(wire, branch, "one")
        turn = say(wire, branch, "two")
        context = wire.call("turn.context", turn_id=turn["id"])
        assert context["system"].startswith("Be terse.")
        assert context["pins"] == ["The pin."]
        assert context["pending"][0]["rendered_text"] == "one"
        assert context["user_message"]["rendered_text"] == "two"
        assert context["budget"]["limit_source"] == "prefix recall"
        step = wire.call("step.get", step_id=turn["steps"][0]["id"])
        assert step["request"]["messages"][-1]["content"] == "two"
        assert step["outcome"] == {"kind": "completed"}
        assert step["response"][0]["event_type"] == "ctx.start"


def test_a_model_is_selected_once_per_key_and_a_removed_one_can_be_left(tmp_path: Path) -> None:
    with Daemon(tmp_path, config=SMALL) as d, d.wire() as wire:
        branch = wire.call("session.create", model="other")["branch"]["id"]
        first = wire.call("model.select", branch_id=branch, model="small", idempotency_key="a")
        wire.call("model.select", branch_id=branch, model="recall")
        assert wire.call("model.select", branch_id=branch, model="small", idempotency_key="a") == first
        assert wire.call("branch.get", branch_id=branch)["model"] == "recall"
        with pytest.raises(Conflict):
            wire.call("model.select", branch_id=branch, model="recall", idempotency_key="a")
        wire.call("model.select", branch_id=branch, model="other")
        (d.home / "config.toml").write_text("")
        wire.call("config.reload")
        assert wire.call("branch.get", branch_id=branch)["model"] == "other"
        with pytest.raises(InvalidParams, match="other"):
            wire.call("turn.submit", branch_id=branch, content="x")
        assert wire.call("model.select", branch_id=branch, model="recall")["change"] == "none"
        assert say(wire, branch, "x")["phase"] == "response_finalized"


def test_pins_have_a_limit_and_a_repeat_is_no_second_pin(tmp_path: Path) -> None:
    with Daemon(tmp_path) as d, d.wire() as wire:
        branch = wire.call("session.create")["branch"]["id"]
        pin = wire.call("pin.add", branch_id=branch, text="p" * 5000, idempotency_key="k")
        with pytest.raises(ContextTooLarge, match="pins"):
            wire.call("pin.add", branch_id=branch, text="q" * 5000)
        assert wire.call("pin.add", branch_id=branch, text="p" * 5000, idempotency_key="k") == pin
        assert len(wire.call("pin.list", branch_id=branch, limit=5)["pins"]) == 1


def test_a_fork_can_ask_again_what_failed_before_it_left(tmp_path: Path) -> None:
    with Daemon(tmp_path, config=GONE) as d, d.wire() as wire:
        branch = wire.call("session.create", model="gone")["branch"]["id"]
        failed = say(wire, branch, "hello")
        assert failed["phase"] == "failed"
        fork = wire.call("branch.fork", branch_id=branch)["id"]
        again = wire.call("turn.retry", turn_id=failed["id"], branch_id=fork, model="r")
        assert (again["branch_id"], again["retry_of"]) == (fork, failed["id"])
        assert wire.call("turn.wait", turn_id=again["id"])["phase"] == "response_finalized"
        parent = wire.call("context.preview", branch_id=branch, content="x", model="r")["pending"]
        assert len(parent) == 1, "the parent still shows its own failed turn"
        turn = say(wire, fork, "next", model="r")
        seen = [m["rendered_text"] for m in wire.call("turn.context", turn_id=turn["id"])["pending"]]
        assert seen[0] == "hello"
        assert len(seen) == 2, "the failed one has left the fork's prompt"


def test_tools_are_refused_by_name_until_there_are_any(tmp_path: Path) -> None:
    with Daemon(tmp_path) as d, d.wire() as wire:
        branch = wire.call("session.create")["branch"]["id"]
        assert say(wire, branch, "x", tools_mode="disabled")["phase"] == "response_finalized"
        with pytest.raises(InvalidParams, match="enabled"):
            wire.call("turn.submit", branch_id=branch, content="x", tools_mode="enabled")


def test_read_only_describes_branches_too(tmp_path: Path) -> None:
    with Daemon(tmp_path) as d, d.wire() as wire:
        branch = wire.call("session.create")["branch"]["id"]
        wire.call("turn.submit", branch_id=branch, content="unfinished", queue=True)
        d.kill9()
    d.args = ["--read-only"]
    with d, d.wire() as wire:
        assert wire.call("branch.get", branch_id=branch)["turn_seq"] == 1
        with pytest.raises(Fault) as caught:
            wire.call("session.create")
        assert caught.value.code == -32007


def test_pages_of_large_turns_end_early_and_go_on(tmp_path: Path) -> None:
    with Daemon(tmp_path) as d, d.wire() as wire:
        branch = wire.call("session.create")["branch"]["id"]
        for i in range(4):
            wire.call("turn.submit", branch_id=branch, content=f"{i}" * 3_000_000, queue=True)
        seen: list[int] = []
        after: int | None = 0
        pages = 0
        while after is not None:
            page = wire.call("turn.list", branch_id=branch, after_seq=after)
            seen += [t["turn_seq"] for t in page["turns"]]
            after = int(page["next_cursor"]) if "next_cursor" in page else None
            pages += 1
        assert seen == [1, 2, 3, 4]
        assert pages >= 2


def test_a_configuration_of_the_wrong_shape_changes_nothing(tmp_path: Path) -> None:
    with Daemon(tmp_path) as d, d.wire() as wire:
        for text in ("models = 3\n", "general = 5\n", "[models]\nx = 1\n"):
            (d.home / "config.toml").write_text(text)
            try:
                wire.call("config.reload")
            except Fault as fault:
                assert fault.code == -32602
            assert wire.call("daemon.ping")["protocol"] == 1
