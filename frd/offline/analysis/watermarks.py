"""How far each member of each series has come: the watermarks of dump files.

`frd.flight.progress` reads them from the entries. Where a dump has no entry of a series, its
`pg_status` may help. The keys of `pg_status` are numbers of the process: the rank's own entries
translate them, or the order of creation if all group names are numbers; never those of another
rank. Counters that may count other ops too (Gloo and hooks count all ops, NCCL writes P2P ops into
the same counters) are not used. A hole, an entry that cannot be read, leaves the watermarks of a
member open until a later entry of the group, or a counter that the hole explains, shows more. A
member without any information is *hidden*: its absence proves nothing.

An end that is weak (`frd.flight.progress.States`) is one only if no known member lacks the call or
is still in it; see `_believe_weak_ends`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from frd.flight import progress
from frd.flight.entry import Status
from frd.flight.progress import NEVER, Calls
from frd.model import UNKNOWN_SEQ, Bools, Int64s
from frd.offline.analysis.clocks import Clocks
from frd.offline.analysis.rows import RankRows, Rows


@dataclass(frozen=True, slots=True)
class PairWatermarks:
    """Parallel to the pairs of `Rows`."""

    enqueued: Int64s
    started: Int64s
    completed: Int64s
    head_since: Int64s
    """Aligned ns, 0 when nothing is outstanding or no time is known."""
    first_seq: Int64s
    """The lowest seq of the pair in the dump; `NEVER` without any."""
    hidden: Bools
    """The member may have come further than its watermarks say."""
    lost: Bools
    """It may be in an op whose entry cannot be read."""


def pair_watermarks(
    rows: Rows, created_ns: Int64s, clocks: Clocks, misfit: Int64s
) -> PairWatermarks:
    """Over the calls: `created_ns` are their aligned times, `misfit` is how they do not match."""
    watermarks = _of_calls(rows, created_ns)
    leads = _leads(rows)
    for rank, one in rows.ranks.items():
        mine = rows.pairs_of[rank]
        _of_p2p(rows, mine, one, watermarks)
        if one.trace.holes:
            _doubt_holes(rows, mine, one, watermarks)
        if watermarks.hidden[mine].any():
            _of_status(rows, rank, one, watermarks, leads)
            unknown = mine[(watermarks.head_since[mine] == 0) & _is_waiting(watermarks, mine)]
            if len(unknown):
                began = one.trace.newest_ns if one.trace.holes else _began(one)
                watermarks.head_since[unknown] = began + clocks.offset_ns[rank]
    if watermarks.hidden.any():
        _prove_by_value(rows, watermarks, leads)
    _doubt_implausible(rows, watermarks)
    if watermarks.hidden.any():
        _prove_by_time(rows, watermarks, clocks)
    weak = rows.calls.weak & (rows.calls.seq > watermarks.completed[rows.calls.pair])
    if weak.any():
        _believe_weak_ends(rows, watermarks, weak, misfit, created_ns)
    return watermarks


def _leads(rows: Rows) -> Mapping[int, int]:
    """By series, a counter of `pg_status` minus the seq that it means; none where other ops count.

    NCCL's own recorder counts seqs. Hooks count ops from 0, and seqs from 1.
    """
    most, least = np.full(len(rows.series), -NEVER), np.full(len(rows.series), NEVER)
    for one in rows.ranks.values():
        lead = one.trace.op_id[one.current] - one.trace.seq[one.current]
        lead[one.is_p2p] = NEVER
        np.maximum.at(most, one.series, lead)
        np.minimum.at(least, one.series, lead)
    found = {}
    for of, series in enumerate(rows.series):
        if most[of] == NEVER or progress.counts_ops(_backend(rows, of)):
            continue
        if progress.counts_seqs(series.backend) or most[of] < least[of]:
            found[of] = 0
        elif most[of] == least[of] and most[of] in (0, -1):
            found[of] = int(most[of])
    return found


def _is_waiting(watermarks: PairWatermarks, pairs: Int64s) -> Bools:
    return watermarks.enqueued[pairs] > watermarks.completed[pairs]


def _began(one: RankRows) -> int:
    """The oldest time in a rank's dump. Overwritten entries are older."""
    times = one.trace.created_ns[one.current]
    times = times[times > 0]
    return int(times.min()) if len(times) else 0


def _in_order(rows: Rows) -> Bools:
    """By pair: a call is over when a later one is done. Gloo has several threads for a group."""
    retires = [series.backend in rows.facts.marks.retirement for series in rows.series]
    return ~np.array(retires, np.bool_)[rows.pair_series]


def _of_calls(rows: Rows, created_ns: Int64s) -> PairWatermarks:
    """Weak ends do not count."""
    calls = rows.calls
    proven = replace(calls, done=calls.done & ~calls.weak)
    found = progress.watermarks(proven, _in_order(rows))
    since = np.zeros(len(rows.pair_rank), np.int64)
    waiting = np.flatnonzero(found.head != progress.NO_CALL)
    since[waiting] = created_ns[found.head[waiting]]
    is_timed = _has_starts(rows, found.started)
    started = np.where(is_timed, np.maximum(found.started, found.completed), found.started)
    hidden = (found.first == NEVER) & rows.is_dumped
    known = (found.enqueued, started, found.completed, since, found.first)
    return PairWatermarks(*known, hidden, lost=np.zeros(len(hidden), np.bool_))


def _believe_weak_ends(
    rows: Rows, watermarks: PairWatermarks, weak: Bools, misfit: Int64s, created_ns: Int64s
) -> None:
    """Counts weak ends up to the last call that no known member lacks or is in.

    A call beyond it is open if its ranks wait for each other, or if a time-out ended it; so is one
    that is not retired and in which members disagree. A call after which no member has gone on is
    open too if its sizes are wrong; if a time-out ended it and a member has no dump; or if the
    recorder shows no ends and others wait for a member, which may be in it.
    """
    calls, pair, series = rows.calls, rows.calls.pair, rows.pair_series
    least = watermarks.completed.copy()
    most = progress.watermarks(calls, _in_order(rows)).completed
    most = np.where(watermarks.first_seq < NEVER, most, least)
    known = rows.is_dumped & ~watermarks.hidden
    limit = np.full(len(rows.series), NEVER)
    np.minimum.at(limit, series[known], most[known])
    shown = np.array([rows.facts.marks.show_ends(one.backend) for one in rows.series], np.bool_)
    together, passed = rows.synchronizing[calls.signature], _passed(rows)
    last, stuck = weak & ~passed, weak & (misfit > passed)
    has_no_dump = np.bincount(series[~rows.is_dumped], minlength=len(limit)) > 0
    ended = last & together & (has_no_dump & shown)[series[pair]]
    ended &= calls.first_row == calls.last_row  # of a coalesced one the end is weak anyhow
    waits = weak & (together | shown[series[pair]]) & (calls.seq > limit[series[pair]])
    waits |= (stuck & ~_retired(rows, stuck)) | ended
    over = np.maximum(least, _before(waits, calls, most))
    head = np.full(len(rows.series), UNKNOWN_SEQ, np.int64)
    is_waiting = watermarks.enqueued > over
    np.maximum.at(head, series[is_waiting], over[is_waiting] + 1)
    missed = np.isin(rows.pair_rank, rows.pair_rank[known & (watermarks.enqueued < head[series])])
    if missed.any():
        is_missed = np.bincount(series[missed], minlength=len(head)) > 0
        waits |= last & (is_missed & ~shown & (rows.sizes > 1))[series[pair]]
        over = np.maximum(least, _before(waits, calls, most))
    watermarks.completed[:] = over
    watermarks.head_since[over > least] = 0
    at = np.flatnonzero((over > least)[pair] & (calls.seq == over[pair] + 1))
    watermarks.head_since[pair[at]] = created_ns[at]


def _before(waits: Bools, calls: Calls, most: Int64s) -> Int64s:
    """By pair, the last seq before the first of its calls that waits; `most` without any."""
    last = most.copy()
    np.minimum.at(last, calls.pair[waits], calls.seq[waits] - 1)
    return last


def _retired(rows: Rows, wanted: Bools) -> Bools:
    """Which of some calls are retired."""
    found = wanted.copy()
    for call in np.flatnonzero(wanted).tolist():
        rank = int(rows.pair_rank[rows.calls.pair[call]])
        found[call] = rows.ranks[rank].trace.retired[rows.calls.last_row[call]]
    return found


def _passed(rows: Rows) -> Bools:
    """Calls after which a member has gone on to another op."""
    calls = rows.calls
    newest = {rank: int(one.current[-1]) for rank, one in rows.ranks.items() if len(one.current)}
    last_row = np.array([newest.get(rank, -1) for rank in rows.pair_rank.tolist()], np.int64)
    went_on = calls.last_row < last_row[calls.pair]
    series = rows.pair_series[calls.pair]
    passed = np.full(len(rows.series), UNKNOWN_SEQ, np.int64)
    np.maximum.at(passed, series[went_on], calls.seq[went_on])
    return calls.seq <= passed[series]


def _has_starts(rows: Rows, started: Int64s) -> Bools:
    """Pairs of ranks whose recorder records starts: it has recorded one, or other ranks' recorders
    have (timing is switched on for a job, not for a rank) and none of its ops has completed."""
    timed = np.unique(rows.pair_rank[started > UNKNOWN_SEQ])
    if len(timed):
        seen_over = rows.pair_rank[rows.calls.pair[rows.calls.done]]
        timed = np.union1d(timed, np.setdiff1d(rows.pair_rank, seen_over))
    return np.isin(rows.pair_rank, timed)


def _of_p2p(rows: Rows, pairs: Int64s, one: RankRows, watermarks: PairWatermarks) -> None:
    """A P2P entry carries the seq of the last collective before it, which the rank had joined."""
    at = np.flatnonzero(one.is_p2p & (one.trace.seq[one.current] != UNKNOWN_SEQ))
    if not len(at):
        return
    seq = one.trace.seq[one.current[at]]
    for pair in pairs[watermarks.first_seq[pairs] == NEVER].tolist():
        passed = seq[one.series[at] == rows.pair_series[pair]]
        if len(passed):
            watermarks.enqueued[pair] = watermarks.completed[pair] = passed.max()
            watermarks.hidden[pair] = False


def _doubt_holes(rows: Rows, pairs: Int64s, one: RankRows, watermarks: PairWatermarks) -> None:
    """Hides members for which the rank may have an entry after its last readable one."""
    for pair in pairs.tolist():
        of = int(rows.pair_series[pair])
        last = int(one.current[one.series == of].max(initial=-1))
        if last < one.trace.unread_before(rows.trace.groups[rows.series[of].group]):
            watermarks.hidden[pair] = True
            watermarks.lost[pair] = watermarks.enqueued[pair] == watermarks.completed[pair]


def _of_status(
    rows: Rows, rank: int, one: RankRows, watermarks: PairWatermarks, leads: Mapping[int, int]
) -> None:
    """Series without entries in the dump, or with a hole after them."""
    status = _by_series(rows, rank, one)
    unread = sum(hole.entries for hole in one.trace.holes)
    for pair in rows.pairs_of[rank][watermarks.hidden[rows.pairs_of[rank]]].tolist():
        of = int(rows.pair_series[pair])
        counts = status.get(of)
        held = int(watermarks.enqueued[pair])
        if counts is None:
            watermarks.hidden[pair] = one.overran or one.has_holes or one.active_only or unread > 0
        elif counts.enqueued < 0:
            watermarks.hidden[pair] = False
        elif (lead := leads.get(of)) is None:
            continue
        elif held == UNKNOWN_SEQ or held <= counts.enqueued - lead <= held + unread:
            shows = not one.active_only and rows.facts.marks.show_ends(_backend(rows, of))
            over = (counts.completed if shows else counts.enqueued) - lead
            watermarks.enqueued[pair] = counts.enqueued - lead
            watermarks.completed[pair] = max(over, int(watermarks.completed[pair]))
            watermarks.hidden[pair] = watermarks.lost[pair] = False


def _backend(rows: Rows, of: int) -> str:
    """Of a group without entries on any rank, the usual one."""
    usual = next((series.backend for series in rows.series if series.backend), "")
    return rows.series[of].backend or usual


def _by_series(rows: Rows, rank: int, one: RankRows) -> Mapping[int, Status]:
    """The rank's `pg_status` by series, as far as its keys can be translated."""
    mine = rows.pair_series[rows.pairs_of[rank]].tolist()
    keys, at = np.unique(one.trace.pg_id[one.current], return_index=True)
    of_key = dict(zip(keys.tolist(), one.series[at].tolist(), strict=True))
    status = one.trace.status
    ordered = _by_order(rows, mine, sorted(status))
    if ordered and all(ordered.get(key, of) == of for key, of in of_key.items()):
        of_key = {**ordered, **of_key}
    return {of: status[key] for key, of in of_key.items() if key in status}


def _by_order(rows: Rows, series: list[int], keys: list[int]) -> dict[int, int]:
    """Group names count in the job, ids in the process: both follow the order of creation."""
    names = [rows.series[of].info.name for of in series]
    if len(keys) != len(series) or not all(name.isdecimal() for name in names):
        return {}
    if len(set(names)) != len(names):
        return {}
    in_order = sorted(series, key=lambda of: int(rows.series[of].info.name))
    return dict(zip(keys, in_order, strict=True))


def _doubt_implausible(rows: Rows, watermarks: PairWatermarks) -> None:
    """Hides members whose watermarks contradict those of their peers.

    A counter counts other ops if by its value a member completed a call that no peer has joined. If
    a peer completed a call that all members must have joined, and a member's dump does not show it,
    the dump was taken earlier, or the recorder was reset or switched off.
    """
    enqueued, completed = watermarks.enqueued, watermarks.completed
    held = watermarks.first_seq < NEVER
    last = rows.proofs[rows.pair_series]
    wrong = (last >= 0) & ~watermarks.hidden
    wrong[wrong] = enqueued[wrong] < rows.calls.seq[last[wrong]]
    wrong[wrong] &= ~held[wrong] | (rows.calls.completed_ns[last[wrong]] > 0)
    for series in rows.series:
        pairs = series.pairs
        if held[pairs].any() and not held[pairs].all():
            most = int(enqueued[pairs][held[pairs]].max())
            wrong[pairs] |= ~held[pairs] & (completed[pairs] > most)
    completed[wrong & ~held] = UNKNOWN_SEQ
    enqueued[wrong] = completed[wrong]  # a wait that the dump shows is over since
    watermarks.head_since[wrong] = 0
    watermarks.hidden[:] |= wrong & rows.is_dumped
    watermarks.lost[:] |= wrong & held


def _prove_by_time(rows: Rows, watermarks: PairWatermarks, clocks: Clocks) -> None:
    """A rank did not join if its recorder reaches back to before its peers began to wait and has no
    entry of the series."""
    for pair in np.flatnonzero(watermarks.hidden).tolist():
        rank = int(rows.pair_rank[pair])
        one = rows.ranks[rank]
        pairs = rows.series[int(rows.pair_series[pair])].pairs
        waiting = watermarks.head_since[pairs] > 0
        if one.active_only or one.has_holes or watermarks.first_seq[pair] < NEVER:
            continue
        if one.trace.holes or not len(one.current) or not waiting.any():
            continue
        began = _began(one) + clocks.offset_ns[rank] + clocks.slack_ns[rank]
        slack = [clocks.slack_ns[r] for r in rows.pair_rank[pairs][waiting].tolist()]
        if began < int((watermarks.head_since[pairs][waiting] - np.array(slack)).min()):
            behind = int(watermarks.completed[pairs][waiting].min())
            watermarks.enqueued[pair] = watermarks.completed[pair] = behind
            watermarks.hidden[pair] = False


def _prove_by_value(rows: Rows, watermarks: PairWatermarks, leads: Mapping[int, int]) -> None:
    """Counters whose groups are unknown: if none has the seq in which the peers wait, the rank did
    not join it. One would have it if the rank had joined and left that call."""
    for pair in np.flatnonzero(watermarks.hidden).tolist():
        rank, of = int(rows.pair_rank[pair]), int(rows.pair_series[pair])
        one, series = rows.ranks[rank], rows.series[of]
        waiting = _is_waiting(watermarks, np.arange(series.pairs.start, series.pairs.stop))
        if (lead := leads.get(of)) is None or not waiting.any():
            continue
        if watermarks.first_seq[pair] < NEVER:  # hidden by a hole
            continue
        head = int(watermarks.completed[series.pairs][waiting].min()) + 1
        most = int(watermarks.enqueued[series.pairs].max())
        translated = set(np.unique(one.trace.pg_id[one.current]).tolist())
        status = one.trace.status.items()
        values = [counts.enqueued - lead for key, counts in status if key not in translated]
        if values and not any(head <= value <= most for value in values):
            watermarks.enqueued[pair] = watermarks.completed[pair] = head - 1
            watermarks.hidden[pair] = False
