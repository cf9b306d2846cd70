"""What each thread of a rank was doing at a moment, as far as its traces show.

A line is written when its call has returned. So a trace shows that a call was in progress at a
moment only if the call ended later; a call that never returned has no line. What the rank did after
the moment is evidence too: a thread that began another call was not blocked in the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from frd.dftracer.block import Block
from frd.dftracer.line import TRACER, Kind
from frd.model import Bools
from frd.offline.io.discovery import Piece, PieceReader
from frd.offline.io.part import Facts, Source

NEVER: Final = -1
"""No time: earlier than every call."""
_LIBRARY: Final = frozenset({"POSIX", "STDIO"})


@dataclass(frozen=True, slots=True)
class Call:
    """Times are aligned nanoseconds."""

    name: str
    kind: Kind
    key: str
    """Of its file; empty for none."""
    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(slots=True, eq=False)
class Thread:
    """An annotation is a span of the program that is neither a fetch nor a computation. It may
    contain everything, as an epoch does, so only its begin is used."""

    process: Process
    tid: int
    last: Call | None = None
    """Ended last before the moment; no annotation."""
    noted: int = NEVER
    """When the last annotation began that ended before the moment."""
    inside: Call | None = None
    """The innermost call at the moment; no annotation."""
    noted_inside: int = NEVER
    """When the innermost annotation at the moment began."""
    next_begin: int | None = None
    """When the first call after the moment began."""

    @property
    def active_at(self) -> int:
        """The last time before the moment at which it is known to have run."""
        return max(self.noted, NEVER if self.last is None else self.last.end)

    @property
    def goes_on(self) -> bool:
        """It ran after the moment."""
        return self.next_begin is not None or self.inside is not None


@dataclass(slots=True, eq=False)
class Process:
    """One process of one trace."""

    trace: Path
    pid: int
    is_child: bool
    """Of the process that is the rank."""
    threads: dict[int, Thread] = field(default_factory=dict)
    opens: dict[str, int] = field(default_factory=dict)
    """Opens minus closes before the moment, by key."""
    closed_later: set[str] = field(default_factory=set)
    """Keys of files that it closed after the moment."""
    is_finalized: bool = False
    is_over: bool = False
    """It had ended before the moment."""
    is_later: bool = False
    """It began after the moment."""
    last_end: int = NEVER
    """The end of its last call, after the moment too."""

    @property
    def main(self) -> Thread | None:
        """The one whose id is that of the process; None if it is not traced, or ids are missing."""
        return self.threads.get(self.pid)

    def is_open(self, key: str) -> bool:
        return self.opens.get(key, 0) > 0 and key not in self.closed_later


def processes_at(facts: Sequence[Facts], sources: Sequence[Source], at: int) -> list[Process]:
    """The processes of one rank at a moment, in aligned nanoseconds."""
    found: dict[tuple[Path, int], Process] = {}
    for source in sources:
        one = facts[source.part]
        trace = one.piece.file.path
        process = found.get((trace, source.pid))
        if process is None:
            process = found[trace, source.pid] = Process(trace, source.pid, source.is_child)
        for event in one.tracer:
            if event.pid == source.pid and event.name in ("start", "end"):
                is_before = source.aligned_one(event.ts) <= at
                process.is_later |= event.name == "start" and not is_before
                process.is_over |= event.name == "end" and is_before
                process.is_finalized |= event.name == "end"
        _watch(process, source, one.piece, at)
    return list(found.values())


def _watch(process: Process, source: Source, piece: Piece, at: int) -> None:
    reader = PieceReader(piece)
    for block in reader.blocks():
        tracer = reader.calls.cats.get(TRACER, -1)
        mine = np.flatnonzero((block.pid == source.pid) & (block.cat != tracer))
        if not len(mine):
            continue
        calls = reader.calls
        library = [number for cat, number in calls.cats.items() if cat in _LIBRARY]
        rows = _Rows(
            block.take(mine), source, _Texts(list(calls.names), list(calls.files), library)
        )
        process.last_end = max(process.last_end, int(rows.end.max()))
        for tid in np.unique(rows.block.tid).tolist():
            thread = process.threads.setdefault(tid, Thread(process, tid))
            _watch_thread(thread, rows.of(rows.block.tid == tid), at)
        _count_opens(process, rows, at)


class _Texts(NamedTuple):
    names: Sequence[str]
    files: Sequence[str]
    library: Sequence[int]
    """The categories of its calls."""


class _Rows:
    """Spans of a process, with aligned times."""

    def __init__(self, block: Block, source: Source, texts: _Texts) -> None:
        self.block, self._source, self._texts = block, source, texts
        self.start = source.aligned(block.start)
        self.end = source.aligned(block.start + block.dur)
        is_of_program = (block.kind == Kind.OTHER) & ~np.isin(block.cat, texts.library)
        self.is_annotation: Bools = is_of_program
        """Spans of the program that are neither a fetch nor a computation."""

    def of(self, some: Bools) -> _Rows:
        return _Rows(self.block.take(np.flatnonzero(some)), self._source, self._texts)

    def key(self, file: int) -> str:
        return self._texts.files[file] if file >= 0 else ""

    def call(self, at: int) -> Call:
        return Call(
            name=self._texts.names[int(self.block.name[at])],
            kind=Kind(int(self.block.kind[at])),
            key=self.key(int(self.block.file[at])),
            start=int(self.start[at]),
            end=int(self.end[at]),
        )


def _watch_thread(thread: Thread, rows: _Rows, at: int) -> None:
    before = rows.end <= at
    if len(calls := np.flatnonzero(before & ~rows.is_annotation)):
        last = rows.call(int(calls[len(calls) - 1 - rows.end[calls][::-1].argmax()]))
        if thread.last is None or last.end >= thread.last.end:
            thread.last = last
    if (noted := before & rows.is_annotation).any():
        thread.noted = max(thread.noted, int(rows.start[noted].max()))
    during = (rows.start <= at) & ~before
    if len(calls := np.flatnonzero(during & ~rows.is_annotation)):
        inner = rows.call(int(calls[rows.start[calls].argmax()]))
        if thread.inside is None or inner.start > thread.inside.start:
            thread.inside = inner
    if (noted := during & rows.is_annotation).any():
        thread.noted_inside = max(thread.noted_inside, int(rows.start[noted].max()))
    if (later := rows.start > at).any():
        begin = int(rows.start[later].min())
        thread.next_begin = min(begin, thread.next_begin or begin)


def _count_opens(process: Process, rows: _Rows, at: int) -> None:
    before = rows.end <= at
    closed = rows.block.kind == Kind.CLOSE
    opened = (rows.block.kind == Kind.OPEN) & (rows.block.failed == 0)
    for sign, some in ((1, opened), (-1, closed)):
        numbers, counts = np.unique(rows.block.file[before & some], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            key = rows.key(number)
            process.opens[key] = process.opens.get(key, 0) + sign * count
    process.closed_later.update(
        map(rows.key, np.unique(rows.block.file[closed & ~before]).tolist())
    )
