"""The calls of all ranks of a trace in one table.

A *series* is one numbering of collectives: a group, or one backend of a group that has several. A
*call* is one rank's part in one collective: one entry, or all entries of a coalesced one. A *pair*
is one rank in one series. Entries that must not be compared are left out: those before a reset of
the recorder, and those of an earlier group of the same name. Each rank costs a few numpy calls; all
other work is on the joined columns, so a million entries cost a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from frd.engine.matching.signature_rules import is_synchronizing
from frd.flight import progress
from frd.flight.batches import is_over_without_end
from frd.flight.progress import Calls, NameFacts, States, marks_of
from frd.flight.trace import RankTrace, Trace, minor_version
from frd.model import NO_NAME, Bools, GroupInfo, Int32s, Int64s, Signature

_PARTS_HAVE_ENTRIES = (2, 7)
"""From this version on each op of a coalesced collective has its own entry."""
WHOLE_JOB = "default_pg"
_FIRST_SEQ = 1
"""Backends count from 0 or 1."""


@dataclass(frozen=True, slots=True)
class Series:
    """One numbering of collectives, with its members in order."""

    group: int
    """Index into `Trace.groups`."""
    backend: str
    info: GroupInfo
    """The group; with several backends, each is named like ``0/gloo``."""
    members: Int32s
    first_pair: int
    is_known: bool
    """The membership is known; otherwise the members are the ranks with entries."""

    @property
    def pairs(self) -> slice:
        return slice(self.first_pair, self.first_pair + len(self.members))


@dataclass(frozen=True, slots=True)
class RankRows:
    """The entries of one rank that are compared."""

    trace: RankTrace
    current: Int64s
    """Rows of the trace since the last reset and of present groups, in recording order."""
    series: Int32s
    """Of each of `current`."""
    is_p2p: Bools
    """Over `current`."""
    state: States
    """Over `current`."""
    resets: int
    overran: bool
    """Rows before the first one were overwritten."""
    active_only: bool
    """The dump shows only ops in flight: an op that is missing has completed."""
    has_holes: bool
    """Entries between the first and the last are missing."""


@dataclass(frozen=True, slots=True)
class Rows:
    trace: Trace
    facts: NameFacts
    series: Sequence[Series]
    ranks: Mapping[int, RankRows]
    pair_rank: Int32s
    pair_series: Int32s
    pairs_of: Mapping[int, Int64s]
    """The pairs of each rank that has a dump, by rank."""
    is_dumped: Bools
    """Over the pairs: the rank has a dump."""
    calls: Calls
    signatures: Sequence[Signature]
    """Signatures of the trace, followed by signatures of coalesced collectives."""

    @property
    def synchronizing(self) -> Bools:
        """Of each signature: no rank can complete the op alone."""
        return np.array([is_synchronizing(one.op) for one in self.signatures], np.bool_)

    @property
    def sizes(self) -> Int32s:
        """Members of each series."""
        return np.array([len(one.members) for one in self.series], np.int32)

    @property
    def proofs(self) -> Int64s:
        """By series, the last call whose end proves that all members had joined it, because no rank
        can complete the op alone; -1 for none. An end without a time may be a failure."""
        calls = self.calls
        proven = calls.done & ~calls.weak
        proofs = np.flatnonzero(proven & self.synchronizing[calls.signature])
        series, seq = self.pair_series[calls.pair[proofs]], calls.seq[proofs]
        most, last = np.full((2, len(self.series)), -1)
        np.maximum.at(most, series, seq)
        is_last = seq == most[series]
        last[series[is_last]] = proofs[is_last]
        return last


def rows_of(trace: Trace) -> Rows:
    """All calls of a trace, and the properties of each rank's dump."""
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
    facts = NameFacts.of(trace.names, marks_of(trace.ranks.values(), trace.names))
    ranks = {r: _current(trace.ranks[r], at_key[keys[r]], facts) for r in sorted(trace.ranks)}
    return _joined(trace, facts, series, ranks)


# -- series ----------------------------------------------------------------------------------


def _series(trace: Trace, backends: Sequence[str], used: Mapping[int, set[int]]) -> list[Series]:
    """The series of all groups in order, including groups without entries."""
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
            name = info.name if len(found) == 1 else f"{info.name or NO_NAME}/{backend}"
            series.append(
                Series(
                    group,
                    backend,
                    GroupInfo(name, info.desc, ranks),
                    np.array(ranks, np.int32),
                    first_pair,
                    is_known=bool(info.ranks) or info.desc == WHOLE_JOB,
                )
            )
            first_pair += len(ranks)
    return series


def _members(trace: Trace, info: GroupInfo, seen: set[int]) -> tuple[int, ...]:
    """The members of a group. If no dump has them: all ranks for the job's first group, else the
    ranks with entries."""
    if info.ranks:
        return info.ranks
    if info.desc == WHOLE_JOB:
        return tuple(sorted({*range(trace.world_size), *trace.ranks}))
    return tuple(sorted(seen))


# -- ranks -----------------------------------------------------------------------------------


def _current(trace: RankTrace, series: Int32s, facts: NameFacts) -> RankRows:
    begins = np.flatnonzero(np.diff(trace.record_id) <= 0) + 1  # the first entries after a reset
    first = int(begins[-1]) if len(begins) else 0
    current = np.arange(first, len(trace))
    of_now = progress.latest_groups(trace.pg_id[first:], series[first:])
    if not of_now.all():
        current = current[of_now]
    state = progress.states(trace, current, facts)
    gave_up = progress.given_up(trace, current, facts)
    state.weak[:] |= state.done & progress.ended_by_abort(trace, current, gave_up)
    ids = trace.record_id[first:]
    began_before = len(ids) > 0 and int(ids[0]) > 0
    holes = progress.has_holes(ids, sum(hole.entries for hole in trace.holes))
    is_empty = not len(ids) and not trace.holes
    idle = is_empty and any(status.enqueued >= 0 for status in trace.status.values())
    active_only = idle or ((began_before or holes) and not bool(state.done.any()))
    name, is_p2p = trace.name[current], trace.is_p2p[current] != 0
    if active_only and len(current):
        number = np.where(is_p2p, trace.p2p_seq[current], trace.seq[current])
        state.done[:] |= is_over_without_end(
            facts.is_end[name], facts.is_part[name], is_p2p, trace.pg_id[current], number
        )
    return RankRows(
        trace=trace,
        current=current,
        series=series[current],
        is_p2p=is_p2p | facts.is_p2p[name],
        state=state,
        resets=len(begins),
        overran=began_before and not active_only,
        active_only=active_only,
        has_holes=holes,
    )


def _joined(
    trace: Trace, facts: NameFacts, series: Sequence[Series], ranks: Mapping[int, RankRows]
) -> Rows:
    pair_series = np.repeat(
        np.arange(len(series), dtype=np.int32), [len(one.members) for one in series]
    )
    pair_rank = np.concatenate([np.empty(0, np.int32), *(one.members for one in series)])
    by_rank = np.argsort(pair_rank, kind="stable")
    bounds = np.searchsorted(pair_rank[by_rank], [*ranks, *(rank + 1 for rank in ranks)])
    pairs_of = {
        rank: by_rank[bounds[at] : bounds[at + len(ranks)]] for at, rank in enumerate(ranks)
    }
    parts = [progress.NO_CALLS]
    for rank, one in ranks.items():
        mine = pairs_of[rank]
        pair_of = np.full(len(series), -1, np.int32)
        pair_of[pair_series[mine]] = mine
        at = np.flatnonzero(~one.is_p2p)
        pair = pair_of[one.series[at]]
        order = np.argsort(pair, kind="stable")
        order = order[np.searchsorted(pair[order], 0) :]  # without groups that the rank is not in
        at = at[order]
        entries, row, state = one.trace, one.current[at], one.state.take(at)
        cut = (at == 0) & _may_lack_parts(one)
        parts.append(progress.calls_of(entries, row, pair[order], state, cut))
    signatures = list(trace.signatures)
    versions = {minor_version(one.trace.version) for one in ranks.values()}
    is_mixed = bool(versions) and min(versions) < _PARTS_HAVE_ENTRIES <= max(versions)
    calls = progress.joined(Calls.concatenated(parts), signatures, by_last_entry=is_mixed)
    # NCCL may mark a coalesced collective before its peers have enqueued it: golden/nccl/README.md.
    calls.weak[:] |= calls.done & (calls.last_row > calls.first_row)
    is_dumped = np.isin(pair_rank, list(ranks))
    known = (pair_rank, pair_series, pairs_of, is_dumped)
    return Rows(trace, facts, series, ranks, *known, calls, signatures)


def _may_lack_parts(one: RankRows) -> bool:
    """Entries before the first one may be lost, and it is not the first of its group."""
    if one.active_only or not len(one.current):
        return False
    first = one.current[0]
    return bool(one.trace.record_id[first] > 0 or one.trace.seq[first] > _FIRST_SEQ)
