"""Immutable views of a running cluster, for metrics and HTTP.

The engine creates them; all other code only reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from frd.model import (
    AlignedNs,
    AttemptKey,
    Finding,
    Float64s,
    Int32s,
    Int64s,
    RankInfo,
    RankState,
    RankStatus,
    SeriesInfo,
    UInt8s,
)


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group in a `StatusView`."""

    group_id: str
    label: str
    size: int
    """0 when the membership is unknown."""
    open_collectives: int
    """Collectives that some rank joined and some expected rank has not completed."""
    stalled_collectives: int
    stall_s: float
    """Age of the oldest stalled collective, 0 when none."""
    matched: int
    """Collectives completed by every member since the attempt was first seen."""
    enqueued: int
    """Highest seq that any member enqueued."""
    completed: int
    """Highest seq that every member completed."""
    threshold_s: float = 0.0
    """How long a wait in this group may take before it is a stall."""


@dataclass(frozen=True, slots=True)
class GroupColumns:
    """What metrics sum over groups, one element a group: a large job has a hundred thousand groups,
    and to make a `GroupView` of each takes a second. See `GroupView` for the meaning of each."""

    label: Sequence[str]
    open_collectives: Int64s
    stalled_collectives: Int64s
    stall_s: Float64s
    matched: Int64s
    threshold_s: Float64s

    @classmethod
    def of(cls, groups: Sequence[GroupView]) -> GroupColumns:
        return cls(
            label=[group.label for group in groups],
            open_collectives=np.array([group.open_collectives for group in groups], np.int64),
            stalled_collectives=np.array([group.stalled_collectives for group in groups], np.int64),
            stall_s=np.array([group.stall_s for group in groups], np.float64),
            matched=np.array([group.matched for group in groups], np.int64),
            threshold_s=np.array([group.threshold_s for group in groups], np.float64),
        )


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank in a `StatusView`."""

    info: RankInfo
    status: RankStatus
    as_of: AlignedNs
    """The time up to which the rank's telemetry is complete; 0 before its first message."""
    state_since: AlignedNs
    """When the state of `status` began; 0 unknown."""
    waiting_in: str
    """``all_reduce #7 on default_pg``, empty when the rank is in no collective."""
    waiting_s: float


STATES: Final = (RankState.LIVE, RankState.SILENT, RankState.EXITED, RankState.FINISHED)
"""By the numbers that stand for them in columns."""


@dataclass(frozen=True, slots=True)
class RankColumns:
    """What is counted and compared over all ranks, one element a rank, sorted by rank."""

    rank: Int32s
    state: UInt8s
    """Index in `STATES`."""
    as_of: Int64s
    """Aligned; see `RankView.as_of`."""

    @classmethod
    def of(cls, ranks: Iterable[RankView]) -> RankColumns:
        rows = [(r.info.rank, STATES.index(r.status.state), r.as_of) for r in ranks]
        rank, state, as_of = np.array(rows, np.int64).reshape(-1, 3).T
        return cls(rank.astype(np.int32), state.astype(np.uint8), as_of)


@dataclass(frozen=True, slots=True)
class Histogram:
    """A classic histogram: `counts[i]` values fell into (bounds[i-1], bounds[i]]; last is +Inf."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


def _no_bytes() -> Int64s:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class MemoryView:
    """The memory of an attempt in a `StatusView`: S series, sorted by rank, with R recent values.

    Columns, because a large job has a hundred thousand series.
    """

    series: Sequence[SeriesInfo] = ()
    used: Int64s = field(default_factory=_no_bytes)
    """(S,) the newest value in bytes; -1 before the first one."""
    capacity: Int64s = field(default_factory=_no_bytes)
    """(S,) 0 unknown."""
    recent: Int64s = field(default_factory=lambda: _no_bytes().reshape(0, 0))
    """(S, R) one value for each `every_s`, the newest last; -1 none."""
    every_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt of one job in a `StatusView`."""

    key: AttemptKey
    world_size: int
    ended: bool
    """All of its ranks are gone, or no agent has reported any of them for a long time."""
    ranks: Sequence[RankView]
    """Sorted by rank; only ranks that were ever declared."""
    groups: Sequence[GroupView]
    rank_columns: RankColumns
    """Of `ranks`."""
    group_columns: Callable[[], GroupColumns]
    """Of `groups`; made when it is called, in whatever thread."""
    skew: dict[str, Histogram] = field(default_factory=dict)
    """Arrival skew in seconds by op."""
    duration: dict[str, Histogram] = field(default_factory=dict)
    """Created to last discovered completion in seconds by op, if the backend records it."""
    gap_entries: int = 0
    memory: MemoryView = field(default_factory=MemoryView)
    superseded: bool = False
    """Another attempt of the job runs instead."""


@dataclass(frozen=True, slots=True)
class StatusView:
    """All that the engine knows at one time."""

    at: AlignedNs
    attempts: Sequence[AttemptView]
    findings: Sequence[Finding]
    """Open findings, and closed findings that are still in memory."""
    evicted: dict[str, int] = field(default_factory=dict)
    """Number of items dropped to stay within limits, by kind of item."""
