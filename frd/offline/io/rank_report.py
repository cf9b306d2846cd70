"""The report on one rank, from the parts of its processes.

Definitions (`docs/io.md` has them for users): a second counts once, however many calls of the rank
cover it; *unoverlapped I/O* is the time in which a process of the rank is in a call of I/O and no
process of the rank is in a compute span, by the difference of the two sets of intervals. A step
lasts from the first span that carries its number to that of the next one. Its number is that of the
rank's main process, where this has any: a loader's worker is some steps ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from frd.model import Int64s
from frd.offline.io.intervals import IntervalSet
from frd.offline.io.part import LEAST, MOST, SUM, Grouped, Part, ProcessPart, Source, step_of

MAX_FILES: Final = 1_000
"""Files of a rank that are reported, the slowest first."""
MAX_STEPS: Final = 1_000
"""Steps of a rank that are reported: with the most unoverlapped I/O, in the order of time."""
_LONGEST_NS: Final = 1 << 56
"""Time of a process in calls on one file, two years: more is damage, and sums do not overflow."""


@dataclass(frozen=True, slots=True)
class FileUse:
    """How one rank used one file."""

    trace: Path
    """Where the key was seen."""
    key: str
    """See `frd.dftracer.line.file_key`."""
    io_ns: int
    """Sum of the durations of its calls."""
    nbytes: int
    ops: int
    is_open: bool
    """Opened more often than closed."""
    opened_ns: int
    """When its last open returned; 0 if no open is traced."""
    is_used: bool
    """There is a call other than open and close."""


@dataclass(frozen=True, slots=True)
class Step:
    epoch: int
    """-1 if the program does not say it."""
    step: int
    begin_ns: int
    end_ns: int
    fetch_ns: int
    io_ns: int
    compute_ns: int
    unoverlapped_ns: int
    bytes_read: int
    bytes_written: int
    """Of calls that began in it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Times and bytes of one rank, or of one process without a rank."""

    events: int
    first_ns: int
    last_ns: int
    fetch_ns: int
    io_ns: int
    compute_ns: int
    unoverlapped_ns: int
    bytes_read: int
    bytes_written: int
    steps: Sequence[Step]
    """At most `MAX_STEPS`."""
    steps_in_all: int
    files: Sequence[FileUse]
    """At most `MAX_FILES`, the slowest first."""
    files_in_all: int
    unclosed: Sequence[FileUse]
    """At most `MAX_FILES`, the last opened first."""
    unclosed_in_all: int


def usage_of(sources: Sequence[Source], *parts: Part) -> Usage:
    """`parts` are parallel to `sources`, whose processes are those of one rank."""
    mine = [
        (source, part, part.processes[source.pid])
        for source, part in zip(sources, parts, strict=True)
    ]
    fetch, compute, io = (
        _joined((getattr(one, name), source) for source, _, one in mine)
        for name in ("fetch", "compute", "io")
    )
    alone = io.minus(compute)
    files = _files(mine)
    unclosed = [file for file in files if file.is_open]
    steps, steps_in_all = _steps(mine, fetch, io, compute, alone)
    return Usage(
        events=sum(one.events for *_, one in mine),
        first_ns=min(source.aligned_one(one.first) for source, _, one in mine),
        last_ns=max(source.aligned_one(one.last) for source, _, one in mine),
        fetch_ns=fetch.length,
        io_ns=io.length,
        compute_ns=compute.length,
        unoverlapped_ns=alone.length,
        bytes_read=sum(one.bytes_read for *_, one in mine),
        bytes_written=sum(one.bytes_written for *_, one in mine),
        steps=steps,
        steps_in_all=steps_in_all,
        files=sorted(files, key=lambda file: (-file.io_ns, file.key))[:MAX_FILES],
        files_in_all=len(files),
        unclosed=sorted(unclosed, key=lambda file: -file.opened_ns)[:MAX_FILES],
        unclosed_in_all=len(unclosed),
    )


SUMS: Final[Mapping[str, tuple[str, Callable[[Usage | Step], float]]]] = {
    "fetch_wait_s": ("float", lambda one: one.fetch_ns / 1e9),
    "io_s": ("float", lambda one: one.io_ns / 1e9),
    "compute_s": ("float", lambda one: one.compute_ns / 1e9),
    "unoverlapped_io_s": ("float", lambda one: one.unoverlapped_ns / 1e9),
    "bytes_read": ("int", lambda one: one.bytes_read),
    "bytes_written": ("int", lambda one: one.bytes_written),
}
"""Type and value of what tables and JSON have of a rank and of a step."""

_One = tuple[Source, Part, ProcessPart]
_Mine = Sequence[_One]


def _joined(sets: Iterable[tuple[IntervalSet, Source]]) -> IntervalSet:
    return IntervalSet.merged(one.mapped(source.aligned) for one, source in sets)


def _steps(
    mine: _Mine, fetch: IntervalSet, io: IntervalSet, compute: IntervalSet, alone: IntervalSet
) -> tuple[list[Step], int]:
    """The steps that are reported, and how many there are."""
    keys, columns = _numbered(part for part in mine if not part[0].is_child)
    if not len(keys):
        keys, columns = _numbered(mine)
    order = np.argsort(columns["begin"], kind="stable")
    keys, begin, last = keys[order], columns["begin"][order], columns["end"][order]
    if not len(keys):
        return [], 0
    end = np.concatenate((begin[1:], [max(int(last.max()), int(begin[-1]))]))
    measured = [one.within(begin, end) for one in (fetch, io, compute, alone)]
    most = np.sort(np.argsort(-measured[-1], kind="stable")[:MAX_STEPS])
    measured += _bytes(mine, begin, end)
    rows = zip(*(column[most].tolist() for column in (keys, begin, end, *measured)), strict=True)
    return [Step(*step_of(key), *values) for key, *values in rows], len(keys)


def _numbered(some: Iterable[_One]) -> tuple[Int64s, dict[str, Int64s]]:
    """By step: when its first span began and its last one ended."""
    found = Grouped({"begin": LEAST, "end": MOST})
    for source, _, one in some:
        keys, columns = one.steps.rows()
        found.add(keys, **{name: source.aligned(at) for name, at in columns.items()})
    return found.rows()


def _bytes(mine: _Mine, begin: Int64s, end: Int64s) -> list[Int64s]:
    """Bytes read and bytes written in each step."""
    sums = [np.zeros(len(begin), np.int64) for _ in range(2)]
    for source, _, one in mine:
        at, *moved = one.moved.rows()
        times = source.aligned(at)
        step = np.searchsorted(begin, times, side="right") - 1
        rows = np.flatnonzero((step >= 0) & (times < end[step]))
        for total, nbytes in zip(sums, moved, strict=True):
            np.add.at(total, step[rows], nbytes[rows])
    return sums


def _files(mine: _Mine) -> list[FileUse]:
    """One a key, over all processes of the rank."""
    numbers: dict[tuple[Path, int, str], int] = {}
    sums = dict.fromkeys(("dur", "nbytes", "ops", "used"), SUM)
    by_process = Grouped({**sums, "opens": SUM, "closes": SUM, "opened": MOST})
    for source, part, one in mine:
        index, columns = one.files.rows()
        trace, opened = part.facts.piece.file.path, columns["opened"]
        keys = [(trace, source.pid, part.facts.files[at]) for at in index.tolist()]
        columns["dur"] = np.minimum(source.span(columns["dur"]), _LONGEST_NS)
        columns["opened"] = np.where(opened > 0, source.aligned(opened), opened)
        which = [numbers.setdefault(key, len(numbers)) for key in keys]
        by_process.add(np.array(which, np.int64), **columns)
    _, columns = by_process.rows()
    # A file is open if one of the processes has not closed it: what another closed does not count.
    columns["is_open"] = (columns["opens"] > columns["closes"]).astype(np.int64)
    traces: dict[str, Path] = {}
    for trace, _, key in numbers:
        traces.setdefault(key, trace)
    of_key = {key: at for at, key in enumerate(traces)}
    by_key = Grouped({**sums, "opened": MOST, "is_open": MOST})
    by_key.add(np.array([of_key[key] for *_, key in numbers], np.int64), **columns)
    _, columns = by_key.rows()
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [
        FileUse(
            trace=trace,
            key=key,
            io_ns=dur,
            nbytes=nbytes,
            ops=ops,
            is_open=bool(is_open),
            opened_ns=max(opened, 0),
            is_used=used > 0,
        )
        for (key, trace), (dur, nbytes, ops, used, opened, is_open) in zip(
            traces.items(), rows, strict=True
        )
    ]
