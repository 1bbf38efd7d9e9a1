"""Saying something and following the answer: subscribe, submit, show the text as it comes, wait for the end.

`Shown` knows what is on the screen already, so that snapshots and the final message never repeat or skip a word.
"""

from collections.abc import Callable
from uuid import uuid4

import anyio

from contextinfinity.clients.api import Client
from contextinfinity.clients.cli.zone import local_zone
from contextinfinity.clients.errors import DaemonUnreachable
from contextinfinity.clients.groups import background
from contextinfinity.clients.subscription import Subscription
from contextinfinity.protocol.events import Notification
from contextinfinity.protocol.methods import TurnCancel, TurnRetry, TurnSubmit, TurnWait
from contextinfinity.protocol.model import Turn

See = Callable[[Notification], None]
WAIT = 300.0


class Shown:
    """The text of one turn as far as it was written out."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._step = ""
        self._blocks: dict[int, str] = {}
        self.anything = False

    def see(self, event: Notification) -> None:
        if event.type not in ("stream.delta", "stream.snapshot"):
            return
        step, block, text = str(event.data["step_id"]), int(event.data["block"]), str(event.data["text"])
        if step != self._step:
            self._step, self._blocks = step, {}
        known = self._blocks.get(block, "")
        self._extend(block, known, text if event.type == "stream.snapshot" else known + text)

    def finish(self, turn: Turn) -> None:
        """Write what the stream left out: all of it, or the end of it, or nothing."""
        message = turn.final_assistant_message
        final = message.rendered_text if message else turn.partial_text or ""
        said = "".join(text for _, text in sorted(self._blocks.items()))
        self._extend(0, said, final if final or not said else said)

    def _extend(self, block: int, known: str, whole: str) -> None:
        new = whole[len(known) :] if whole.startswith(known) else f"\n{whole}"
        self._blocks[block] = whole
        if new:
            self.anything = True
            self._write(new)


async def say(client: Client, branch_id: str, text: str, see: See, *, model: str | None = None, key: str | None = None) -> Turn:
    """Submit a message, behind any turn that is running, and follow it to its end; with the same key it is said once."""
    async with client.subscribe(branch_id=branch_id) as events:
        once, tz = key or uuid4().hex, local_zone()
        submit = TurnSubmit(branch_id=branch_id, content=text, model=model, queue=True, idempotency_key=once, tz=tz)
        submitted = await client.call(submit)
        return await _follow(client, events, submitted.turn_id, see)


async def say_again(client: Client, failed: Turn, see: See, *, model: str | None = None) -> Turn:
    """Retry a failed turn and follow the new one."""
    async with client.subscribe(branch_id=failed.branch_id) as events:
        turn = await client.call(TurnRetry(turn_id=failed.id, model=model, idempotency_key=uuid4().hex))
        return await _follow(client, events, turn.id, see)


async def _follow(client: Client, events: Subscription, turn_id: str, see: See) -> Turn:
    async def pump() -> None:
        async for event in events:
            if event.turn_id == turn_id:
                see(event)

    try:
        async with background() as tasks:
            tasks.start_soon(pump)
            turn = await _finished(client, turn_id)
    except anyio.get_cancelled_exc_class():
        with anyio.move_on_after(3, shield=True):
            await client.call(TurnCancel(turn_id=turn_id))
        raise
    except DaemonUnreachable as error:
        raise DaemonUnreachable(f"{error}; what was said is kept, see: ctx show {turn_id}") from None
    # A turn's text comes before the answer to the wait, so all of it has arrived by now.
    for event in events.drain():
        if event.turn_id == turn_id:
            see(event)
    return turn


async def _finished(client: Client, turn_id: str) -> Turn:
    while True:
        turn = await client.call(TurnWait(turn_id=turn_id, timeout_s=WAIT))
        if not turn.timed_out:
            return turn
