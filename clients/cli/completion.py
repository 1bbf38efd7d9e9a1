"""`ctx completion`: a script that lets the shell complete commands and options."""

import click
from click.shell_completion import get_completion_class

from contextinfinity.clients.cli.base import command, settings
from contextinfinity.clients.cli.output import dump, line


@command(
    "bash: echo 'eval \"$(ctx completion bash)\"' >> ~/.bashrc",
    "zsh:  echo 'eval \"$(ctx completion zsh)\"' >> ~/.zshrc",
    "fish: ctx completion fish > ~/.config/fish/completions/ctx.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for SHELL."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(click.get_current_context().find_root().command, {}, "ctx", "_CTX_COMPLETE").source()
    dump({"shell": shell, "script": script}) if settings().json else line(script)
