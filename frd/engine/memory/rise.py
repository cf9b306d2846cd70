"""One rank's rise in figures: how far, how fast, what is left, and whose memory it is.

Everything is read from the columns at the moment of a verdict. Whose memory it is follows from
which series of the rank rose along: the allocator's, the process's beyond it, or the device's
beyond both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from frd.engine.memory.baseline import SECOND
from frd.engine.memory.series import KINDS, Series
from frd.engine.memory.verdict import Attribution, MemoryRise
from frd.model import AlignedNs, MemoryEvent, SeriesKind


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed allocation, or an out-of-memory kill, at an aligned time."""

    event: MemoryEvent
    at: AlignedNs
    uncertainty_ns: int
    told_at: AlignedNs

    @property
    def on_host(self) -> bool:
        return not self.event.device


def rise_of(
    series: Series,
    row: int,
    onset: tuple[int, int],
    device: str,
    failures: Iterable[Failure],
) -> MemoryRise:
    """What a series shows of its rank's rise."""
    one = np.array([row])
    knows = bool(series.capacity_of(one)[0] > 0)
    begun = int(series.lo[row] + series.hi[row]) // 2
    events = list(failures)
    return MemoryRise(
        rank=int(series.rank[row]),
        kind=KINDS[series.kind[row]],
        device=device,
        onset=(AlignedNs(onset[0]), AlignedNs(onset[1])),
        risen_bytes=int(series.peak[row] - series.high[row]),
        took_s=float(series.end[row] - begun) / SECOND,
        bytes_per_s=float(series.rate[row]),
        headroom_bytes=int(series.headroom(one)[0]) if knows else -1,
        attribution=attribution(series, row),
        requested_bytes=max((one.event.requested_bytes for one in events), default=0),
        out_of_memory=bool(events),
    )


def failed(rank: int, onset: tuple[int, int], failures: Iterable[Failure]) -> MemoryRise:
    """Nobody saw the rank's memory rise, but it ran out of it."""
    events = list(failures)
    of = events[0].event
    on_host = not of.device
    return MemoryRise(
        rank=rank,
        kind=SeriesKind.HOST_USED if on_host else SeriesKind.DEVICE_USED,
        device=of.device,
        onset=(AlignedNs(onset[0]), AlignedNs(onset[1])),
        risen_bytes=0,
        took_s=0.0,
        bytes_per_s=0.0,
        headroom_bytes=-1,
        attribution=Attribution.HOST if on_host else Attribution.ALLOCATOR,
        requested_bytes=max(one.event.requested_bytes for one in events),
        out_of_memory=True,
    )


def attribution(series: Series, row: int) -> Attribution:
    """Whose memory it is that this series shows."""
    n = series.count
    near = (series.rank[:n] == series.rank[row]) & (series.pool[:n] == series.pool[row])
    mine = np.flatnonzero(near & (series.value[:n] >= 0))
    kinds = [KINDS[kind] for kind in series.kind[mine]]
    risen = dict(zip(kinds, series.risen(mine).tolist(), strict=True))
    half = int(series.risen(np.array([row]))[0]) / 2
    match KINDS[series.kind[row]]:
        case SeriesKind.HOST_USED:
            return Attribution.HOST
        case SeriesKind.CGROUP_USED:
            return Attribution.CGROUP
        case SeriesKind.TORCH_RESERVED | SeriesKind.TORCH_ALLOCATED:
            return Attribution.ALLOCATOR
        case of:
            torch = risen.get(SeriesKind.TORCH_RESERVED, risen.get(SeriesKind.TORCH_ALLOCATED))
            process = risen.get(SeriesKind.PROCESS_USED)
            if torch is not None and torch >= half:
                return Attribution.ALLOCATOR
            if of is SeriesKind.PROCESS_USED or (process is not None and process >= half):
                return Attribution.PROCESS if torch is None else Attribution.DRIVER
            if process is not None:
                return Attribution.OTHER
            return Attribution.UNKNOWN if torch is None else Attribution.OUTSIDE
