"""Methods about sessions, branches, states and pins."""

from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec

from contextinfinity.daemon.actors.branch import Activate, AddPin, Fork, Preview, RemovePin
from contextinfinity.daemon.rpc.connection import Connection
from contextinfinity.daemon.rpc.dispatch import Handler
from contextinfinity.daemon.rpc.handlers.keys import keyed
from contextinfinity.daemon.rpc.services import Services
from contextinfinity.daemon.runtime.actor import ActorGone, AskTimeout, MailboxFull
from contextinfinity.daemon.runtime.ids import now
from contextinfinity.daemon.storage.sessions import NewSession
from contextinfinity.protocol import methods as m
from contextinfinity.protocol.blocks import message
from contextinfinity.protocol.errors import Fault
from contextinfinity.protocol.model import Branch, Pin, Session, State


def handlers(s: Services) -> Mapping[type[m.Params[Any]], Handler]:
    storage, mint = s.world.storage, s.world.mint

    async def described(branch: Branch) -> Branch:
        """With what only the live daemon knows: the stream, and how full the window is."""
        stream = s.world.hub.stream_of(branch.id) or branch.stream
        try:
            usage = (await s.branches.ask(branch.id, Preview(message("user", "")))).usage
        except (Fault, ActorGone, AskTimeout, MailboxFull):
            usage = None  # for example, its model is no longer configured
        return msgspec.structs.replace(branch, stream=stream, usage=usage)

    async def described_after(changed: Awaitable[Branch]) -> Branch:
        return await described(await changed)

    async def create(_: Connection, p: m.SessionCreate) -> m.SessionCreated:
        model = p.model or s.world.models.config.default_model
        s.world.models.get(model)
        new = NewSession(
            id=mint(),
            branch_id=mint(),
            state_id=mint(),
            model=model,
            at=now(),
            title=p.title,
            system=p.system,
            cwd=p.cwd,
            project=p.project,
            agent=p.agent,
        )
        made = await storage.create_session(new, keyed("session.create", p))
        return m.SessionCreated(made.session, await described(made.branch))

    async def list_sessions(_: Connection, p: m.SessionList) -> m.SessionPage:
        return await storage.list_sessions(p.limit, p.cursor, p.query)

    async def get_session(_: Connection, p: m.SessionGet) -> Session:
        return await storage.session(p.session_id)

    async def rename(_: Connection, p: m.SessionRename) -> Session:
        return await storage.rename_session(p.session_id, p.title, keyed("session.rename", p), now())

    async def list_branches(_: Connection, p: m.BranchList) -> m.BranchPage:
        return await storage.list_branches(p.session_id, p.limit)

    async def get_branch(_: Connection, p: m.BranchGet) -> Branch:
        return await described(await storage.branch(p.branch_id))

    def fork(_: Connection, p: m.BranchFork) -> Awaitable[Branch]:
        return described_after(s.branches.ask(p.branch_id, Fork(p.at_turn_seq, p.label, False, keyed(p.branch_id, p))))

    def rollback(_: Connection, p: m.BranchRollback) -> Awaitable[Branch]:
        return described_after(s.branches.ask(p.branch_id, Fork(p.to_turn_seq, None, True, keyed(p.branch_id, p))))

    def activate(_: Connection, p: m.BranchActivate) -> Awaitable[Branch]:
        return described_after(s.branches.ask(p.branch_id, Activate(keyed(p.branch_id, p))))

    async def state(_: Connection, p: m.StateGet) -> State:
        return (await storage.states(p.branch_id, 1))[0]

    async def history(_: Connection, p: m.StateHistory) -> m.StatePage:
        return m.StatePage(tuple(await storage.states(p.branch_id, p.limit)))

    def add_pin(_: Connection, p: m.PinAdd) -> Awaitable[Pin]:
        return s.branches.ask(p.branch_id, AddPin(p.text, keyed(p.branch_id, p)))

    def remove_pin(_: Connection, p: m.PinRemove) -> Awaitable[Pin]:
        return s.branches.ask(p.branch_id, RemovePin(p.pin_id, keyed(p.branch_id, p)))

    async def list_pins(_: Connection, p: m.PinList) -> m.PinPage:
        await storage.branch(p.branch_id)
        return m.PinPage(tuple(await storage.pins(p.branch_id))[: p.limit])

    return {
        m.SessionCreate: create,
        m.SessionList: list_sessions,
        m.SessionGet: get_session,
        m.SessionRename: rename,
        m.BranchList: list_branches,
        m.BranchGet: get_branch,
        m.BranchFork: fork,
        m.BranchRollback: rollback,
        m.BranchActivate: activate,
        m.StateGet: state,
        m.StateHistory: history,
        m.PinAdd: add_pin,
        m.PinRemove: remove_pin,
        m.PinList: list_pins,
    }
