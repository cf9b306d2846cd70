"""Immutable views of a running cluster, for metrics and HTTP.

The engine creates them; all other code only reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Protocol

import numpy as np

from frd.forms import utc_text
from frd.model import (
    AlignedNs,
    AttemptKey,
    Bools,
    Confidence,
    Failure,
    Finding,
    Float64s,
    GroupInfo,
    Int32s,
    Int64s,
    RankInfo,
    RankState,
    RankStatus,
    SeriesInfo,
    SeriesKind,
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


@dataclass(frozen=True, slots=True)
class Histogram:
    """A classic histogram: `counts[i]` values fell into (bounds[i-1], bounds[i]]; last is +Inf."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


def _no_bytes() -> Int64s:
    return np.empty(0, np.int64)


class Attribution(StrEnum):
    """Whose memory a rise is."""

    ALLOCATOR = "torch's allocator"
    DRIVER = "NCCL or the driver"
    """The process's, beyond what torch's allocator holds."""
    PROCESS = "the rank's process"
    """How much of it belongs to torch is unknown."""
    OUTSIDE = "NCCL, the driver or another process"
    """Not torch's; what the rank's process uses is unknown."""
    UNKNOWN = "unknown"
    """Only the sum over the device is known."""
    HOST = "host memory of the rank"


@dataclass(frozen=True, slots=True)
class RiseSuspect:
    rank: int
    confidence: Confidence


@dataclass(frozen=True, slots=True)
class Rise:
    """Sizes are bytes, times aligned ns."""

    ranks: tuple[int, ...]
    """All ranks whose memory rose then."""
    suspects: tuple[RiseSuspect, ...]
    """Ranks that may each have been first; empty if all rose together, or nothing decides."""
    series: SeriesKind
    """The series that shows the onset of the first rank."""
    device: str
    """Empty for host memory."""
    onset: tuple[int, int]
    """Not before, and not after."""
    end_ns: int
    """When it fell back or stopped growing; else the newest sample."""
    bytes: int
    """From its usual level to the highest value."""
    took_s: float
    """From the earliest onset until it last grew."""
    peak_bytes: int
    fell_back: bool
    alarming: bool
    """Memory will run out, or has: there is a finding."""
    common_cause: bool
    """(Nearly) all ranks rose together: none of them is the cause."""
    next_rank: int | None
    """The rank whose memory rose next."""
    lead_ns: int
    """How much later that was, at least, beyond what clocks and samples leave open."""
    unknown: tuple[int, ...]
    """Ranks that may have risen as early: their samples are missing, or their rise is small yet."""
    attribution: Attribution
    text: str
    """One line for people, without the phase."""

    @property
    def bytes_per_s(self) -> float:
        """On average while it grew."""
        return self.bytes / self.took_s if self.took_s else 0.0

    def to_json(self, utc_ahead_ns: int = 0) -> dict[str, Any]:
        """The common keys of a rise in the API and in `frd analyze --memory --json`."""
        earliest, latest = (utc_text(at + utc_ahead_ns) for at in self.onset)
        return {
            "suspects": [
                {"rank": one.rank, "confidence": one.confidence.value} for one in self.suspects
            ],
            "ranks": list(self.ranks),
            "series": self.series.value,
            "device": self.device or None,
            "onset": {"earliest": earliest, "latest": latest},
            "ended": utc_text(self.end_ns + utc_ahead_ns),
            "bytes": self.bytes,
            "took_s": self.took_s,
            "bytes_per_s": round(self.bytes_per_s),
            "peak_bytes": self.peak_bytes,
            "fell_back": self.fell_back,
            "alarming": self.alarming,
            "common_cause": self.common_cause,
            "next_rank": self.next_rank,
            "lead_s": self.lead_ns / 1e9 if self.next_rank is not None else None,
            "unknown": list(self.unknown),
            "whose": self.attribution.value,
            "text": self.text,
        }


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
    """At least; a value is of all samples from its time to that of the next one."""
    first_at: Int64s = field(default_factory=_no_bytes)
    """(S,) the time of the first known value of `recent`, aligned ns."""
    last_at: Int64s = field(default_factory=_no_bytes)
    """(S,) that of the last one; those between are evenly apart, nearly."""
    rises: Sequence[Rise] = ()
    """Those of the last minutes, alarming or not, by onset; at most 16."""


@dataclass(frozen=True, slots=True)
class MissingOps:
    """Ops that other ranks wait in and that these have not joined: one element for each."""

    rank: Int64s = field(default_factory=_no_bytes)
    group: Int64s = field(default_factory=_no_bytes)
    """Index in `RecentOps.groups`."""
    seq: Int64s = field(default_factory=_no_bytes)
    op: Int64s = field(default_factory=_no_bytes)
    since: Int64s = field(default_factory=_no_bytes)
    """When the first rank began to wait, aligned ns."""


@dataclass(frozen=True, slots=True)
class RecentOps:
    """The last ops of some ranks: one element an op, sorted by rank, then by enqueue. All times are
    aligned ns."""

    rank: Int64s
    group: Int64s
    """Index in `groups`."""
    seq: Int64s
    op: Int64s
    """Index in `ops`; -1 unknown."""
    enqueued: Int64s
    started: Int64s
    """0 unknown."""
    ended_from: Int64s
    """The earliest time at which it may have ended."""
    ended: Int64s
    """The latest time at which it may have ended; 0: it is open."""
    failed: Bools
    groups: Sequence[GroupInfo] = ()
    ops: Sequence[str] = ()
    missing: MissingOps = field(default_factory=MissingOps)
    uncertainty_ns: Mapping[int, int] = field(default_factory=dict)
    """By rank: how far its times may be off; ranks with an unknown clock are absent."""
    reached: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """By rank and group: the seqs up to which the rank has joined and completed all ops."""


CELL_STATES: Final = ("none", "ok", "unknown", "waiting", "stuck", "missing", "gone")
"""By the numbers in `GroupMap.cells`; a larger number is worse."""


@dataclass(frozen=True, slots=True)
class GroupMap:
    """How each rank is doing in the groups of each label."""

    labels: Sequence[str]
    groups: Sequence[int]
    """How many groups have the label."""
    members: Sequence[int]
    """How many ranks are in them."""
    cells: UInt8s
    """(labels, ranks) index in `CELL_STATES`: the worst of the rank's groups with the label."""
    more: int = 0
    """Labels that are left out."""

    @classmethod
    def empty(cls) -> GroupMap:
        return cls((), (), (), np.zeros((0, 0), np.uint8))


@dataclass(frozen=True, slots=True)
class OpenOp:
    """A collective that some ranks wait in and others have not joined."""

    group_id: str
    label: str
    seq: int
    op: str
    since: AlignedNs
    """When the first rank began to wait."""
    stalled: bool
    waiting: Int64s
    """Ranks, ascending."""
    missing: Int64s
    """Known not to have joined."""
    unknown: Int64s
    """Members of which it is not known whether they have joined."""


@dataclass(frozen=True, slots=True)
class RankGroup:
    """How far one rank has come in one of its groups."""

    group_id: str
    label: str
    size: int
    enqueued: int
    completed: int
    highest: int
    """That any member has enqueued."""
    state: str
    """Of `CELL_STATES`."""


class History(Protocol):
    """What pictures show of an attempt; every method computes, in whatever thread."""

    @property
    def at(self) -> AlignedNs:
        """When it was so."""

    def ops(self, ranks: Collection[int], most: int, until: AlignedNs | None = None) -> RecentOps:
        """The last `most` ops of each of these ranks, of those that any of them had enqueued by
        `until`."""

    def group_map(self, most: int) -> GroupMap:
        """At most so many labels, those with the worst cells first."""

    def open_ops(self, most: int) -> tuple[list[OpenOp], int]:
        """What is waited in, the longest wait first, and how many more there are."""

    def groups_of(self, rank: int, most: int) -> tuple[list[RankGroup], int]:
        """The groups of a rank, the worst first, and how many more there are."""


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt of one job in a `StatusView`."""

    key: AttemptKey
    world_size: int
    ended: bool
    """All of its ranks are gone, or it is lost, or no agent has reported any of them for a long
    time."""
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
    transfer: dict[str, Histogram] = field(default_factory=dict)
    """The part of `duration` after the last member had joined."""
    untimed: int = 0
    """Collectives that are not in `duration`: a member's recorder does not time their end."""
    gap_entries: int = 0
    memory: MemoryView = field(default_factory=MemoryView)
    lost: bool = False
    """Ranks may run, but all agents have gone on purpose, and nothing is heard of it any more."""
    superseded: bool = False
    """Another attempt of the job runs instead."""
    not_opened: int = 0
    """Incidents without a finding, because the job has as many open as it may."""
    matched: int = 0
    """Collectives completed by every member, in all groups, since the attempt was first seen."""
    history: History | None = None
    """None in views that were not made by an engine."""
    failure: Failure | None = None
    """How the job died; None if it did not, or may still start again."""
    unread: Mapping[int, str] = field(default_factory=dict)
    """Why collectives of these ranks cannot be read, as their agents report."""
    namespace: str = ""
    """The Kubernetes namespace of most of its ranks; empty: none, or unknown."""

    def node_of(self, rank: int) -> str:
        """Empty: the rank was never declared."""
        row = int(np.searchsorted(self.rank_columns.rank, rank))
        found = self.ranks[row : row + 1]
        return found[0].info.node if found and found[0].info.rank == rank else ""

    @classmethod
    def forgotten(cls, key: AttemptKey, failure: Failure) -> AttemptView:
        """An attempt of which only is known how it failed. Any other attempt of the job that is
        known and not superseded is newer."""
        no, none = np.empty(0, np.int64), np.empty(0, np.float64)
        ranks = RankColumns(no.astype(np.int32), no.astype(np.uint8), no)
        groups = GroupColumns((), no, no, none, no, none)
        view = cls(key, failure.world_size, True, (), (), ranks, lambda: groups, superseded=True)
        return replace(view, failure=failure)


@dataclass(frozen=True, slots=True)
class StatusView:
    """All that the engine knows at one time."""

    at: AlignedNs
    attempts: Sequence[AttemptView]
    findings: Sequence[Finding]
    """Open findings, and closed findings that are still in memory."""
    evicted: dict[str, int] = field(default_factory=dict)
    """Number of items dropped to stay within limits, by kind of item."""
    utc_ahead_ns: int = 0
    """To be added to all times but those of findings, which are UTC."""
    going_on: Sequence[Finding] = ()
    """Findings that were closed by hand and whose trouble lasts."""
