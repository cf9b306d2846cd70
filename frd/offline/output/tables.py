"""An analysis as tables, for files and for other tools: what is in which table, under which name.

Columns carry PyTorch's own names where they mean the same; a value missing in the dump is None.
A table comes in batches of columns, entries a rank at a time, so that a million of them are never
Python objects at the same time. Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isnan
from typing import Any, TypeAlias

import numpy as np

from frd.flight.names import Name
from frd.flight.trace import STATES, RankTrace
from frd.forms import finding_json
from frd.model import Finding, Int64s, Signature
from frd.offline.analysis.analyze import Analysis, Collective, RankReport
from frd.offline.output.cell_text import frame_text

Batch: TypeAlias = Sequence[Sequence[Any]]
"""Parallel columns."""

_BATCH = 256
"""Collectives at a time: each may list every rank of the job, several times."""


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    columns: Mapping[str, str]
    """Name to type: ``int``, ``float``, ``bool``, ``str``, or a list of these (``int[]``,
    ``int[][]``, ``str[]``), or ``json`` for an object."""
    batches: Callable[[], Iterator[Batch]]

    def rows(self) -> Iterator[dict[str, Any]]:
        names = list(self.columns)
        for batch in self.batches():
            for row in zip(*batch, strict=True):
                yield dict(zip(names, row, strict=True))


def tables(analysis: Analysis) -> list[Table]:
    """All of them, the small ones first."""
    return [
        _of_objects("findings", analysis.findings, _FINDING),
        _of_objects("ranks", [r for _, r in sorted(analysis.ranks.items())], _rank(analysis)),
        _of_objects("groups", analysis.groups, _GROUP),
        _of_objects(
            "memberships",
            [(g.index, rank) for g in analysis.groups for rank in g.info.ranks],
            {"group": ("int", lambda row: row[0]), "rank": ("int", lambda row: row[1])},
        ),
        _of_objects("stacks", list(enumerate(analysis.trace.stacks)), _STACK),
        collectives(analysis),
        entries(analysis),
    ]


def collectives(analysis: Analysis, chosen: Iterable[int] | None = None) -> Table:
    """`chosen` are indexes of collectives, all by default."""
    numbers = range(len(analysis.collectives)) if chosen is None else chosen
    return Table(
        "collectives",
        {"id": "int"} | {name: kind for name, (kind, _) in _COLLECTIVE.items()},
        lambda: _collective_batches(analysis, iter(numbers)),
    )


def entries(
    analysis: Analysis,
    ranks: Iterable[int] | None = None,
    chosen: Callable[[RankTrace], Int64s] | None = None,
) -> Table:
    """`ranks` (all by default) and, of each, the rows that `chosen` gives (all by default)."""
    which = sorted(analysis.trace.ranks) if ranks is None else list(ranks)
    return Table("entries", _ENTRY, lambda: _entry_batches(analysis, which, chosen))


# -- tables of objects -------------------------------------------------------------------------

_Columns: TypeAlias = Mapping[str, tuple[str, Callable[[Any], Any]]]


def _of_objects(name: str, items: Sequence[Any], columns: _Columns) -> Table:
    return Table(
        name,
        {column: kind for column, (kind, _) in columns.items()},
        lambda: iter([_values(items, columns)]) if items else iter(()),
    )


def _values(items: Sequence[Any], columns: _Columns) -> list[list[Any]]:
    return [[value(item) for item in items] for _, value in columns.values()]


def _shapes(sizes: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(size) for size in sizes]


def _kind(finding: Finding) -> str:
    return finding.kind.value


_FINDING: _Columns = {
    "id": ("str", lambda f: f.id),
    "kind": ("str", _kind),
    "summary": ("str", lambda f: f.summary),
    "suspects": ("int[]", lambda f: [s.rank for s in f.suspects]),
    "victims": ("int[]", lambda f: list(f.victims)),
    "finding": ("json", finding_json),
}

_GROUP: _Columns = {
    "id": ("int", lambda g: g.index),
    "group_id": ("str", lambda g: g.info.group_id),
    "name": ("str", lambda g: g.info.name),
    "desc": ("str", lambda g: g.info.desc),
    "size": ("int", lambda g: g.size),
    "first_seq": ("int", lambda g: _known(g.first_seq)),
    "last_seq": ("int", lambda g: _known(g.last_seq)),
    "matched": ("int", lambda g: g.matched),
    "open": ("int", lambda g: g.open),
    "mismatched": ("int", lambda g: g.mismatched),
}

_STACK: _Columns = {
    "id": ("int", lambda row: row[0]),
    "frames": ("str[]", lambda row: [frame_text(frame) for frame in row[1]]),
    "files": ("str[]", lambda row: [frame.filename for frame in row[1]]),
}


def _rank(analysis: Analysis) -> _Columns:
    def offset(report: RankReport) -> int | None:
        return analysis.clock_offsets_ns.get(report.rank)

    def uncertainty(report: RankReport) -> int | None:
        return analysis.clock_uncertainties_ns.get(report.rank)

    return {
        "rank": ("int", lambda r: r.rank),
        "source": ("str", lambda r: r.source),
        "version": ("str", lambda r: r.version),
        "node": ("str", lambda r: r.info.node if r.info else None),
        "pid": ("int", lambda r: r.info.pid if r.info else None),
        "entries": ("int", lambda r: r.entries),
        "first_record_id": ("int", lambda r: _known(r.first_record_id)),
        "last_record_id": ("int", lambda r: _known(r.last_record_id)),
        "overran": ("bool", lambda r: r.overran),
        "resets": ("int", lambda r: r.resets),
        "waiting_in": ("str", lambda r: r.waiting_in),
        "clock_offset_ns": ("int", offset),
        "clock_uncertainty_ns": ("int", uncertainty),
    }


def _known(number: int) -> int | None:
    return None if number < 0 else number


# -- collectives -------------------------------------------------------------------------------

_COLLECTIVE: _Columns = {
    "group_id": ("str", lambda c: c.group.group_id),
    "process_group": ("str", lambda c: c.group.name),
    "pg_desc": ("str", lambda c: c.group.desc),
    "collective_seq_id": ("int", lambda c: c.seq),
    "op": ("str", lambda c: c.op),
    "backend": ("str", lambda c: c.signature.backend),
    "input_sizes": ("int[][]", lambda c: _shapes(c.signature.input_sizes)),
    "output_sizes": ("int[][]", lambda c: _shapes(c.signature.output_sizes)),
    "input_dtypes": ("str[]", lambda c: list(c.signature.input_dtypes)),
    "output_dtypes": ("str[]", lambda c: list(c.signature.output_dtypes)),
    "input_numel": ("int", lambda c: c.input_numel),
    "output_numel": ("int", lambda c: c.output_numel),
    "expected_ranks": ("int[]", lambda c: list(c.expected_ranks)),
    "joined_ranks": ("int[]", lambda c: list(c.joined_ranks)),
    "completed_ranks": ("int[]", lambda c: list(c.completed_ranks)),
    "missing_ranks": ("int[]", lambda c: list(c.missing_ranks)),
    "unknown_ranks": ("int[]", lambda c: list(c.unknown_ranks)),
    "pass_check": ("bool", lambda c: c.pass_check),
    "difference": ("str", lambda c: c.difference),
    "mismatched": ("json", lambda c: {str(rank): what for rank, what in c.mismatched.items()}),
    "record_ids": ("json", lambda c: {str(rank): number for rank, number in c.record_ids.items()}),
    "state": ("str", lambda c: c.state),
    "first_created_ns": ("int", lambda c: c.first_created_ns or None),
    "last_created_ns": ("int", lambda c: c.last_created_ns or None),
    "frames": ("str[]", lambda c: [frame_text(frame) for frame in c.frames]),
}


def _collective_batches(analysis: Analysis, numbers: Iterator[int]) -> Iterator[Batch]:
    while some := list(islice(numbers, _BATCH)):
        found: list[Collective] = [analysis.collectives[number] for number in some]
        yield [some, *_values(found, _COLLECTIVE)]


# -- entries -----------------------------------------------------------------------------------

_ENTRY = {
    "rank": "int",
    "record_id": "int",
    "collective_id": "int",
    "process_group": "str",
    "pg_desc": "str",
    "group": "int",
    "pg_id": "int",
    "collective_seq_id": "int",
    "p2p_seq_id": "int",
    "op_id": "int",
    "is_p2p": "bool",
    "backend": "str",
    "op": "str",
    "src": "int",
    "dst": "int",
    "input_sizes": "int[][]",
    "output_sizes": "int[][]",
    "input_dtypes": "str[]",
    "output_dtypes": "str[]",
    "state": "str",
    "retired": "bool",
    "time_created_ns": "int",
    "time_discovered_started_ns": "int",
    "time_discovered_completed_ns": "int",
    "duration_ms": "float",
    "timeout_ms": "int",
    "thread": "str",
    "stack_id": "int",
}


def _entry_batches(
    analysis: Analysis, ranks: Sequence[int], chosen: Callable[[RankTrace], Int64s] | None
) -> Iterator[Batch]:
    trace = analysis.trace
    for rank in ranks:
        of = trace.ranks[rank]
        rows = np.arange(len(of)) if chosen is None else chosen(of)
        if not len(rows):
            continue
        groups = [trace.groups[at] for at in of.group[rows].tolist()]
        names: list[Name] = [trace.names[at] for at in of.name[rows].tolist()]
        signatures: list[Signature] = [trace.signatures[at] for at in of.signature[rows].tolist()]
        threads = [trace.threads[at] if at >= 0 else None for at in of.thread[rows].tolist()]
        durations = of.duration_ms[rows].tolist()
        yield [
            [rank] * len(rows),
            of.record_id[rows].tolist(),
            [_known(at) for at in analysis.collectives.of_entries(rank)[rows].tolist()],
            [group.name for group in groups],
            [group.desc for group in groups],
            of.group[rows].tolist(),
            of.pg_id[rows].tolist(),
            of.seq[rows].tolist(),
            of.p2p_seq[rows].tolist(),
            of.op_id[rows].tolist(),
            of.is_p2p[rows].astype(np.bool_).tolist(),
            [name.backend for name in names],
            [name.op for name in names],
            [name.src for name in names],
            [name.dst for name in names],
            [_shapes(signature.input_sizes) for signature in signatures],
            [_shapes(signature.output_sizes) for signature in signatures],
            [list(signature.input_dtypes) for signature in signatures],
            [list(signature.output_dtypes) for signature in signatures],
            [STATES[state] for state in of.state[rows].tolist()],
            of.retired[rows].astype(np.bool_).tolist(),
            _times(of.created_ns[rows]),
            _times(of.started_ns[rows]),
            _times(of.completed_ns[rows]),
            [None if isnan(value) else value for value in durations],
            of.timeout_ms[rows].tolist(),
            threads,
            [_known(at) for at in of.stack[rows].tolist()],
        ]


def _times(column: Int64s) -> list[int | None]:
    return [at or None for at in column.tolist()]
