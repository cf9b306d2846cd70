"""Memory in the API: every rise, and of the series the requested ones, or the few worst.

A job of 16,384 ranks has a hundred thousand series; a screen has room for some. The worst series is
the one nearest to its capacity if it continues as it did recently. Only one series a rank is shown,
so that a rank whose device, process and allocator rise together takes one row and not four. Cgroups
come last, because the ranks of a node share them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, TypeAlias

import numpy as np

from frd.engine.views import AttemptView, MemoryView
from frd.model import Float64s, Int64s, SeriesKind

MAX_WORST: Final = 6
"""Ranks whose memory is shown by default."""
_UNKNOWN: Final = -10.0
"""Less than any share, because a series cannot fall by more than it has."""

Json: TypeAlias = dict[str, Any]


def memory_json(memory: MemoryView, ranks: Collection[int] | None) -> Json:
    """All series of `ranks`; if None, the worst series of a few ranks."""
    known = [i for i, of in enumerate(memory.series) if ranks is None or of.rank in ranks]
    rows = known if ranks is not None else _worst(memory)
    return {
        "ranks": len({memory.series[i].rank for i in known}),
        "recent_every_s": memory.every_s,
        "series": [_row(memory, i) for i in rows],
    }


def rises_json(view: AttemptView, utc_ahead_ns: int) -> list[Json]:
    """By onset; each suspect with its node."""
    return [
        {
            **shown,
            "suspects": [{**one, "node": view.node_of(one["rank"])} for one in shown["suspects"]],
        }
        for shown in (rise.to_json(utc_ahead_ns) for rise in view.memory.rises)
    ]


def _worst(memory: MemoryView) -> list[int]:
    rows: dict[int, int] = {}
    for i in np.argsort(-_heading(memory), kind="stable").tolist():
        if len(rows) == MAX_WORST:
            break
        rows.setdefault(memory.series[i].rank, i)
    return list(rows.values())


def _heading(memory: MemoryView) -> Float64s:
    """The share of its capacity that each series has if it rises by as much again; a value below
    all shares for series without a capacity."""
    share: Float64s = np.full(len(memory.series), _UNKNOWN)
    known = (memory.capacity > 0) & (memory.used >= 0)
    rise = memory.used - _earliest(memory)
    share[known] = (memory.used + rise)[known] / memory.capacity[known]
    share[[of.kind is SeriesKind.CGROUP_USED for of in memory.series]] += 2 * _UNKNOWN
    return share


def _earliest(memory: MemoryView) -> Int64s:
    """The earliest of the recent values; the newest value if there is none."""
    if not memory.recent.size:
        return memory.used
    has = memory.recent >= 0
    first = memory.recent[np.arange(len(has)), has.argmax(axis=1)]
    return np.where(has.any(axis=1), first, memory.used)


def _row(memory: MemoryView, row: int) -> Json:
    of, used = memory.series[row], int(memory.used[row])
    return {
        "rank": of.rank,
        "kind": of.kind.value,
        "device": of.device,
        "used_bytes": used if used >= 0 else None,
        "capacity_bytes": int(memory.capacity[row]) or None,
        "recent_bytes": [value if value >= 0 else None for value in memory.recent[row].tolist()],
    }
