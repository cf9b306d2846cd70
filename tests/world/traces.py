"""Traces by hand: say what each rank recorded, get the `Trace` that such a folder gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from frd.flight.entry import Frame, Status, parse_profiling_name
from frd.flight.trace import STATES, Dictionaries, RankTrace, Trace
from frd.model import Activity, AlignedNs, AttemptKey, GroupInfo, RankInfo, Reason, Signature
from frd.offline.analysis.analyze import Analysis

T0 = 1_700_000_000_000_000_000
MS = 1_000_000

Sizes = Sequence[Sequence[int]]


@dataclass
class Row:
    """One entry; times in milliseconds since `T0`, None when unknown."""

    name: str
    seq: int
    group: str = "0"
    at: float | None = None
    state: str = "completed"
    retired: bool | None = None
    started_at: float | None = None
    completed_at: float | None = None
    ins: Sizes = ((4,),)
    outs: Sizes = ((4,),)
    in_dtypes: tuple[str, ...] | None = None
    out_dtypes: tuple[str, ...] | None = None
    p2p: bool = False
    p2p_seq: int = 0
    op_id: int | None = None
    pg_id: int | None = None
    record_id: int | None = None
    frames: tuple[Frame, ...] = ()
    timeout_ms: int = 600_000
    damaged: bool = False


@dataclass
class Dumped:
    """One rank's dump."""

    rows: list[Row] = field(default_factory=list)
    status: Mapping[int, Status] = field(default_factory=dict)
    info: RankInfo | None = None
    offset_ns: int | None = None
    uncertainty_ns: int | None = None
    version: str = "2.10"
    first_record: int = 0
    taken: tuple[float, float] | None = None
    """Between which times the dump was taken, in milliseconds since `T0`; None when unknown."""


@dataclass
class Folder:
    """Groups by name: description and members; ranks by number. A rank left out has no file."""

    groups: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    ranks: dict[int, Dumped] = field(default_factory=dict)
    world: int | None = None
    standing: dict[int, Activity] = field(default_factory=dict)
    taken_at: AlignedNs | None = None

    def group(self, name: str, ranks: Iterable[int], desc: str = "") -> Folder:
        self.groups[name] = (
            desc or ("default_pg" if name == "0" else f"group {name}"),
            tuple(ranks),
        )
        return self

    def rank(self, number: int, *rows: Row, **of_dump: Any) -> Folder:
        self.ranks[number] = Dumped(list(rows), **of_dump)
        return self

    def all_ranks(self, *rows: Row, ranks: Iterable[int], **of_dump: Any) -> Folder:
        for number in ranks:
            self.rank(number, *(replace(row) for row in rows), **of_dump)
        return self

    def trace(self) -> Trace:
        into = Dictionaries()
        infos = [GroupInfo(name, desc, ranks) for name, (desc, ranks) in self.groups.items()]
        names = list(self.groups)
        ranks = {
            number: _rank(number, dumped, names, into)
            for number, dumped in sorted(self.ranks.items())
        }
        world = max([0, *(info.ranks[-1] + 1 for info in infos if info.ranks)])
        return Trace(
            key=AttemptKey("job", 0),
            ranks=ranks,
            groups=infos,
            names=into.names.items,
            signatures=into.signatures.items,
            stacks=into.stacks.items,
            threads=[],
            world_size=world if self.world is None else self.world,
            standing=self.standing,
            taken_at=self.taken_at,
        )


def _rank(number: int, dumped: Dumped, groups: Sequence[str], into: Dictionaries) -> RankTrace:
    rows = dumped.rows
    created = [row.at if row.at is not None else at for at, row in enumerate(rows)]
    count = len(rows)
    return RankTrace(
        rank=number,
        source=f"rank_{number}",
        version=dumped.version,
        info=dumped.info,
        clock_offset_ns=dumped.offset_ns,
        clock_uncertainty_ns=dumped.uncertainty_ns,
        record_id=_column(
            dumped.first_record + at if row.record_id is None else row.record_id
            for at, row in enumerate(rows)
        ),
        group=_column((groups.index(row.group) for row in rows), np.int32),
        pg_id=_column(groups.index(r.group) if r.pg_id is None else r.pg_id for r in rows),
        seq=_column(row.seq for row in rows),
        p2p_seq=_column(row.p2p_seq for row in rows),
        op_id=_column(row.seq if row.op_id is None else row.op_id for row in rows),
        is_p2p=_column((row.p2p for row in rows), np.uint8),
        name=_column((into.names.index(parse_profiling_name(r.name)) for r in rows), np.int32),
        signature=_column((_signature(row, into) for row in rows), np.int32),
        state=_column((STATES.index(row.state) for row in rows), np.uint8),
        retired=_column(
            (row.state == "completed" if row.retired is None else row.retired for row in rows),
            np.uint8,
        ),
        damaged=_column((row.damaged for row in rows), np.uint8),
        created_ns=_column(_ns(at) for at in created),
        started_ns=_column(_ns(row.started_at) for row in rows),
        completed_ns=_column(_ns(row.completed_at) for row in rows),
        duration_ms=np.full(count, np.nan),
        stack=_column((into.stack(row.frames) for row in rows), np.int32),
        thread=np.full(count, -1, np.int32),
        timeout_ms=_column(row.timeout_ms for row in rows),
        status=dumped.status,
        dumped_from_ns=_ns(dumped.taken[0]) if dumped.taken else 0,
        dumped_until_ns=_ns(dumped.taken[1]) if dumped.taken else 0,
    )


def _column(values: Iterable[int], dtype: type[np.generic] = np.int64) -> np.ndarray:
    return np.array(list(values), dtype)


def _ns(at_ms: float | None) -> int:
    return 0 if at_ms is None else T0 + round(at_ms * MS)


def _signature(row: Row, into: Dictionaries) -> int:
    name = parse_profiling_name(row.name)
    signature = Signature(
        name.backend,
        name.op,
        tuple(tuple(size) for size in row.ins),
        tuple(tuple(size) for size in row.outs),
        ("Float",) * len(row.ins) if row.in_dtypes is None else row.in_dtypes,
        ("Float",) * len(row.outs) if row.out_dtypes is None else row.out_dtypes,
    )
    return into.signatures.index(signature)


def done(seq: int, group: str = "0", at: float | None = None, **fields: Any) -> Row:
    """An all_reduce that is over."""
    return Row("nccl:all_reduce", seq, group, at=at, **fields)


def waits(seq: int, group: str = "0", at: float | None = None, **fields: Any) -> Row:
    """An all_reduce in flight."""
    return Row("nccl:all_reduce", seq, group, at=at, state="scheduled", **fields)


def suspects(found: Analysis) -> dict[int, Reason]:
    """By rank, over all findings."""
    return {s.rank: s.reason for finding in found.findings for s in finding.suspects}
