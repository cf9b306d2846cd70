"""Memory table: a row per series, with use, capacity and trend.

Only draws: the engine decides when memory becomes a finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from frd.forms import bytes_text
from frd.usage import plain

_BARS = "▁▂▃▄▅▆▇█"
_FLAT = 1 / 100
"""Share of the capacity: a smaller change is drawn as level."""
_NAMES = {
    "device_used": "device",
    "process_used": "device, of the process",
    "torch_reserved": "torch, reserved",
    "torch_allocated": "torch, tensors",
    "host_used": "host",
    "cgroup_used": "cgroup",
}
_DEVICE_CHARS = 12


def memory_table(memory: Mapping[str, Any]) -> Table:
    """What the service gives of a job's memory: `frd.service.http.memory_json`."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim", caption_justify="left")
    for column in ("rank", "memory", "used", "of", "lately", "trend"):
        table.add_column(column, overflow="fold")
    for row in memory["series"]:
        used, capacity = row["used_bytes"], row["capacity_bytes"]
        recent = [value for value in row["recent_bytes"] if value is not None]
        still = _FLAT * (capacity or max(recent, default=0))
        table.add_row(
            str(row["rank"]),
            Text(plain(_name(row))),
            bytes_text(used) if used is not None else "unknown",
            f"{bytes_text(capacity)}, {used / capacity:.0%}" if capacity and used else "",
            sparkline(recent, still),
            _trend(recent, still, memory["recent_every_s"]),
        )
    if left_out := memory["ranks"] - len({row["rank"] for row in memory["series"]}):
        table.caption = f"{left_out} more ranks: --memory"
    return table


def sparkline(values: Sequence[int], still: float) -> str:
    """One bar a value, from the lowest to the highest; those within `still` are level."""
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


def _name(row: Mapping[str, Any]) -> str:
    name = _NAMES.get(row["kind"], row["kind"])
    return f"{name} {row['device'][:_DEVICE_CHARS]}".rstrip()
