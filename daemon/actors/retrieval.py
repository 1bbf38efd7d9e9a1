"""What memory brings into a turn unasked: where it looks, and what it must not repeat or bring back."""

import msgspec

from contextinfinity.daemon.actors.memory import Recalled, Search
from contextinfinity.daemon.actors.world import World
from contextinfinity.daemon.core.assembly import Assembled
from contextinfinity.daemon.core.ranking import is_follow_up
from contextinfinity.daemon.core.untrusted import Artifact
from contextinfinity.daemon.storage.branches import Segment
from contextinfinity.protocol.blocks import Message

RECENT_MESSAGES, RECENT_TURNS = 2, 2
SURE = 0.66
"""The cosine from which something is quoted as an answer although it shares no word with the question."""


async def recall(
    world: World, branch_id: str, assembled: Assembled, said: Message, tz: str | None, *, everywhere: bool
) -> Recalled:
    """Quotes for this prompt. The embedded provider answers from them, so for it the recent turns count too."""
    shown = frozenset() if everywhere else frozenset(piece.turn_id for piece in assembled.pieces)
    wanted = _wanted(world, branch_id, assembled, said.rendered_text, tz, everywhere=everywhere)
    texts = () if everywhere else tuple(m.rendered_text for m in (*assembled.pending(), said))
    return await world.memory.for_prompt(wanted, assembled.budget.retrieval_budget, shown, texts)


async def _wanted(world: World, branch_id: str, assembled: Assembled, text: str, tz: str | None, *, everywhere: bool) -> Search:
    recent = assembled.pending()[-RECENT_MESSAGES:] if is_follow_up(text) and not everywhere else ()
    return Search(
        text=text,
        context="\n".join(m.rendered_text for m in recent),
        segments=await _reach(world, branch_id, everywhere=everywhere),
        tz=tz,
    )


def quotable(assembled: Assembled, session_id: str) -> tuple[Artifact, ...]:
    """What the embedded provider may quote: what memory brought back, best first, and the turn before, indexed or not."""
    best = sorted(zip(assembled.packed.quoted, assembled.packed.artifacts, strict=True), key=lambda pair: -pair[0].score)
    found = [
        artifact
        if quoted.similarity is not None and quoted.similarity >= SURE
        else msgspec.structs.replace(artifact, chunk_id="")
        for quoted, artifact in best
    ]
    known = {(artifact.turn_id, artifact.role) for artifact in found}
    recent = [
        Artifact(
            "", piece.turn_id, session_id, e.message.role, e.message.role, e.message.created_at or "", e.message.rendered_text
        )
        for piece in assembled.pieces[-RECENT_TURNS:]
        for e in piece.entries
        if (piece.turn_id, e.message.role) not in known
    ]
    return (*found, *recent)


async def _reach(world: World, branch_id: str, *, everywhere: bool) -> tuple[Segment, ...]:
    """The history of this branch; if configured, also that of every other session's active branch."""
    own = tuple(await world.storage.lineage(branch_id))
    if not everywhere and world.models.config.retrieval.scope == "session":
        return own
    session = (await world.storage.branch(branch_id)).session_id
    mine = {b.id for b in (await world.storage.list_branches(session)).branches}
    return (*own, *(s for s in await world.storage.active_lineages() if s.branch_id not in mine))
