"""`frd findings export`: all stored findings, oldest first, for other tools.

Reads page by page, so that neither side holds more than a page. Findings that the service prunes
meanwhile are missing, findings that open meanwhile come last, and none comes twice.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Any

import click

from frd.cli.client import Client
from frd.cli.options import FILE, job_names, service_options, since_option, when
from frd.forms import csv_cell, fold_ranks
from frd.store.new_path import check_new, new_path
from frd.usage import examples

_PAGE = 500
_COLUMNS = (
    *("id", "job", "attempt", "kind", "state", "severity", "opened_at", "closed_at", "reason"),
    *("suspects", "nodes", "victims", "lost_s", "dump", "close_reason", "summary"),
)


@click.command(
    "export",
    epilog=examples(
        "frd findings export -o all.jsonl",
        "frd findings export --since 7d --format csv > week.csv",
        "frd findings export --job train --since 2026-11-20 --until 2026-11-21",
    ),
)
@click.option("--job", metavar="J", shell_complete=job_names, help="Only findings of this job.")
@since_option("Opened")
@click.option("--until", metavar="WHEN", callback=when, help="Opened before then.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "csv"]),
    default="json",
    show_default=True,
    help="One JSON object a line, or CSV.",
)
@click.option(
    "-o",
    "--output",
    type=FILE,
    help="The file to create; an existing one is an error.",
)
@service_options
def export(
    client: Client,
    job: str | None,
    since: str | None,
    until: str | None,
    form: str,
    output: Path | None,
) -> int:
    """Export all stored findings, oldest first."""
    if output is not None:
        check_new(output)
    query = {"job": job, "since": since, "until": until}
    write = _write_csv if form == "csv" else _write_json
    findings = _pages(client, query)
    first = next(findings, None)  # a wrong address fails before the file is created
    whole = chain(() if first is None else (first,), findings)
    if output is not None:
        with new_path(output) as staged, staged.open("w", encoding="utf-8", newline="") as file:
            write(whole, file)
        return 0
    try:
        write(whole, sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _pages(client: Client, query: Mapping[str, str | None]) -> Iterator[Mapping[str, Any]]:
    after = None
    while True:
        page = client.get("/api/v1/history", {**query, "limit": str(_PAGE), "after": after})
        yield from page["findings"]
        if (after := page["next"]) is None:
            return


def _write_json(findings: Iterable[Mapping[str, Any]], file: IO[str]) -> None:
    for finding in findings:
        # ASCII: a job name that is not UTF-8 stays exactly as the service sent it.
        file.write(json.dumps(finding, separators=(",", ":")) + "\n")


def _write_csv(findings: Iterable[Mapping[str, Any]], file: IO[str]) -> None:
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(_COLUMNS)
    for finding in findings:
        row = _row(finding)
        rows.writerow([row.get(column) for column in _COLUMNS])


def _row(finding: Mapping[str, Any]) -> dict[str, object]:
    """Ranks are folded."""
    suspects = finding.get("suspects", ())
    reasons = dict.fromkeys(suspect["reason"] for suspect in suspects)
    row = {
        **finding,
        "reason": finding.get("reason") or " ".join(reasons),
        "suspects": fold_ranks(suspect["rank"] for suspect in suspects),
        "nodes": " ".join(dict.fromkeys(suspect["node"] for suspect in suspects)),
        "victims": fold_ranks(finding.get("victims", ())),
    }
    return {key: csv_cell(value) for key, value in row.items()}
