"""What every command shares: the options that choose a daemon, `--json`, and a help text that ends in examples.

Nothing but click is imported here, because `ctx --help` must stay fast; `connection` opens the way to the daemon.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
_KEY = "contextinfinity."


class Settings(NamedTuple):
    """The options that work before and after a command's name."""

    home: str | None = None
    socket: str | None = None
    autostart: bool = True
    json: bool = False


def settings() -> Settings:
    """Of the command that is running."""
    meta = click.get_current_context().meta
    return Settings(**{name: meta[_KEY + name] for name in Settings._fields if _KEY + name in meta})


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    source = ctx.get_parameter_source(param.name or "")
    if value is not None and source is not click.core.ParameterSource.DEFAULT:
        ctx.meta[_KEY + (param.name or "")] = value
    return value


def _shared_options() -> list[click.Parameter]:
    folder, file = click.Path(file_okay=False), click.Path()
    return [
        click.Option(["--json", "json"], is_flag=True, expose_value=False, callback=_keep, help="Print one JSON document."),
        click.Option(
            ["--home"],
            type=folder,
            metavar="DIR",
            expose_value=False,
            callback=_keep,
            help="Home of the daemon [CTX_HOME, ~/.contextinfinity].",
        ),
        click.Option(
            ["--socket"],
            type=file,
            metavar="PATH",
            expose_value=False,
            callback=_keep,
            help="Socket of the daemon [CTX_SOCKET, or what the home says].",
        ),
        click.Option(
            ["--autostart/--no-autostart", "autostart"],
            default=True,
            expose_value=False,
            callback=_keep,
            help="Start a daemon when none answers [default: yes].",
        ),
    ]


class _Helped(click.Command):
    """Adds the shared options, shown last, and an Examples section."""

    examples: tuple[str, ...] = ()

    def __init__(self, *args: Any, **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.params += _shared_options()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
        super().format_epilog(ctx, formatter)


class Command(_Helped):
    pass


class Group(_Helped, click.Group):
    command_class = Command


def command(*examples: str, **attrs: Any) -> Callable[[F], Command]:
    """A click command with the shared options; its docstring is its help."""

    def decorate(function: F) -> Command:
        made = click.command(cls=Command, **attrs)(function)
        made.examples = examples
        return made

    return decorate


def group(*examples: str, **attrs: Any) -> Callable[[F], Group]:
    def decorate(function: F) -> Group:
        made = click.group(cls=Group, **attrs)(function)
        made.examples = examples
        return made

    return decorate


def under(parent: Group, *examples: str, **attrs: Any) -> Callable[[F], Command]:
    """A command inside a group."""

    def decorate(function: F) -> Command:
        made = command(*examples, **attrs)(function)
        parent.add_command(made)
        return made

    return decorate
