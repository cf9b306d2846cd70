"""`frd replay`: the findings of a journal, without a service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.text import Text

from frd.cli import FINDINGS_PRESENT
from frd.cli.client import unknown_job
from frd.cli.options import PATH, console, json_option, print_json, progress, since_option
from frd.cli.screens.finding_panel import finding_panel
from frd.forms import finding_json, utc_ns, utc_text
from frd.service.journal.replay import Replayed, replay
from frd.store.journal import read
from frd.usage import examples, plain


@click.command(
    "replay",
    epilog=examples(
        "frd replay ~/.local/state/frd/journal",
        "frd replay ~/.local/state/frd/journal --job train --since 12h",
        "frd replay journal/00000007.sqlite3 --json",
    ),
)
@click.argument("journal", type=PATH)
@click.option("--job", metavar="J", help="Only findings of this job.")
@since_option("Findings that were open")
@json_option
def command(
    journal: Path,
    job: str | None,
    since: str | None,
    as_json: bool,
) -> int:
    """Compute the findings of a JOURNAL: the folder that the service wrote, or one segment of it.

    In a cluster each replica writes a journal of the jobs that it had, while it had them.

    Runs the engine of the live service at the recorded times. The whole journal is replayed,
    because findings depend on what came before; --job and --since select findings of the result.
    Exit code 3 when there are findings.
    """
    after = utc_ns(since) if since is not None else 0
    warnings: list[str] = []
    with progress("replaying (MiB)", unit=1 << 20) as step:
        whole = replay(read(journal, warnings.append, step), warnings.append)
    if job is not None and job not in whole.jobs:
        raise unknown_job(job, whole.jobs, "this journal")
    replayed = replace(
        whole,
        findings=tuple(
            finding
            for finding in whole.findings
            if job in (None, finding.job)
            if finding.closed_at is None or finding.closed_at >= after
        ),
    )
    if as_json:
        print_json({"findings": [finding_json(f) for f in replayed.findings], "warnings": warnings})
    else:
        _show(replayed, warnings)
    return FINDINGS_PRESENT if replayed.findings else 0


def _show(replayed: Replayed, warnings: Sequence[str]) -> None:
    screen = console()
    for warning in warnings:
        screen.print(Text(plain(warning), style="yellow"))
    span = f"{utc_text(replayed.first_at)} to {utc_text(replayed.last_at)}"
    screen.print(Text(f"{replayed.records} records, {span}", style="dim"))
    for finding in replayed.findings:
        screen.print(finding_panel(finding_json(finding)))
    if not replayed.findings:
        screen.print(Text("no findings", style="green"))
