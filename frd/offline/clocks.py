"""One clock for a folder of dumps: what to add to each rank's times.

Folders of `frd dump` tell it. Otherwise completed collectives do, roughly: of an op that nobody can
complete alone, no member can have completed before the last one joined. That bounds the offset of
every clock from both sides, and of all offsets in the bounds the one nearest to 0 is taken, for the
clocks of a cluster are usually kept in time. Ranks of one node (by boot id) share a clock; without
identities each rank has its own. The times of one rank among themselves never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from frd.engine.edges import is_synchronizing
from frd.model import Int64s
from frd.offline.rows import Rows

_FAR = np.int64(1 << 62)
"""Beyond any time in nanoseconds since the epoch; a difference with one still fits."""
_ENOUGH = 32
"""Completed collectives of each (rank, series) that are looked at: the latest."""
_ROUNDS = 8
"""How far bounds travel: from the first clock to those that share a collective with it, and on."""


@dataclass(frozen=True, slots=True)
class Clocks:
    offset_ns: Mapping[int, int]
    """By rank."""
    source: str
    """For people."""
    warnings: tuple[str, ...] = ()


def clocks_of(rows: Rows) -> Clocks:
    traces = {rank: one.trace for rank, one in rows.ranks.items()}
    told = {r: t.clock_offset_ns for r, t in traces.items() if t.clock_offset_ns is not None}
    if told and len(told) == len(traces):
        return Clocks(told, "the clock offsets that the folder tells")
    domains: dict[str, int] = {}
    of_rank = np.zeros(max(traces, default=0) + 1, np.int64)
    for rank, trace in traces.items():
        boot_id = trace.info.boot_id if trace.info is not None else ""
        of_rank[rank] = domains.setdefault(boot_id or f"rank {rank}", len(domains))
    known = {int(of_rank[rank]): offset for rank, offset in told.items()}
    offset, bounded, contradicted = _estimate(rows, of_rank, len(domains), known)
    offsets = {rank: int(offset[of_rank[rank]]) for rank in traces}
    if len(domains) < 2:
        return Clocks(offsets, "one node, one clock")
    warnings: tuple[str, ...] = ()
    if contradicted:
        warnings = (
            f"clocks: {contradicted} of {len(domains)} drift: times of ranks compare badly",
        )
    if not bounded:
        return Clocks(offsets, "the nodes' own clocks, uncorrected", warnings)
    return Clocks(
        offsets, "the nodes' own clocks, corrected where collectives contradict them", warnings
    )


def _estimate(
    rows: Rows, of_rank: Int64s, clocks: int, known: Mapping[int, int]
) -> tuple[Int64s, int, int]:
    """Offsets by clock, how many of them have bounds, and how many have impossible ones."""
    offset = np.zeros(clocks, np.int64)
    fixed = np.zeros(clocks, np.bool_)
    for at, value in known.items():
        offset[at], fixed[at] = value, True
    if clocks < 2:
        return offset, 0, 0
    clock, collective, created, completed = _samples(rows, of_rank)
    if not len(clock):
        return offset, 0, 0
    if not known:
        fixed[np.bincount(clock, minlength=clocks).argmax()] = True
    collectives = int(collective.max()) + 1
    contradicted = 0
    for _ in range(_ROUNDS):
        mine = fixed[clock]
        joined = np.full(collectives, -_FAR)
        ended = np.full(collectives, _FAR)
        np.maximum.at(joined, collective[mine], created[mine] + offset[clock[mine]])
        np.minimum.at(ended, collective[mine], completed[mine] + offset[clock[mine]])
        other = np.flatnonzero(~mine & (joined[collective] > -_FAR))
        if not len(other):
            break
        low, high = np.full(clocks, -_FAR), np.full(clocks, _FAR)
        of = collective[other]
        np.maximum.at(low, clock[other], joined[of] - completed[other])
        np.minimum.at(high, clock[other], ended[of] - created[other])
        new = np.unique(clock[other])
        crossed = low[new] > high[new]
        contradicted += int(crossed.sum())
        nearest = np.clip(0, low[new], high[new])
        offset[new] = np.where(crossed, (low[new] + high[new]) // 2, nearest)
        fixed[new] = True
    return offset, int(fixed.sum()), contradicted


def _samples(rows: Rows, of_rank: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Clock, collective (any number), created and completed of calls that bound clocks."""
    calls = rows.calls
    synchronizing = np.array([is_synchronizing(s.op) for s in rows.signatures], np.bool_)
    none = np.empty(0, np.int64)
    if not len(calls):
        return none, none, none, none
    series = rows.pair_series[calls.pair]
    newest = np.full(len(rows.pair_rank), np.int64(-1))
    np.maximum.at(newest, calls.pair, calls.seq)
    last = np.full(len(rows.series), _FAR)
    np.minimum.at(last, series, newest[calls.pair])  # that all who recorded any have come to
    age = last[series] - calls.seq
    use = (calls.completed_ns > 0) & (calls.created_ns > 0) & (age >= 0) & (age < _ENOUGH)
    at = np.flatnonzero(use & synchronizing[calls.signature])
    return (
        of_rank[rows.pair_rank[calls.pair[at]]],
        series[at].astype(np.int64) * _ENOUGH + age[at],
        calls.created_ns[at],
        calls.completed_ns[at],
    )
