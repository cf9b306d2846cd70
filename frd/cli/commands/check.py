"""`frd check`: validates a configuration and prints the effective values."""

from __future__ import annotations

from pathlib import Path

import click

from frd import config
from frd.cli.options import PATH, json_option, print_json
from frd.usage import examples


@click.command(
    "check", epilog=examples("frd check --config frd.toml", "frd check --config frd.toml --json")
)
@click.option(
    "--config", "path", type=PATH, required=True, metavar="FILE", help="The TOML file to validate."
)
@json_option
def command(path: Path, as_json: bool) -> None:
    """Validate a configuration and print the effective values.

    The output is TOML with every key: defaults, the file, then FRD_* variables of this environment.
    """
    effective = config.load(path)
    if as_json:
        print_json(config.as_dict(effective))
    else:
        click.echo(config.as_toml(effective), nl=False)
