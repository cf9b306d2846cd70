"""`frd status`: the state of every job, folded so that 16,384 ranks fit a screen."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import click
from rich.console import RenderableType
from rich.text import Text

from frd.cli.client import Client, job_path, unknown_job
from frd.cli.options import (
    console,
    job_names,
    output_option,
    print_json,
    ranks_option,
    service_options,
)
from frd.cli.screens import live
from frd.cli.screens.finding_panel import close_text
from frd.cli.screens.job_tables import (
    MAX_ROWS,
    clocks_table,
    cluster_lines,
    cluster_table,
    groups_table,
    memory_table,
    nodes_table,
    ranks_table,
    rises_table,
)
from frd.cli.screens.live import Picture
from frd.cli.screens.records import (
    JOB,
    JOB_WIDE,
    age_text,
    job_record,
    last_lines,
    print_notes,
    print_records,
    service_time,
    silent_replicas,
)
from frd.errors import ServiceUnavailable
from frd.forms import fold_ranks
from frd.usage import examples, plain

MAX_ENDED = 20
_Object: TypeAlias = Mapping[str, Any]
_Ranks: TypeAlias = tuple[int, ...] | None


@click.command(
    "status",
    epilog=examples(
        "frd status --watch          # redrawn every second",
        "frd status --job train",
        "frd status --ranks 0-3,7    # these ranks, with all of their memory",
        "frd status --all            # ended jobs in full, too",
        "frd status -o name          # names of jobs only",
        "frd status --json | jq '.jobs[].ranks'",
    ),
)
@click.option("--job", metavar="J", shell_complete=job_names, help="Only this job.")
@click.option("--all", "unfolded", is_flag=True, help="Show ended jobs in full, too.")
@click.option("--watch", is_flag=True, help="Redraw every second; in a pipe, print what is new.")
@click.option("--memory", is_flag=True, help="Memory of all ranks.")
@ranks_option("Only these ranks, with all of their memory.")
@output_option
@service_options
def command(
    client: Client,
    job: str | None,
    unfolded: bool,
    watch: bool,
    memory: bool,
    ranks: _Ranks,
    form: str,
) -> None:
    """Show open findings, jobs, groups, ranks, memory and clocks.

    Open findings come first, and the ranks that they suspect come first among the ranks. A job that
    has ended is one line. In a pipe each job is one line of columns separated by tabs, and what frd
    watches goes to stderr; --ranks and --memory are drawn there, too.
    """
    if form == "json" and watch:
        raise click.UsageError("--watch: cannot be combined with --json: leave one out")
    wanted = "all" if memory else fold_ranks(ranks) if ranks is not None else None
    unfolded = unfolded or form == "json" or job is not None
    look = functools.partial(_look, client, job, ranks, wanted, unfolded)
    if form == "lines" and wanted is not None:
        form = "drawn"
    if form == "json":
        seen = look()
        others = {key: value for key, value in seen.answer.items() if key != "findings"}
        of_cluster = (
            {} if seen.cluster is None else {"cluster": seen.cluster, "missing": seen.missing}
        )
        print_json({**others, **of_cluster, "jobs": seen.jobs})
    elif form != "drawn":
        shown: dict[str, object] = {}
        _print_records(form, shown, _lines(client, job))
        if watch:
            show = functools.partial(_print_records, form, shown)
            live.follow(functools.partial(_lines, client, job), show)
    elif watch:
        live.watch(console(), lambda: _picture(look()))
    else:
        console().print(_picture(look()))


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the service has answered."""

    answer: _Object
    """The open findings; ``incomplete`` names the replicas that did not answer a question."""
    jobs: Sequence[_Object]
    """Jobs in full."""
    ended: Sequence[_Object]
    """Of jobs that have ended, their line of the list."""
    missing: Mapping[str, str]
    """Jobs whose replica did not answer, and why."""
    cluster: _Object | None
    """None without a cluster."""


def _print_records(form: str, shown: dict[str, object], known: _Object) -> None:
    """The lines of jobs, and what is watched, unless they are in `shown`."""
    rows = [job_record(line) for line in known["jobs"]]
    new = [row for row in rows if live.is_news(shown, row[0], row[: JOB.index("heard")])]
    print_records(form, JOB, JOB_WIDE, new)
    if live.is_news(shown, "", (known["watching"]["blind"], silent_replicas(known))):
        empty = [] if rows else [Text("no jobs: no rank has been seen yet")]
        print_notes([*empty, *last_lines(known)])


def _lines(client: Client, job: str | None) -> _Object:
    """`/api/v1/jobs`, with the line of `job` alone if that is given."""
    known: _Object = client.get("/api/v1/jobs")
    lines = [line for line in known["jobs"] if job in (None, line["job"])]
    if job is not None and not lines:
        names = [line["job"] for line in known["jobs"]]
        raise unknown_job(job, names, silent=silent_replicas(known))
    return {**known, "jobs": lines}


def _look(
    client: Client, job: str | None, ranks: _Ranks, memory: str | None, unfolded: bool
) -> _Seen:
    """`memory`: ranks whose memory is asked for; None: those that the service chooses."""
    known = _lines(client, job)
    is_cluster = "incomplete" in known
    lines = known["jobs"]
    over = [line for line in lines if line["ended"] and line.get("state") != "lost"]
    over.sort(key=lambda line: line.get("state") != "failed")
    folded = [line for line in over if not line["open_findings"] and not unfolded]
    jobs, missing = [], {}
    for line in lines:
        if line not in folded:
            try:
                whole = client.get(job_path(line["job"]), {"memory": memory})
            except ServiceUnavailable as error:
                if job is not None or not is_cluster:
                    raise
                missing[line["job"]] = str(error)
            else:
                shown = [one for one in whole["ranks"] if ranks is None or one["rank"] in ranks]
                jobs.append({**whole, "ranks": shown})
    answer = client.get("/api/v1/findings", {"job": job, "state": "open"})
    if not is_cluster:
        return _Seen(answer, jobs, folded, missing, None)
    cluster = client.get("/api/v1/cluster")
    asked = (known, answer, cluster) if job is None else (answer,)
    silent = {name for one in asked for name in one.get("incomplete", ())}
    return _Seen({**answer, "incomplete": sorted(silent)}, jobs, folded, missing, cluster)


def _picture(seen: _Seen) -> Picture:
    """Open findings first, then each job, then the replicas, then what frd watches."""
    answer, jobs, ended = seen.answer, seen.jobs, seen.ended
    body: list[RenderableType] = [*_findings(answer, service_time(answer))]
    for job in sorted(jobs, key=lambda job: not job["findings"]):  # a window may be too low
        body += ("", *_job(job))
    body += [_ended(line) for line in ended[:MAX_ENDED]]
    if len(ended) > MAX_ENDED:
        body.append(f"and {len(ended) - MAX_ENDED} more that ended: --all")
    if not jobs and not ended and not seen.missing:
        body.append("no jobs: no rank has been seen yet")
    last: list[RenderableType] = [""]
    if seen.cluster is not None:
        body += ("", cluster_table(seen.cluster))
        last += cluster_lines(seen.cluster)
    last += [Text(f"not shown: {plain(why)}", style="yellow") for why in seen.missing.values()]
    return Picture(body, [*last, *last_lines(answer)])


def _ended(line: _Object) -> Text:
    """``train  attempt 0 ended, 4 ranks (3 finished, 1 exited), last heard 2 h 5 min ago``."""
    states = ", ".join(f"{count} {state}" for state, count in line["ranks"].items())
    size = line["world_size"] or sum(line["ranks"].values())
    text = Text(plain(line["job"]), style="red" if line.get("failure") else "dim")
    heard_s = line.get("last_heard_s")
    heard = "" if heard_s is None else f", last heard {age_text(heard_s)}"
    text.append(f"  attempt {line['attempt']} {_how_over(line)}, {size} ranks ({states}){heard}")
    return text


def _how_over(line: _Object) -> str:
    """``ended``, or ``failed 12 min ago: rank 2 raised ValueError: x (train.py:88 step)``."""
    if (failure := line.get("failure")) is None:
        return "ended"
    return f"failed {age_text(failure['age_s'])}: {plain(failure['text'])}"


def _job(job: _Object) -> Sequence[RenderableType]:
    parts: list[RenderableType] = [
        _title(job),
        ranks_table(job["ranks"], _suspects(job["findings"])),
    ]
    if job["memory"]["series"]:
        parts.append(memory_table(job["memory"]))
    if rises := job.get("rises"):
        parts.append(rises_table(rises))
    if job["groups"]:
        parts.append(groups_table(job["groups"]))
        partly = [one for one in job["groups"] if one.get("unwatched")]
        parts += (Text(f"{plain(one['group'])}: {one['unwatched']}") for one in partly[:MAX_ROWS])
    if job["nodes"]:
        parts += (nodes_table(job["nodes"]), clocks_table(job["nodes"]))
    return parts


def _suspects(findings: Sequence[_Object]) -> Mapping[int, str]:
    """By rank: which open finding suspects it."""
    return {
        suspect["rank"]: f"suspect in {finding['id'][:8]}"
        for finding in findings
        for suspect in finding["suspects"]
    }


def _title(job: _Object) -> Text:
    text = Text(plain(job["job"]), style="bold")
    ended = f", {_how_over(job)}" if job["ended"] else ""
    if job.get("state") == "lost":
        ended = ", lost: its agents were stopped while ranks lived, and none reports it any more"
    size = job["world_size"] or len(job["ranks"])
    return text.append(f"  attempt {job['attempt']}{ended}, {size} ranks", style="not bold")


def _findings(answer: _Object, now: datetime) -> Sequence[Text]:
    """A line each, the newest last, and how to see all of one."""
    lines = []
    for one in sorted(answer["findings"], key=lambda finding: str(finding["opened_at"])):
        opened = datetime.fromisoformat(one["opened_at"])
        age = age_text((now - opened).total_seconds())
        style = "yellow" if one.get("severity") == "warning" else "red"
        text = Text(f"{one['id']}  {one['kind']} in {plain(one['job'])}", style=f"bold {style}")
        closed = f"{close_text(one)}: " if one.get("goes_on") else ""
        text.append(f", opened {age}: {closed}{plain(one['summary'])}", style=f"not bold {style}")
        lines.append(text)
    if lines:
        lines.append(Text("`frd findings ID` shows one of them in full", style="dim"))
    elif silent_replicas(answer):
        lines.append(Text("no open findings of the replicas that answered", style="yellow"))
    else:
        lines.append(Text("no open findings", style="green"))
    return lines
