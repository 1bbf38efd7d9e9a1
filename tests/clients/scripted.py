"""A conversation for `FakeDaemon`: one session, one branch, and turns that stream the pieces a test gives."""

from typing import Any

import anyio

from tests.clients.fake import FakeDaemon, Peer

AT = "2025-11-18T12:00:00Z"


def session(cwd: str | None = None, ident: str = "S1", title: str = "about herons") -> dict[str, Any]:
    made = {"id": ident, "title": title, "created_at": AT, "updated_at": AT, "active_branch": "B1", "turns": 2}
    return {**made, "cwd": cwd} if cwd else made


def branch(ident: str = "B1", **fields: Any) -> dict[str, Any]:
    return {
        "id": ident,
        "session_id": "S1",
        "base_state": "ST0",
        "head_state": "STATE-ABCDEF",
        "head_seq": 3,
        "turn_seq": 2,
        "pending_turns": 2,
        "stream": {"displayed": 5, "durable": 5},
        "model": "recall",
        "created_at": AT,
        "active": True,
        **fields,
    }


def message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "blocks": [{"type": "text", "text": text}], "rendered_text": text}


def turn(answer: str | None, ident: str = "T1", error: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": ident,
        "session_id": "S1",
        "branch_id": "B1",
        "turn_seq": 3,
        "phase": "failed" if error else "response_finalized",
        "indexed": False,
        "user_message": message("user", "hello"),
        "state_before": "ST0",
        "steps": [],
        "retrieved": [],
        "created_chunks": [],
        "model": "recall",
        "created_at": AT,
        "updated_at": AT,
        **fields,
    }
    if error:
        made["error"] = error
    elif answer is not None:
        made["final_assistant_message"] = message("assistant", answer)
    return made


class Conversation:
    """Answers what `ask` and `chat` call; `outcomes` are the finished turns, one for each that is submitted."""

    def __init__(self, daemon: FakeDaemon, *outcomes: dict[str, Any], pieces: tuple[str, ...] = (), cwd: str = "") -> None:
        self.daemon = daemon
        self.outcomes = list(outcomes)
        self.pieces = pieces
        self.subscription = ""
        self.sessions = [session(cwd)] if cwd else []
        self.gate: anyio.Event | None = None
        daemon.on("session.list", lambda peer, params: {"sessions": self.sessions})
        daemon.on("session.get", lambda peer, params: session(cwd))
        daemon.on("session.create", lambda peer, params: {"session": session(cwd), "branch": branch(turn_seq=0)})
        daemon.on("branch.get", lambda peer, params: branch(params["branch_id"]))
        daemon.on("turn.list", lambda peer, params: {"turns": []})
        daemon.on("events.subscribe", self._subscribe)
        daemon.answers("events.unsubscribe", {})
        daemon.on("turn.submit", self._submit)
        daemon.on("turn.retry", self._retry)
        daemon.on("turn.wait", self._wait)
        daemon.on("turn.cancel", lambda peer, params: turn(None, error={"code": -32800, "message": "cancelled"}))

    def _subscribe(self, peer: Peer, params: dict[str, Any]) -> Any:
        self.subscription = f"sub{len(self.daemon.called('events.subscribe'))}"
        return {"subscription_id": self.subscription, "cursor": 10}

    def _submit(self, peer: Peer, params: dict[str, Any]) -> Any:
        return {"turn_id": self.outcomes[0]["id"], "turn_seq": 3}

    def _retry(self, peer: Peer, params: dict[str, Any]) -> Any:
        return {**self.outcomes[0], "phase": "accepted", "retry_of": params["turn_id"]}

    async def _wait(self, peer: Peer, params: dict[str, Any]) -> Any:
        outcome = self.outcomes.pop(0)
        displayed = 0
        for piece in self.pieces:
            displayed += len(piece.encode())
            await peer.event(self.subscription, 10, "stream.delta", "OTHER", step_id="s9", block=0, text="not mine ")
            data = {"step_id": "s1", "block": 0, "text": piece, "displayed": displayed, "durable": 0}
            await peer.event(self.subscription, 10, "stream.delta", outcome["id"], **data)
        if self.gate is not None:
            await self.gate.wait()
        return outcome
