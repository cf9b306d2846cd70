"""The rows of all ranks of a trace side by side, each where its collectives are numbered.

A *series* is one numbering of collectives: a group, and where a group has several backends, each of
them. A *call* is one rank's part in one collective: one entry, or all entries of a coalesced one.
What must not be compared is left out here: entries before a reset of the recorder, and those of an
earlier group that had the same name. Ranks are taken one at a time with a few numpy calls each;
all else works on the joined columns, so that a million entries cost a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from frd.engine.state.snapshot import Bools
from frd.flight import coalesced, judges
from frd.flight.trace import COMPLETED, RankTrace, Trace
from frd.model import GroupInfo, Int32s, Int64s, Signature

_PARTS_HAVE_ENTRIES = (2, 7)
"""From this version on each op of a coalesced collective has an entry of its own."""
_WHOLE_JOB = "default_pg"
_FIRST_SEQ = 1
"""Backends count from 0 or 1."""


@dataclass(frozen=True, slots=True)
class Series:
    """One numbering of collectives, with its members in order."""

    group: int
    """Index into `Trace.groups`."""
    backend: str
    info: GroupInfo
    """The group's own; of a group with several backends, named like ``0/gloo``."""
    members: Int32s
    first_pair: int
    is_told: bool
    """The membership is known; else its members are those who showed up."""

    @property
    def pairs(self) -> slice:
        return slice(self.first_pair, self.first_pair + len(self.members))


@dataclass(frozen=True, slots=True)
class Calls:
    """Parallel columns, one row a call, by rank, then series, then recording order."""

    pair: Int32s
    seq: Int64s
    signature: Int32s
    """Index into `Rows.signatures`."""
    first_row: Int32s
    """In the rank's trace."""
    last_row: Int32s
    created_ns: Int64s
    """On the rank's own clock, as all times here; 0 when unknown."""
    completed_ns: Int64s
    started: Bools
    done: Bools
    cut: Bools
    """The first of what a ring still holds: parts of a coalesced collective may be lost."""

    def __len__(self) -> int:
        return len(self.seq)


@dataclass(frozen=True, slots=True)
class RankRows:
    """What of one rank's trace counts."""

    trace: RankTrace
    current: Int64s
    """Rows of its trace that are of now, in recording order."""
    series: Int32s
    """Of each of `current`."""
    is_p2p: Bools
    """Over `current`."""
    done: Bools
    """Over `current`."""
    resets: int
    overran: bool
    """Rows before the first one were overwritten."""
    active_only: bool
    """The dump shows what was in flight and nothing else: what is not there is over."""
    has_holes: bool
    """Entries between the first and the last are not there."""


@dataclass(frozen=True, slots=True)
class Rows:
    trace: Trace
    series: Sequence[Series]
    ranks: Mapping[int, RankRows]
    pair_rank: Int32s
    pair_series: Int32s
    calls: Calls
    signatures: Sequence[Signature]
    """Those of the trace, then those of coalesced collectives."""
    pairs_of: Mapping[int, Int64s] = field(default_factory=dict)
    """The pairs of each rank that has a dump, by rank."""

    def pair(self, series: int, rank: int) -> int:
        """The row of a member, -1 when the rank is none."""
        one = self.series[series]
        at = int(np.searchsorted(one.members, rank))
        found = at < len(one.members) and one.members[at] == rank
        return one.first_pair + at if found else -1


def rows_of(trace: Trace) -> Rows:
    """Lay out a trace."""
    backends = list(dict.fromkeys(name.backend for name in trace.names))
    number = {backend: at for at, backend in enumerate(backends)}
    backend_of = np.array([number[name.backend] for name in trace.names], np.int32)
    keys: dict[int, np.ndarray] = {}
    used: dict[int, set[int]] = {}
    for rank, one in trace.ranks.items():
        keys[rank] = one.group.astype(np.int64) * len(backends) + backend_of[one.name]
        for key in np.flatnonzero(np.bincount(keys[rank])).tolist():  # faster than unique
            used.setdefault(key, set()).add(rank)
    series = _series(trace, backends, used)
    at_key = np.full(len(trace.groups) * max(1, len(backends)), -1, np.int32)
    for at, one_series in enumerate(series):
        if one_series.backend in number:
            at_key[one_series.group * len(backends) + number[one_series.backend]] = at
    facts = _NameFacts.of(trace)
    ranks: dict[int, RankRows] = {}
    last_pg = np.zeros(len(series), np.int64)
    for rank in sorted(trace.ranks):
        ranks[rank] = _current(trace.ranks[rank], at_key[keys[rank]], facts, last_pg)
    return _joined(trace, series, ranks)


# -- series ----------------------------------------------------------------------------------


def _series(trace: Trace, backends: Sequence[str], used: Mapping[int, set[int]]) -> list[Series]:
    """All groups in order, those too in which nothing was recorded."""
    of_group: dict[int, list[tuple[str, int]]] = {}
    for key in sorted(used):
        group, at = divmod(key, len(backends))
        of_group.setdefault(group, []).append((backends[at], key))
    series: list[Series] = []
    first_pair = 0
    for group, info in enumerate(trace.groups):
        found = of_group.get(group, [("", -1)])
        for backend, key in found:
            ranks = _members(trace, info, used.get(key, set()))
            name = info.name if len(found) == 1 else f"{info.name}/{backend}"
            series.append(
                Series(
                    group,
                    backend,
                    GroupInfo(name, info.desc, ranks),
                    np.array(ranks, np.int32),
                    first_pair,
                    is_told=bool(info.ranks) or info.desc == _WHOLE_JOB,
                )
            )
            first_pair += len(ranks)
    return series


def _members(trace: Trace, info: GroupInfo, seen: set[int]) -> tuple[int, ...]:
    """Where no dump tells them, those who showed up; in the job's first group everybody is."""
    if info.ranks:
        return info.ranks
    if info.desc == _WHOLE_JOB:
        return tuple(sorted({*range(trace.world_size), *trace.ranks}))
    return tuple(sorted(seen))


# -- ranks -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _NameFacts:
    """What the names of a trace say, as columns over `Trace.names`."""

    is_p2p: Bools
    judges: Bools

    @classmethod
    def of(cls, trace: Trace) -> _NameFacts:
        return cls(
            np.array([name.is_p2p_kind for name in trace.names], np.bool_),
            np.array([judges(name.backend) for name in trace.names], np.bool_),
        )


def _current(trace: RankTrace, series: Int32s, facts: _NameFacts, last_pg: Int64s) -> RankRows:
    """`last_pg` is scratch, one element a series."""
    backwards = np.flatnonzero(np.diff(trace.record_id) <= 0) + 1
    first = int(backwards[-1]) if len(backwards) else 0
    current = np.arange(first, len(trace))
    last_pg[series[first:]] = trace.pg_id[first:]
    of_now = last_pg[series[first:]] == trace.pg_id[first:]
    if not of_now.all():
        current = current[of_now]
    name, state = trace.name[current], trace.state[current]
    done = (state == COMPLETED) | ((trace.retired[current] != 0) & ~facts.judges[name])
    ids = trace.record_id[first:]
    began_before = len(ids) > 0 and int(ids[0]) > 0
    holes = len(ids) > 0 and int(ids[-1] - ids[0]) + 1 > len(ids)
    idle = not len(ids) and any(status.enqueued >= 0 for status in trace.status.values())
    active_only = idle or ((began_before or holes) and not bool(done.any()))
    return RankRows(
        trace=trace,
        current=current,
        series=series[current],
        is_p2p=(trace.is_p2p[current] != 0) | facts.is_p2p[name],
        done=done,
        resets=len(backwards),
        overran=began_before and not active_only,
        active_only=active_only,
        has_holes=holes,
    )


def _joined(trace: Trace, series: Sequence[Series], ranks: Mapping[int, RankRows]) -> Rows:
    pair_series = np.repeat(
        np.arange(len(series), dtype=np.int32), [len(one.members) for one in series]
    )
    pair_rank = np.concatenate([np.empty(0, np.int32), *(one.members for one in series)])
    by_rank = np.argsort(pair_rank, kind="stable")
    bounds = np.searchsorted(pair_rank[by_rank], [*ranks, *(rank + 1 for rank in ranks)])
    pairs_of = {
        rank: by_rank[bounds[at] : bounds[at + len(ranks)]] for at, rank in enumerate(ranks)
    }
    rows = Rows(
        trace, series, ranks, pair_rank, pair_series, _no_calls(), trace.signatures, pairs_of
    )
    pair_of = np.full(len(series), -1, np.int32)
    parts: list[tuple[np.ndarray, ...]] = []
    for rank, one in ranks.items():
        mine = np.flatnonzero(np.bincount(one.series))
        pair_of[mine] = [rows.pair(at, rank) for at in mine.tolist()]
        at = np.flatnonzero(~one.is_p2p)
        pair = pair_of[one.series[at]]
        order = np.argsort(pair, kind="stable")
        order = order[np.searchsorted(pair[order], 0) :]  # rows of groups that it is not in
        at, pair = at[order], pair[order]
        row = one.current[at]
        t = one.trace
        parts.append(
            (
                pair,
                t.seq[row],
                t.signature[row],
                row.astype(np.int32),
                t.created_ns[row],
                t.completed_ns[row],
                (t.state[row] >= 1) & (t.started_ns[row] > 0),
                one.done[at],
                (at == 0) & (not one.active_only),
                t.record_id[row] > 0,
            )
        )
    if not parts:
        return rows
    return _with_calls(rows, [np.concatenate(column) for column in zip(*parts, strict=True)])


def _no_calls() -> Calls:
    none32, none64 = np.empty(0, np.int32), np.empty(0, np.int64)
    no = np.empty(0, np.bool_)
    return Calls(none32, none64, none32, none32, none32, none64, none64, no, no, no)


def _with_calls(rows: Rows, columns: list[np.ndarray]) -> Rows:
    pair, seq, signature, row, created, completed, started, done, oldest, follows = columns
    begins = np.ones(len(seq), np.bool_)
    begins[1:] = (pair[1:] != pair[:-1]) | (seq[1:] != seq[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(seq)) - 1 if len(first) else first
    several = np.flatnonzero(last > first)
    # Of millions of rows, views rather than copies where each is a call of its own.
    begin: Int64s | slice = first if len(several) else slice(None)
    end: Int64s | slice = last if len(several) else slice(None)
    signature_of, signatures = signature[begin], list(rows.trace.signatures)
    if len(several):
        signature_of = signature_of.copy()
        signature_of[several] = _combined(
            rows, signature, first[several], last[several], signatures
        )
    calls = Calls(
        pair=pair[begin],
        seq=seq[begin],
        signature=signature_of,
        first_row=row[begin],
        last_row=row[end],
        created_ns=created[begin],
        completed_ns=completed[end],
        started=started[begin],
        done=done[end],
        cut=oldest[begin],
    )
    if calls.cut.any():
        calls = replace(calls, cut=_cut(calls, signatures, follows[begin]))
    return replace(rows, calls=calls, signatures=signatures)


def _cut(calls: Calls, signatures: Sequence[Signature], follows: Bools) -> Bools:
    """Of the oldest calls those that may have lost parts: of a series, and not the first ever."""
    cut = calls.cut & (follows | (calls.seq > _FIRST_SEQ))
    for at in np.flatnonzero(cut).tolist():
        op = signatures[int(calls.signature[at])].op
        cut[at] = op.endswith((")", "coalesced", "_oop"))
    return cut


def _combined(
    rows: Rows, part: Int32s, first: Int64s, last: Int64s, signatures: list[Signature]
) -> Int32s:
    """Signatures of coalesced collectives, appended to `signatures` where they are new.

    Where versions are mixed, old ranks recorded the end of a series only, so that is compared.
    """
    versions = {minor_version(one.trace.version) for one in rows.ranks.values()}
    is_mixed = min(versions) < _PARTS_HAVE_ENTRIES <= max(versions)
    if is_mixed:
        return part[last]
    known: dict[bytes, int] = {}
    found = np.empty(len(first), np.int32)
    for at, (begin, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        parts = part[begin : end + 1]
        key = parts.tobytes()
        if key not in known:
            known[key] = len(signatures)
            signatures.append(coalesced([signatures[i] for i in parts.tolist()]))
        found[at] = known[key]
    return found


def minor_version(version: str) -> tuple[int, int]:
    """Of a dump's format; what is unreadable is taken for old."""
    major, _, minor = version.partition(".")
    return int(major) if major.isdigit() else 2, int(minor) if minor.isdigit() else 0
