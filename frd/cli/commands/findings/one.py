"""One finding: `frd findings ID` shows all of it, `frd findings close ID` closes it by hand."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from frd.address import finding_page
from frd.cli import FINDINGS_PRESENT
from frd.cli.client import Client
from frd.cli.options import console, json_option, print_json, service_options
from frd.cli.screens.finding_panel import finding_panel
from frd.cli.screens.watching import incomplete_text, silent_replicas
from frd.errors import FrdError, ServiceUnavailable
from frd.usage import examples, plain

_LEAST_PREFIX = 4
_SEARCHED = "10000"
"""Number of the newest findings among which the beginning of an id is searched."""


@click.command(
    "show",
    epilog=examples(
        "frd findings 5f0c6a2e91d3b784",
        "frd findings 5f0c                # the beginning of an id is enough",
        "frd findings show 5f0c --json",
    ),
)
@click.argument("finding", metavar="ID")
@json_option
@service_options
def show(client: Client, finding: str, as_json: bool) -> int:
    """Show one finding in full: evidence, whole stacks, victims, history, and the address of its
    page. The same as `frd findings ID`.

    Exit code 3 while it is open, or goes on after it was closed by hand, else 0.
    """
    found = find(client, finding)
    if as_json:
        print_json(found)
    else:
        screen = console()
        screen.print(finding_panel(found, whole=True))
        if client.has_page():
            screen.print(f"page: {finding_page(client.url, found['id'])}", soft_wrap=True)
    return FINDINGS_PRESENT if found["state"] == "open" or found.get("goes_on") else 0


@click.command(
    "close",
    epilog=examples('frd findings close 5f0c6a2e91d3b784 --because "checkpoint to a slow disk"'),
)
@click.argument("finding", metavar="ID")
@click.option("--because", metavar="TEXT", required=True, help="Why; stored with the finding.")
@json_option
@service_options
def close(client: Client, finding: str, because: str, as_json: bool) -> None:
    """Close an open finding by hand: its alert ends.

    While the incident lasts, its job stays stalled, `frd findings` lists the finding as closed by
    hand, and no other finding opens. If the service has tokens, this needs an operator's token.
    """
    found = find(client, finding)
    closed = client.post(
        f"/api/v1/findings/{quote(found['id'], safe='')}/close", {"because": because}
    )
    if as_json:
        print_json(closed)
    else:
        click.echo(f"closed {closed['id']}: {plain(closed['summary'])}")


def find(client: Client, name: str) -> Any:
    """The finding with the id `name`, or the only one whose id begins with it.

    Raises:
        FrdError: no finding, or several.
    """
    try:
        return client.get(f"/api/v1/findings/{quote(name, safe='')}")
    except ServiceUnavailable:
        raise
    except FrdError:
        if len(name) < _LEAST_PREFIX:
            raise
        answer = client.get("/api/v1/findings", {"limit": _SEARCHED})
        fits = [one for one in answer["findings"] if one["id"].startswith(name)]
        if silent := silent_replicas(answer):
            click.echo(f"frd: warning: {incomplete_text(silent)}", err=True)
        if not fits:
            raise
    if len(fits) > 1:
        ids = ", ".join(one["id"] for one in fits[:5])
        raise FrdError(f"finding: {name!r}: {len(fits)} ids begin with it: write more of it: {ids}")
    return fits[0]
