"""A supervisor starts children in order, restarts those that crash, and stops them in reverse with drained mailboxes.

A supervisor restarts bugs; an actor retries the world. Too many restarts escalate to the parent, or park the child.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

import trio

from contextinfinity.daemon.runtime.actor import Actor, ActorGone, Mailbox, Ref, run_actor

log = logging.getLogger(__name__)

Strategy = Literal["one_for_one", "rest_for_one"]
State = Literal["starting", "running", "restarting", "parked", "stopped"]


class RestartLimit(Exception):
    """A child crashed more often than its supervisor tolerates."""


class ChildStatus(NamedTuple):
    name: str
    state: State
    restarts: int
    mailbox: int


class _Exit(NamedTuple):
    child: "_Child"
    incarnation: int
    error: BaseException | None


class _Child:
    """An actor with its mailbox, or a supervisor with children of its own."""

    def __init__(
        self,
        name: str,
        run: Callable[..., Awaitable[None]],
        mailbox: Mailbox | None = None,
        nested: "Supervisor | None" = None,
        temporary: bool = False,
    ) -> None:
        self.name = name
        self.run = run
        self.mailbox = mailbox
        self.nested = nested
        self.temporary = temporary
        self.state: State = "starting"
        self.incarnation = 0
        self.restarts = 0
        self.crashes: deque[float] = deque()
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self.done.set()

    @property
    def leaving(self) -> bool:
        """It was asked to stop, or has been forgotten, and is not started again."""
        return self.mailbox is not None and self.mailbox.closed

    def renew(self) -> None:
        """Begin anew with the supervisor: its mailbox open, its crashes forgotten."""
        self.state = "starting"
        self.crashes.clear()
        if self.mailbox is not None:
            self.mailbox.open()

    def retire(self, state: State, why: str) -> None:
        """Nobody serves it from now on; whoever still waits hears why."""
        self.state = state
        if self.mailbox is not None:
            self.mailbox.discard(f"{self.name} {why}")
        if self.nested is not None:
            for child in self.nested._children:
                child.retire("stopped", "has stopped")


class Supervisor:
    """Children are added before `run`, or while it runs with `start_child`."""

    def __init__(
        self,
        name: str,
        strategy: Strategy = "one_for_one",
        *,
        intensity: int = 5,
        period: float = 30.0,
        grace: float = 5.0,
        park: bool = False,
    ) -> None:
        if park and strategy == "rest_for_one":
            raise ValueError("a parked child would leave those after it without what they build on")
        self.name = name
        self._strategy = strategy
        self._intensity = intensity
        self._period = period
        self._grace = grace
        self._park = park
        self._children: list[_Child] = []
        self._stopping = False
        self._nursery: trio.Nursery | None = None
        self._exit_send, self._exit_receive = trio.open_memory_channel[_Exit](float("inf"))

    # building the tree

    def add(self, name: str, make: Callable[[], Actor], capacity: int = 1000) -> Ref:
        return self._enter(name, make, capacity, temporary=False)[1]

    def add_supervisor(self, supervisor: "Supervisor") -> None:
        self._children.append(_Child(supervisor.name, supervisor.run, nested=supervisor))

    async def start_child(self, name: str, make: Callable[[], Actor], capacity: int = 1000) -> Ref:
        """Add and start a child now; if it cannot start, it is forgotten and the error is raised here."""
        if self._nursery is None or self._stopping:
            raise ActorGone(f"{self.name} is not running")
        child, ref = self._enter(name, make, capacity, temporary=True)
        try:
            await self._launch(child)
        except BaseException:
            child.scope.cancel()
            with trio.CancelScope(shield=True):
                await self._stop(child)
            self._forget(child)
            raise
        return ref

    async def stop_child(self, ref: Ref) -> None:
        """Let a dynamic child finish what is queued, then forget it."""
        for child in self._children:
            if child.mailbox is ref._mailbox:
                await self._stop(child)
                self._forget(child)
                return

    def status(self) -> list[ChildStatus]:
        rows = []
        for child in self._children:
            queued = len(child.mailbox) if child.mailbox is not None else 0
            rows.append(ChildStatus(child.name, child.state, child.restarts, queued))
        for child in self._children:
            if child.nested is not None:
                rows += child.nested.status()
        return rows

    def _enter(self, name: str, make: Callable[[], Actor], capacity: int, temporary: bool) -> tuple[_Child, Ref]:
        mailbox = Mailbox(name, capacity)

        async def run(task_status: trio.TaskStatus[None]) -> None:
            await run_actor(make(), mailbox, task_status)

        child = _Child(name, run, mailbox, temporary=temporary)
        self._children.append(child)
        return child, Ref(mailbox)

    def _forget(self, child: _Child) -> None:
        child.retire("stopped", "has stopped")
        if child in self._children:
            self._children.remove(child)

    # living

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        failure: Exception | None = None
        self._stopping = False
        for child in self._children:
            child.renew()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for child in list(self._children):
                    await self._launch(child)
                task_status.started()
                while True:
                    await self._decide(await self._exit_receive.receive())
            except Exception as error:  # noqa: BLE001 - a first start that failed, or one restart too many
                failure = error
            finally:
                self._stopping = True
                with trio.CancelScope(shield=True):
                    for child in self._children[::-1]:
                        await self._stop(child)
                    for child in list(self._children):
                        if child.temporary:
                            self._forget(child)
                nursery.cancel_scope.cancel()
                self._nursery = None
        if failure is not None:  # raised out here, else the nursery would wrap it in a group
            raise failure

    async def _launch(self, child: _Child) -> None:
        """Start one incarnation and wait until it serves; raises what `start` raised."""
        if child.leaving or self._stopping:
            return
        assert self._nursery is not None
        assert child.done.is_set(), "never two incarnations on one mailbox"
        child.done = trio.Event()
        child.scope = trio.CancelScope(shield=True)
        child.incarnation += 1
        child.state = "starting"
        started = trio.Event()
        failure: list[BaseException] = []
        self._nursery.start_soon(self._incarnate, child, child.incarnation, started, failure)
        await started.wait()
        if failure:
            raise failure[0]

    async def _incarnate(self, child: _Child, incarnation: int, started: trio.Event, failure: list[BaseException]) -> None:
        # Shielded, so that cancelling the supervisor reaches only its body, which then stops children in order.
        error: BaseException | None = None
        try:
            with child.scope:
                async with trio.open_nursery() as inner:
                    await inner.start(child.run)
                    child.state = "running"
                    started.set()
        except Exception as raised:  # noqa: BLE001 - whatever a child dies of is judged in _decide
            error = _unwrap(raised)
        finally:
            child.done.set()
            if started.is_set():
                if error is not None:
                    log.error("%s crashed", child.name, exc_info=error)
                self._exit_send.send_nowait(_Exit(child, incarnation, error))
            else:
                failure.append(error or ActorGone(f"{child.name} stopped while starting"))
                started.set()

    async def _decide(self, gone: _Exit) -> None:
        child = gone.child
        if gone.incarnation != child.incarnation:
            return  # an exit that a restart has overtaken
        if gone.error is not None and not child.leaving:
            await self._restart(child, gone.error)
        elif child.temporary:
            self._forget(child)
        else:
            child.state = "stopped"

    async def _restart(self, child: _Child, error: BaseException) -> None:
        now = trio.current_time()
        child.restarts += 1
        child.crashes.append(now)
        while child.crashes[0] < now - self._period:
            child.crashes.popleft()
        child.state = "restarting"
        if len(child.crashes) > self._intensity:
            if not self._park:
                raise RestartLimit(f"{child.name} crashed {len(child.crashes)} times in {self._period:g} s") from error
            child.retire("parked", "keeps crashing and is parked")
            return
        delay = backoff(len(child.crashes))
        if self._strategy == "rest_for_one":
            rest = self._children[self._children.index(child) :]
            for later in reversed(rest[1:]):
                await self._interrupt(later)
            await self._revive(rest, delay)  # here, so that who crashes meanwhile is judged when all are back
        else:
            assert self._nursery is not None
            self._nursery.start_soon(self._revive, [child], delay)

    async def _revive(self, children: list[_Child], delay: float) -> None:
        await trio.sleep(delay)
        for child in children:
            try:
                await self._launch(child)
            except Exception as error:  # a failed start is one more crash
                log.error("%s could not start", child.name, exc_info=error)
                self._exit_send.send_nowait(_Exit(child, child.incarnation, error))
                return

    # stopping

    async def _interrupt(self, child: _Child) -> None:
        """End an incarnation at once; its mailbox and what is queued in it stay for the next."""
        child.incarnation += 1  # overtakes an exit that is already on its way
        child.state = "restarting"
        child.scope.cancel()
        await child.done.wait()

    async def _stop(self, child: _Child) -> None:
        if child.mailbox is None:
            child.scope.cancel()
        else:
            child.mailbox.close()
            with trio.move_on_after(self._grace):
                await child.done.wait()
            if not child.done.is_set():
                log.warning("%s did not drain in %g s", child.name, self._grace)
                child.scope.cancel()
        await child.done.wait()
        child.retire("stopped", "has stopped")


def backoff(crashes: int) -> float:
    """Seconds before the n-th restart in a row: 0, 0.1, 0.2, 0.4 … 10."""
    return 0.0 if crashes <= 1 else float(min(10.0, 0.1 * 2 ** (crashes - 2)))


def _unwrap(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
