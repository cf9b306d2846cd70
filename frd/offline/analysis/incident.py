"""Which dumps of a folder are of the incident that is judged.

Files have fixed names, and each incident overwrites them. A rank that writes none leaves its file
of an earlier incident, or of an attempt with another world. Such a rank has no dump of this
incident, as if its file were missing. Age alone proves nothing: the last entry of a real culprit is
as old as the wait. A dump is of another time or job if

- its `pg_config` has another world than the newest dump, and the two share ranks;
- it contradicts a dump that is much newer: a peer completed an op that needs all members, and one
  of them has not joined it;
- its newest entry is much older than the first wait in newer dumps, and its file is older, too. A
  rank that was idle for so long would have written its file with the others.

Much is ten minutes, more than what clocks differ. If the contradiction is younger, the dump was
taken a moment before the peer's, and only what it shows of that group is too old
(`frd.offline.analysis.watermarks`). The dumps of `frd dump` are of one moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

import numpy as np

from frd.engine.findings import text
from frd.flight.trace import RankTrace, Trace
from frd.model import UNKNOWN_SEQ
from frd.offline.analysis.rows import WHOLE_JOB, Rows

_MUCH_NS = 600_000_000_000
_NAMED = 8
"""Files of one kind that a warning names."""


def of_other_times(rows: Rows) -> Mapping[int, str]:
    """Ranks whose dump is not of this incident, and why."""
    trace = rows.trace
    if trace.taken_at is not None or any(one.info is not None for one in trace.ranks.values()):
        return {}
    newest = {rank: one.newest_ns for rank, one in trace.ranks.items()}
    if found := _of_other_worlds(trace, newest):
        return found
    known = [at for at in newest.values() if at > 0]
    if not known or max(known) - min(known) <= _MUCH_NS:
        return {}
    return _refuted(rows, newest) or _too_old(rows, newest)


def without(trace: Trace, left_out: Mapping[int, str]) -> Trace:
    """The trace as if the files of these ranks were missing, with warnings that name them."""
    ranks = {rank: one for rank, one in trace.ranks.items() if rank not in left_out}
    used = {at for one in ranks.values() for at in _groups_of(one)}
    theirs = {at for rank in left_out for at in _groups_of(trace.ranks[rank])}
    kept = [at for at in range(len(trace.groups)) if at in used or at not in theirs]
    to = np.full(len(trace.groups), -1, np.int32)
    to[kept] = np.arange(len(kept))
    groups = [trace.groups[at] for at in kept]
    by_reason: dict[str, list[int]] = {}
    for rank, why in sorted(left_out.items()):
        by_reason.setdefault(why, []).append(rank)
    warnings = [
        f"{', '.join(trace.ranks[rank].source for rank in some[:_NAMED])}: the dump of "
        f"{text.ranks(some)} is of another time or job, {why}: left out, as if it were missing"
        for why, some in by_reason.items()
    ]
    return replace(
        trace,
        ranks={
            rank: replace(one, group=to[one.group], member_of=(*to[[*one.member_of]].tolist(),))
            for rank, one in ranks.items()
        },
        groups=groups,
        world_size=max((g.ranks[-1] + 1 for g in groups if g.ranks), default=trace.world_size),
        warnings=(*trace.warnings, *warnings),
    )


def _groups_of(one: RankTrace) -> Set[int]:
    """The groups that the rank used, or that its `pg_config` describes."""
    return {*one.member_of, *np.unique(one.group).tolist()}


def _of_other_worlds(trace: Trace, newest: Mapping[int, int]) -> Mapping[int, str]:
    worlds = {
        rank: at
        for rank, one in trace.ranks.items()
        for at in one.member_of
        if trace.groups[at].desc == WHOLE_JOB and trace.groups[at].ranks
    }
    if len(set(worlds.values())) < 2:
        return {}
    last = max(worlds, key=lambda rank: (newest[rank], trace.ranks[rank].dumped_until_ns))
    present = trace.groups[worlds[last]].ranks
    sizes = {rank: len(trace.groups[at].ranks) for rank, at in worlds.items()}
    return {
        rank: f"its job has {sizes[rank]} ranks, and that of the newest dump {len(present)}"
        for rank, at in worlds.items()
        if (theirs := trace.groups[at].ranks) != present and not {*theirs}.isdisjoint(present)
    }


def _refuted(rows: Rows, newest: Mapping[int, int]) -> Mapping[int, str]:
    """Of two dumps that contradict each other the one that is much older."""
    calls, found = rows.calls, {}
    joined = np.full(len(rows.pair_rank), UNKNOWN_SEQ, np.int64)
    np.maximum.at(joined, calls.pair, calls.seq)
    last = rows.proofs[rows.pair_series]
    behind = (joined > UNKNOWN_SEQ) & (last >= 0)
    behind[behind] = joined[behind] < calls.seq[last[behind]]
    for pair in np.flatnonzero(behind).tolist():
        rank, proof = int(rows.pair_rank[pair]), int(last[pair])
        peer = int(rows.pair_rank[calls.pair[proof]])
        one, at = rows.ranks[rank], int(calls.completed_ns[proof])
        if one.active_only or one.trace.holes or min(newest[rank], at) <= 0:
            continue
        label = rows.series[int(rows.pair_series[pair])].info.label
        what = f"#{calls.seq[proof]} of group {label!r}"
        if at > newest[rank] + _MUCH_NS:
            found[rank] = f"its newest entry is much older than when rank {peer} completed {what}"
        elif newest[rank] > newest[peer] + _MUCH_NS:
            found[peer] = f"it completed {what}, which a newer dump, of rank {rank}, lacks"
    return found


def _too_old(rows: Rows, newest: Mapping[int, int]) -> Mapping[int, str]:
    calls, present = rows.calls, max(newest.values()) - _MUCH_NS
    over = np.full(len(rows.pair_rank), UNKNOWN_SEQ, np.int64)
    np.maximum.at(over, calls.pair[calls.done], calls.seq[calls.done])
    is_present = [newest.get(rank, 0) >= present for rank in rows.pair_rank.tolist()]
    waits = ~calls.done & (calls.seq > over[calls.pair]) & (calls.created_ns > 0)
    waits &= np.array(is_present, np.bool_)[calls.pair]
    if not waits.any():
        return {}
    first_wait = int(calls.created_ns[waits].min())
    written = {rank: one.dumped_until_ns for rank, one in rows.trace.ranks.items()}
    return {
        rank: "its newest entry and its file are much older than the first wait"
        for rank, at in newest.items()
        if 0 < at < first_wait - _MUCH_NS and 0 < written[rank] < max(written.values()) - _MUCH_NS
    }
