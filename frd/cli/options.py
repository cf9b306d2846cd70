"""What several commands share: where the service is, JSON on stdout, a console for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_HTTP = "127.0.0.1:9374"

_F = TypeVar("_F", bound=Callable[..., Any])


def http_option(function: _F) -> _F:
    return click.option(
        "--http",
        metavar="HOST:PORT",
        envvar="FRD_HTTP",
        default=DEFAULT_HTTP,
        show_default=True,
        help="Where the service's HTTP listens.",
    )(function)


def json_option(function: _F) -> _F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)


def print_json(value: object) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode("utf-8"))


def console() -> Console:
    """Colours and live redraws only where stdout is a terminal; rich sees to it."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)
