"""The commands inside `ctx chat`: a table of names, each one line of help and one function."""

from collections.abc import Callable
from typing import NamedTuple

from contextinfinity.clients.cli.output import clean, line, one_line
from contextinfinity.clients.cli.status import print_status
from contextinfinity.clients.cli.talk import Talk
from contextinfinity.clients.errors import ClientError
from contextinfinity.protocol.methods import (
    BranchActivate,
    BranchFork,
    BranchRollback,
    DaemonStatus,
    ModelList,
    ModelSelect,
    PinAdd,
    PinList,
)


class Slash(NamedTuple):
    usage: str
    help: str
    run: Callable[[Talk, str], None]


def is_command(text: str) -> bool:
    return text.startswith("/")


def perform(talk: Talk, text: str) -> bool:
    """Run a command; False ends the chat."""
    name, _, rest = text[1:].strip().partition(" ")
    if name in ("quit", "exit", "q"):
        return False
    if name not in COMMANDS:
        raise ClientError(f"no command /{name}; /help lists them")
    COMMANDS[name].run(talk, rest.strip())
    return True


def _help(talk: Talk, rest: str) -> None:
    for name, command in COMMANDS.items():
        line(f"  {f'/{name} {command.usage}':<16} {command.help}")
    line(f"  {'/quit':<16} leave, like Ctrl-D")


def _fork(talk: Talk, rest: str) -> None:
    branch = talk.need()
    if rest and not rest.isdigit():
        raise ClientError("/fork takes the number of a turn")
    made = talk.do(lambda c: c.call(BranchFork(branch_id=branch.id, at_turn_seq=int(rest) if rest else None)))
    talk.move_to(talk.do(lambda c: c.call(BranchActivate(branch_id=made.id))))
    line(f"On the new branch {made.id}; the old one is {branch.id}.")


def _rollback(talk: Talk, rest: str) -> None:
    branch = talk.need()
    if not rest.isdigit():
        raise ClientError("/rollback takes the number of the last turn that still counts")
    talk.move_to(talk.do(lambda c: c.call(BranchRollback(branch_id=branch.id, to_turn_seq=int(rest)))))
    line(f"Back at turn {rest}; what came after is kept on {branch.id}.")


def _retry(talk: Talk, rest: str) -> None:
    talk.retry()


def _pin(talk: Talk, rest: str) -> None:
    branch = talk.need()
    if rest:
        made = talk.do(lambda c: c.call(PinAdd(branch_id=branch.id, text=rest)))
        line(f"Pinned as {made.id}.")
        return
    pins = talk.do(lambda c: c.call(PinList(branch_id=branch.id))).pins
    for pin in pins:
        line(f"  {pin.id}  {one_line(pin.text)}")
    if not pins:
        line("No pins.")


def _model(talk: Talk, rest: str) -> None:
    if rest:
        branch = talk.need()
        change = talk.do(lambda c: c.call(ModelSelect(branch_id=branch.id, model=rest)))
        talk.model = None  # from now on the branch's own choice counts, not that of the command line
        line(f"Now {clean(rest)}; the budget is {change.new_budget:,} tokens, it was {change.old_budget:,}.")
        return
    for model in talk.do(lambda c: c.call(ModelList())).models:
        line(f"  {clean(model.name):<12} {clean(model.provider)} {clean(model.model_id)}")


def _status(talk: Talk, rest: str) -> None:
    print_status(talk.do(lambda c: c.call(DaemonStatus())))


COMMANDS = {
    "help": Slash("", "this list", _help),
    "fork": Slash("[N]", "branch off here, or at turn N, and go on there", _fork),
    "rollback": Slash("N", "go back to turn N; nothing is deleted", _rollback),
    "retry": Slash("", "ask the last failed turn again", _retry),
    "pin": Slash("[TEXT]", "keep TEXT in every prompt, or list what is kept", _pin),
    "model": Slash("[NAME]", "use another model from now on, or list them", _model),
    "status": Slash("", "how the daemon is doing", _status),
}
