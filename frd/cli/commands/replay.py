"""`frd replay`: the findings of a journal or of a cell's log, without a service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
from rich.text import Text

from frd.cli import FINDINGS_PRESENT
from frd.cli.client import unknown_job
from frd.cli.options import PATH, console, json_option, print_json, progress, since_option
from frd.cli.screens.finding_panel import finding_panel
from frd.cluster import missing
from frd.cluster.cells import CELLS, cell_of
from frd.cluster.log import FencedLog
from frd.config import load
from frd.errors import ClusterError, ConfigError
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
        "frd replay --config frd.toml --job train",
    ),
)
@click.argument("journal", type=PATH, required=False)
@click.option(
    "--config",
    type=PATH,
    metavar="FILE",
    help="Instead of a JOURNAL: the log of a cell, in the cluster of this configuration.",
)
@click.option(
    "--cell",
    type=click.IntRange(0, CELLS - 1),
    metavar="N",
    help="With --config: which cell.  [default: that of --job]",
)
@click.option("--job", metavar="J", help="Only findings of this job.")
@since_option("Findings that were open")
@json_option
def command(
    journal: Path | None,
    config: Path | None,
    cell: int | None,
    job: str | None,
    since: str | None,
    as_json: bool,
) -> int:
    """Compute the findings of a JOURNAL: the folder that the service wrote, or one segment of it.

    With --config, of the log of a cell in the cluster that the file names. Only its servers and
    credentials are used; nothing is changed there, and the replicas may be running.

    Runs the engine of the live service at the recorded times. The whole journal is replayed,
    because findings depend on what came before; --job and --since select findings of the result.
    Exit code 3 when there are findings.
    """
    after = utc_ns(since) if since is not None else 0
    warnings: list[str] = []
    if journal is not None:
        if config is not None or cell is not None:
            raise click.UsageError("--config and --cell are for a log, without a JOURNAL")
        with progress("replaying (MiB)", unit=1 << 20) as step:
            whole = replay(read(journal, warnings.append, step), warnings.append)
    else:
        opened = _log_of_a_cell(config, cell, job)
        from frd.service.journal.reading import read_all

        with progress("replaying (bundles)") as step:
            whole = replay(read_all(opened, warnings.append, step), warnings.append)
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


def _log_of_a_cell(
    config: Path | None, cell: int | None, job: str | None
) -> Callable[[], AbstractAsyncContextManager[FencedLog]]:
    """Opens the log that the options name.

    Raises:
        ConfigError: the configuration cannot be used, or has no cluster.
        ClusterError: the extra for clusters is not installed.
    """
    if config is None:
        raise click.UsageError("name a JOURNAL, or --config with --job or --cell")
    if cell is None and job is None:
        raise click.UsageError("--config: name the --job, or the --cell")
    cluster = load(config).cluster
    if not cluster.servers:
        raise ConfigError(f"cluster.servers: not set in {config}: name a JOURNAL instead")
    try:
        from frd.cluster.nats import reading
    except ModuleNotFoundError as error:
        raise ClusterError(missing(error.name)) from None
    return partial(reading, cluster, cell_of(job or "") if cell is None else cell)


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
