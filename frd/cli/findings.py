"""`frd findings`: what the service has found, once or redrawn while it happens; or all of it,
exported."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from frd.cli import FINDINGS_PRESENT
from frd.cli.export import export
from frd.cli.options import console, json_option, print_json, service_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from frd.cli.client import Client

_WATCH_EVERY_S = 1.0


@click.group("findings", invoke_without_command=True)
@click.option("--job", metavar="J", help="Only findings of this job.")
@click.option("--all", "closed_too", is_flag=True, help="Closed findings as well.")
@click.option("--watch", is_flag=True, help="Redraw every second until interrupted.")
@json_option
@service_options
@click.pass_context
def command(
    context: click.Context,
    client: Client,
    job: str | None,
    closed_too: bool,
    watch: bool,
    as_json: bool,
) -> int:
    """List what frd has found: open findings, newest first.

    Exit code 3 when there are any. With --watch, --json prints each finding as one line whenever
    it changes.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return 0
    query = {"job": job, "state": None if closed_too else "open"}
    if watch:
        return _watch(client, query, as_json)
    found = _ask(client, query)
    if as_json:
        print_json({"findings": found})
    else:
        console().print(_picture(found))
    return FINDINGS_PRESENT if found else 0


def _refuse_options(context: click.Context) -> None:
    """What stands before the subcommand would be taken for its own, and be lost."""
    for parameter in context.command.params:
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{parameter.opts[-1]}: write it behind {context.invoked_subcommand}", context
            )


command.add_command(export)


def _ask(client: Client, query: Mapping[str, str | None]) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = client.get("/api/v1/findings", query)["findings"]
    return found


def _picture(found: Sequence[Mapping[str, Any]]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from frd.cli.render import finding_panel

    return Group(*map(finding_panel, found)) if found else Text("no findings", style="green")


def _watch(client: Client, query: Mapping[str, str | None], as_json: bool) -> int:
    """Until interrupted, which is how a watch ends well."""
    found = _ask(client, query)  # a wrong address is an error now, a restart later is not
    screen = console()
    try:
        if as_json or not screen.is_terminal:
            _follow(client, query, as_json)
        else:
            _redraw(client, query, found)
    except KeyboardInterrupt:
        pass
    return 0


def _redraw(
    client: Client, query: Mapping[str, str | None], found: Sequence[Mapping[str, Any]]
) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from frd.errors import ServiceUnavailable

    with Live(_picture(found), console=console(), auto_refresh=False) as live:
        while True:
            try:
                found = _ask(client, query)
                live.update(_picture(found), refresh=True)
            except ServiceUnavailable as error:
                stale = Text(f"{error}; what is shown is old", style="yellow")
                live.update(Group(_picture(found), stale), refresh=True)
            time.sleep(_WATCH_EVERY_S)


def _follow(client: Client, query: Mapping[str, str | None], as_json: bool) -> None:
    """For a pipe: each finding when it is new or has changed."""
    import msgspec

    from frd.cli.render import finding_panel
    from frd.errors import ServiceUnavailable

    shown: dict[str, Mapping[str, Any]] = {}
    while True:
        try:
            found = _ask(client, {**query, "state": None})
        except ServiceUnavailable:
            found = ()
        for finding in reversed(found):
            is_news = finding["id"] in shown or query["state"] in (None, finding["state"])
            if is_news and shown.get(finding["id"]) != finding:
                shown[finding["id"]] = finding
                if as_json:
                    click.echo(msgspec.json.encode(finding).decode("utf-8"))
                else:
                    console().print(finding_panel(finding))
        time.sleep(_WATCH_EVERY_S)
