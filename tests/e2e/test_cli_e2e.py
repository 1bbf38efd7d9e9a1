"""`ctx` and a real `ctxd`, each as processes of their own, in a home that the test owns."""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from contextinfinity.clients.api import connect
from contextinfinity.protocol.methods import SessionCreate, TurnSubmit, TurnWait
from tests.support.provider_server import ProviderServer, Reply

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
BIN = Path(sys.executable).parent
DEADLINE = 30.0
HERON = "The build server is called heron-7."


def until(condition: Callable[[], Any], what: str) -> Any:
    """Poll for something that another process brings about."""
    end = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {DEADLINE:g} s for {what}"
        time.sleep(0.01)
    return found


def has_ended(pid: int) -> bool:
    """Gone, or left as a zombie by an init process that is slow to notice."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and ") Z " in stat.read_text()


class Home:
    """A home folder and a directory to work in; whatever daemon it has is stopped at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path / "h"
        self.work = path / "w"
        self.work.mkdir()
        hidden = ("CTX_", "XDG_", "ANTHROPIC_", "OPENAI_")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        self.env |= {"CTX_HOME": str(self.path), "HOME": str(path), "NO_COLOR": "1"}

    def config(self, text: str) -> None:
        self.path.mkdir(mode=0o700, exist_ok=True)
        (self.path / "config.toml").write_text(text)

    def popen(self, *args: str, **options: Any) -> "subprocess.Popen[str]":
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([BIN / "ctx", *args], env=self.env, cwd=self.work, text=True, **options)

    def ctx(self, *args: str, input: str | None = None, env: dict[str, str] | None = None) -> Any:
        source: dict[str, Any] = {"stdin": subprocess.DEVNULL} if input is None else {"input": input}
        return subprocess.run(
            [BIN / "ctx", *args],
            env={**self.env, **(env or {})},
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
            **source,
        )

    def json(self, *args: str, **options: Any) -> Any:
        result = self.ctx(*args, "--json", **options)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    @property
    def socket(self) -> Path:
        return Path(json.loads((self.path / "run" / "endpoint.json").read_text())["unix"])

    def stop(self) -> None:
        result = self.ctx("daemon", "stop")
        assert result.returncode == 0, result.stderr


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def provider() -> Iterator[ProviderServer]:
    with ProviderServer(Reply(deltas=("The heron ", "stands ", "still."))) as server:
        yield server


def slow_model(home: Home, provider: ProviderServer) -> None:
    base = provider.base_url("openai_chat")
    home.config(f'[models.local]\nprovider = "openai_chat"\nmodel_id = "local-1"\nbase_url = "{base}"\n')


def test_the_first_ask_starts_a_daemon_and_the_second_remembers(home: Home) -> None:
    first = home.ctx("ask", HERON)
    assert first.returncode == 0, first.stderr
    assert first.stdout.strip()
    assert "heron-7" in home.ctx("ask", "What is the build server called?").stdout
    assert len(home.json("sessions")["sessions"]) == 1, "the same directory, the same session"
    assert home.json("ask", "hello")["turn_seq"] == 3
    assert home.json("ask", "--new", "hello")["turn_seq"] == 1


def test_text_is_piped_in_and_out(home: Home) -> None:
    turn = home.json("ask", "Remember this:", input="line one\nline two\n")
    assert turn["user_message"]["rendered_text"] == "Remember this:\n\nline one\nline two"
    turn = home.json("ask", input="only piped\n")
    assert turn["user_message"]["rendered_text"] == "only piped"
    closed = home.popen("log", stdout=subprocess.PIPE)
    assert closed.stdout is not None
    closed.stdout.close()
    assert closed.stderr is not None
    assert closed.stderr.read() == "", "a reader that goes away is no reason to complain"
    closed.stderr.close()
    closed.wait(DEADLINE)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only /proc can tell an inherited input from a piped one")
def test_a_loop_keeps_its_input(home: Home) -> None:
    (home.work / "questions").write_text("one\ntwo\nthree\n")
    script = f'while read -r line; do {BIN}/ctx ask "$line" >/dev/null; done < questions'
    subprocess.run(["sh", "-c", script], env=home.env, cwd=home.work, check=True, timeout=DEADLINE, capture_output=True)
    said = [turn["user_message"]["rendered_text"] for turn in home.json("log")["turns"]]
    assert said == ["one", "two", "three"]


def test_an_inherited_pipe_that_stays_open_does_not_hold_ask_up(home: Home) -> None:
    reading, writing = os.pipe()
    try:
        script = [sys.executable, "-c", f"import subprocess; subprocess.run(['{BIN}/ctx', 'ask', 'hello'], check=True)"]
        result = subprocess.run(
            script, stdin=reading, env=home.env, cwd=home.work, timeout=DEADLINE, capture_output=True, text=True, check=True
        )
        assert "add - to read it" in result.stderr
    finally:
        os.close(reading)
        os.close(writing)


def test_log_show_fork_rollback_and_pins(home: Home) -> None:
    first = home.json("ask", "one")
    home.json("ask", "two")
    home.json("ask", "three")
    assert [t["turn_seq"] for t in home.json("log")["turns"]] == [1, 2, 3]
    assert [t["turn_seq"] for t in home.json("log", "-n", "2")["turns"]] == [2, 3]
    assert home.json("show", first["id"]) == {**home.json("show", first["id"]), "turn_seq": 1}
    assert home.json("show", first["session_id"])["turns"] == 3
    assert home.json("show", first["branch_id"])["id"] == first["branch_id"]

    fork = home.json("fork", "--at", "1", "--label", "other")
    assert fork["forked_at_turn_seq"] == 1
    assert home.json("ask", "--branch", fork["id"], "on the fork")["turn_seq"] == 2
    assert home.json("ask", "on the old one")["turn_seq"] == 4, "a fork is not active by itself"

    back = home.json("rollback", "2")
    assert back["active"] is True
    assert home.json("ask", "again")["branch_id"] == back["id"]
    assert [t["turn_seq"] for t in home.json("log")["turns"]] == [1, 2, 3]
    assert len(home.json("log", first["branch_id"])["turns"]) == 4, "nothing is deleted"

    pin = home.json("pin", "add", "Answer", "in", "French.")
    assert [p["text"] for p in home.json("pins")["pins"]] == ["Answer in French."]
    home.json("pin", "remove", pin["id"])
    assert home.json("pin", "list") == {"pins": []}
    shown = home.ctx("log").stdout
    assert "one" in shown
    assert "\x1b" not in shown


def test_exit_codes(home: Home, provider: ProviderServer) -> None:
    base = provider.base_url("openai_chat")
    home.config(
        f'[models.local]\nprovider = "openai_chat"\nmodel_id = "local-1"\nbase_url = "{base}"\n'
        f'[models.tiny]\nprovider = "openai_chat"\nmodel_id = "tiny-1"\nbase_url = "{base}"\n'
        "context_limit = 2000\nmax_output_tokens = 100\n"
    )
    codes = {
        "unreachable": home.ctx("--no-autostart", "status").returncode,
        "ok": home.ctx("ask", "--model", "recall", "hello").returncode,
        "usage": home.ctx("ask", "--surprise").returncode,
        "not found": home.ctx("show", "nope", "--json").returncode,
        "not found by option": home.ctx("ask", "--session", "nope", "x").returncode,
        "no key": home.ctx("ask", "--model", "sonnet", "hello").returncode,
        "too large": home.ctx("ask", "--new", "--model", "tiny", "word " * 5000).returncode,
        "unknown model": home.ctx("ask", "--model", "no-such-model", "hello").returncode,
    }
    provider.script(Reply(status=500, message="broken"), *[Reply(status=500, message="broken")] * 10)
    codes["provider"] = home.ctx("ask", "--new", "--model", "local", "hello").returncode
    assert codes == {
        "unreachable": 3,
        "ok": 0,
        "usage": 2,
        "not found": 4,
        "not found by option": 4,
        "no key": 6,
        "too large": 7,
        "unknown model": codes["unknown model"],
        "provider": 6,
    }
    assert codes["unknown model"] in (2, 4)


def test_a_conflict_is_5(home: Home, provider: ProviderServer) -> None:
    slow_model(home, provider)
    provider.script(Reply(deltas=("a", "b"), pause_after=1))
    created = home.json("rpc", "session.create", "{}")
    submit = json.dumps({"branch_id": created["branch"]["id"], "content": "x"})
    assert home.ctx("rpc", "turn.submit", submit).returncode == 0
    until(provider.paused.is_set, "the stream to pause")
    refused = home.ctx("rpc", "turn.submit", submit)
    provider.resume()
    assert refused.returncode == 5, refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_clients_that_start_a_daemon_at_the_same_instant_all_succeed(home: Home) -> None:
    children = [home.popen("ask", "--new", "--json", f"hello {n}") for n in range(4)]
    outcomes = [child.communicate(timeout=DEADLINE) for child in children]
    assert [child.returncode for child in children] == [0] * 4, outcomes
    assert len({json.loads(out)["session_id"] for out, _ in outcomes}) == 4
    assert len(home.json("sessions")["sessions"]) == 4, "one daemon holds them all"


def test_a_daemon_that_cannot_start_is_explained(home: Home) -> None:
    home.config("not toml at all")
    result = home.ctx("ask", "hello")
    assert result.returncode == 3
    assert "not valid TOML" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_answer_streams_while_it_is_made(home: Home, provider: ProviderServer) -> None:
    slow_model(home, provider)
    home.ctx("daemon", "start")
    provider.script(Reply(deltas=("first ", "second"), pause_after=1))
    child = home.popen("ask", "hello")
    assert child.stdout is not None
    assert child.stdout.read(6) == "first ", "shown before the answer is complete"
    assert child.poll() is None
    provider.resume()
    out, err = child.communicate(timeout=DEADLINE)
    assert (out, err, child.returncode) == ("second\n", "", 0)


def test_ctrl_c_cancels_the_turn_and_keeps_its_text(home: Home, provider: ProviderServer) -> None:
    slow_model(home, provider)
    provider.script(Reply(deltas=("kept ", "never"), pause_after=1))
    child = home.popen("ask", "hello")
    assert child.stdout is not None
    assert child.stdout.read(5) == "kept "
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=DEADLINE)
    provider.resume()
    assert child.returncode == 130
    assert "Traceback" not in err
    (turn,) = home.json("log")["turns"]
    assert (turn["phase"], turn["partial_text"]) == ("failed", "kept ")
    assert turn["error"]["code"] == -32800


def test_a_daemon_killed_in_mid_answer_is_3_and_the_turn_can_be_shown(home: Home, provider: ProviderServer) -> None:
    slow_model(home, provider)
    pid = home.json("daemon", "start")["pid"]
    provider.script(Reply(deltas=("half an ", "answer"), pause_after=1))
    child = home.popen("ask", "hello")
    assert child.stdout is not None
    assert child.stdout.read(8) == "half an "
    os.kill(pid, signal.SIGKILL)
    _, err = child.communicate(timeout=DEADLINE)
    provider.resume()
    assert child.returncode == 3
    named = re.search(r"ctx show (\w+)", err)
    assert named is not None, err
    turn = home.json("show", named[1])
    assert turn["phase"] == "failed"
    assert turn["user_message"]["rendered_text"] == "hello"


def test_a_key_of_the_client_is_handed_to_the_daemon(home: Home, provider: ProviderServer) -> None:
    base = provider.base_url("anthropic")
    home.config(f'[models.claude]\nprovider = "anthropic"\nmodel_id = "claude-x"\nbase_url = "{base}"\n')
    home.ctx("daemon", "start")
    mine = {"ANTHROPIC_API_KEY": "key-of-the-client"}
    refused = home.ctx("ask", "hello", env=mine)
    assert refused.returncode == 6
    assert "--provide-keys" in refused.stderr
    assert provider.requests == []
    answered = home.ctx("ask", "--provide-keys", "hello", env=mine)
    assert (answered.returncode, answered.stdout) == (0, "The heron stands still.\n"), answered.stderr
    assert home.ctx("ask", "and now without").returncode == 0, "the daemon keeps it"
    assert home.ctx("ask", "--new", "in another session").returncode == 0
    stored = b"".join(path.read_bytes() for path in home.path.rglob("*") if path.is_file())
    assert b"key-of-the-client" not in stored


def test_a_half_closed_connection_gets_its_answers(home: Home) -> None:
    home.ctx("daemon", "start")
    requests = [{"jsonrpc": "2.0", "id": n, "method": "daemon.ping"} for n in (1, 2)]
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(DEADLINE)
        peer.connect(str(home.socket))
        peer.sendall(b"".join(json.dumps(request).encode() + b"\n" for request in requests))
        peer.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := peer.recv(65536):
            received += chunk
    assert sorted(json.loads(line)["id"] for line in received.splitlines()) == [1, 2]


def test_the_daemon_is_started_watched_and_stopped(home: Home) -> None:
    assert home.ctx("daemon", "status").returncode == 3, "asking does not start one"
    assert home.json("daemon", "stop") == {"stopped": False, "pid": None}
    pid = home.json("daemon", "start")["pid"]
    assert home.json("daemon", "start")["pid"] == pid
    assert home.json("daemon", "status")["pid"] == pid
    assert "ready" in home.ctx("status").stdout
    assert any("ready" in line for line in home.json("daemon", "logs")["lines"])
    assert home.json("daemon", "stop") == {"stopped": True, "pid": pid}
    assert has_ended(pid)
    assert not (home.path / "run" / "ctxd.sock").exists()


def test_chat_takes_piped_lines(home: Home) -> None:
    result = home.ctx("chat", input=f"{HERON}\n/pin Stay brief.\nWhat is the build server called?\n")
    assert result.returncode == 0, result.stderr
    assert "Pinned as" in result.stdout
    assert "heron-7" in result.stdout
    assert len(home.json("log")["turns"]) == 2


class Terminal:
    """A command on a pseudo-terminal, with everything it wrote."""

    def __init__(self, home: Home, *args: str) -> None:
        self._master, slave = pty.openpty()
        env = {**home.env, "TERM": "xterm", "LINES": "24", "COLUMNS": "120"}
        self.process = subprocess.Popen(
            [BIN / "ctx", *args], stdin=slave, stdout=slave, stderr=slave, env=env, cwd=home.work, start_new_session=True
        )
        os.close(slave)
        self.shown = ""

    def see(self, pattern: str, after: int = 0) -> int:
        """Read until the pattern shows up; returns where it ended."""
        end = time.monotonic() + DEADLINE
        while not (found := re.compile(pattern).search(self.shown, after)):
            assert time.monotonic() < end, f"no {pattern!r} in {self.shown[after:]!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self._master, 65536).decode(errors="replace")
                except OSError:  # the other side is closed
                    assert found, f"ended without {pattern!r}: {self.shown[after:]!r}"
        return found.end()

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def close(self) -> int:
        try:
            return self.process.wait(DEADLINE)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            os.close(self._master)


def test_chat_on_a_terminal_shows_the_header_and_ctrl_c_stops_an_answer(home: Home, provider: ProviderServer) -> None:
    slow_model(home, provider)
    provider.script(
        Reply(deltas=("half \x1b[31mred ", "never"), pause_after=1), Reply(deltas=("whole.",)), Reply(deltas=("unused",))
    )
    terminal = Terminal(home, "chat", "--new")
    try:
        terminal.see(r"> ")
        terminal.type("hello\n")
        place = terminal.see(r"half ␛\[31mred ")
        place = terminal.see(r"responding · Stream: \d+/14", place)
        terminal.see(r"Stream: 14/14", place)
        provider_is_paused = until(provider.paused.is_set, "the stream to pause")
        assert provider_is_paused
        os.kill(terminal.process.pid, signal.SIGINT)
        place = terminal.see(r"stopped; what was said so far is kept", place)
        place = terminal.see(r"head 0 .* pending 1 · failed", place)
        provider.resume()
        terminal.type("again\n")
        place = terminal.see(r"whole\.", place)
        place = terminal.see(r"> ", place)
        terminal.type("\x04")
        terminal.see(r"\x1b\[r", place)
    finally:
        code = terminal.close()
    assert code == 0
    first, second = home.json("log")["turns"]
    assert (first["error"]["code"], first["partial_text"]) == (-32800, "half \x1b[31mred ")
    assert second["final_assistant_message"]["rendered_text"] == "whole."


def test_on_a_terminal_a_missing_key_is_offered(home: Home, provider: ProviderServer) -> None:
    base = provider.base_url("anthropic")
    home.config(f'[models.claude]\nprovider = "anthropic"\nmodel_id = "claude-x"\nbase_url = "{base}"\n')
    home.ctx("daemon", "start")
    home.env["ANTHROPIC_API_KEY"] = "key-of-the-client"
    for answer, code in (("n", 6), ("y", 0)):
        terminal = Terminal(home, "ask", "hello")
        try:
            terminal.see(r"Hand it your ANTHROPIC_API_KEY\? \[Y/n\]: ")
            terminal.type(f"{answer}\n")
            terminal.see(r"The heron stands still\." if answer == "y" else r"API key")
        finally:
            ended = terminal.close()
        assert ended == code
        assert "key-of-the-client" not in terminal.shown


def test_two_terminals_share_one_conversation(home: Home) -> None:
    home.ctx("ask", "begin")
    terminal = Terminal(home, "chat")
    try:
        place = terminal.see(r"> ")
        home.ctx("ask", "from the other side")
        terminal.type("\n")
        place = terminal.see(r"from the other side", place)
        terminal.type("/quit\n")
    finally:
        code = terminal.close()
    assert code == 0


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_typed_client_on_either_loop(home: Home, backend: str) -> None:
    home.ctx("daemon", "start")

    async def work() -> None:
        with anyio.fail_after(DEADLINE):
            async with connect(home.socket) as client:
                created = await client.call(SessionCreate(title="typed"))
                async with client.subscribe(branch_id=created.branch.id, buffer=4) as events:
                    for text in ("one", "two", "three"):
                        submitted = await client.call(TurnSubmit(branch_id=created.branch.id, content=text))
                        turn = await client.call(TurnWait(turn_id=submitted.turn_id))
                        assert turn.final_assistant_message is not None
                    accepted: list[str] = []
                    async for event in events:
                        if event.type == "turn.accepted":
                            accepted.append(event.turn_id or "")
                        if len(accepted) == 3:
                            break
                assert accepted[-1] == submitted.turn_id
                assert len(set(accepted)) == 3

    anyio.run(work, backend=backend)


def test_chat_loses_no_words_when_the_daemon_went_away_meanwhile(home: Home) -> None:
    terminal = Terminal(home, "chat", "--new")
    try:
        place = terminal.see(r"> ")
        terminal.type("before\n")
        place = terminal.see(r"Noted\.", place)
        place = terminal.see(r"> ", place)
        home.stop()
        terminal.type("after it stopped\n")
        place = terminal.see(r"connected again", place)
        place = terminal.see(r"Noted\.|From this", place)
        terminal.type("/quit\n")
    finally:
        terminal.close()
    said = [turn["user_message"]["rendered_text"] for turn in home.json("log")["turns"]]
    assert said == ["before", "after it stopped"], "said once, and kept"


def test_retry_asks_the_last_failed_turn_again(home: Home, provider: ProviderServer) -> None:
    assert home.ctx("retry").returncode == 1
    slow_model(home, provider)
    home.ctx("daemon", "stop")
    provider.script(Reply(status=500), Reply(deltas=("whole.",)))
    assert home.ctx("ask", "--new", "hello").returncode == 6
    again = home.ctx("retry")
    assert (again.returncode, again.stdout) == (0, "whole.\n"), again.stderr
    first, second = home.json("log")["turns"]
    assert second["retry_of"] == first["id"]
    assert home.ctx("retry").returncode == 1, "what was answered is not asked again"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only /proc can tell an inherited input from a piped one")
def test_words_piped_to_a_group_are_not_silently_left_out(home: Home) -> None:
    home.ctx("daemon", "start")
    script = f"printf 'the diff' | {{ sleep 0.2; {BIN}/ctx ask 'Review'; exit $?; }}"
    result = subprocess.run(
        ["sh", "-c", script], env=home.env, cwd=home.work, timeout=DEADLINE, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "add -" in result.stderr
    assert home.json("sessions")["sessions"] == []
    script = script.replace("ask 'Review'", "ask 'Review' -")
    subprocess.run(["sh", "-c", script], env=home.env, cwd=home.work, timeout=DEADLINE, capture_output=True, check=True)
    (turn,) = home.json("log")["turns"]
    assert turn["user_message"]["rendered_text"] == "Review\n\nthe diff"
