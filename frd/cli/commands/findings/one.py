"""One finding: `frd findings ID` shows all of it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click
from click import Group

from frd.address import finding_page
from frd.cli import FINDINGS_PRESENT
from frd.cli.client import Client
from frd.cli.options import console, finding_ids, json_option, print_json, service_options
from frd.cli.screens.finding_panel import finding_panel
from frd.cli.screens.records import incomplete_text, silent_replicas
from frd.errors import FrdError, UnknownThing
from frd.usage import examples, guess, plain

_LEAST_PREFIX = 4
_SEARCHED = "10000"
"""Number of the newest findings among which the beginning of an id is searched."""


ID = click.argument("finding", metavar="ID", shell_complete=finding_ids)


@click.command(
    "show",
    epilog=examples(
        "frd findings 5f0c6a2e91d3b784",
        "frd findings 5f0c                # the beginning of an id is enough",
        "frd findings show 5f0c --json",
        "frd findings 5f0c --log          # the end of the suspects' stderr",
    ),
)
@ID
@click.option(
    "--log", "log_only", is_flag=True, help="Only what the suspects logged last, when it opened."
)
@json_option
@service_options
def show(client: Client, finding: str, log_only: bool, as_json: bool) -> int:
    """Show one finding in full: evidence, whole stacks, victims, history, and the address of its
    page. The same as `frd findings ID`.

    Logs need an operator's token if the service has tokens.

    Exit code 3 while it is open, or goes on after it was closed by hand, else 0.
    """
    found = find(client, finding)
    logs = client.get(finding_path(found, "log")) if log_only else None
    if as_json:
        print_json(found if logs is None else logs)
    elif logs is not None:
        for log in logs["ranks"]:
            where = log["why"] or log["path"]
            click.echo(plain(f"==> rank {log['rank']} on {log['node']}: {where}"))
            for line in log["lines"]:
                click.echo(plain(line))
    else:
        screen = console()
        screen.print(finding_panel(found, whole=True))
        if client.has_page():
            screen.print(f"page: {finding_page(client.url, found['id'])}", soft_wrap=True)
    return FINDINGS_PRESENT if found["state"] == "open" or found.get("goes_on") else 0


def finding_path(finding: Any, *rest: str) -> str:
    """``/api/v1/findings/{id}/...``"""
    return "/".join(("/api/v1/findings", quote(finding["id"], safe=""), *rest))


def find(client: Client, name: str) -> Any:
    """The finding with the id `name`, or the only one whose id begins with it.

    Raises:
        FrdError: no finding, or several.
    """
    try:
        return client.get(finding_path({"id": name}))
    except UnknownThing:
        answer = client.get("/api/v1/findings", {"limit": _SEARCHED})
    ids = [one["id"] for one in answer["findings"]]
    fits = [one for one in answer["findings"] if one["id"].startswith(name)]
    if silent := silent_replicas(answer):
        click.echo(f"frd: warning: {incomplete_text(silent)}", err=True)
    if not fits or len(name) < _LEAST_PREFIX:
        parent = click.get_current_context().parent
        commands = parent.command.commands if parent and isinstance(parent.command, Group) else ()
        like = guess(name, [*ids, *commands])
        raise UnknownThing(f"finding: {name!r}: unknown{like}: list them with `frd findings --all`")
    if len(fits) > 1:
        first = ", ".join(one["id"] for one in fits[:5])
        raise FrdError(
            f"finding: {name!r}: {len(fits)} ids begin with it: write more of it: {first}"
        )
    return fits[0]
