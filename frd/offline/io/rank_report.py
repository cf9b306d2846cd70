"""The report on one rank, from the parts of its processes.

Definitions (`docs/io.md` has them for users): a second counts once, however many calls of the rank
cover it; *unoverlapped I/O* is the time in which a process of the rank is in a call of I/O and no
process of the rank is in a compute span, by the difference of the two sets of intervals. A step
lasts from the first span that carries its number to that of the next one. Its number is that of the
rank's main process, where this has any: a loader's worker is some steps ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.model import Int64s
from frd.offline.io.discovery import Piece
from frd.offline.io.grouped import LEAST, MOST, SUM, Grouped
from frd.offline.io.intervals import IntervalSet
from frd.offline.io.part import Part, ProcessPart, step_of
from frd.offline.io.source import Source

MAX_FILES: Final = 1_000
"""Files of a rank that are reported, the slowest first."""
MAX_STEPS: Final = 1_000
"""Steps of a rank that are reported: with the most unoverlapped I/O, in the order of time."""
_LONGEST_NS: Final = 1 << 56
"""Time of a process in calls on one file, two years: more is damage, and sums do not overflow."""


@dataclass(frozen=True, slots=True)
class FileUse:
    """How one rank used one file."""

    piece: Piece
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
    numbers: dict[str, int] = {}
    where: list[Piece] = []
    # A file is open if one of the processes has not closed it: what another closed does not count.
    found = Grouped(
        {"dur": SUM, "nbytes": SUM, "ops": SUM, "used": SUM, "opened": MOST, "is_open": MOST}
    )
    for opened in _by_process(mine):
        keys, columns = opened
        names: Int64s = np.empty(len(keys), np.int64)
        for at, (piece, key) in enumerate(keys):
            if key not in numbers:
                numbers[key] = len(numbers)
                where.append(piece)
            names[at] = numbers[key]
        found.add(names, **columns)
    _, columns = found.rows()
    names_in_order = list(numbers)
    rows = zip(*(columns[name].tolist() for name in columns), strict=True)
    return [
        FileUse(
            piece=where[at],
            key=names_in_order[at],
            io_ns=dur,
            nbytes=nbytes,
            ops=ops,
            is_open=bool(is_open),
            opened_ns=max(opened, 0),
            is_used=used > 0,
        )
        for at, (dur, nbytes, ops, used, opened, is_open) in enumerate(rows)
    ]


def _by_process(
    mine: _Mine,
) -> Iterable[tuple[list[tuple[Piece, str]], dict[str, Int64s]]]:
    """The files of each process, joined over its parts."""
    by_process: dict[tuple[str, int], list[tuple[Source, Part, ProcessPart]]] = {}
    for source, part, one in mine:
        key = (str(part.facts.piece.file.path), source.pid)
        by_process.setdefault(key, []).append((source, part, one))
    for group in by_process.values():
        numbers: dict[str, int] = {}
        how = dict.fromkeys(("dur", "nbytes", "ops", "opens", "closes", "used"), SUM)
        found = Grouped({**how, "opened": MOST})
        for source, part, one in group:
            index, columns = one.files.rows()
            keys = [part.facts.files[at] for at in index.tolist()]
            names = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
            opened = columns["opened"]
            found.add(
                names,
                **{
                    **columns,
                    "dur": np.minimum(source.span(columns["dur"]), _LONGEST_NS),
                    "opened": np.where(opened > 0, source.aligned(opened), opened),
                },
            )
        _, columns = found.rows()
        is_open = (columns.pop("opens") > columns.pop("closes")).astype(np.int64)
        piece = group[0][1].facts.piece
        yield [(piece, key) for key in numbers], {**columns, "is_open": is_open}
