"""The recent turns of a branch as prompt entries, measured once and kept while the branch is awake.

Filled from storage when the branch wakes, then one turn at a time; old entries fall off once they can no longer fit.
"""

from collections import deque

from contextinfinity.daemon.core.assembly import Entry, Piece, entry, is_verbatim, prompt_messages
from contextinfinity.daemon.storage import messages
from contextinfinity.daemon.storage.storage import Storage
from contextinfinity.protocol.blocks import Message
from contextinfinity.protocol.model import Turn

PAGE = 50


class Window:
    def __init__(self, most_tokens: int) -> None:
        self._most = most_tokens
        self._tokens = 0
        self._turns: deque[Piece] = deque()

    async def fill(self, storage: Storage, branch_id: str, before_seq: int) -> None:
        """Load the newest turns before this sequence number until they no longer fit."""
        self._turns.clear()
        self._tokens = 0
        while self._tokens <= self._most and before_seq > 1:
            page = await storage.latest_turns(branch_id, before_seq, PAGE)
            retried = await storage.retried_turns(branch_id, [turn.id for turn in page]) if page else set()
            for turn in page:
                if turn.id not in retried:
                    self._add(turn)
            if len(page) < PAGE:
                return
            before_seq = page[-1].turn_seq

    def append(self, turn: Turn) -> None:
        if turn.retry_of is not None:
            self.drop(turn.retry_of)
        self._add(turn)
        while self._tokens > self._most and len(self._turns) > 1:
            self._tokens -= self._turns.popleft().tokens

    def drop(self, turn_id: str) -> None:
        """A turn that is asked again leaves the prompt."""
        for known in self._turns:
            if known.turn_id == turn_id:
                self._turns.remove(known)
                self._tokens -= known.tokens
                return

    def pieces(self) -> list[Piece]:
        return list(self._turns)

    def _add(self, turn: Turn) -> None:
        """In its place by sequence: a turn that was cancelled in line ends before the one it waited for."""
        entries = tuple(measured(said) for said in prompt_messages(turn))
        tokens = sum(e.tokens for e in entries)
        self._tokens += tokens
        at = len(self._turns)
        while at > 0 and self._turns[at - 1].turn_seq > turn.turn_seq:
            at -= 1
        self._turns.insert(at, Piece(turn.id, turn.turn_seq, entries, tokens, is_verbatim(turn)))


def measured(said: Message) -> Entry:
    return entry(said, messages.encode(said))
