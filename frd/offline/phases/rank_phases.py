"""The spans of one rank, and which of them was the innermost one at which time.

The innermost span is the one that began last of those that have not ended. Spans of one thread are
usually nested; they need not be.

Of a phase, the bytes that memory gained in it are counted without counting any byte twice. Time is
cut where the innermost phase of a rank changes. A piece of time gained the last value in it minus
the last value before it. So growth counts in the phase whose sample shows it first, and the sum
over all phases of a series is its last value minus its first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from frd.model import Bools, Int64s, SeriesKind
from frd.offline.io.spans import longest
from frd.offline.phases.answer import Certainty, PhaseAnswer

MAX_CANDIDATES: Final = 16
_NONE = PhaseAnswer(Certainty.NONE)
EVENTS: Final = "phase events"
TRACES: Final = "traces"
"""Where a span is from."""

MAX_SPANS: Final = 1 << 18
"""Most spans of each source, about 100 MB; of more than that the shortest are left out."""
LAST_NS: Final = 1 << 62
"""No clock shows more; a damaged line may."""

Process: TypeAlias = tuple[str, int, int, str]
"""Job, rank, pid and session, as events of telemetry have them."""


class PhaseThread(NamedTuple):
    """A thread of a rank that was in phases."""

    job: str
    rank: int
    host: str
    pid: int
    session: str
    thread_id: int
    name: str

    @property
    def is_main(self) -> bool:
        return self.name == "MainThread" or self.thread_id == self.pid


class PhaseSpan(NamedTuple):
    """One scope. A time is in it from `begin_ns` on, and before `end_ns`."""

    thread: PhaseThread
    path: tuple[str, ...]
    """Outermost phase first; its own name is the last."""
    begin_ns: int
    """On the clock of the host, as is `end_ns`."""
    end_ns: int
    """When the recording ended, if it is open."""
    is_open: bool
    scope_id: str
    source: str
    """`EVENTS` or `TRACES`."""

    @property
    def stop_ns(self) -> int:
        """The first time after it: the last sample of a recording is in an open scope."""
        return self.end_ns + self.is_open


def longest_of(spans: Sequence[PhaseSpan]) -> Sequence[PhaseSpan]:
    """At most `MAX_SPANS` of them, the longest, in the same order."""
    if len(spans) <= MAX_SPANS:
        return spans
    lengths = np.array([span.end_ns - span.begin_ns for span in spans], np.int64)
    return [spans[at] for at in longest(lengths, MAX_SPANS).tolist()]


@dataclass(frozen=True, slots=True)
class RankSpans:
    """Those of one source; parallel columns."""

    spans: Sequence[PhaseSpan]
    """By begin; of spans that begin together the outer ones first."""
    begin: Int64s
    stop: Int64s
    thread: Sequence[int]
    is_main: Sequence[bool]
    source: str

    @classmethod
    def of(cls, spans: Iterable[PhaseSpan], source: str) -> RankSpans:
        """`spans` of a thread that begin together: the outer ones first."""
        some = sorted((one for one in spans if one.source == source), key=lambda one: one.begin_ns)
        threads: dict[object, int] = {}
        return cls(
            some,
            np.array([one.begin_ns for one in some], np.int64),
            np.array([one.stop_ns for one in some], np.int64),
            [threads.setdefault(one.thread, len(threads)) for one in some],
            [one.thread.is_main for one in some],
            source,
        )

    def at(self, begin_ns: int, end_ns: int, scope_id: str, thread_id: int | None) -> PhaseAnswer:
        rows = np.flatnonzero((self.begin <= end_ns) & (self.stop > begin_ns))
        if not len(rows):
            return _NONE
        found = rows.tolist()
        if scope_id:
            named = [at for at in found if self.spans[at].scope_id == scope_id]
            if named:
                return self._sure(Certainty.EXACT, [self.spans[named[-1]]])
        if thread_id is not None:
            own = [at for at in found if self.spans[at].thread.thread_id == thread_id]
            if own:
                return self._of(own, begin_ns, end_ns, Certainty.SAME_THREAD)
        return self._of(found, begin_ns, end_ns, Certainty.UNIQUE)

    def _of(self, rows: list[int], begin_ns: int, end_ns: int, sure: Certainty) -> PhaseAnswer:
        """The answer from spans that touch the interval."""
        by_thread: dict[int, list[int]] = {}
        for row in rows:
            by_thread.setdefault(self.thread[row], []).append(row)
        inner = [
            self.spans[row]
            for of_thread in by_thread.values()
            for row in self._innermost(of_thread, begin_ns, end_ns)
        ]
        if not inner:
            return _NONE
        inner.sort(key=lambda span: (span.begin_ns, len(span.path)), reverse=True)
        paths = list(dict.fromkeys(span.path for span in inner))
        if self._has_gap(rows, begin_ns, end_ns):
            paths.append(())
        if len(paths) == 1:
            return self._sure(sure, inner)
        return PhaseAnswer(
            Certainty.AMBIGUOUS,
            candidates=tuple(paths[:MAX_CANDIDATES]),
            more=len(paths[MAX_CANDIDATES:]),
            source=self.source,
        )

    def _sure(self, certainty: Certainty, spans: Sequence[PhaseSpan]) -> PhaseAnswer:
        """`spans` have one path."""
        return PhaseAnswer(
            certainty,
            spans[0].path,
            source=self.source,
            since_ns=min(span.begin_ns for span in spans),
            is_open=any(span.is_open for span in spans),
        )

    def _innermost(self, rows: Sequence[int], begin_ns: int, end_ns: int) -> list[int]:
        """Those of the spans of one thread that are the innermost one at a time of the interval."""
        count = len(rows)
        pieces = innermost(self.begin[rows], self.stop[rows], [0] * count, [False] * count)
        if not len(pieces.cuts):
            return []
        until = np.append(pieces.cuts[1:], pieces.cuts[-1])
        inside = (pieces.cuts <= end_ns) & (until > begin_ns) & (pieces.span >= 0)
        return [rows[at] for at in np.unique(pieces.span[inside]).tolist()]

    def _has_gap(self, rows: Sequence[int], begin_ns: int, end_ns: int) -> bool:
        """At some time of the interval there was no span."""
        begin, stop = self.begin[rows], np.maximum.accumulate(self.stop[rows])
        return bool(begin[0] > begin_ns or stop[-1] <= end_ns or (begin[1:] > stop[:-1]).any())


@dataclass(frozen=True, slots=True)
class RankPhases:
    """Those of one rank of a job, from both sources."""

    events: RankSpans
    traces: RankSpans

    @classmethod
    def of(cls, spans: Sequence[PhaseSpan]) -> RankPhases:
        return cls(RankSpans.of(spans, EVENTS), RankSpans.of(spans, TRACES))

    @property
    def main(self) -> RankSpans:
        """Phase events have beginnings before the phase ends, so they are better."""
        return self.events if self.events.spans else self.traces


@dataclass(frozen=True, slots=True)
class Pieces:
    """Parallel columns: from `cuts[i]` until the next cut it is the span `span[i]`."""

    cuts: Int64s
    span: Int64s
    """Index of a span; -1 where there is no span."""
    shared: Bools
    """Spans of other threads run, too."""


def innermost(
    begin: Int64s, stop: Int64s, thread: Sequence[int], is_main: Sequence[bool]
) -> Pieces:
    """The innermost spans of a rank; before the first cut and after the last there is no span.

    Args:
        begin: sorted; of spans that begin together the outer ones come first.
        stop: the first time after each span. A span that lasts no time is never the innermost.
        thread: a number for the thread of each span.
        is_main: whether that is the main thread, which comes before all others.
    """
    cuts: list[int] = []
    found: list[int] = []
    shared: list[bool] = []
    runs = bytearray(len(begin))
    stacks: tuple[list[int], list[int]] = [], []
    """Of other threads and of the main one; spans that have ended stay until they are on top."""
    threads: Counter[int] = Counter()
    for time, is_begin, one in zip(*_changes(begin, stop), strict=True):
        runs[one] = is_begin
        if is_begin:
            stacks[is_main[one]].append(one)
            threads[thread[one]] += 1
        elif threads[thread[one]] > 1:
            threads[thread[one]] -= 1
        else:
            del threads[thread[one]]
        for stack in stacks:
            while stack and not runs[stack[-1]]:
                stack.pop()
        others, main = stacks
        top = main[-1] if main else others[-1] if others else -1
        if cuts and cuts[-1] == time:
            found[-1], shared[-1] = top, len(threads) > 1
        else:
            cuts.append(time)
            found.append(top)
            shared.append(len(threads) > 1)
    return Pieces(np.array(cuts, np.int64), np.array(found, np.int64), np.array(shared, np.bool_))


def _changes(begin: Int64s, stop: Int64s) -> tuple[list[int], list[int], list[int]]:
    """Times at which a span begins (1) or ends (0), and which; the outer spans first."""
    lasting = np.flatnonzero(stop > begin)
    which = np.concatenate((lasting, lasting))
    is_begin = np.repeat((0, 1), len(lasting))
    times = np.concatenate((stop[lasting], begin[lasting]))
    order = np.lexsort((which, times))
    return times[order].tolist(), is_begin[order].tolist(), which[order].tolist()


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
