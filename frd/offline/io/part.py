"""What one piece of a trace adds to the report: sums and sets of time, by process.

A part knows no rank and no path: a hash may be defined in another file, and a child's rank is
known from its parent. Parts are small, can be pickled, and are joined by
`frd.offline.io.rank_report`.
Times are in the unit of the trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from frd.dftracer.block import Block
from frd.dftracer.kinds import Kind
from frd.dftracer.line import Event, Metadata
from frd.model import Bools, Int64s
from frd.offline.io.discovery import Piece, PieceReader
from frd.offline.io.grouped import LEAST, MOST, SUM, BytesOverTime, Grouped
from frd.offline.io.intervals import IntervalSet

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
