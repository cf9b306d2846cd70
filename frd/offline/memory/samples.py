"""Samples of many files as columns, in bounded memory and in any order.

A file may hold one rank, all ranks together, or one rank after another, so rows are kept until all
files are read, and then sorted. Memory is bounded: if there are more than four million rows (512
ranks at 10 Hz for 13 minutes), the samples of each stream in one bin of time become one row, with
the highest value and the times of the first and the last sample. The result stays correct: an onset
that is found in such rows is an interval that contains the true one. Bins only double, so the order
of files changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from frd.engine.memory.walk.inbox import limits
from frd.model import Bools, Int32s, Int64s
from frd.offline.memory.telemetry import (
    KNOWN_VERSIONS,
    MAX_RANKS,
    NONE,
    TOTAL,
    Block,
    Identity,
    Origin,
    Sources,
    joined,
)
from frd.offline.phases.marks import PhaseMark

MAX_ROWS: Final = 1 << 22
"""168 MB, and twice that while they are joined or sorted."""
_LAST_NS: Final = 1 << 62
_FIRST_BIN_NS: Final = 1_000_000
_SETTLE_ROWS: Final = 1 << 15
MAX_OOMS: Final = 4_096
MAX_MARKS: Final = 500_000
"""About 150 MB."""

_REFUSED, _OTHER, _OOM = -1, -2, -3
"""What happens to events that are not samples."""
_LONG_RUN: Final = 64


class Stream(NamedTuple):
    """One source of samples: a process and a device."""

    job: str
    rank: int
    host: str
    pid: int
    session: str
    device: int
    of_host: bool
    """Its counters are those of host memory."""


class Oom(NamedTuple):
    """An event of a failed allocation."""

    stream: Stream
    at_ns: int
    what: str
    """Its type."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """All samples: parallel columns, one row a sample, by stream, then time."""

    streams: list[Stream]
    """Sorted."""
    capacity: Int64s
    """By stream, bytes; 0 unknown."""
    stream: Int32s
    begin_ns: Int64s
    end_ns: Int64s
    """Later than `begin_ns` only of thinned samples; else the same array."""
    values: Int64s
    """(n, 3): allocated, reserved and used bytes; -1 for none."""
    bin_ns: int
    """0 when nothing was thinned."""
    ooms: list[Oom]
    world_size: dict[str, int]
    """World size by job, from events; the largest."""
    others: Counter[str]
    """How many events of other types there were, by type."""
    refused: Counter[str]
    """How many samples or counters were not used, by reason."""
    later_versions: list[int]
    """Versions of the form that this reader does not know."""
    marks: list[PhaseMark]
    """Beginnings and ends of phases, in the order of the files; `MAX_MARKS` at most."""
    origin: Int32s
    """By row, an index into `origins`, -1 for none; of the first sample of a thinned row."""
    origins: list[Origin]
    backward: frozenset[Stream] = frozenset()
    """Those whose clock runs back within a file."""

    def origin_of(self, row: int) -> Origin | None:
        """The thread and the phase that a sample names, if it does."""
        number = int(self.origin[row])
        return self.origins[number] if number >= 0 else None


def _stream_of(identity: Identity) -> Stream:
    return Stream(
        job=identity.job_id or "",
        rank=identity.rank or 0,
        host=identity.host or "",
        pid=-1 if identity.pid is None else identity.pid,
        session=identity.session_id or "",
        device=-1 if identity.device_id is None else identity.device_id,
        of_host=identity.of_host,
    )


class Samples:
    """Collects blocks and returns the combined result."""

    def __init__(self) -> None:
        self.sources = Sources()
        self._streams: dict[Stream, int] = {}
        self._fate = np.empty(0, np.int32)
        """By identity: its stream, or `_REFUSED`, `_OTHER`, `_OOM`."""
        self._why: dict[int, str] = {-1: "too many sources"}
        """By identity: why its events are refused."""
        self._waiting: list[Block] = []
        self._parts: list[Rows] = []
        self._rows = self._waiting_rows = 0
        self._bin_ns = 1
        self._capacity = np.zeros(0, np.int64)
        self._ooms: list[Oom] = []
        self._world_size: dict[str, int] = {}
        self._others: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._later: set[int] = set()
        self._marks: list[PhaseMark] = []

    def add(self, block: Block) -> None:
        """A block whose identities and origins are those of `sources`."""
        self._waiting.append(block)
        self._waiting_rows += len(block)
        if self._waiting_rows >= _SETTLE_ROWS:
            self._settle()

    def mark(self, marks: Sequence[PhaseMark]) -> None:
        room = MAX_MARKS - len(self._marks)
        self._marks += marks[:room]
        if more := len(marks[room:]):
            self._refused[f"phase events beyond {MAX_MARKS:,}"] += more

    def recorded(self, backward: Iterable[int] = ()) -> Recorded:
        """All that was added; adds nothing more after it.

        Args:
            backward: identities whose times are not in the order of their files.
        """
        self._settle()
        self._learn()
        fates = {int(self._fate[number]) for number in backward}
        # Numbers so far depend on how the files were read, e.g. on which lines were regular.
        streams = sorted(self._streams)
        number = np.empty(len(streams), np.int32)
        number[[self._streams[stream] for stream in streams]] = np.arange(len(streams))
        self._parts = [replace(part, stream=number[part.stream]) for part in self._parts]
        rows = self._compact(MAX_ROWS)
        return Recorded(
            streams=streams,
            capacity=self._capacity[np.argsort(number)],
            stream=rows.stream,
            begin_ns=rows.begin_ns,
            end_ns=rows.end_ns,
            values=rows.values,
            bin_ns=self._bin_ns if self._bin_ns > 1 else 0,
            ooms=self._ooms,
            world_size=self._world_size,
            others=Counter(dict(sorted(self._others.items()))),
            refused=Counter(dict(sorted(self._refused.items()))),
            later_versions=sorted(self._later),
            marks=self._marks,
            origin=rows.origin,
            origins=self.sources.origins,
            backward=frozenset(one for one, at in self._streams.items() if at in fates),
        )

    # -- identities ------------------------------------------------------------------------------

    def _learn(self) -> None:
        """Decide what happens to the events of new identities."""
        known = self.sources.identities
        fates = [self._fate_of(at, known[at]) for at in range(len(self._fate), len(known))]
        self._fate = np.concatenate((self._fate, np.array(fates, np.int32)))
        more = len(self._streams) - len(self._capacity)
        self._capacity = np.concatenate((self._capacity, np.zeros(more, np.int64)))

    def _fate_of(self, number: int, identity: Identity) -> int:
        rank, job = identity.rank or 0, identity.job_id or ""
        if identity.schema_version < KNOWN_VERSIONS[0]:
            self._why[number] = f"version {identity.schema_version}"
            return _REFUSED
        if not 0 <= rank < MAX_RANKS:
            self._why[number] = "no rank"
            return _REFUSED
        if identity.schema_version > KNOWN_VERSIONS[-1]:
            self._later.add(identity.schema_version)
        world_size = identity.world_size or 0
        if 0 < world_size <= MAX_RANKS:
            self._world_size[job] = max(world_size, self._world_size.get(job, 0))
        if not identity.is_sample:
            return _OOM if identity.is_oom else _OTHER
        return self._streams.setdefault(_stream_of(identity), len(self._streams))

    # -- rows ------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Turn the waiting events into rows of samples, and count the others."""
        if not self._waiting:
            return
        self._learn()
        block = joined(self._waiting)
        identity, at_ns, counters, origin = (getattr(block, name) for name in Block.__slots__)
        self._waiting, self._waiting_rows = [], 0
        fate = np.append(self._fate, np.int32(_REFUSED))[identity]  # -1 finds the last
        if (fate < 0).any():
            self._others_of(identity, at_ns, fate)
        timed = (at_ns > 0) & (at_ns < _LAST_NS)
        self._count("without a time", (fate >= 0) & ~timed)
        keep = (fate >= 0) & timed
        stream = fate
        if not keep.all():
            stream, at_ns, counters = fate[keep], at_ns[keep], counters[keep]
            origin = origin[keep]
        counters = self._purged(counters)
        np.maximum.at(self._capacity, stream, np.maximum(counters[:, TOTAL], 0))
        values = np.maximum(counters[:, :TOTAL], -1)
        known: Bools = np.asarray((values >= 0).any(axis=1))
        self._count("without a counter", ~known)
        if not known.all():
            stream, at_ns, values = stream[known], at_ns[known], values[known]
            origin = origin[known]
        self._parts.append(Rows(stream, at_ns, at_ns, values, origin))
        self._rows += len(stream)
        if self._rows > MAX_ROWS:
            self._parts = [self._compact(MAX_ROWS // 2)]
            self._rows = len(self._parts[0].stream)

    def _others_of(self, identity: Int32s, at_ns: Int64s, fate: Int32s) -> None:
        for number, count in zip(
            *(part.tolist() for part in np.unique(identity[fate < 0], return_counts=True)),
            strict=True,
        ):
            if number in self._why:
                self._refused[self._why[number]] += count
            else:
                self._others[self.sources.identities[number].event_type] += count
        for row in np.flatnonzero(fate == _OOM)[: MAX_OOMS - len(self._ooms)].tolist():
            of = self.sources.identities[int(identity[row])]
            self._ooms.append(Oom(_stream_of(of), int(at_ns[row]), of.event_type))

    def _purged(self, counters: Int64s) -> Int64s:
        """Counters that cannot be true become unknown."""
        negative: Bools = (counters < 0) & (counters != NONE)
        absurd: Bools = counters > limits(counters[:, TOTAL])[:, None]
        self._count("negative", negative)
        self._count("absurdly large", absurd)
        bad = negative | absurd
        return np.where(bad, NONE, counters) if bad.any() else counters

    def _count(self, reason: str, which: Bools) -> None:
        if count := int(which.sum()):
            self._refused[reason] += count

    def _compact(self, most: int) -> Rows:
        """All rows as one part, sorted, thinned as far as there are more than `most`."""
        rows = in_order(self._parts)
        while len(first := rows.bins(self._bin_ns)) > most:
            self._bin_ns = max(2 * self._bin_ns, _FIRST_BIN_NS)
        return rows.joined(first)


@dataclass(frozen=True, slots=True)
class Rows:
    stream: Int32s
    begin_ns: Int64s
    end_ns: Int64s
    """The same array as `begin_ns` if no row is thinned."""
    values: Int64s
    origin: Int32s

    def bins(self, width_ns: int) -> Int64s:
        """The first row of each bin; rows must be sorted."""
        new = np.ones(len(self.stream), np.bool_)
        new[1:] = (np.diff(self.stream) != 0) | (np.diff(self.begin_ns // width_ns) != 0)
        return np.flatnonzero(new)

    def joined(self, first: Int64s) -> Rows:
        """A row a bin: from its first moment to its last, the most of each counter."""
        if len(first) == len(self.stream):
            return self
        return Rows(
            self.stream[first],
            self.begin_ns[first],
            np.maximum.reduceat(self.end_ns, first),
            np.maximum.reduceat(self.values, first, axis=0),
            self.origin[first],
        )


def in_order(parts: list[Rows]) -> Rows:
    """All rows; `parts` is emptied, so that they are not in memory twice."""
    is_thinned = any(part.end_ns is not part.begin_ns for part in parts)
    columns: dict[str, npt.NDArray[Any]] = {
        "stream": np.empty(0, np.int32),
        "begin_ns": np.empty(0, np.int64),
        "values": np.empty((0, TOTAL), np.int64),
        "origin": np.empty(0, np.int32),
    }
    if is_thinned:
        columns["end_ns"] = columns["begin_ns"]
    by_name = {name: [getattr(part, name) for part in parts] for name in columns}
    parts.clear()
    for name, none in columns.items():
        columns[name] = np.concatenate([none, *by_name.pop(name)])
    runs = _runs(columns["stream"], columns["begin_ns"])
    if runs is not None:
        for name, column in columns.items():
            columns[name] = np.concatenate([column[run] for run in runs])
    order = _order(columns["stream"], columns["begin_ns"])
    if order is not None:
        for name in columns:
            columns[name] = columns[name][order]
    return Rows(**columns, **({} if is_thinned else {"end_ns": columns["begin_ns"]}))


def _runs(stream: Int32s, begin_ns: Int64s) -> list[slice] | None:
    """Runs of rows of one stream, by stream and time; None if they are so already, or short. With
    a file a rank each rank is a run: moving runs is faster than sorting rows."""
    edges = np.flatnonzero(np.diff(stream, prepend=-1, append=-1))
    count = len(edges) - 1
    if count < 1 or len(stream) < _LONG_RUN * count:
        return None
    first = edges[:-1]
    order = np.lexsort((begin_ns[first], stream[first]))
    if (np.diff(order) == 1).all():
        return None
    return [slice(edges[at], edges[at + 1]) for at in order.tolist()]


def _order(stream: Int32s, begin_ns: Int64s) -> Int32s | None:
    """The rows by stream, then time; None if they are in that order."""
    if _is_sorted(stream, begin_ns):
        return None
    # Each stream is in the order of time nearly always, and numbers of 16 bits are sorted fast.
    if int(stream.max()) < 1 << 16:
        order = np.argsort(stream.astype(np.uint16), kind="stable").astype(np.int32)
        if _is_sorted(stream[order], begin_ns[order]):
            return order
    return np.lexsort((begin_ns, stream)).astype(np.int32)


def _is_sorted(stream: Int32s, begin_ns: Int64s) -> bool:
    falls = stream[1:] < stream[:-1]
    falls |= (stream[1:] == stream[:-1]) & (begin_ns[1:] < begin_ns[:-1])
    return not falls.any()
