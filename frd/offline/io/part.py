"""What one piece of a trace adds to the report: sums and sets of time, by process.

A part knows no rank and no path: a hash may be defined in another file, and a child's rank is
known from its parent. Parts are small, can be pickled, and are joined by
`frd.offline.io.rank_report`.
Times are in the unit of the trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from frd.dftracer.block import Block
from frd.dftracer.line import Event, Kind, Metadata
from frd.model import Bools, Int64s
from frd.offline.io.discovery import Piece, PieceReader
from frd.offline.io.intervals import IntervalSet

SUM: Final[Any] = np.add
LEAST: Final[Any] = np.minimum
MOST: Final[Any] = np.maximum
_FILES: Final = {
    "dur": SUM,
    "nbytes": SUM,
    "ops": SUM,
    "opens": SUM,
    "closes": SUM,
    "used": SUM,
    "opened": MOST,
}
"""By index of file. `used` counts calls that are neither open nor close, `opened` is the end of
the last open."""
_STEPS: Final = {"begin": LEAST, "end": MOST}
_STEP_BITS: Final = 32
_MAX_FACTS: Final = 1_000_000
_LONGEST: Final = 1 << 50
"""A longer call, of 35 years in µs, is damage: thousands of them do not overflow a sum."""
_EARLIEST: Final = np.iinfo(np.int64).min
_LATEST_NS: Final = 1 << 62
"""No clock shows more; a damaged line may. Sums of two such times fit 64 bits."""

_MIN_PENDING: Final = 1 << 14
"""Rows that are kept before they are grouped."""
_MOST_BINS: Final = 1 << 17
_NARROW: Final = 1 << 16


class Grouped:
    """Columns with one row a key, each joined by its own function."""

    def __init__(self, how: Mapping[str, Any]) -> None:
        self._how = how
        self._keys: list[Int64s] = []
        self._columns: list[Sequence[Int64s]] = []
        self._pending = 0
        self._grouped = 0

    def add(self, keys: Int64s, **columns: Int64s) -> None:
        """`columns` are those of `how`, parallel to `keys`; keys may repeat."""
        if not len(keys):
            return
        self._keys.append(keys)
        self._columns.append([columns[name] for name in self._how])
        self._pending += len(keys)
        if self._pending > max(_MIN_PENDING, self._grouped):
            self._group()

    def rows(self) -> tuple[Int64s, dict[str, Int64s]]:
        """Sorted keys, and the columns by name."""
        self._group()
        if not self._keys:
            return np.empty(0, np.int64), {name: np.empty(0, np.int64) for name in self._how}
        return self._keys[0], dict(zip(self._how, self._columns[0], strict=True))

    def _group(self) -> None:
        if not self._pending:
            return
        keys = np.concatenate(self._keys)
        order = np.argsort(_narrow(keys), kind="stable")
        keys = keys[order]
        first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        columns = [
            join.reduceat(np.concatenate(parts)[order], first)
            for join, *parts in zip(self._how.values(), *self._columns, strict=True)
        ]
        self._keys, self._columns = [keys[first]], [columns]
        self._pending, self._grouped = 0, len(first)

    def __len__(self) -> int:
        """The number of keys, as of the last time that rows were grouped."""
        return self._grouped


def _narrow(keys: Int64s) -> npt.NDArray[Any]:
    """In the same order; of 16 bits if they fit, which numpy sorts by radix, ten times as fast."""
    least = keys.min()
    return (keys - least).astype(np.uint16) if keys.max() - least < _NARROW else keys


class BytesOverTime:
    """Bytes that were read and written, in bins of time. While there are too many bins, they become
    twice as wide. A bin counts as a whole, at the first time of its data."""

    def __init__(self) -> None:
        self._shift = 0
        self._bins = Grouped(_BYTES)

    def add(self, at: Int64s, read: Int64s, written: Int64s) -> None:
        self._bins.add(at >> self._shift, at=at, read=read, written=written)
        if len(self._bins) <= _MOST_BINS:
            return
        while len(self._bins) > _MOST_BINS // 2:
            keys, columns = self._bins.rows()
            self._shift += 1
            self._bins = Grouped(_BYTES)
            self._bins.add(keys >> 1, **columns)
            self._bins.rows()

    def rows(self) -> tuple[Int64s, Int64s, Int64s]:
        """Times, bytes read and bytes written."""
        _, columns = self._bins.rows()
        return columns["at"], columns["read"], columns["written"]


_BYTES: Final = {"at": LEAST, "read": SUM, "written": SUM}


@dataclass(slots=True)
class ProcessPart:
    """Of one process."""

    pid: int
    events: int = 0
    first: int = 0
    last: int = 0
    """When its first span began and its last one ended."""
    fetch: IntervalSet = field(default_factory=IntervalSet)
    compute: IntervalSet = field(default_factory=IntervalSet)
    io: IntervalSet = field(default_factory=IntervalSet)
    bytes_read: int = 0
    bytes_written: int = 0
    moved: BytesOverTime = field(default_factory=BytesOverTime)
    files: Grouped = field(default_factory=lambda: Grouped(_FILES))
    steps: Grouped = field(default_factory=lambda: Grouped(_STEPS))
    """By `step_key`."""

    def add(self, of: Block) -> None:
        """Spans of the process."""
        start, end, kind = of.start, of.start + of.dur, of.kind
        self.first = min(self.first, int(start.min())) if self.events else int(start.min())
        self.last = max(self.last, int(end.max()))
        self.events += len(start)
        is_io = kind >= Kind.IO
        self.io.add(start[is_io], end[is_io])
        for kept, wanted in ((self.fetch, Kind.FETCH), (self.compute, Kind.COMPUTE)):
            if (rows := np.flatnonzero(kind == wanted)).size:
                kept.add(start[rows], end[rows])
        self._add_bytes(of)
        self._add_files(of, end, is_io & (of.file >= 0))
        if (rows := np.flatnonzero(of.step >= 0)).size:
            keys = step_key(of.epoch[rows], of.step[rows])
            self.steps.add(keys, begin=start[rows], end=end[rows])

    def _add_bytes(self, of: Block) -> None:
        is_read, is_written = of.kind == Kind.READ, of.kind == Kind.WRITE
        rows = np.flatnonzero(is_read | is_written)
        read, written = ((of.nbytes * one)[rows] for one in (is_read, is_written))
        self.bytes_read += int(read.sum())
        self.bytes_written += int(written.sum())
        self.moved.add(of.start[rows], read, written)

    def _add_files(self, of: Block, end: Int64s, rows: Bools) -> None:
        kind = of.kind[rows]
        opens = (kind == Kind.OPEN) & (of.failed[rows] == 0)
        closes = kind == Kind.CLOSE
        self.files.add(
            of.file[rows],
            dur=np.minimum(of.dur[rows], _LONGEST),
            nbytes=of.nbytes[rows],
            ops=np.ones(len(kind), np.int64),
            opens=opens.astype(np.int64),
            closes=closes.astype(np.int64),
            used=((kind != Kind.OPEN) & ~closes).astype(np.int64),
            opened=np.where(opens, end[rows], _EARLIEST),
        )


def step_key(epoch: Int64s, step: Int64s) -> Int64s:
    """One number for an epoch (-1 if it has none) and a step, in the order of time."""
    limit = (1 << _STEP_BITS) - 1
    return (np.clip(epoch + 1, 0, limit >> 2) << _STEP_BITS) | np.minimum(step, limit)


def step_of(key: int) -> tuple[int, int]:
    """Epoch and step of a `step_key`."""
    return (key >> _STEP_BITS) - 1, key & ((1 << _STEP_BITS) - 1)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a piece says about the job rather than about time; small, and needed in one place."""

    piece: Piece
    host: str
    """Key of the host."""
    metadata: Sequence[Metadata]
    tracer: Sequence[Event]
    pids: tuple[int, ...]
    events: int
    aggregated: int
    broken: int
    first_broken: str
    stepped: int
    problems: tuple[str, ...]
    files: tuple[str, ...]
    """Keys of files, by the index that `ProcessPart.files` has."""


@dataclass(frozen=True, slots=True)
class Part:
    facts: Facts
    processes: Mapping[int, ProcessPart]
    """By pid."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the times of a process come from: one process in one part."""

    part: int
    """Index of the part."""
    pid: int
    unit_ns: int
    """Nanoseconds in a unit of the trace's times."""
    offset_ns: int
    """Added to get times of the aligned clock."""
    is_child: bool = False
    """It descends from another traced process of its rank, as a loader's worker does."""

    def aligned(self, at: Int64s) -> Int64s:
        """Times in nanoseconds, not negative; impossible ones are the nearest possible ones."""
        return np.maximum(self.span(at) + self.offset_ns, 0)

    def span(self, length: Int64s) -> Int64s:
        """Lengths of time in nanoseconds."""
        return np.clip(length, 0, _LATEST_NS // self.unit_ns) * self.unit_ns

    def aligned_one(self, at: int) -> int:
        return int(self.aligned(np.array([at], np.int64))[0])


def read_part(piece: Piece) -> Part:
    """Read one piece."""
    reader = PieceReader(piece)
    processes: dict[int, ProcessPart] = {}
    metadata: dict[Metadata, None] = {}
    tracer: list[Event] = []
    totals = dict.fromkeys(("aggregated", "broken", "stepped"), 0)
    host = first_broken = ""
    for block in reader.blocks():
        host = host or block.host
        first_broken = first_broken or block.first_broken
        for name in totals:
            totals[name] += getattr(block, name)
        if len(metadata) < _MAX_FACTS:
            metadata.update(dict.fromkeys(block.metadata))
            tracer += block.tracer
        for mine in _by_process(block):
            pid = int(mine.pid[0])
            if pid not in processes:
                processes[pid] = ProcessPart(pid)
            processes[pid].add(mine)
    facts = Facts(
        piece=piece,
        host=host,
        metadata=list(metadata),
        tracer=tracer,
        pids=tuple(processes),
        events=sum(one.events for one in processes.values()),
        first_broken=first_broken,
        problems=tuple(reader.problems),
        files=tuple(reader.calls.files),
        **totals,
    )
    return Part(facts, processes)


def _by_process(block: Block) -> list[Block]:
    """The spans of each process; in nearly every file there is one."""
    pids = np.unique(block.pid)
    return [block] if len(pids) == 1 else [block.take(np.flatnonzero(block.pid == p)) for p in pids]


def facts_of(part: Part) -> Facts:
    return part.facts
