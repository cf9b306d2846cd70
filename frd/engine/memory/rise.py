"""How far the memory of one rank has risen, and the owner of that memory.

The figures are read from the columns when an incident names the rank. The owner follows from the
other series of the rank that rose too: torch's allocator, the rest of the process, or another user
of the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from frd.engine.memory.walk.levels import SECOND
from frd.engine.memory.walk.series import Series
from frd.engine.views import Attribution
from frd.model import AlignedNs, MemoryEvent, MemoryEventKind


@dataclass(frozen=True, slots=True)
class MemoryRise:
    """The rise of one rank, as of when an incident named the rank."""

    rank: int
    device: str
    """Empty for host memory."""
    onset: tuple[int, int]
    """The interval (aligned ns) in which it began, as wide as the uncertainty of the clocks and the
    time between two samples make it."""
    attribution: Attribution
    risen_bytes: int = 0
    """Beyond the highest usual level; 0 when the rank only reported to be out of memory."""
    took_s: float = 0.0
    """From the onset until it last grew."""
    bytes_per_s: float = 0.0
    """Recent rate; 0 if it does not change, or no longer does."""
    at: int = 0
    """When this was found (aligned ns)."""
    headroom_bytes: int = -1
    """What is left of the capacity, whichever process uses it; -1 unknown."""
    requested_bytes: int = 0
    """Size of the request that failed; 0 if none did, or unknown."""
    out_of_memory: bool = False
    kill: str = ""
    """What the kernel killed, as text; empty if an allocation failed."""

    @property
    def exhausted_in_s(self) -> float | None:
        """None if it does not rise, or the capacity is unknown."""
        if self.bytes_per_s <= 0 or self.headroom_bytes < 0:
            return None
        return self.headroom_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Failure:
    """An allocation that failed, or an out-of-memory kill, at an aligned time."""

    event: MemoryEvent
    at: AlignedNs
    uncertainty_ns: int
    reported_at: AlignedNs

    @property
    def on_host(self) -> bool:
        return not self.event.device

    @property
    def onset(self) -> tuple[int, int]:
        return self.at - self.uncertainty_ns, self.at + self.uncertainty_ns


def rise_of(
    series: Series, row: int, onset: tuple[int, int], failures: Sequence[Failure]
) -> MemoryRise:
    """What a series shows of its rank's rise."""
    began_at = int(series.lo[row] + series.hi[row]) // 2
    return MemoryRise(
        rank=int(series.rank[row]),
        device=series.infos[row].device,
        onset=onset,
        risen_bytes=int(series.peak[row] - series.base[row]),
        took_s=float(series.grown_at[row] - began_at) / SECOND,
        bytes_per_s=float(series.rate[row]),
        at=int(series.end[row]),
        headroom_bytes=_headroom(series, row),
        attribution=series.attribution(row),
        requested_bytes=_requested(failures),
        out_of_memory=bool(failures),
        kill=_kill(failures),
    )


def failed_rise(rank: int, onset: tuple[int, int], failures: Sequence[Failure]) -> MemoryRise:
    """The rank ran out of memory, and no series shows a rise."""
    failure = failures[0]
    return MemoryRise(
        rank=rank,
        device=failure.event.device,
        onset=onset,
        attribution=Attribution.HOST if failure.on_host else Attribution.ALLOCATOR,
        requested_bytes=_requested(failures),
        out_of_memory=True,
        kill=_kill(failures),
    )


def leak_rise(series: Series, row: int) -> MemoryRise:
    """The rise of a leak over the window in which its trend was measured."""
    rate, window_s = float(series.leak_rate[row]), series.trend.window_s
    began_at = int(series.trend.since(np.array([row]))[0])
    risen = rise_of(series, row, (int(series.first[row]), began_at), ())
    return replace(risen, risen_bytes=round(rate * window_s), took_s=window_s, bytes_per_s=rate)


def _requested(failures: Sequence[Failure]) -> int:
    return max((failure.event.requested_bytes for failure in failures), default=0)


def _kill(failures: Sequence[Failure]) -> str:
    kills = [one.event for one in failures if one.event.kind is MemoryEventKind.OOM_KILL]
    return kills[0].detail if len(kills) == len(failures) > 0 else ""


def _headroom(series: Series, row: int) -> int:
    row_array = np.array([row])
    has_capacity = series.capacity_of(row_array)[0] > 0
    return int(series.headroom(row_array)[0]) if has_capacity else -1
