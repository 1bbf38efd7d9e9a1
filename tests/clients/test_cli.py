"""`ctx` as a person and a script meet it, against a scripted daemon: output, exit codes, help, what is asked of the daemon."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import pytest
from click.testing import CliRunner

from contextinfinity.clients.cli import auth, output
from contextinfinity.clients.cli.daemon import _alive
from contextinfinity.clients.cli.main import COMMANDS, cli, main
from contextinfinity.clients.cli.screen import Header
from contextinfinity.clients.errors import DaemonUnreachable
from contextinfinity.protocol.errors import (
    BudgetExceeded,
    Cancelled,
    Conflict,
    ContextTooLarge,
    Fault,
    InvalidParams,
    MethodNotFound,
    NotFound,
    ProviderError,
    StorageFull,
    Unavailable,
)
from contextinfinity.protocol.events import Notification
from contextinfinity.protocol.model import Branch
from tests.clients.fake import NO_ANSWER, FakeDaemon
from tests.clients.scripted import Conversation, branch, session, turn

MISSING = {
    "code": -32005,
    "message": "no key",
    "data": {"code": "missing_key", "env": "ANTHROPIC_API_KEY", "provider": "anthropic"},
}


class Result(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Ctx = Callable[..., Result]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon().in_thread(tmp_path / "s.sock") as fake:
        yield fake


@pytest.fixture
def ctx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ctx:
    """Run a command line in this process, in a directory of its own, with the given standard input."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("CTX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CTX_SOCKET", str(tmp_path / "s.sock"))
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)

    async def never(*args: Any, **options: Any) -> None:
        raise DaemonUnreachable("a real daemon would have been started")

    monkeypatch.setattr("contextinfinity.clients.autostart.start", never)

    def run(*args: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        code = main(list(args))
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


def every_command() -> list[list[str]]:
    found: list[list[str]] = [[]]
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        found.append([name])
        if isinstance(command, click.Group):
            found += [[name, sub] for sub in command.commands]
    return found


# help and usage


@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_every_command_has_help_with_examples_and_the_shared_options(path: list[str]) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"])
    assert result.exit_code == 0, result.output
    shown = result.output
    assert "\nExamples:\n" in shown
    for option in ("--json", "--home", "--socket", "--no-autostart"):
        assert option in shown, option
    described = shown.split("Usage:")[1].split("Options:")[0].strip().splitlines()[1:]
    assert any(line.strip() for line in described), "a sentence says what it does"


def test_the_table_of_commands_tells_the_truth() -> None:
    for name, (_, summary) in COMMANDS.items():
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert command.name == name
        assert summary.endswith(".")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["aks"], "did you mean 'ask'"),
        (["zzzzzz"], "ctx --help lists the commands"),
        (["show"], "Missing argument"),
        (["ask", "--surprise", "x"], "--surprise"),
        (["ask", "--new", "--session", "S", "x"], "--new starts a session"),
        (["rollback", "minus"], "not a valid integer"),
        (["rpc", "daemon.ping", "{"], "not JSON"),
        (["rpc", "daemon.ping", "[]"], "must be a JSON object"),
        (["completion", "tcsh"], "tcsh"),
        (["ask"], "nothing to ask"),
    ],
)
def test_bad_usage_exits_with_2_before_any_daemon_is_needed(ctx: Ctx, args: list[str], words: str) -> None:
    result = ctx("--no-autostart", *args)
    assert result.code == 2, result.err
    assert words in result.err
    assert result.out == ""


def test_help_loads_no_command() -> None:
    check = (
        "import sys\nfrom contextinfinity.clients.cli.main import main\nsys.argv = ['ctx', '--help']\nmain()\n"
        "print([m for m in ('anyio', 'msgspec', 'rich', 'json', 'asyncio', 'subprocess') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_program(ctx: Ctx, shell: str) -> None:
    assert "_CTX_COMPLETE" in ctx("completion", shell).out
    assert ctx("completion", shell, "--json").json()["shell"] == shell


def test_completion_completes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_CTX_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "ctx ses")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.strip() == "plain,sessions"


# choosing a daemon


def test_no_daemon_and_no_autostart_is_3_and_names_the_fix(ctx: Ctx) -> None:
    result = ctx("--no-autostart", "status")
    assert result.code == 3
    assert "ctx daemon start" in result.err
    assert len(result.err.splitlines()) == 1


def test_shared_options_work_before_and_after_the_command(
    ctx: Ctx, daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CTX_SOCKET")
    path = str(tmp_path / "s.sock")
    for args in (
        ["--socket", path, "--json", "rpc", "daemon.ping"],
        ["rpc", "daemon.ping", "--socket", path, "--json"],
        ["--socket", "/nowhere", "rpc", "daemon.ping", "--socket", path],
    ):
        assert ctx(*args).json()["version"] == "0.1.0"
    assert ctx("--no-autostart", "rpc", "daemon.ping").code == 3
    assert ctx("rpc", "daemon.ping", "--no-autostart").code == 3


def test_the_home_leads_to_the_socket_that_its_daemon_wrote_down(
    ctx: Ctx, daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CTX_SOCKET")
    run = tmp_path / "elsewhere" / "run"
    run.mkdir(parents=True)
    (run / "endpoint.json").write_text(json.dumps({"unix": str(tmp_path / "s.sock")}))
    assert ctx("rpc", "daemon.ping", "--home", str(tmp_path / "elsewhere"), "--no-autostart").code == 0


def test_another_version_is_mentioned_once_on_stderr(ctx: Ctx, tmp_path: Path) -> None:
    with FakeDaemon("9.9.9").in_thread(tmp_path / "s.sock"):
        result = ctx("rpc", "daemon.ping")
    assert result.json()["version"] == "9.9.9"
    assert result.err.count("9.9.9") == 1
    assert "ctx daemon stop" in result.err


# exit codes


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (NotFound("no"), 4),
        (Conflict("no", active_turn_id="T"), 5),
        (ProviderError("no", provider="anthropic"), 6),
        (ContextTooLarge("no", required=9, budget=1), 7),
        (BudgetExceeded("no"), 7),
        (Cancelled("no"), 130),
        (InvalidParams("no"), 2),
        (MethodNotFound("no"), 2),
        (StorageFull("no"), 1),
        (Unavailable("no", retry_after=1), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Fault) else str(value),
)
def test_a_fault_is_one_line_and_its_exit_code(ctx: Ctx, daemon: FakeDaemon, fault: Fault, code: int) -> None:
    daemon.refuses("any.thing", fault)
    result = ctx("rpc", "any.thing")
    assert result == Result(code, "", "ctx: no\n")
    machine = ctx("rpc", "any.thing", "--json")
    assert machine.code == code
    assert machine.out == ""
    assert json.loads(machine.err)["error"]["code"] == fault.code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"code": -32005, "message": "overloaded", "data": {"code": "overloaded"}}, 6),
        ({"code": -32004, "message": "too large"}, 7),
        ({"code": -32008, "message": "cap reached"}, 7),
        ({"code": -32800, "message": "cancelled"}, 130),
        ({"code": -32001, "message": "interrupted"}, 1),
        ({"code": -1, "message": "of tomorrow"}, 1),
    ],
)
def test_a_failed_turn_keeps_its_text_and_sets_the_exit_code(
    ctx: Ctx, daemon: FakeDaemon, error: dict[str, Any], code: int
) -> None:
    failed = turn(None, error=error, incomplete=True, partial_text="so far")
    Conversation(daemon, failed, failed, pieces=("so ", "far"))
    result = ctx("ask", "x")
    assert result.code == code
    assert result.out == "so far\n"
    assert error["message"] in result.err
    assert len(result.err.splitlines()) == 1
    machine = ctx("ask", "--json", "x")
    assert machine.code == code
    assert machine.json()["error"]["code"] == error["code"]


def test_a_lost_connection_is_3_and_names_the_turn(ctx: Ctx, daemon: FakeDaemon) -> None:
    Conversation(daemon, turn("x"))

    async def hang_up(peer: Any, params: Any) -> Any:
        await peer.stream.aclose()
        return NO_ANSWER

    daemon.on("turn.wait", hang_up)
    result = ctx("ask", "x")
    assert result.code == 3
    assert "ctx show T1" in result.err


def test_a_bug_of_ours_is_one_line_too(ctx: Ctx, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("contextinfinity.clients.cli.rpc.dump", broken)
    result = ctx("rpc", "daemon.ping")
    assert result.code == 1
    assert result.err.startswith("ctx: ctx itself failed (ZeroDivisionError: oops)")
    assert len(result.err.splitlines()) == 1


# ask


def test_ask_streams_and_writes_every_word_once(ctx: Ctx, daemon: FakeDaemon) -> None:
    Conversation(daemon, turn("The heron stands."), pieces=("The ", "heron"))
    assert ctx("ask", "hello") == Result(0, "The heron stands.\n", "")


def test_ask_prints_an_answer_that_never_streamed(ctx: Ctx, daemon: FakeDaemon) -> None:
    Conversation(daemon, turn("All at once."))
    assert ctx("ask", "hello").out == "All at once.\n"


def test_ask_takes_up_a_snapshot_where_its_text_ended(ctx: Ctx, daemon: FakeDaemon) -> None:
    talk = Conversation(daemon, turn("abcdef"))

    async def wait(peer: Any, params: Any) -> Any:
        data: dict[str, Any] = {"step_id": "s1", "block": 0, "displayed": 0, "durable": 0}
        await peer.event(talk.subscription, 10, "stream.delta", "T1", text="ab", **data)
        await peer.event(talk.subscription, 10, "stream.snapshot", "T1", text="abcd", **data)
        await peer.event(talk.subscription, 10, "stream.delta", "T1", text="e", **data)
        return talk.outcomes.pop()

    daemon.on("turn.wait", wait)
    assert ctx("ask", "hello").out == "abcdef\n"


def test_ask_json_is_one_document_and_nothing_else(ctx: Ctx, daemon: FakeDaemon) -> None:
    Conversation(daemon, turn("Hi."), pieces=("Hi", "."))
    result = ctx("ask", "--json", "hello")
    assert result.json()["final_assistant_message"]["rendered_text"] == "Hi."
    assert result.err == ""


def test_ask_subscribes_before_it_submits_and_waits_in_line(ctx: Ctx, daemon: FakeDaemon) -> None:
    Conversation(daemon, turn("x"))
    ctx("ask", "two", "words", "--model", "sonnet")
    order = [name for name, _ in daemon.calls if name in ("events.subscribe", "turn.submit", "turn.wait")]
    assert order == ["events.subscribe", "turn.submit", "turn.wait"]
    (submit,) = daemon.called("turn.submit")
    assert (submit["content"], submit["queue"], submit["model"]) == ("two words", True, "sonnet")


@pytest.mark.parametrize(
    ("args", "stdin", "content"),
    [
        (["review"], b"the diff\n", "review\n\nthe diff"),
        ([], b"only piped\n", "only piped"),
        (["-"], b"by name", "by name"),
        (["a", "-", "b"], b"piped", "a b\n\npiped"),
        (["just words"], b"", "just words"),
    ],
)
def test_ask_joins_arguments_and_piped_text(ctx: Ctx, daemon: FakeDaemon, args: list[str], stdin: bytes, content: str) -> None:
    Conversation(daemon, turn("x"))
    assert ctx("ask", *args, stdin=stdin).code == 0
    assert daemon.called("turn.submit")[0]["content"] == content


@pytest.mark.parametrize(("args", "stdin"), [([], b"\xff\xfe"), (["a\udc80b"], b"")])
def test_ask_refuses_what_is_not_utf8(ctx: Ctx, daemon: FakeDaemon, args: list[str], stdin: bytes) -> None:
    Conversation(daemon, turn("x"))
    result = ctx("ask", *args, stdin=stdin)
    assert result.code == 2
    assert "not valid UTF-8" in result.err
    assert daemon.called("turn.submit") == []


def test_ask_goes_on_with_the_last_session_of_this_directory(ctx: Ctx, daemon: FakeDaemon) -> None:
    talk = Conversation(daemon, turn("x"), turn("y"), turn("z"))
    talk.sessions = [session("/elsewhere", "S9"), session(os.getcwd()), session(os.getcwd(), "S0")]
    ctx("ask", "x")
    assert daemon.called("session.create") == []
    assert daemon.called("branch.get") == [{"branch_id": "B1"}]
    ctx("ask", "--new", "x", "y " * 60)
    (created,) = daemon.called("session.create")
    assert created["cwd"] == os.getcwd()
    assert created["title"].endswith("…")
    assert len(created["title"]) == 60
    talk.sessions = [session("/elsewhere", "S9")]
    ctx("ask", "x")
    assert len(daemon.called("session.create")) == 2


def test_ask_looks_through_pages_of_sessions(ctx: Ctx, daemon: FakeDaemon) -> None:
    Conversation(daemon, turn("x"))

    def page(peer: Any, params: dict[str, Any]) -> Any:
        if "cursor" not in params:
            return {"sessions": [session("/elsewhere", "S9")], "next_cursor": "more"}
        return {"sessions": [session(os.getcwd())]}

    daemon.on("session.list", page)
    assert ctx("ask", "x").code == 0
    assert daemon.called("session.create") == []


def test_ask_in_a_named_session_or_branch(ctx: Ctx, daemon: FakeDaemon) -> None:
    Conversation(daemon, turn("x"), turn("y"))
    ctx("ask", "--session", "S1", "x")
    ctx("ask", "-b", "B7", "x")
    assert [p["branch_id"] for p in daemon.called("turn.submit")] == ["B1", "B7"]
    daemon.refuses("session.get", NotFound("no session"))
    assert ctx("ask", "-s", "nope", "x").code == 4


def test_ctrl_c_cancels_the_turn_and_exits_with_130(ctx: Ctx, daemon: FakeDaemon, tmp_path: Path) -> None:
    Conversation(daemon, turn("x"))
    daemon.answers("turn.wait", NO_ANSWER)
    command = [sys.executable, "-c", "from contextinfinity.clients.cli.main import main; raise SystemExit(main())"]
    child = subprocess.Popen(
        [*command, "--no-autostart", "ask", "x"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 20
    while not daemon.called("turn.wait"):
        assert time.monotonic() < until
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert child.returncode == 130, err
    assert "Traceback" not in err
    assert daemon.called("turn.cancel") == [{"turn_id": "T1"}]


# keys


def test_a_missing_key_is_handed_over_on_request_and_the_turn_tried_again_once(
    ctx: Ctx, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-mine")
    daemon.answers("credential.provide", {})
    Conversation(daemon, turn(None, error=MISSING), turn("Now it works.", "T2"))
    result = ctx("ask", "--provide-keys", "x")
    assert result.code == 0
    assert result.out == "Now it works.\n"
    assert daemon.called("credential.provide") == [{"provider": "anthropic", "key": "key-of-mine"}]
    assert daemon.called("turn.retry")[0]["turn_id"] == "T1"
    assert "key-of-mine" not in result.err
    Conversation(daemon, turn(None, error=MISSING), turn(None, "T2", error=MISSING))
    assert ctx("ask", "--provide-keys", "x").code == 6
    assert len(daemon.called("credential.provide")) == 2, "a second failure is the last"


def test_a_missing_key_is_only_mentioned_without_a_terminal(
    ctx: Ctx, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    Conversation(daemon, turn(None, error=MISSING), turn(None, error=MISSING))
    assert ctx("ask", "x").err == "ctx: no key\n"
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-mine")
    result = ctx("ask", "x")
    assert result.code == 6
    assert "--provide-keys" in result.err
    assert daemon.called("credential.provide") == []


class Store:
    """A key store in memory."""

    name, priority = "memory", 1.0

    def __init__(self) -> None:
        self.keys: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, name: str) -> str | None:
        return self.keys.get((service, name))

    def set_password(self, service: str, name: str, key: str) -> None:
        self.keys[service, name] = key

    def delete_password(self, service: str, name: str) -> None:
        del self.keys[service, name]


def test_auth_set_stores_the_key_and_tells_a_running_daemon(
    ctx: Ctx, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    monkeypatch.setattr(auth, "_usable_store", lambda: store)
    daemon.answers("credential.provide", {})
    daemon.answers("model.list", {"models": []})
    result = ctx("auth", "set", "anthropic", stdin=b"sk-123\n")
    assert result.code == 0
    assert "sk-123" not in result.out + result.err
    assert store.keys == {("contextinfinity", "anthropic"): "sk-123"}
    assert daemon.called("credential.provide") == [{"provider": "anthropic", "key": "sk-123"}]
    rows = {row["provider"]: row for row in ctx("auth", "status", "--json").json()["providers"]}
    assert rows["anthropic"]["key_store"] is True
    assert rows["openai"]["key_store"] is False
    assert ctx("auth", "remove", "anthropic", "--json").json() == {"provider": "anthropic", "removed": True}
    assert store.keys == {}


def test_auth_set_without_a_key_store_names_both_ways_out(ctx: Ctx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "_usable_store", lambda: None)
    result = ctx("--no-autostart", "auth", "set", "openai", stdin=b"sk-1\n")
    assert result.code == 1
    assert "OPENAI_API_KEY" in result.err
    assert "--session-only" in result.err


def test_auth_set_for_the_session_only_reaches_the_daemon_alone(
    ctx: Ctx, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    monkeypatch.setattr(auth, "_usable_store", lambda: store)
    daemon.answers("credential.provide", {})
    assert ctx("auth", "set", "openai", "--session-only", stdin=b"sk-2").code == 0
    assert daemon.called("credential.provide") == [{"provider": "openai", "key": "sk-2"}]
    assert store.keys == {}
    assert ctx("auth", "set", "openai", "--session-only", stdin=b"two words\n").code == 2


# reading


def test_show_finds_turns_sessions_and_branches(ctx: Ctx, daemon: FakeDaemon) -> None:
    Conversation(daemon)
    daemon.answers("turn.get", turn("An answer."))
    assert "An answer." in ctx("show", "T1").out
    daemon.refuses("turn.get", NotFound("no turn"))
    daemon.answers("branch.list", {"branches": [branch(), branch("B2", parent_id="B1", forked_at_turn_seq=1)]})
    shown = ctx("show", "S1").out
    assert "about herons" in shown
    assert "branch B2 (active): 2 turns, from B1 at turn 1" in shown
    daemon.refuses("session.get", NotFound("no session"))
    assert ctx("show", "B1", "--json").json()["head_seq"] == 3


def test_show_of_an_unknown_id_is_4(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.refuses("turn.get", InvalidParams("not an id"))
    daemon.refuses("session.get", NotFound("no"))
    daemon.refuses("branch.get", NotFound("no"))
    result = ctx("show", "nope", "--json")
    assert result.code == 4
    assert result.out == ""


def test_sessions_are_listed_and_filtered_by_directory(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.answers("session.list", {"sessions": [session("/elsewhere", "S9"), session(os.getcwd())]})
    assert [line.split()[0] for line in ctx("sessions").out.splitlines()] == ["S9", "S1"]
    assert [s["id"] for s in ctx("sessions", "--here", "--json").json()["sessions"]] == ["S1"]
    daemon.answers("session.list", {"sessions": []})
    assert "ctx ask" in ctx("sessions").out


def test_log_reads_all_pages_or_the_last_turns(ctx: Ctx, daemon: FakeDaemon) -> None:
    Conversation(daemon, cwd=os.getcwd())

    def page(peer: Any, params: dict[str, Any]) -> Any:
        first = params.get("after_seq", 0) + 1
        made = {"turns": [turn(f"answer {first}", turn_seq=first)]}
        return made if first == 3 else {**made, "next_cursor": str(first)}

    daemon.on("turn.list", page)
    shown = ctx("log").out
    assert [n for n in (1, 2, 3) if f"answer {n}" in shown] == [1, 2, 3]
    assert len(ctx("log", "--json").json()["turns"]) == 3
    daemon.calls.clear()
    ctx("log", "-n", "1")
    assert daemon.called("turn.list")[0]["after_seq"] == 1


def test_commands_on_this_directory_say_when_nothing_was_said_here(ctx: Ctx, daemon: FakeDaemon) -> None:
    Conversation(daemon)
    for args in (["log"], ["fork"], ["rollback", "1"], ["pins"], ["pin", "add", "x"], ["pin", "list"]):
        result = ctx(*args)
        assert result.code == 4, args
        assert "ctx ask" in result.err


def test_fork_rollback_and_pins_ask_for_the_right_thing(ctx: Ctx, daemon: FakeDaemon) -> None:
    Conversation(daemon, cwd=os.getcwd())
    daemon.answers("branch.fork", branch("B2", active=False, parent_id="B1", forked_at_turn_seq=1, label="idea"))
    daemon.answers("branch.activate", branch("B2", forked_at_turn_seq=1))
    daemon.answers("branch.rollback", branch("B3", forked_at_turn_seq=1))
    pin = {"id": "P1", "branch_id": "B1", "text": "French.", "created_at": "2025-11-18T12:00:00Z"}
    daemon.answers("pin.add", pin)
    daemon.answers("pin.remove", pin)
    daemon.answers("pin.list", {"pins": [pin]})
    assert "ctx ask --branch B2" in ctx("fork", "--at", "1", "--label", "idea").out
    assert daemon.called("branch.fork") == [{"branch_id": "B1", "at_turn_seq": 1, "label": "idea"}]
    assert "active now" in ctx("fork", "--activate").out
    assert "ctx log B1" in ctx("rollback", "1").out
    assert daemon.called("branch.rollback") == [{"branch_id": "B1", "to_turn_seq": 1}]
    assert "P1" in ctx("pin", "add", "Answer", "in", "French.").out
    assert daemon.called("pin.add")[0]["text"] == "Answer in French."
    assert ctx("pins", "--json").json() == ctx("pin", "list", "--json").json() == {"pins": [pin]}
    assert ctx("pin", "remove", "P1", "--json").json()["id"] == "P1"


def test_rpc_takes_json_from_an_argument_or_from_stdin(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.on("any.thing", lambda peer, params: params)
    assert ctx("rpc", "any.thing", '{"x": 1}').json() == {"x": 1}
    assert ctx("rpc", "any.thing", "-", stdin=b'{"y": 2}').json() == {"y": 2}
    assert ctx("rpc", "any.thing").json() == {}
    daemon.answers("any.thing", NO_ANSWER)
    assert ctx("rpc", "any.thing", "--timeout", "0.1").code == 3


def test_a_process_counts_as_ended_before_its_parent_noticed() -> None:
    assert _alive(os.getpid())
    with subprocess.Popen(["true"]) as child:
        until = time.monotonic() + 20
        while _alive(child.pid):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert child.returncode is None, "nobody has waited for it yet"
    assert not _alive(child.pid)


# chat


def test_chat_takes_piped_lines_and_slash_commands(ctx: Ctx, daemon: FakeDaemon) -> None:
    talk = Conversation(daemon, turn("one"), turn("two"))
    pin = {"id": "P1", "branch_id": "B1", "text": "x", "created_at": "2025-11-18T12:00:00Z"}
    daemon.answers("pin.add", pin)
    result = ctx("chat", stdin=b"first\n\n/pin keep this\nsecond\n/quit\nnever said\n")
    assert result == Result(0, "one\nPinned as P1.\ntwo\n", "")
    assert [p["content"] for p in daemon.called("turn.submit")] == ["first", "second"]
    assert len(daemon.called("session.create")) == 1
    assert talk.outcomes == []


def test_chat_as_json_is_one_turn_a_line(ctx: Ctx, daemon: FakeDaemon) -> None:
    Conversation(daemon, turn("one"), turn(None, error={"code": -32005, "message": "overloaded"}), turn("three"))
    result = ctx("chat", "--json", stdin=b"a\nb\nc\n")
    assert [json.loads(line)["phase"] for line in result.out.splitlines()] == [
        "response_finalized",
        "failed",
        "response_finalized",
    ]
    assert result.code == 6, "a failure is not forgotten"


def test_chat_goes_on_after_a_bad_command(ctx: Ctx, daemon: FakeDaemon) -> None:
    Conversation(daemon, turn("fine"))
    result = ctx("chat", stdin=b"/nonsense\n/rollback x\n/retry\nhello\n")
    assert "no command /nonsense" in result.err
    assert "nothing was said here yet" in result.err
    assert result.out == "fine\n"
    assert result.code == 1


def test_chat_retries_and_moves_between_branches(ctx: Ctx, daemon: FakeDaemon) -> None:
    Conversation(daemon, turn("again", "T2"), turn("there"), cwd=os.getcwd())
    daemon.answers("turn.list", {"turns": [turn(None, error={"code": -32005, "message": "x"})]})
    daemon.answers("branch.rollback", branch("B5"))
    daemon.answers("branch.fork", branch("B6"))
    daemon.answers("branch.activate", branch("B6"))
    daemon.answers("model.select", {"change": "none", "old_budget": 1000, "new_budget": 2000})
    result = ctx("chat", stdin=b"/retry\n/rollback 1\n/fork\n/model gpt\nhello\n/help\n")
    assert result.code == 0, result.err
    assert daemon.called("turn.retry")[0]["turn_id"] == "T1"
    assert daemon.called("branch.fork") == [{"branch_id": "B5"}]
    assert daemon.called("model.select") == [{"branch_id": "B6", "model": "gpt"}]
    assert daemon.called("turn.submit")[0]["branch_id"] == "B6"
    assert "2,000 tokens" in result.out
    assert "/rollback N" in result.out


# terminal


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain ✓ 日本\tx\n", "plain ✓ 日本\tx\n"),
        ("\x1b[2J\x1b]0;owned\x07", "␛[2J␛]0;owned␇"),
        ("a\r\nb\rc", "a\nb␍c"),
        ("\x9b31m\x7f\x00", "·31m␡␀"),
    ],
)
def test_control_characters_are_made_visible(given: str, shown: str) -> None:
    assert output.clean(given) == shown


def test_a_model_cannot_drive_the_terminal_but_a_pipe_gets_every_byte(
    ctx: Ctx, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = "a\x1b[31mb\x9bc"
    Conversation(daemon, turn(evil), turn(evil), pieces=(evil,))
    assert ctx("ask", "x").out == f"{evil}\n"
    monkeypatch.setattr(output, "to_terminal", lambda stream: True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert ctx("ask", "x").out == "a␛[31mb·c\n"


def test_the_header_names_what_it_must_and_says_what_is_only_buffered() -> None:
    def event(kind: str, **data: Any) -> Notification:
        return Notification("S", 1, kind, "B1", data, "T")

    header = Header()
    assert header.text(80) == " new session · ready · Stream: 0/0 "
    header.show(msgspec.convert(branch(), Branch), "about\x1b[2J herons")
    assert header.text(120) == " about␛[2J herons · …B1 · head 3 …ABCDEF · pending 2 · ready · Stream: 5/5 "
    header.see(event("turn.accepted"))
    header.see(event("turn.phase", phase="responding"))
    header.see(event("stream.delta", displayed=40, durable=12))
    assert "pending 3 · responding · Stream: 12/40 buffered" in header.text(120)
    header.see(event("stream.durable", displayed=40, durable=40))
    assert header.text(120).endswith("Stream: 40/40 ")
    header.see(event("stream.delta", displayed=50, durable=40))
    ended = branch(phase="response_finalized", stream={"displayed": 0, "durable": 0})
    header.show(msgspec.convert(ended, Branch), "x" * 200)
    assert "response_finalized · Stream: 50/50" in header.text(120), "a finished answer is committed"
    for width in (40, 60, 100):
        assert len(header.text(width)) == min(width, len(header.text(500)))


def test_json_output_holds_no_raw_control_characters(ctx: Ctx, daemon: FakeDaemon) -> None:
    daemon.answers("any.thing", {"text": "\x1b[31m\x9b\x7f"})
    result = ctx("rpc", "any.thing")
    assert result.json() == {"text": "\x1b[31m\x9b\x7f"}
    assert not set(result.out) & {"\x1b", "\x9b", "\x7f"}
