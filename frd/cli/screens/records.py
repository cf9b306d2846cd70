"""Findings and jobs as records, for pipes and ``-o wide``: one line each.

In a pipe, tabs separate the columns and nothing is cut or wrapped, for ``cut``, ``grep`` and
``awk``. On a terminal the columns are aligned below their names. What is unknown is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from frd.forms import counted, duration_text, fold_ranks
from frd.usage import plain

FINDING = ("id", "kind", "state", "severity", "age", "job", "suspects", "headline")
FINDING_WIDE = ("nodes", "effect", "acknowledged by", "assigned to", "silenced until")
JOB = ("job", "state", "attempt", "ranks", "findings", "heard", "failure")
JOB_WIDE = ("size", "agents")


def print_records(
    form: str, columns: Sequence[str], wide: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """The first column in the form ``name``, all in ``wide``, otherwise `columns`."""
    header = (*columns, *wide)[: {"name": 1, "lines": len(columns)}.get(form)]
    clean = [[plain(cell) for cell in row[: len(header)]] for row in rows]
    if form == "wide" and Console().is_terminal:
        clean = [[*header], *clean]
        widths = [max(map(cell_len, column)) for column in zip(*clean, strict=True)]
        lines = [map(set_cell_size, row, widths) for row in clean]
        text = "\n".join("  ".join(line).rstrip() for line in lines)
    else:
        text = "\n".join(map("\t".join, clean))
    click.echo(text, nl=bool(clean))


def print_notes(lines: Iterable[Text]) -> None:
    """What is no record goes to stderr."""
    for line in lines:
        Console(stderr=True, highlight=False).print(line, soft_wrap=True)


def finding_record(finding: Mapping[str, Any], now: datetime) -> Sequence[str]:
    """The columns `FINDING` and `FINDING_WIDE`."""
    suspects = finding["suspects"]
    ranks = fold_ranks(suspect["rank"] for suspect in suspects)
    nodes = ",".join(dict.fromkeys(suspect["node"] for suspect in suspects))
    age = duration_text((now - datetime.fromisoformat(finding["opened_at"])).total_seconds())
    state = "goes on" if finding.get("goes_on") else finding["state"]
    first = (finding["id"], finding["kind"], state, finding.get("severity", ""), age)
    said = (finding.get(key.replace(" ", "_"), "") for key in FINDING_WIDE[1:])
    return (*first, finding["job"], ranks, finding["headline"], nodes, *said)


def job_record(line: Mapping[str, Any]) -> Sequence[str]:
    """Of `/api/v1/jobs`: the columns `JOB` and `JOB_WIDE`."""
    state = line.get("state") or ("ended" if line["ended"] else "running")
    ranks = ", ".join(f"{count} {state}" for state, count in line["ranks"].items())
    heard = "" if line.get("last_heard_s") is None else age_text(line["last_heard_s"])
    failure = (line.get("failure") or {}).get("text", "")
    first = (line["job"], state, str(line["attempt"]), ranks, str(line["open_findings"]))
    size = line["world_size"] or sum(line["ranks"].values())
    return (*first, heard, failure, str(size), str(line.get("agents", "")))


def last_lines(answer: Mapping[str, Any]) -> Iterator[Text]:
    """Warnings, one line for each reason to be blind, and what is watched."""
    for warning in answer["warnings"]:
        yield Text(f"warning: {plain(warning['text'])}", style="yellow")
    for text in answer["watching"]["blind"]:
        yield Text(f"blind: {plain(text)}", style="bold yellow")
    if silent := silent_replicas(answer):
        yield Text(incomplete_text(silent), style="bold yellow")
    yield Text(watching_text(answer["watching"]), style="dim")


def silent_replicas(answer: Mapping[str, Any]) -> Sequence[str]:
    """Replicas of a cluster that did not answer, or are not sure of their jobs, so that jobs are
    missing in `answer`, or out of date."""
    return [plain(str(name)) for name in answer.get("incomplete", ())]


def incomplete_text(silent: Sequence[str]) -> str:
    """``incomplete: frd-2 did not answer, or is not sure of its jobs: they may be missing``."""
    are, whose = ("is", "its") if len(silent) == 1 else ("are", "their")
    why = f"did not answer, or {are} not sure of {whose} jobs"
    return f"incomplete: {', '.join(silent)} {why}: they may be missing"


def watching_text(watching: Mapping[str, Any]) -> str:
    """``watching 1 job, 2 ranks, 1 agent; last heard 0.4 s ago``.

    A connected agent without ranks has nothing to report, so its silence means nothing.
    """
    counts = ", ".join(counted(watching[f"{noun}s"], noun) for noun in ("job", "rank", "agent"))
    heard = watching["last_heard_s"]
    is_idle = watching["agents"] > 0 and not watching["jobs"]
    ago = "" if heard is None or is_idle else f"; last heard {age_text(heard)}"
    return f"watching {counts}{ago}"


def service_time(answer: Mapping[str, Any]) -> datetime:
    """Now, on the service's clock, as all of its times."""
    return datetime.fromisoformat(answer["at"])


def age_text(age_s: float | None) -> str:
    """``3 min ago``; ``never`` when there was nothing yet."""
    return "never" if age_s is None else f"{duration_text(age_s)} ago"
