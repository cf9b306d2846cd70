"""The tables of `frd status`: ranks, groups, nodes, clocks and memory of a job, and the replicas.

Each is folded or cut to its worst rows, so that 16,384 ranks fit a screen. Draws the JSON of
``/api/v1/jobs/{job}`` and ``/api/v1/cluster``, and computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from frd.cli.screens.records import age_text
from frd.forms import bytes_text, duration_text, ranks_text
from frd.usage import plain

MAX_ROWS = 20
_BARS = "▁▂▃▄▅▆▇█"
_FLAT = 1 / 100
"""Share of the capacity; a smaller change is drawn as steady."""
_NAMES = {
    "device_used": "device",
    "process_used": "device, of the process",
    "torch_reserved": "torch, reserved",
    "torch_allocated": "torch, tensors",
    "host_used": "host",
    "cgroup_used": "cgroup",
}
_DEVICE_CHARS = 12


def ranks_table(ranks: Sequence[Mapping[str, Any]], suspects: Mapping[int, str]) -> Table:
    """One row for all ranks of one state that wait in the same op; suspects first, separately."""
    alike: dict[tuple[str, str, str, str], list[Mapping[str, Any]]] = {}
    for rank in ranks:
        mark = suspects.get(rank["rank"], "")
        alike.setdefault((mark, rank["state"], rank["detail"], rank["waiting_in"]), []).append(rank)
    marks = any(mark for mark, *_ in alike)
    table = _table("ranks", "state", "waiting in", "for", "heard")
    if marks:
        table.add_column(no_wrap=True)
    # Ranks that differ in state share no row, even if they wait in the same collective.
    widest = max((len(ranks_text([r["rank"] for r in rows])) for rows in alike.values()), default=0)
    table.columns[0].min_width = min(widest, 24)
    ordered = sorted(alike.items(), key=lambda item: (not item[0][0], -len(item[1])))
    for (mark, state, detail, waiting_in), rows in ordered:
        waited = max(row["waiting_s"] for row in rows)
        ages = [row["age_s"] for row in rows if row["age_s"] is not None]
        table.add_row(
            Text(ranks_text([row["rank"] for row in rows]), style="bold red" if mark else ""),
            Text(plain(f"{state}: {detail}" if detail else state), style=_STYLES.get(state, "")),
            Text(plain(waiting_in)),
            duration_text(waited) if waiting_in else "",
            age_text(max(ages, default=None)),
            *([Text(f"<- {mark}" if mark else "", style="bold red")] if marks else []),
        )
    return _cut(table, len(alike))


_STYLES = {
    "live": "green",
    "silent": "yellow",
    "unwatched": "bold yellow",
    "exited": "red",
    "finished": "dim",
}


def groups_table(groups: Sequence[Mapping[str, Any]]) -> Table:
    worst = sorted(groups, key=lambda g: (-g["stall_s"], -g["open"], -g["size"], g["group"]))
    table = _table("group", "size", "enqueued", "completed", "matched", "open", "stalled")
    for group in worst[:MAX_ROWS]:
        stalled = f"{group['stalled']}, {duration_text(group['stall_s'])}"
        table.add_row(
            Text(plain(group["group"])),
            str(group["size"] or "?"),
            *(str(group[key]) for key in ("enqueued", "completed", "matched", "open")),
            Text(stalled if group["stalled"] else "", style="red"),
        )
    return _cut(table, len(groups))


def nodes_table(nodes: Sequence[Mapping[str, Any]]) -> Table:
    worst = sorted(nodes, key=lambda n: (n["connected"], -(n["last_message_age_s"] or 0.0)))
    table = _table("node", "agent", "ranks", "last message")
    for node in worst[:MAX_ROWS]:
        table.add_row(
            Text(plain(node["node"])),
            Text("connected", style="green") if node["connected"] else Text("gone", style="red"),
            ranks_text(node["ranks"]),
            age_text(node["last_message_age_s"]),
        )
    return _cut(table, len(nodes))


def clocks_table(nodes: Sequence[Mapping[str, Any]]) -> Table:
    """Clock offsets of nodes, the worst known first; or why an offset is unknown."""
    unknown = float("inf")
    worst = sorted(
        nodes,
        key=lambda n: -(unknown if n["clock_uncertainty_s"] is None else n["clock_uncertainty_s"]),
    )
    table = _table("node", "clock", "offset in ms", "drift in ppm", "steps", "age")
    for node in worst[:MAX_ROWS]:
        reason, age_s = node["clock_reason"], node["clock_age_s"]
        table.add_row(
            Text(plain(node["node"])),
            Text(plain(reason or node["clock_state"]), style="yellow" if reason else "green"),
            _offset(node["clock_offset_s"], node["clock_uncertainty_s"]),
            "" if age_s is None else f"{node['clock_drift_ppm']:+.1f}",
            str(node["clock_steps"]),
            "" if age_s is None else duration_text(age_s),
        )
    return _cut(table, len(nodes))


def _offset(offset_s: float | None, uncertainty_s: float | None) -> str:
    if offset_s is None:
        return ""
    text = f"{offset_s * 1e3:+.3f}"
    return f"{text} ± {uncertainty_s * 1e3:.3f}" if uncertainty_s is not None else text


def memory_table(memory: Mapping[str, Any]) -> Table:
    """The key ``memory`` of ``/api/v1/jobs/{job}``."""
    table = _table("rank", "memory", "used", "of", "recent", "trend")
    for row in memory["series"]:
        used, capacity = row["used_bytes"], row["capacity_bytes"]
        recent = [value for value in row["recent_bytes"] if value is not None]
        still = _FLAT * (capacity or max(recent, default=0))
        table.add_row(
            str(row["rank"]),
            Text(plain(_series_name(row))),
            bytes_text(used) if used is not None else "unknown",
            f"{bytes_text(capacity)}, {used / capacity:.0%}" if capacity and used else "",
            sparkline(recent, still),
            _trend(recent, still, memory["recent_every_s"]),
        )
    if left_out := memory["ranks"] - len({row["rank"] for row in memory["series"]}):
        table.caption = f"{left_out} more ranks: --memory"
    return table


def rises_table(rises: Sequence[Mapping[str, Any]]) -> Table:
    """The key ``rises`` of the same; those that alarm are marked, and first."""
    table = _table("memory that rose")
    for rise in sorted(rises, key=lambda one: not one["alarming"]):
        mark = " <- alarms" if rise["alarming"] else ""
        table.add_row(Text(f"{plain(rise['text'])}{mark}", style="bold red" if mark else ""))
    return table


def sparkline(values: Sequence[int], still: float) -> str:
    """One bar per value, scaled from the lowest to the highest; a span below `still` looks flat."""
    if not values:
        return ""
    low, span = min(values), max(max(values) - min(values), still, 1)
    return "".join(_BARS[int((value - low) / span * (len(_BARS) - 1))] for value in values)


def _trend(recent: Sequence[int], still: float, every_s: float) -> Text:
    passed_s = (len(recent) - 1) * every_s
    if passed_s <= 0:
        return Text("")
    rise = recent[-1] - recent[0]
    if abs(rise) <= still:
        return Text("steady", style="dim")
    sign = "+" if rise > 0 else "-"
    return Text(
        f"{sign}{bytes_text(abs(rise) / passed_s)}/s", style="yellow" if rise > 0 else "green"
    )


def _series_name(row: Mapping[str, Any]) -> str:
    name = _NAMES.get(row["kind"], row["kind"])
    return f"{name} {row['device'][:_DEVICE_CHARS]}".rstrip()


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim", caption_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _cut(table: Table, wanted: int) -> Table:
    if wanted > table.row_count:
        table.caption = f"{wanted - table.row_count} more"
    return table


def cluster_table(cluster: Mapping[str, Any]) -> Table:
    """A row for each replica; `*` marks the one that answered."""
    table = _table("replica", "cells", "version", "HTTP", "")
    for replica in cluster["replicas"]:
        name = plain(replica["replica"])
        silent = replica["replica"] in cluster["incomplete"]
        mine = replica["replica"] == cluster["replica"]
        table.add_row(
            Text(f"{name} *" if mine else name, style="red" if silent else ""),
            str(replica["cells"]),
            plain(replica["version"]),
            Text(plain(replica["http"].partition("://")[2] or replica["http"])),
            "no answer" if silent else "not sure" if replica.get("sure") is False else "",
        )
    return table


def cluster_lines(cluster: Mapping[str, Any]) -> Iterator[Text]:
    """What is wrong: cells without an owner, replicas that are not sure, servers that may lose
    what they have confirmed."""
    cells = cluster["cells"]
    if unowned := cluster["unowned"]:
        verb = "cell has" if len(unowned) == 1 else "cells have"
        text = f"cluster: {len(unowned)} {verb} no owner: no replica watches their jobs"
        yield Text(text, style="bold yellow")
    for state, what in (("taking_over", "taken over"), ("draining", "handed over")):
        if count := cells.get(state):
            yield Text(f"cluster: {count} cells are being {what} by {cluster['replica']}")
    for replica in cluster["replicas"]:
        name = plain(replica["replica"])
        if replica["connected"] is False:
            yield Text(f"cluster: NATS does not answer {name}", style="bold yellow")
        if replica.get("sure") is False:
            text = f"cluster: {name} does not know whether it still has its jobs: it is silent"
            yield Text(text, style="bold yellow")
    if not cluster["durable"]:
        yield Text(
            "cluster: NATS is not durable: set `sync_interval: always` on its servers",
            style="yellow",
        )
