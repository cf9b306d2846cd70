"""In which phases memory grew: bytes gained in each phase, without counting any byte twice.

Time is cut where the innermost phase of a rank changes. A piece of time gained the last value in it
minus the last value before it. So growth counts in the phase whose sample shows it first, and the
sum over all phases of a series is its last value minus its first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from frd.model import Int64s, SeriesKind
from frd.offline.phases.rank_phases import Pieces, RankPhases, innermost


class PhaseSeries(NamedTuple):
    """Samples of one series of a rank, in the order of time."""

    job: str
    rank: int
    kind: SeriesKind
    times: Int64s
    """On the clock of the host."""
    values: Int64s
    """Bytes; -1 for none."""


@dataclass(frozen=True, slots=True)
class PhaseGain:
    """What one series of all ranks of a job gained in one phase, without the phases inside it."""

    job: str
    kind: SeriesKind
    path: tuple[str, ...]
    """Empty for what was gained outside of all phases."""
    source: str
    """Of the phases; empty outside of them."""
    spans: int
    ranks: int
    """Ranks that were in it, and have samples."""
    bytes_gained: int
    """The sum over ranks; negative if memory was freed."""
    most_bytes: int
    most_rank: int
    """The rank that gained the most in it."""
    seconds: float
    """The sum over ranks, within the time of their samples."""
    shared: bool
    """At times another thread of a rank was in a phase, too. The main thread's phase counts, or
    the most recent one if the main thread is in no phase."""

    def to_json(self) -> dict[str, Any]:
        values = msgspec.to_builtins(self) | {"path": list(self.path)}
        named = {"job": values.pop("job"), "series": values.pop("kind")}
        return {**named, **values, "source": self.source or None}


class _Gained(NamedTuple):
    """What one rank gained in a phase."""

    rank: int
    source: str
    spans: int
    ns: int
    shared: bool
    bytes: int


def gains_of(
    series: Iterable[PhaseSeries], phases: Mapping[tuple[str, int], RankPhases]
) -> list[PhaseGain]:
    """The largest gain first."""
    by_rank: dict[tuple[str, int, SeriesKind], list[PhaseSeries]] = {}
    for one in series:
        known = one.values >= 0
        if known.any():
            some = one._replace(times=one.times[known], values=one.values[known])
            by_rank.setdefault((one.job, one.rank, one.kind), []).append(some)
    found: dict[tuple[str, SeriesKind, tuple[str, ...]], list[_Gained]] = {}
    cut: dict[tuple[str, int], _Cut] = {}
    for (job, rank, kind), of_rank in by_rank.items():
        if (job, rank) not in cut:
            cut[job, rank] = _Cut.of(phases.get((job, rank), RankPhases.of(())))
        for path, gained in cut[job, rank].sums(of_rank):
            found.setdefault((job, kind, path), []).append(gained)
    rows = [_row(*key, gains) for key, gains in found.items()]
    return sorted(rows, key=lambda row: (-row.bytes_gained, row.job, row.kind, row.path))


def _row(job: str, kind: SeriesKind, path: tuple[str, ...], gains: Sequence[_Gained]) -> PhaseGain:
    most = max(gains, key=lambda one: (one.bytes, -one.rank))
    return PhaseGain(
        job=job,
        kind=kind,
        path=path,
        source=gains[0].source,
        spans=sum(one.spans for one in gains),
        ranks=len(gains),
        bytes_gained=sum(one.bytes for one in gains),
        most_bytes=most.bytes,
        most_rank=most.rank,
        seconds=sum(one.ns for one in gains) / 1e9,
        shared=any(one.shared for one in gains),
    )


@dataclass(frozen=True, slots=True)
class _Cut:
    """The time of a rank, cut into pieces; the first one has no begin and the last one no end."""

    pieces: Pieces
    path: Int64s
    """Of each piece: index in `paths`."""
    paths: Sequence[tuple[str, ...]]
    """The empty one first."""
    spans: Sequence[int]
    """By path, how many."""
    source: str

    @classmethod
    def of(cls, phases: RankPhases) -> _Cut:
        some = phases.main
        pieces = innermost(some.begin, some.stop, some.thread, some.is_main)
        numbers: dict[tuple[str, ...], int] = {(): 0}
        of_span = [numbers.setdefault(span.path, len(numbers)) for span in some.spans]
        path = np.array([*of_span, 0], np.int64)[pieces.span]  # -1 finds the last
        spans = np.bincount(of_span, minlength=1).tolist()  # each path has one but the empty one
        return cls(pieces, np.append(0, path), list(numbers), spans, some.source)

    def sums(self, series: Sequence[PhaseSeries]) -> Iterator[tuple[tuple[str, ...], _Gained]]:
        """By path; the series are of one kind. Times count from their first sample to the last."""
        gained, lasted = np.zeros((2, len(self.paths)), np.int64)
        for one in series:
            # The last sample before each cut; before the first sample there was no growth.
            before = np.searchsorted(one.times, self.pieces.cuts, "left") - 1
            values = one.values[np.maximum(before, 0)]
            values = np.concatenate((one.values[:1], values, one.values[-1:]))
            np.add.at(gained, self.path, np.diff(values))
        first = min(int(one.times[0]) for one in series)
        last = max(int(one.times[-1]) for one in series)
        cuts = np.clip(np.concatenate(([first], self.pieces.cuts, [last])), first, last)
        np.add.at(lasted, self.path, np.diff(cuts))
        shared = set(self.path[1:][self.pieces.shared].tolist())
        columns = zip(self.paths, self.spans, lasted.tolist(), gained.tolist(), strict=True)
        for at, (path, spans, ns, some) in enumerate(columns):
            source = self.source if path else ""
            yield path, _Gained(series[0].rank, source, spans, ns, at in shared, some)
