"""Which rank's memory rose first, decided from intervals of time alone.

The *onset* of a rise is the interval of aligned time in which it began. One onset is before another
only if the whole interval is. The first causes are the ranks before which there is no other: one
rank if it leads by more than the uncertainty of clocks and samples, else a *tie*. If the intervals
of (nearly) all ranks overlap, something happened to all of them, such as a step that needs more
memory, and no rank is the cause.

How far a rank has risen does not matter: the first may be the one that rises least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from frd.engine.memory.levels import BATCH_NS, REVEALED_NS, SECOND, WINDOW_NS
from frd.engine.memory.recent import BIN_NS
from frd.engine.memory.series import Series
from frd.engine.policy import Policy
from frd.model import Bools, Int32s, Int64s

NEARLY_ALL: Final = 0.8
"""Share of the ranks that counts as nearly all."""
_COMPARABLE: Final = 0.2
"""A rise of this share of the first reportable one may be the cause,"""
_URGENT: Final = 10
"""and so may a smaller one that will exhaust memory within this many times the horizon."""


class Side(NamedTuple):
    """Which memory; rises of one side are compared."""

    on_host: bool
    of_others: bool
    """Of processes that belong to no rank: no rank is accused."""


@dataclass(frozen=True, slots=True)
class Rises:
    """What rises, one row a rank, by rank: on the host, or on devices."""

    rank: Int32s
    row: Int64s
    """The series that shows the rank's onset."""
    lo: Int64s
    hi: Int64s
    risen: Int64s
    fresh: Bools
    """It began a moment ago."""
    urgent: Bools
    """It goes on growing, and there is not room for that for long."""
    visible: Bools
    young: Bools
    """It began while the rank was warming up."""
    reportable: Bools
    """Worth a finding, and in none yet."""
    incident: Int32s


@dataclass(frozen=True, slots=True)
class Cause:
    """Places in a `Rises`."""

    first: Int64s
    later: Int64s
    common: bool
    doubtful: Int64s
    """Early enough to be first, but still too small to know whether they matter."""


def current_rises(series: Series, side: Side, policy: Policy) -> Rises:
    """What rises now. The earliest series of a rank counts."""
    n = series.count
    row = np.flatnonzero(series.rising[:n] & (series.on_host[:n] == side.on_host))
    row = row[series.is_others(row) == side.of_others]
    unexplained = 2 * series.taken_by_others(row) > series.peak[row] - series.base[row]
    row = row[unexplained | ~series.shared[row]]
    lo, hi = series.lo[row], series.hi[row]
    order = np.lexsort((hi, series.rank[row]))
    row, lo, hi = row[order], lo[order], hi[order]
    is_due = series.runs_out(row, series.headroom(row)) | (not side.of_others)
    reportable = (series.reportable_at[row] > 0) & is_due
    rank = series.rank[row]
    start = np.flatnonzero(np.diff(rank, prepend=-1))
    first_row = row[start]
    if not len(row):
        start = np.zeros(0, np.int64)
    now, risen = series.end[row], series.peak[row] - series.base[row]
    grown_ns = now - series.grown_at[row]
    goes_on = (grown_ns <= BIN_NS) & (series.grown_at[row] > hi) | (now - hi <= BATCH_NS)
    mean = risen / np.maximum(now - series.lo[row], 1) * SECOND
    urgent = goes_on & (series.headroom(row) <= _URGENT * policy.memory_horizon_s * mean)
    visible = risen >= series.visible[row]
    visible &= series.ready_at[row] > 0  # else its onset may move
    return Rises(
        rank=rank[start],
        row=first_row,
        lo=lo[start],
        hi=hi[start],
        risen=_by_rank(np.maximum, risen, start),
        fresh=_by_rank(np.logical_or, now - hi <= REVEALED_NS, start),
        urgent=_by_rank(np.logical_or, urgent, start),
        visible=_by_rank(np.logical_or, visible, start),
        young=series.is_young(first_row),
        reportable=_by_rank(np.logical_or, reportable, start),
        incident=_by_rank(np.maximum, series.incident[row], start),
    )


def _by_rank(reduce: np.ufunc, column: np.ndarray, start: Int64s) -> np.ndarray:
    return reduce.reduceat(column, start) if len(column) else column


def with_failures(
    rises: Rises, rank: Int32s, lo: Int64s, hi: Int64s, requested: Int64s
) -> tuple[Rises, Int64s]:
    """The rises with ranks whose allocations failed, and the places of these ranks.

    If samples show that the rank rose before, that is its onset; a rise during warm-up is not,
    because all ranks rise then.
    """
    with_rise = np.flatnonzero(np.isin(rises.rank, rank) & rises.visible & ~rises.young)
    has_no_rise = ~np.isin(rank, rises.rank[with_rise])
    keep = np.union1d(np.flatnonzero(~np.isin(rises.rank, rank)), with_rise)
    count = int(has_no_rise.sum())
    yes, no = np.ones(count, np.bool_), np.zeros(count, np.bool_)
    added = Rises(
        rank[has_no_rise], np.full(count, -1), lo[has_no_rise], hi[has_no_rise],
        requested[has_no_rise], fresh=yes, urgent=yes, visible=yes, young=no, reportable=yes,
        incident=np.zeros(count, np.int32),
    )  # fmt: skip
    combined = Rises(
        *(
            np.concatenate((getattr(rises, name)[keep], getattr(added, name)))
            for name in Rises.__slots__
        )
    )
    return combined, np.flatnonzero(np.isin(combined.rank, rank))


def linked(rises: Rises, trigger: int, policy: Policy) -> Int64s:
    """Places of the rises that belong to one incident with the rise at `trigger`."""
    nearby = (rises.hi >= rises.lo[trigger] - WINDOW_NS) & (
        rises.lo <= rises.hi[trigger] + WINDOW_NS
    )
    nearby[trigger] = True
    return np.flatnonzero(nearby)


def matters(rises: Rises, lead: int) -> Bools:
    """Rises that may be the cause of an incident that a rise of `lead` bytes opened."""
    return (
        rises.visible
        & ~rises.young
        & (rises.reportable | rises.urgent | (rises.risen >= _COMPARABLE * lead))
    )


def first_cause(rises: Rises, trigger: int, ranks: int, policy: Policy) -> Cause:
    """The first ranks of an incident that the rise at `trigger` opened.

    `ranks` is how many ranks are watched.
    """
    nearby = linked(rises, trigger, policy)
    nearby = nearby[(rises.incident[nearby] == 0) | (nearby == trigger)]
    can_be_cause = matters(rises, int(rises.risen[trigger]))
    can_be_cause[trigger] = True
    candidates = nearby[can_be_cause[nearby]]
    limit = rises.hi[candidates].min()
    first = candidates[rises.lo[candidates] <= limit]
    later = candidates[rises.lo[candidates] > limit]
    small = nearby[~can_be_cause[nearby] & ~rises.young[nearby]]
    tiny = small[~rises.visible[small] & (rises.risen[small] >= _COMPARABLE * rises.risen[trigger])]
    together = _together(rises, np.concatenate((candidates, tiny)), int(limit))
    common = ranks > 1 and len(together) >= NEARLY_ALL * ranks
    if common:
        first = np.intersect1d(together, candidates)
        later = np.setdiff1d(candidates, first)
    doubtful = small[rises.fresh[small] & (rises.lo[small] <= limit)]
    return Cause(first, later, common, doubtful)


def _together(rises: Rises, places: Int64s, limit: int) -> Int64s:
    """Rises whose onsets overlap with the first, directly or through others."""
    ordered = places[np.argsort(rises.lo[places], kind="stable")]
    reach = np.maximum.accumulate(np.maximum(rises.hi[ordered], limit))
    apart = rises.lo[ordered][1:] > reach[:-1]
    return ordered[: int(apart.argmax()) + 1] if apart.any() else ordered
