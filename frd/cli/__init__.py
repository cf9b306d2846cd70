"""The `frd` command: a table of commands, each in its own file, imported only when it runs.

Exit codes: 0 success, 1 failure, 2 wrong usage or configuration, 3 findings present, 4 no findings
but frd is blind. An error is one line on stderr, `frd: error: ...`.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import cast

import click

from frd import __version__, usage
from frd.usage import examples

_FULL = (errno.ENOSPC, errno.EDQUOT)
FAILED, USAGE, FINDINGS_PRESENT, BLIND = usage.FAILED, usage.USAGE, 3, 4

COMMANDS = {
    "init": "Write a first configuration, with tokens and certificates.",
    "serve": "Run the central service.",
    "up": "Run service and agent on this machine, together.",
    "demo": "Run a small job that hangs on this machine, and name the first cause.",
    "status": "Show open findings, jobs, groups, ranks, memory and clocks.",
    "findings": "List findings; show, close or export them.",
    "report": "Print a finding as Markdown, for a ticket.",
    "dump": "Fetch Flight Recorder dumps of all ranks, taken now or for a finding.",
    "analyze": "Name the first cause in a folder of dumps, without a service.",
    "replay": "Compute the findings of a journal, offline.",
    "notify": "Send a test message to a webhook.",
    "check": "Validate a configuration and print the effective values.",
    "doctor": "Check whether a job on this machine would be watched.",
    "context": "Name services with their credentials, and choose one.",
    "completion": "Print the completion script of a shell.",
}


class _Commands(click.Group):
    """Commands by name; the module ``frd.cli.commands.<name>`` holds the click command
    ``command``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"{__name__}.commands.{cmd_name}")
        return cast("click.Command", module.command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
        with formatter.section("Exit codes"):
            formatter.write_text(
                "0 success, 1 failure, 2 wrong usage or configuration, 3 findings present, "
                "4 no findings but frd is blind"
            )


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "frd demo                 # a job that hangs, and its first cause",
        "frd up                   # service and agent on this machine",
        "frd findings --watch     # what is wrong, redrawn live",
    ),
)
@click.version_option(__version__, prog_name="frd", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> int:
    """Names the first cause when distributed PyTorch training hangs, while it hangs."""
    if context.invoked_subcommand is not None:
        return 0
    click.echo(context.get_help(), err=True)
    return USAGE


def run(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code."""
    return usage.run(cli, "frd", arguments)


def main() -> None:
    """Entry point of the `frd` script."""
    for stream in (sys.stdout, sys.stderr):
        # Group names and stack lines have any characters; a narrow locale must not end a command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = run(sys.argv[1:])
    except OSError as error:
        if error.errno not in _FULL:
            raise
        # The interpreter flushes stdout once more when it ends, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = usage.complain(f"output: {error.strerror}: write it elsewhere", FAILED)
    sys.exit(code)
