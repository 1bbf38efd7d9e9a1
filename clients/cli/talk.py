"""A conversation held from the main thread: each method does one thing through the connection's own thread.

`chat` and `slash` call it; Ctrl-C while an answer streams cancels the turn and keeps the conversation.
"""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from types import TracebackType
from typing import TypeVar
from uuid import uuid4

from anyio import CancelScope
from anyio.from_thread import BlockingPortal, start_blocking_portal

from contextinfinity.clients.api import Client
from contextinfinity.clients.cli import keys
from contextinfinity.clients.cli.answer import Shown, say, say_again
from contextinfinity.clients.cli.ask import complain
from contextinfinity.clients.cli.base import Settings
from contextinfinity.clients.cli.connection import open_client
from contextinfinity.clients.cli.failures import INTERRUPTED, turn_exit_code
from contextinfinity.clients.cli.output import dump, line, note, write
from contextinfinity.clients.cli.progress import waiting
from contextinfinity.clients.cli.screen import Header, Screen
from contextinfinity.clients.cli.sessions import print_turn
from contextinfinity.clients.cli.targets import find_branch, new_branch
from contextinfinity.clients.errors import ClientError, DaemonUnreachable
from contextinfinity.protocol.events import Notification
from contextinfinity.protocol.methods import BranchGet, SessionGet, TurnList
from contextinfinity.protocol.model import Branch, Turn

R = TypeVar("R")
Start = Callable[[Client, Callable[[Notification], None]], Awaitable[Turn]]


class Talk:
    """The branch that is talked on, its header, and the way to the daemon."""

    def __init__(self, shared: Settings, *, model: str | None, provide: bool, interactive: bool) -> None:
        self.branch: Branch | None = None
        self.title: str | None = None
        self._shared = shared
        self.model = model
        self._provide = provide
        self._interactive = interactive
        self._header = Header()
        self._screen = Screen(self._header)
        self._running: CancelScope | None = None
        self._threads = ExitStack()
        self._connection = ExitStack()

    def __enter__(self) -> "Talk":
        self._portal: BlockingPortal = self._threads.enter_context(start_blocking_portal())
        self._connect()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._screen.close()
        try:
            self._connection.close()
        finally:
            self._threads.close()

    def _connect(self) -> None:
        opening = self._portal.wrap_async_context_manager(open_client(self._shared))
        self._client: Client = self._connection.enter_context(opening)

    def recover(self, error: Exception) -> None:
        """After a lost connection, find the daemon again; the conversation is where it was."""
        if isinstance(error, DaemonUnreachable):
            self._connection.close()
            self._connect()
            note("connected again")

    def do(self, work: Callable[[Client], Awaitable[R]]) -> R:
        return self._portal.call(work, self._client)

    def go_on(self, session: str | None, branch: str | None) -> None:
        self.move_to(self.do(lambda client: find_branch(client, session, branch)))

    def move_to(self, branch: Branch | None) -> None:
        self.branch = branch
        if branch is not None:
            asked = SessionGet(session_id=branch.session_id)
            self.title = self.do(lambda client: client.call(asked)).title
            self._header.show(branch, self.title)

    def said(self, count: int) -> list[str]:
        """The user's own last messages."""
        if self.branch is None:
            return []
        asked = TurnList(branch_id=self.branch.id, after_seq=max(0, self.branch.turn_seq - count), limit=count)
        turns = self.do(lambda client: client.call(asked)).turns
        return [turn.user_message.rendered_text for turn in turns if turn.user_message.rendered_text]

    def refresh(self) -> None:
        """Print what others said on this branch meanwhile, and bring the header up to date."""
        if self.branch is not None:
            known, asked = self.branch.turn_seq, BranchGet(branch_id=self.branch.id)
            self.branch = self.do(lambda client: client.call(asked))
            if self.branch.turn_seq > known:
                for turn in self.do(lambda client: client.call(TurnList(branch_id=asked.branch_id, after_seq=known))).turns:
                    print_turn(turn)
            self._header.show(self.branch, self.title)
        if self._interactive:
            self._screen.draw()

    def need(self) -> Branch:
        if self.branch is None:
            raise ClientError("nothing was said here yet")
        return self.branch

    def say(self, text: str) -> int:
        """Say it and stream the answer; returns the turn's exit code."""
        if self.branch is None:
            self.move_to(self.do(lambda client: new_branch(client, text, self.model)))
        branch, key = self.need(), uuid4().hex

        def start(client: Client, see: Callable[[Notification], None]) -> Awaitable[Turn]:
            return say(client, branch.id, text, see, model=self.model, key=key)

        try:
            turn = self._stream(start)
        except DaemonUnreachable as error:  # it went away, perhaps while nobody spoke: the words are said again, once
            note(str(error))
            self.recover(error)
            turn = self._stream(start)
        return self._settle(turn)

    def retry(self) -> int:
        """Ask the branch's last turn again."""
        branch = self.need()
        last = TurnList(branch_id=branch.id, after_seq=max(0, branch.turn_seq - 1), limit=1)
        turns = self.do(lambda client: client.call(last)).turns
        if not turns:
            raise ClientError("nothing was said here yet")
        return self._settle(self._again(turns[0]))

    def _again(self, turn: Turn) -> Turn | None:
        model = self.model or self.need().model
        return self._stream(lambda client, see: say_again(client, turn, see, model=model))

    def _settle(self, turn: Turn | None) -> int:
        error = turn.error if turn else None
        if turn is not None and self.do(lambda client: keys.offer(client, error, provide=self._provide)):
            turn = self._again(turn)
        asked = BranchGet(branch_id=self.need().id)
        self.branch = self.do(lambda client: client.call(asked))
        if turn is None:
            return INTERRUPTED
        if self._shared.json:
            dump(turn, compact=True)
        else:
            complain(turn)
        return turn_exit_code(turn.error)

    def _stream(self, start: Start) -> Turn | None:
        """Follow one turn; None if the user stopped it."""
        future = self._portal.start_task_soon(self._streamed, start)
        try:
            return future.result()
        except KeyboardInterrupt:
            self._portal.call(self._stop)
            future.result()  # the turn is cancelled in the daemon before the next prompt
            line("\n(stopped; what was said so far is kept)")
            return None

    def _stop(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _streamed(self, start: Start) -> Turn | None:
        with CancelScope() as self._running:
            return await self._shown(start)
        return None

    async def _shown(self, start: Start) -> Turn:
        async with waiting("waiting for the answer") as sign:

            def out(piece: str) -> None:
                sign.hide()
                if not self._shared.json:
                    write(piece)

            shown = Shown(out)

            def see(event: Notification) -> None:
                shown.see(event)
                self._header.see(event)
                if self._interactive:
                    self._screen.draw()

            turn = await start(self._client, see)
            shown.finish(turn)
            if shown.anything:
                out("\n")
            return turn
