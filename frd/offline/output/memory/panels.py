"""What a picture of a recording shows: panels, lines, the band of the other ranks, and marks.

Numbers only; `frd.offline.output.memory.picture` draws them. A job has a panel for each kind of
memory that rose in it, or one for what its ranks report. Up to `MAX_LINES` lines are drawn each;
beyond that the suspects are, against the band of all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from frd.forms import counted, fold_ranks
from frd.model import Finding, Int64s, SeriesKind
from frd.offline.memory.analysis import MemoryAnalysis, MemoryJob, RecordedRise
from frd.offline.memory.feed import Lane
from frd.offline.memory.samples import Recorded
from frd.offline.memory.telemetry import ALLOCATED, RESERVED, USED
from frd.offline.output.memory.samples import extremes, main_column, ranks_of
from frd.offline.phases.rank_phases import PhaseSpan

Floats = NDArray[np.float64]

MAX_LINES: Final = 16
MAX_SUSPECTS: Final = 8
"""Lines that stand out, and rises and findings that have a number."""
MAX_JOBS: Final = 6
_POINTS: Final = 2_000
"""Of a line."""
_BUCKETS, _CELLS = 600, 8_000_000
"""Of the band: moments, and moments times ranks."""
_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class Line:
    rank: int
    label: str
    at_s: Floats
    """Since the beginning of the panel; NaN between two processes."""
    bytes: Floats


@dataclass(frozen=True, slots=True)
class Band:
    """Of many lines: parallel columns, a row a moment."""

    label: str
    at_s: Floats
    low: Floats
    quarter: Floats
    median: Floats
    three_quarters: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class Mark:
    """A rise, or a finding."""

    label: str
    """A number, or a letter if it is a finding; empty if there are too many."""
    begin_s: float
    end_s: float
    """The onset is between these."""
    rank: int | None
    """None if no single rank is the cause."""
    text: str


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    begin_ns: int
    length_s: float
    suspects: Sequence[Line]
    """Lines that stand out."""
    others: Sequence[Line]
    band: Band | None
    rises: Sequence[Mark]
    findings: Sequence[Mark]
    capacity: int
    """The highest of all ranks; 0 unknown."""
    phases: Sequence[PhaseSpan]
    note: str


@dataclass(frozen=True, slots=True)
class _Kind:
    title: str
    of_host: bool
    column: int


_DEVICE = _Kind("device memory", False, USED)
_RESERVED = _Kind("device memory reserved by torch", False, RESERVED)
_ALLOCATED = _Kind("device memory allocated by torch", False, ALLOCATED)
_HOST = _Kind("host memory", True, USED)
_KINDS: Final = {
    SeriesKind.DEVICE_USED: _DEVICE,
    SeriesKind.PROCESS_USED: _DEVICE,
    SeriesKind.TORCH_RESERVED: _RESERVED,
    SeriesKind.TORCH_ALLOCATED: _ALLOCATED,
    SeriesKind.HOST_USED: _HOST,
    SeriesKind.CGROUP_USED: _HOST,
}
_OF_RANKS: Final = {"device": _DEVICE, "host": _HOST, "allocator": _RESERVED}
"""By what most numbers of a rank count, see `MemoryRank.what`."""


def panels_of(analysis: MemoryAnalysis) -> Iterator[Panel]:
    """One or more for each job."""
    for job in analysis.jobs[:MAX_JOBS]:
        rises = [rise for rise in analysis.rises if rise.job == job.job]
        findings = [one for one in analysis.findings if one.job == job.job]
        kinds = dict.fromkeys(_KINDS[rise.series] for rise in rises)
        if not kinds:
            kinds = dict.fromkeys([_OF_RANKS[next(iter(job.ranks.values())).what]])
        for kind in kinds:
            own = [rise for rise in rises if _KINDS[rise.series] == kind]
            yield _panel(analysis, job, kind, own, findings)


def _panel(
    analysis: MemoryAnalysis,
    job: MemoryJob,
    kind: _Kind,
    rises: Sequence[RecordedRise],
    findings: Sequence[Finding],
) -> Panel:
    recorded, several = analysis.recorded, len(analysis.jobs) > 1
    begin = min(lane.first_ns for lane in job.lanes)
    end = max(lane.last_ns for lane in job.lanes)
    sources = _sources(job, kind)
    first = list(dict.fromkeys([s.rank for one in findings for s in one.suspects]))
    first += [one.rank for rise in _by_weight(rises) for one in rise.suspects]
    named = list(dict.fromkeys(first))[:MAX_SUSPECTS]
    if not named and len(sources) > MAX_LINES:
        rose = [rank for rise in _by_weight(rises) if not rise.common_cause for rank in rise.ranks]
        named = list(dict.fromkeys(rose))[:MAX_SUSPECTS]
    apart = {key: lanes for key, lanes in sources.items() if key[0] in named}
    rest = {key: lanes for key, lanes in sources.items() if key[0] not in named}
    lines = _lines(recorded, kind, apart, begin)
    lines.sort(key=lambda line: named.index(line.rank))
    crowded = len(sources) > MAX_LINES
    label = counted(len(rest), "other rank" if lines else "rank")
    return Panel(
        title=f"{job.job}: {kind.title}" if several else kind.title,
        begin_ns=begin,
        length_s=max((end - begin) / _S, 1e-3),
        suspects=lines,
        others=[] if crowded else _lines(recorded, kind, rest, begin),
        band=_band(recorded, kind, rest, (begin, end), label) if crowded and rest else None,
        rises=_rise_marks(rises, begin),
        findings=_finding_marks(findings, begin),
        capacity=max((lane.capacity for lanes in sources.values() for lane in lanes), default=0),
        phases=[span for rank in job.ranks for span in analysis.phases.of_rank(job.job, rank)],
        note=_note(job),
    )


def _note(job: MemoryJob) -> str:
    """Which ranks have no samples; empty if all have some."""
    if not job.missing_ranks:
        return ""
    world, count = max(job.world_size, len(job.ranks)), len(job.missing_ranks)
    noun = "rank" if count == 1 else "ranks"
    return f"no samples of {noun} {fold_ranks(job.missing_ranks)} ({count} of {world})"


def _by_weight(rises: Sequence[RecordedRise]) -> list[RecordedRise]:
    """Alarming ones first, then in order of onset."""
    return sorted(rises, key=lambda rise: (not rise.alarming, rise.onset))


# -- lines ---------------------------------------------------------------------------------------

_Sources = Mapping[tuple[int, int, str], Sequence[Lane]]
"""By rank, device and process (if several ran together): processes that followed each other."""


def _sources(job: MemoryJob, kind: _Kind) -> dict[tuple[int, int, str], list[Lane]]:
    found: dict[tuple[int, int, str], list[Lane]] = {}
    for lane in job.lanes:
        if lane.stream.of_host == kind.of_host:
            key = (lane.stream.rank, lane.stream.device, lane.source)
            found.setdefault(key, []).append(lane)
    return found


def _column(recorded: Recorded, kind: _Kind, lane: Lane) -> Int64s:
    """Row numbers of the known values, and these."""
    values = recorded.values[lane.rows, kind.column]
    if not (values >= 0).any():
        values = recorded.values[lane.rows, main_column(recorded, lane)]
    return values


def _lines(recorded: Recorded, kind: _Kind, sources: _Sources, begin_ns: int) -> list[Line]:
    devices: dict[int, set[int]] = {}
    for rank, device, _ in sources:
        devices.setdefault(rank, set()).add(device)
    out = []
    for (rank, device, source), lanes in sources.items():
        label = f"rank {rank}"
        label += f", device {device}" if len(devices[rank]) > 1 else ""
        label += f", {source}" if source else ""
        parts = [_points(recorded, kind, lane, begin_ns) for lane in lanes]
        at_s = np.concatenate([at for at, _ in parts])
        values = np.concatenate([value for _, value in parts])
        out.append(Line(rank, label, at_s, values))
    return out


def _points(recorded: Recorded, kind: _Kind, lane: Lane, begin_ns: int) -> tuple[Floats, Floats]:
    """Times and values of one process, and a gap."""
    values = _column(recorded, kind, lane)
    known = np.flatnonzero(values >= 0)
    known = known[extremes(values[known], _POINTS)] if len(known) else known
    at_s = (recorded.begin_ns[lane.rows][known] - begin_ns) / _S
    return np.append(at_s, np.nan), np.append(values[known].astype(np.float64), np.nan)


def _band(
    recorded: Recorded, kind: _Kind, sources: _Sources, span_ns: tuple[int, int], label: str
) -> Band | None:
    """Between two samples a line has the value of the last moment with one."""
    begin, end = span_ns
    longest = max(sum(map(len, lanes)) for lanes in sources.values())
    count = max(min(_BUCKETS, longest, _CELLS // len(sources)), 2)
    low, high, mean = (np.full((len(sources), count), np.nan) for _ in range(3))
    for row, lanes in enumerate(sources.values()):
        for lane in lanes:
            values = _column(recorded, kind, lane)
            known = values >= 0
            if not known.any():
                continue
            values = values[known]
            since = recorded.begin_ns[lane.rows][known] - begin
            bucket = np.minimum(since * (count / max(end - begin, 1)), count - 1).astype(np.int64)
            starts = np.flatnonzero(np.diff(bucket, prepend=-1))
            at = bucket[starts]
            sizes = np.diff(starts, append=len(values))
            span = slice(int(at[0]), int(at[-1]) + 1)
            filled = np.searchsorted(at, np.arange(span.start, span.stop), "right") - 1
            low[row, span] = np.minimum.reduceat(values, starts)[filled]
            high[row, span] = np.maximum.reduceat(values, starts)[filled]
            mean[row, span] = (np.add.reduceat(values.astype(np.float64), starts) / sizes)[filled]
    some = ~np.isnan(mean).all(axis=0)
    if not some.any():
        return None
    quarter, median, three_quarters = (
        np.nanpercentile(mean[:, some], percent, axis=0) for percent in (25, 50, 75)
    )
    at_s = np.flatnonzero(some).astype(np.float64) * ((end - begin) / (count - 1) / _S)
    return Band(
        label,
        at_s,
        np.nanmin(low[:, some], axis=0),
        quarter,
        median,
        three_quarters,
        np.nanmax(high[:, some], axis=0),
    )


# -- marks ---------------------------------------------------------------------------------------


def _rise_marks(rises: Sequence[RecordedRise], begin_ns: int) -> list[Mark]:
    """In order of onset; only the most important ones have a number."""
    numbered = {id(rise) for rise in _by_weight(rises)[:MAX_SUSPECTS]}
    marks: list[Mark] = []
    number = 0
    for rise in sorted(rises, key=lambda one: one.onset):
        number += id(rise) in numbered
        alone = not rise.common_cause and bool(rise.suspects)
        marks.append(
            Mark(
                str(number) if id(rise) in numbered else "",
                (rise.onset[0] - begin_ns) / _S,
                (rise.onset[1] - begin_ns) / _S,
                ranks_of(rise)[0] if alone else None,
                rise.text,
            )
        )
    return marks


def _finding_marks(findings: Sequence[Finding], begin_ns: int) -> list[Mark]:
    marks = []
    for number, one in enumerate(findings):
        at_s = (one.opened_at - begin_ns) / _S
        label = chr(ord("A") + number) if number < MAX_SUSPECTS else ""
        rank = one.suspects[0].rank if one.suspects else None
        kind = one.kind.value.replace("_", " ")
        marks.append(Mark(label, at_s, at_s, rank, f"finding, {kind}: {one.summary}"))
    return marks
