"""`frd completion`: the shell's completion script for both programs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from frd.usage import examples

_PROGRAMS = {"frd": "_FRD_COMPLETE", "frd-agent": "_FRD_AGENT_COMPLETE"}
"""Programs, and the variables with which click's completion scripts call them."""


@click.command(
    "completion",
    epilog=examples(
        'eval "$(frd completion bash)"  # in ~/.bashrc',
        'eval "$(frd completion zsh)"   # in ~/.zshrc',
        "frd completion fish > ~/.config/fish/completions/frd.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of a SHELL, for `frd` and `frd-agent`."""
    made = get_completion_class(shell)
    assert made is not None  # click has all three
    for program, variable in _PROGRAMS.items():
        click.echo(made(click.Command(program), {}, program, variable).source())
