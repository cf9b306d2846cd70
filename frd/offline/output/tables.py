"""An analysis as tables, for files and for other tools: names, types and values of columns.

Columns carry PyTorch's own names where they mean the same; a value missing in the dump is None.
A table comes in batches of columns, entries a rank at a time, so that a million of them are never
Python objects at the same time. Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from math import isnan
from typing import Any, TypeAlias

import numpy as np

from frd.errors import ConfigError
from frd.flight.trace import STATES, RankTrace, Trace
from frd.forms import encodable, finding_json, fold_ranks
from frd.model import GroupInfo, Int64s
from frd.offline.analysis.analyze import Analysis
from frd.offline.analysis.collectives import Collective
from frd.offline.output.text_tables import frame_text

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
        of_objects("findings", analysis.findings, FINDING),
        of_objects("ranks", [r for _, r in sorted(analysis.ranks.items())], _rank(analysis)),
        of_objects("groups", analysis.groups, _GROUP),
        of_objects(
            "memberships",
            [(g.index, rank) for g in analysis.groups for rank in g.info.ranks],
            {"group": ("int", lambda row: row[0]), "rank": ("int", lambda row: row[1])},
        ),
        of_objects("stacks", list(enumerate(analysis.trace.stacks)), _STACK),
        collectives(analysis),
        entries(analysis),
    ]


def collectives(analysis: Analysis, chosen: Iterable[int] | None = None) -> Table:
    """`chosen` are indexes of collectives, all by default."""
    numbers = range(len(analysis.collectives)) if chosen is None else chosen
    return Table(
        "collectives",
        {"id": "int", **_types(_COLLECTIVE)},
        lambda: _collective_batches(analysis, iter(numbers)),
    )


def entries(
    analysis: Analysis,
    ranks: Iterable[int] | None = None,
    chosen: Callable[[RankTrace], Int64s] | None = None,
) -> Table:
    """`ranks` (all by default) and, of each, the rows that `chosen` gives (all by default)."""
    which = sorted(analysis.trace.ranks) if ranks is None else list(ranks)
    return Table("entries", _types(_ENTRY), lambda: _entry_batches(analysis, which, chosen))


# -- tables of objects -------------------------------------------------------------------------

Columns: TypeAlias = Mapping[str, tuple[str, Callable[[Any], Any]]]


def _types(columns: Mapping[str, tuple[str, Any]]) -> dict[str, str]:
    return {name: kind for name, (kind, _) in columns.items()}


def of_objects(name: str, items: Sequence[Any], columns: Columns) -> Table:
    """A row an item; the columns say how it is computed."""
    return Table(
        name, _types(columns), lambda: iter([_values(items, columns)]) if items else iter(())
    )


def _values(items: Sequence[Any], columns: Columns) -> list[list[Any]]:
    return [[value(item) for item in items] for _, value in columns.values()]


def _shapes(sizes: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(size) for size in sizes]


FINDING: Columns = {
    "id": ("str", lambda f: f.id),
    "job": ("str", lambda f: encodable(f.job)),
    "kind": ("str", lambda f: f.kind.value),
    "summary": ("str", lambda f: encodable(f.summary)),
    "suspects": ("int[]", lambda f: [s.rank for s in f.suspects]),
    "victims": ("int[]", lambda f: list(f.victims)),
    "finding": ("json", lambda f: encodable(finding_json(f))),
}

_GROUP: Columns = {
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

_STACK: Columns = {
    "id": ("int", lambda row: row[0]),
    "frames": ("str[]", lambda row: [frame_text(frame) for frame in row[1]]),
    "files": ("str[]", lambda row: [frame.filename for frame in row[1]]),
}


def _rank(analysis: Analysis) -> Columns:
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
        "clock_offset_ns": ("int", lambda r: analysis.clock_offsets_ns.get(r.rank)),
        "clock_uncertainty_ns": ("int", lambda r: analysis.clock_uncertainties_ns.get(r.rank)),
    }


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _or_none(number: int) -> int | None:
    return number or None


# -- collectives -------------------------------------------------------------------------------

_COLLECTIVE: Columns = {
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


@dataclass(frozen=True, slots=True)
class _Entries:
    """Some entries of one rank."""

    of: RankTrace
    collective: Int64s
    trace: Trace


_Column: TypeAlias = Callable[[_Entries], Sequence[Any]]


def _column(name: str, value: Callable[[Any], Any] | None = None) -> _Column:
    """A column of the trace, each of its numbers through `value`."""

    def column(e: _Entries) -> list[Any]:
        numbers = getattr(e.of, name).tolist()
        return numbers if value is None else [*map(value, numbers)]

    return column


def _item(name: str, table: str, value: Callable[[Any], Any]) -> _Column:
    """For each number in a column of the trace, what `value` makes of that item of a table."""

    def column(e: _Entries) -> list[Any]:
        items = getattr(e.trace, table)
        return [value(items[at]) for at in getattr(e.of, name).tolist()]

    return column


_group = partial(_item, "group", "groups")
_name = partial(_item, "name", "names")
_signature = partial(_item, "signature", "signatures")


_ENTRY: Mapping[str, tuple[str, _Column]] = {
    "rank": ("int", lambda e: [e.of.rank] * len(e.of)),
    "record_id": ("int", _column("record_id")),
    "collective_id": ("int", lambda e: [_known(at) for at in e.collective.tolist()]),
    "process_group": ("str", _group(lambda group: group.name)),
    "pg_desc": ("str", _group(lambda group: group.desc)),
    "group": ("int", _column("group")),
    "pg_id": ("int", _column("pg_id")),
    "collective_seq_id": ("int", _column("seq")),
    "p2p_seq_id": ("int", _column("p2p_seq")),
    "op_id": ("int", _column("op_id")),
    "is_p2p": ("bool", _column("is_p2p", bool)),
    "backend": ("str", _name(lambda name: name.backend)),
    "op": ("str", _name(lambda name: name.op)),
    "src": ("int", _name(lambda name: name.src)),
    "dst": ("int", _name(lambda name: name.dst)),
    "input_sizes": ("int[][]", _signature(lambda s: _shapes(s.input_sizes))),
    "output_sizes": ("int[][]", _signature(lambda s: _shapes(s.output_sizes))),
    "input_dtypes": ("str[]", _signature(lambda s: list(s.input_dtypes))),
    "output_dtypes": ("str[]", _signature(lambda s: list(s.output_dtypes))),
    "state": ("str", _column("state", STATES.__getitem__)),
    "retired": ("bool", _column("retired", bool)),
    "time_created_ns": ("int", _column("created_ns", _or_none)),
    "time_discovered_started_ns": ("int", _column("started_ns", _or_none)),
    "time_discovered_completed_ns": ("int", _column("completed_ns", _or_none)),
    "duration_ms": ("float", _column("duration_ms", lambda d: None if isnan(d) else d)),
    "timeout_ms": ("int", _column("timeout_ms")),
    "thread": (
        "str",
        lambda e: [e.trace.threads[at] if at >= 0 else None for at in e.of.thread.tolist()],
    ),
    "stack_id": ("int", _column("stack", _known)),
}


def _entry_batches(
    analysis: Analysis, ranks: Sequence[int], chosen: Callable[[RankTrace], Int64s] | None
) -> Iterator[Batch]:
    for rank in ranks:
        of = analysis.trace.ranks[rank]
        rows = np.arange(len(of)) if chosen is None else chosen(of)
        if len(rows):
            collective = analysis.collectives.of_entries(rank)[rows]
            some = _Entries(of.take(rows), collective, analysis.trace)
            yield [column(some) for _, column in _ENTRY.values()]


# -- the part that `--ranks` and `--groups` select ----------------------------------------------

_SHOWN = 12
"""Groups that an error lists."""


@dataclass(frozen=True, slots=True)
class Selection:
    analysis: Analysis
    ranks: tuple[int, ...]
    """Selected ranks that have a dump."""
    without_dump: tuple[int, ...]
    groups: frozenset[int] | None
    """Indexes; None for all."""
    all_ranks: bool

    def rows(self, of: RankTrace) -> Int64s:
        """The selected rows of one rank, in recording order."""
        if self.groups is None:
            return np.arange(len(of))
        return np.flatnonzero(np.isin(of.group, list(self.groups)))

    def collectives(self) -> list[int]:
        """Indexes of the collectives of selected groups with selected ranks."""
        group = self.analysis.collectives.group
        members = {
            at
            for at, info in enumerate(self.analysis.trace.groups)
            if self.all_ranks or not set(info.ranks).isdisjoint(self.ranks + self.without_dump)
        }
        chosen = members if self.groups is None else members & self.groups
        return [int(at) for at in np.flatnonzero(np.isin(group, list(chosen)))]


def select(
    analysis: Analysis, ranks: Sequence[int] | None, patterns: Sequence[str] | None
) -> Selection:
    """`None` picks all; a pattern names a group by its name, description or id, ``*`` fits.

    Raises:
        ConfigError: none of the ranks has a dump, or a pattern that fits no group.
    """
    dumped = analysis.trace.ranks
    wanted = sorted(dumped) if ranks is None else ranks
    found = tuple(rank for rank in wanted if rank in dumped)
    if not found:
        raise ConfigError(
            f"ranks: {fold_ranks(wanted)}: no dump of them: there are dumps of {fold_ranks(dumped)}"
        )
    return Selection(
        analysis=analysis,
        ranks=found,
        without_dump=tuple(rank for rank in wanted if rank not in dumped),
        groups=None if patterns is None else _groups(analysis.trace.groups, patterns),
        all_ranks=ranks is None,
    )


def _groups(groups: Sequence[GroupInfo], patterns: Sequence[str]) -> frozenset[int]:
    chosen: set[int] = set()
    for pattern in patterns:
        fits = {at for at, info in enumerate(groups) if _fits(info, pattern)}
        if not fits:
            raise ConfigError(f"groups: {pattern!r}: no such group: there are {_labels(groups)}")
        chosen |= fits
    return frozenset(chosen)


def _fits(info: GroupInfo, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (info.name, info.desc, info.group_id))


def _labels(groups: Sequence[GroupInfo]) -> str:
    labels = sorted({info.label for info in groups})
    more = f" and {len(labels) - _SHOWN} more" if len(labels) > _SHOWN else ""
    return ", ".join(labels[:_SHOWN]) + more
