"""`frd report`: one finding as Markdown, for a ticket or a chat."""

from __future__ import annotations

from pathlib import Path

import click

from frd.cli.client import Client
from frd.cli.commands.findings.one import ID, find, finding_path
from frd.cli.options import FILE, service_options
from frd.store.new_path import check_new, new_path
from frd.usage import examples


@click.command(
    "report",
    epilog=examples(
        "frd report 5f0c6a2e91d3b784",
        "frd report 5f0c -o incident.md   # the beginning of an id is enough",
    ),
)
@ID
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="FILE",
    help="The file to create; an existing one is an error.",
)
@service_options
def command(client: Client, finding: str, output: Path | None) -> None:
    """Print one finding as Markdown, for a ticket: cause, effect, what to do, suspects with their
    addresses and stacks, history and notes. Times are UTC."""
    if output is not None:
        check_new(output)
    text = client.text(f"{finding_path(find(client, finding))}?format=markdown")
    if output is None:
        click.echo(text, nl=False)
        return
    with new_path(output) as staged:
        staged.write_text(text, "utf-8")
