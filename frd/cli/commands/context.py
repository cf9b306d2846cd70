"""`frd context`: names for services, so that commands need no address and no files."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from frd.cli import contexts
from frd.cli.options import DEFAULT_HTTP, SERVICE, make_client, with_options
from frd.cli.screens.records import print_records
from frd.usage import examples, plain

_TYPED = ParameterSource.COMMANDLINE
_NAME = click.argument("name", shell_complete=contexts.context_names)


@click.group(
    "context",
    epilog=examples(
        "frd context add prod --http https://frd.example:9374 --token-file prod-token",
        "frd context use prod           # from now on",
        "frd status --context staging   # this once",
    ),
)
def command() -> None:
    """Name services, with the files of their credentials, and choose the one that commands ask."""


@command.command("add", epilog=examples("frd context add lab --http frd.lab:9374 --tls"))
@_NAME
@functools.partial(with_options, options=SERVICE)
def add(name: str, **given: Any) -> None:
    """Add a context, or replace the one of this name.

    Only the names of files are stored. Variables such as FRD_TOKEN_FILE do not count.
    """
    source = click.get_current_context().get_parameter_source
    typed = {key: value for key, value in given.items() if source(key) is _TYPED}
    files = {key: value.absolute() for key, value in typed.items() if isinstance(value, Path)}
    known = contexts.load()
    known.contexts[name] = contexts.Context(**{"http": DEFAULT_HTTP} | typed | files)
    make_client(known.contexts[name])  # refuses what no command could use
    contexts.save(known)


@command.command("use", epilog=examples("frd context use prod"))
@_NAME
def use(name: str) -> None:
    """Choose the context for commands that name no service."""
    known = contexts.load()
    known.named(name)
    known.current = name
    contexts.save(known)


@command.command("list", epilog=examples("frd context list"))
def list_() -> None:
    """List contexts: a star at the current one, name, address."""
    known = contexts.load()
    rows = [
        ("*" * (name == known.current), name, known.named(name).http) for name in known.contexts
    ]
    print_records("wide", ("", "name", "http"), (), rows)


@command.command("show", epilog=examples("frd context show prod"))
@_NAME
def show(name: str) -> None:
    """Show a context as options."""
    for key, value in msgspec.structs.asdict(contexts.load().named(name)).items():
        if value:
            option = f"--{key.replace('_', '-')}"
            click.echo(option if value is True else f"{option} {plain(str(value))}")


@command.command("remove", epilog=examples("frd context remove prod"))
@_NAME
def remove(name: str) -> None:
    """Forget a context; the files that it names stay."""
    known = contexts.load()
    known.named(name)
    del known.contexts[name]
    if known.current == name:
        known.current = ""
    contexts.save(known)
