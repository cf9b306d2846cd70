"""`frd status`: where every job stands now, folded so that 16,384 ranks fit a screen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from frd.cli.options import console, json_option, print_json, service_options

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from frd.cli.client import Client

MAX_ROWS = 20


@click.command("status")
@click.option("--job", metavar="J", help="Only this job.")
@click.option("--memory", is_flag=True, help="Memory of all ranks, not of the worst few.")
@click.option("--ranks", metavar="0-3,7", help="Only these ranks, with all of their memory.")
@json_option
@service_options
def command(
    client: Client, job: str | None, memory: bool, ranks: str | None, as_json: bool
) -> None:
    """Show jobs, groups, ranks, memory and clocks, and what is open now."""
    from frd.cli.client import job_path

    wanted = None if ranks is None else _checked(ranks)
    names = (
        [job] if job is not None else [known["job"] for known in client.get("/api/v1/jobs")["jobs"]]
    )
    query = {"memory": ranks if ranks is not None else "all" if memory else None}
    jobs = [client.get(job_path(name), query) for name in names]
    if wanted is not None:
        jobs = [
            {**job, "ranks": [rank for rank in job["ranks"] if rank["rank"] in wanted]}
            for job in jobs
        ]
    if as_json:
        print_json({"jobs": jobs})
        return
    screen = console()
    if not jobs:
        screen.print("no jobs: no agent has connected yet")
    for detail in jobs:
        for part in _job(detail):
            screen.print(part)


def _checked(ranks: str) -> Collection[int]:
    from frd.forms import unfold_ranks

    try:
        return frozenset(unfold_ranks(ranks))
    except ValueError as error:
        raise click.UsageError(f"--{error}") from None


def _job(job: Mapping[str, Any]) -> Sequence[RenderableType]:
    from frd.cli.memory import memory_table

    parts: list[RenderableType] = [_title(job), _ranks(job["ranks"])]
    if job["memory"]["series"]:
        parts.append(memory_table(job["memory"]))
    if job["groups"]:
        parts.append(_groups(job["groups"]))
    if job["nodes"]:
        parts += (_nodes(job["nodes"]), _clocks(job["nodes"]))
    return [*parts, *_findings(job["findings"]), ""]


def _title(job: Mapping[str, Any]) -> Text:
    from rich.text import Text

    from frd.cli.render import plain

    text = Text(plain(job["job"]), style="bold")
    ended = ", ended" if job["ended"] else ""
    size = job["world_size"] or len(job["ranks"])
    return text.append(f"  attempt {job['attempt']}{ended}, {size} ranks", style="not bold")


def _ranks(ranks: Sequence[Mapping[str, Any]]) -> Table:
    """One row for all ranks of one state that wait in the same place."""
    from rich.text import Text

    from frd.cli.render import plain, ranks_text

    alike: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for rank in ranks:
        alike.setdefault((rank["state"], rank["detail"], rank["waiting_in"]), []).append(rank)
    table = _table("ranks", "state", "waiting in", "for", "heard")
    for (state, detail, waiting_in), rows in sorted(alike.items(), key=lambda item: -len(item[1])):
        waited = max(row["waiting_s"] for row in rows)
        ages = [row["age_s"] for row in rows if row["age_s"] is not None]
        table.add_row(
            ranks_text([row["rank"] for row in rows]),
            Text(plain(f"{state}: {detail}" if detail else state), style=_STYLES.get(state, "")),
            Text(plain(waiting_in)),
            f"{waited:.1f} s" if waiting_in else "",
            f"{max(ages):.1f} s ago" if ages else "never",
        )
    return _cut(table, len(alike))


_STYLES = {"live": "green", "silent": "yellow", "exited": "red", "finished": "dim"}


def _groups(groups: Sequence[Mapping[str, Any]]) -> Table:
    from rich.text import Text

    from frd.cli.render import plain

    worst = sorted(groups, key=lambda g: (-g["stall_s"], -g["open"], -g["size"], g["group"]))
    table = _table("group", "size", "enqueued", "completed", "matched", "open", "stalled")
    for group in worst[:MAX_ROWS]:
        stalled = f"{group['stalled']}, {group['stall_s']:.1f} s" if group["stalled"] else ""
        table.add_row(
            Text(plain(group["group"])),
            *(str(group[key]) for key in ("size", "enqueued", "completed", "matched", "open")),
            Text(stalled, style="red"),
        )
    return _cut(table, len(groups))


def _nodes(nodes: Sequence[Mapping[str, Any]]) -> Table:
    from rich.text import Text

    from frd.cli.render import plain, ranks_text

    worst = sorted(nodes, key=lambda n: (n["connected"], -(n["last_message_age_s"] or 0.0)))
    table = _table("node", "agent", "ranks", "last message")
    for node in worst[:MAX_ROWS]:
        age = node["last_message_age_s"]
        table.add_row(
            Text(plain(node["node"])),
            Text("connected", style="green") if node["connected"] else Text("gone", style="red"),
            ranks_text(node["ranks"]),
            f"{age:.1f} s ago" if age is not None else "never",
        )
    return _cut(table, len(nodes))


def _clocks(nodes: Sequence[Mapping[str, Any]]) -> Table:
    """What is to be added to a node's times, those known worst first; or why it is not known."""
    from rich.text import Text

    from frd.cli.render import plain

    unknown = float("inf")
    worst = sorted(
        nodes,
        key=lambda n: -(unknown if n["clock_uncertainty_s"] is None else n["clock_uncertainty_s"]),
    )
    table = _table("node", "clock", "offset in ms", "drift in ppm", "steps", "age in s")
    for node in worst[:MAX_ROWS]:
        reason, age_s = node["clock_reason"], node["clock_age_s"]
        table.add_row(
            Text(plain(node["node"])),
            Text(plain(reason or node["clock_state"]), style="yellow" if reason else "green"),
            _offset(node["clock_offset_s"], node["clock_uncertainty_s"]),
            "" if age_s is None else f"{node['clock_drift_ppm']:+.1f}",
            str(node["clock_steps"]),
            "" if age_s is None else f"{age_s:.1f}",
        )
    return _cut(table, len(nodes))


def _offset(offset_s: float, uncertainty_s: float | None) -> str:
    text = f"{offset_s * 1e3:+.3f}"
    return f"{text} ± {uncertainty_s * 1e3:.3f}" if uncertainty_s is not None else text


def _findings(findings: Sequence[Mapping[str, Any]]) -> Sequence[Text]:
    from rich.text import Text

    from frd.cli.render import plain

    if not findings:
        return [Text("no open findings", style="green")]
    return [Text(f"{f['id']}  {f['kind']}: {plain(f['summary'])}", style="red") for f in findings]


def _table(*columns: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim", caption_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _cut(table: Table, wanted: int) -> Table:
    if wanted > table.row_count:
        table.caption = f"{wanted - table.row_count} more"
    return table
