"""The replicas of a cluster in `frd status`, and what is wrong with it.

Draws the JSON of ``/api/v1/cluster`` and computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from frd.forms import bytes_text, duration_text
from frd.usage import plain

SLOW_S = 3.0
"""As in the alert FrdLogSlow: an append that takes longer."""


def cluster_table(cluster: Mapping[str, Any]) -> Table:
    """A row for each replica; `*` marks the one that answered."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for column in ("replica", "cells", "version", "HTTP", "not stored", "slowest append"):
        table.add_column(column, overflow="fold")
    for replica in cluster["replicas"]:
        name, unacked = plain(replica["replica"]), replica["unacked_bytes"]
        silent = replica["replica"] in cluster["incomplete"]
        mine = replica["replica"] == cluster["replica"]
        table.add_row(
            Text(f"{name} *" if mine else name, style="red" if silent else ""),
            str(replica["cells"]),
            plain(replica["version"]),
            Text(plain(replica["http"].partition("://")[2] or replica["http"])),
            "" if unacked is None else bytes_text(unacked),
            "no answer" if silent else _append_text(replica["append_s"]),
        )
    return table


def cluster_lines(cluster: Mapping[str, Any]) -> Iterator[Text]:
    """What is wrong: cells without an owner, a slow log, one that is not durable."""
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
        if (replica["append_s"] or 0.0) > SLOW_S:
            took = duration_text(replica["append_s"])
            stored = bytes_text(replica["unacked_bytes"] or 0)
            text = f"cluster: the log of {name} is slow: {took} for an append, {stored} not stored"
            yield Text(text, style="bold yellow")
    if not cluster["durable"]:
        yield Text(
            "cluster: the log is not durable: set `sync_interval: always` on the NATS servers",
            style="yellow",
        )


def _append_text(append_s: float | None) -> str:
    if append_s is None:
        return ""
    return f"{append_s * 1e3:.0f} ms" if append_s < 1 else duration_text(append_s)
