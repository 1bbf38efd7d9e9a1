"""What it is like, in half a minute: a conversation, a way back, a daemon that is killed in mid-answer, and nothing lost.

`make demo` runs it with the real commands in a home that is removed again; it fails if anything is not as it says.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

from contextinfinity.daemon.embedders import models

BIN = Path(sys.executable).parent
WIDTH = 79
DEADLINE = 20.0
HIDDEN = ("CTX_", "XDG_", "ANTHROPIC_", "OPENAI_")
HISTORY = (
    {"role": "user", "text": "How long do we keep customer invoices?", "created_at": "2026-03-04T09:00:00Z"},
    {"role": "assistant", "text": "Ten years: the tax office may ask for them.", "created_at": "2026-03-04T09:00:05Z"},
    {"role": "user", "text": "And the checkout test that fails now and then?", "created_at": "2026-03-04T09:01:00Z"},
    {"role": "assistant", "text": "Two retries, then it is quarantined.", "created_at": "2026-03-04T09:01:04Z"},
)
LAST_WORDS = (
    "The database password rotates on the first of the month.",
    "Ana owns the billing service.",
    "The incident of May was a full disk on heron-7.",
)
GOODBYE = f"""
That was all of it: no key, no network, nothing left behind. To begin for real:

    {Path(os.path.relpath(BIN)) / "ctx"} chat

The first command starts the daemon, which keeps everything in
~/.contextinfinity. `ctx auth set anthropic` (or openai) keeps a provider's key
for a real model, `ctx --help` shows the rest."""


class Demo:
    """A temporary home, and a shell in which `ctx` means it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.work = folder / "work"
        self.work.mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(HIDDEN)}
        path = f"{BIN}{os.pathsep}{kept.get('PATH', os.defpath)}"
        self.env = kept | {"PATH": path, "HOME": str(folder), "CTX_HOME": str(self.home), "NO_COLOR": "1"}
        self.env["CTX_MODELS"] = str(models.folder(os.environ))  # where `make model` has put it

    def shell(self, command: str) -> str:
        """Show a command, run it, show what it says."""
        say(f"$ {command}")
        output = self.quietly(command)
        for line in output.rstrip().splitlines():
            say(*(textwrap.wrap(line, WIDTH, break_on_hyphens=False) or [""]))
        say("")
        return output

    def quietly(self, command: str) -> str:
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.work,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        check(done.returncode == 0, f"`{command}` ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def json(self, command: str) -> Any:
        return json.loads(self.quietly(f"{command} --json"))


def main() -> int:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ctx-demo-") as folder:
        demo = Demo(Path(folder))
        try:
            talk(demo)
            take_over(demo)
            go_back(demo)
            acknowledged = kill(demo)
            recover(demo, acknowledged)
            title("The end")
            demo.shell("ctx daemon stop")
        except Failed as failed:
            print(f"\nThe demo failed: {failed}", file=sys.stderr)
            return 1
        finally:
            if demo.home.exists():
                subprocess.run([BIN / "ctx", "daemon", "stop"], env=demo.env, capture_output=True, check=False)
                shutil.rmtree(demo.home, ignore_errors=True)
    say(*GOODBYE.strip().splitlines(), "", f"({time.monotonic() - begin:.0f} seconds)")
    return 0


def talk(demo: Demo) -> None:
    title("Say something, ask for it later")
    demo.shell("ctx daemon start")
    demo.shell("ctx ask 'The build server is called heron-7.'")
    demo.shell("ctx ask 'We deploy on Tuesdays at 14:00 UTC.' | sed -n 1p")
    answer = demo.shell("ctx ask 'What is the build server called?' | sed -n 1,3p")
    check("heron-7" in answer, "the answer does not recall what was said")


def take_over(demo: Demo) -> None:
    """A history from elsewhere is imported, and found by what it means."""
    title("Bring what you have said elsewhere, and find it by what it means")
    (demo.work / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in HISTORY))
    demo.shell("cat history.jsonl")
    demo.shell("ctx import history.jsonl | sed -n 1p")
    end = time.monotonic() + DEADLINE
    while demo.json("ctx status")["memory"]["unembedded"]:
        check(time.monotonic() < end, "the imported messages are not embedded in time")
        time.sleep(0.1)
    found = demo.shell("ctx search -k 1 'for what period must bills be archived?'")
    check("invoices" in found or "Ten years" in found, "search does not find what was imported")


def go_back(demo: Demo) -> None:
    title("Change your mind: every turn is a place to go on from")
    demo.shell("ctx ask 'Change of plan: from now on it is Fridays.' | sed -n 1p")
    old = branch(demo)
    demo.shell("ctx rollback 3")
    check(branch(demo) != old, "a rollback makes a new branch")
    answer = demo.shell("ctx ask 'When do we deploy?' | sed -n 1,3p")
    check("Tuesdays at 14:00" in answer and "Fridays" not in answer, "the branch remembers what was rolled back")
    check("Fridays" in demo.quietly(f"ctx log {old}"), "what was rolled back is gone")
    demo.shell("ctx fork --at 1 --label 'another idea'")


def branch(demo: Demo) -> str:
    newest = demo.json("ctx sessions -n 1")["sessions"][0]
    return str(newest["active_branch"])


def kill(demo: Demo) -> list[tuple[str, str]]:
    """Submit over the socket and kill the daemon the moment the last acknowledgement is here, in mid-answer."""
    title("Kill the daemon in the middle of an answer")
    say("Three messages over the socket, as any script can send them; the moment the")
    say("last one is acknowledged, while they are being answered:", "")
    pid = demo.json("ctx daemon status")["pid"]
    path = json.loads((demo.home / "run" / "endpoint.json").read_text())["unix"]
    target = branch(demo)
    requests = [
        {"jsonrpc": "2.0", "id": i, "method": "turn.submit", "params": {"branch_id": target, "content": text, "queue": True}}
        for i, text in enumerate(LAST_WORDS)
    ]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(DEADLINE)
        client.connect(path)
        client.sendall("".join(json.dumps(request) + "\n" for request in requests).encode())
        received = b""
        while received.count(b"\n") < len(requests) and (chunk := client.recv(65536)):
            received += chunk
        os.kill(pid, signal.SIGKILL)
    answers = {answer["id"]: answer.get("result") for answer in map(json.loads, received.splitlines())}
    check(len(answers) == len(requests) and all(answers.values()), f"not everything was acknowledged: {received!r}")
    for i, text in enumerate(LAST_WORDS):
        say(f"--> turn.submit {text!r}", f"<-- accepted as turn {answers[i]['turn_seq']}")
    say(f"$ kill -9 {pid}", "")
    return [(answers[i]["turn_id"], text) for i, text in enumerate(LAST_WORDS)]


def recover(demo: Demo, acknowledged: list[tuple[str, str]]) -> None:
    title("Every acknowledged word is there, and what was cut off says so")
    shown = demo.shell(f"ctx log --last {len(acknowledged)}")
    turns = {turn["id"]: turn for turn in demo.json("ctx log")["turns"]}
    for turn_id, text in acknowledged:
        check(turn_id in turns, f"{text!r} was acknowledged and is lost")
        check(turns[turn_id]["user_message"]["rendered_text"] == text, f"{text!r} is not what was kept")
        check(text in shown, f"{text!r} is not shown")
    ends = [turns[turn_id].get("error") for turn_id, _ in acknowledged]
    check(ends[-1] is not None and ends[-1]["data"]["code"] == "interrupted", "the interrupted turn is not marked")
    say("The conversation goes on, and it remembers:", "")
    answer = demo.shell("ctx ask 'Who owns the billing service?' | sed -n 1,3p")
    check("Ana owns the billing service." in answer, "what was said before the crash is not recalled")


class Failed(Exception):
    """Something is not as it should be."""


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Failed(otherwise)


def title(text: str) -> None:
    say(text, "-" * len(text), "")


def say(*lines: str) -> None:
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
