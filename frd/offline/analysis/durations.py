"""How long each op had been waiting when the dumps were taken.

A dump shows a wait, and a healthy job waits all the time: only the length of a wait distinguishes a
hang from a checkpoint. Nothing in a dump says when it was taken, so every length is an interval.
Its lower end is what the dumps prove; its upper end is what the folder allows, and is open when the
folder does not have it.

- A dump was taken after its newest record, and after `frd dump` requested it.
- It was taken before its file was written, and before its answer was sent.
- A collective that a member waits in, or has not joined, was still open when that member's dump was
  taken. The latest of these dumps counts.
- A wait that an earlier dump shows too is at least as old as the time between the two dumps.
- An op that the watchdog gave up had waited for longer than its timeout.

A wait is *young* if its upper end is below the stall threshold. A finding that rests on young waits
alone is not proven. Without an upper end no wait is young: such dumps are from a job that stopped,
otherwise they would not have been kept. In between, torch may have taken the dumps when the op
timed out. If the files are older than that, they are from a running job, and the length of the wait
is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from frd.engine.matching.signature_rules import is_synchronizing
from frd.engine.state.snapshot import Snapshot, StallTable
from frd.flight.trace import COMPLETED, RankTrace, Trace
from frd.model import UNKNOWN_SEQ, AlignedNs, Bools, Int64s
from frd.offline.analysis.clocks import FAR, Clocks
from frd.offline.analysis.collectives import known_absent
from frd.offline.analysis.rows import Rows
from frd.offline.analysis.watermarks import PairWatermarks

STALL_AFTER_S = 10.0
"""The stall threshold if neither the caller nor the folder gives one: the default of a service."""
_MAX_SLACK_NS = 1 << 58
"""A clock that may be off by more than nine years bounds nothing, and sums must fit 64 bits."""


@dataclass(frozen=True, slots=True)
class DumpTimes:
    """When the dump of each rank was taken, aligned; parallel to the sorted ranks of the rows."""

    rank: Int64s
    earliest: Int64s
    """0 when the dump holds no time."""
    latest: Int64s
    """`FAR` when nothing bounds it."""
    slack: Int64s
    """How far off the clock of the rank may be when it is compared with that of another rank."""

    def rows(self, ranks: Int64s) -> Int64s:
        """Indexes of ranks that have a dump."""
        return np.searchsorted(self.rank, ranks)

    @property
    def known_at(self) -> AlignedNs:
        """The latest moment that any dump proves."""
        return AlignedNs(int(self.earliest.max(initial=0)))


@dataclass(frozen=True, slots=True)
class WaitDurations:
    """In ns; parallel to the rows of a stall table."""

    at_least: Int64s
    at_most: Int64s
    """`FAR` when nothing bounds it."""
    stalled_after: Int64s
    """How long such an op may wait before it counts as stalled: the stall threshold, or the op's
    own timeout if that is shorter."""
    timeout: Int64s
    """The op's own timeout; 0 when unknown."""

    @property
    def is_young(self) -> Bools:
        return self.at_most < self.stalled_after


def dump_times_of(rows: Rows, clocks: Clocks) -> DumpTimes:
    ranks = sorted(rows.ranks)
    earliest, latest = [], []
    for rank in ranks:
        trace, offset = rows.ranks[rank].trace, clocks.offset_ns.get(rank, 0)
        newest = max(trace.newest_ns, trace.dumped_from_ns)
        bounded = trace.dumped_until_ns > 0 and trace.dumped_until_ns >= newest
        earliest.append(newest + offset if newest else 0)
        latest.append(trace.dumped_until_ns + offset if bounded else int(FAR))
    one_clock = len(clocks.domains) < 2
    slack = [0 if one_clock else min(clocks.slack_ns.get(r, 0), _MAX_SLACK_NS) for r in ranks]
    return DumpTimes(*(np.array(column, np.int64) for column in (ranks, earliest, latest, slack)))


def last_dump_ns(trace: Trace) -> int:
    """When the last dump of a trace was taken, if known, on its node's clock."""
    return max((of.dumped_until_ns or of.newest_ns for of in trace.ranks.values()), default=0)


def wait_durations_of(
    rows: Rows,
    watermarks: PairWatermarks,
    clocks: Clocks,
    dump_times: DumpTimes,
    snapshot: Snapshot,
    stalls: StallTable,
    *,
    stall_after_s: float,
    earlier: Sequence[Trace] = (),
) -> WaitDurations:
    """How long each row of `stalls` had waited. `earlier` are older dumps of the same job."""
    before, gave_up = _heads(rows, watermarks, clocks, len(stalls))
    at = dump_times.rows(stalls.rank.astype(np.int64))
    since = np.maximum(stalls.since, before)
    earliest, latest = _shown_until(rows, watermarks, dump_times, snapshot, stalls, at)
    timed = since > 0
    at_least = np.where(timed, np.maximum(earliest - since, 0), 0)
    at_most = np.where(timed & (latest < FAR), np.maximum(latest - since, 0), FAR)
    stalled_after = np.full(len(since), round(stall_after_s * 1e9), np.int64)
    timeout = _timeouts(rows)
    limit = np.array([timeout.get(rank, 0) for rank in stalls.rank.tolist()], np.int64)
    stalled_after = np.where(limit > 0, np.minimum(stalled_after, limit), stalled_after)
    at_least = np.where(gave_up, np.maximum(at_least, np.minimum(limit, at_most)), at_least)
    at_most = np.where(gave_up, np.maximum(at_most, stalled_after), at_most)
    if earlier:
        at_least = np.maximum(at_least, _since_earlier(rows, stalls, earlier))
    return WaitDurations(at_least, np.maximum(at_most, at_least), stalled_after, limit)


# -- the waits themselves ----------------------------------------------------------------------


def waiting_pairs(rows: Rows, watermarks: PairWatermarks) -> Int64s:
    """Pairs of `rows` that wait in a collective, of ranks that have a dump."""
    return np.flatnonzero(rows.is_dumped & (watermarks.enqueued > watermarks.completed))


def _heads(
    rows: Rows, watermarks: PairWatermarks, clocks: Clocks, stalls: int
) -> tuple[Int64s, Bools]:
    """For each row of the stall table, which begins with the waiting pairs:

    Aligned ns at which the op before it was seen to be over; 0 when unknown. An op that was
    enqueued early waits from then on, not from its enqueue. And whether the watchdog ended the op.
    """
    pairs, calls = waiting_pairs(rows, watermarks), rows.calls
    before, gave_up = np.zeros(stalls, np.int64), np.zeros(stalls, np.bool_)
    number = np.full(len(rows.pair_rank), -1)
    number[pairs] = np.arange(len(pairs))
    behind = calls.seq - watermarks.completed[calls.pair]
    is_head = (number[calls.pair] >= 0) & ((behind == 0) | (behind == 1))
    for call in np.flatnonzero(is_head).tolist():
        stall, row = number[calls.pair[call]], int(calls.last_row[call])
        rank = int(rows.pair_rank[calls.pair[call]])
        trace = rows.ranks[rank].trace
        if not trace.retired[row]:
            continue  # the watchdog still watches the op: its times are those of the dump
        over = int(trace.completed_ns[row])
        if behind[call] == 0 and over > 0:
            before[stall] = over + clocks.offset_ns.get(rank, 0)
        if behind[call] == 1:
            timeout = int(trace.timeout_ms[row]) * 1_000_000
            overdue = 0 < timeout <= over - int(trace.created_ns[row])
            marked = bool(rows.facts.completes[trace.name[row]])
            gave_up[stall] = marked and (overdue or trace.state[row] != COMPLETED)
    return before, gave_up


def _timeouts(rows: Rows) -> Mapping[int, int]:
    """By rank the shortest timeout of what it has in flight, in ns."""
    found = {}
    for rank, one in rows.ranks.items():
        timeouts = one.trace.timeout_ms[one.current[~one.state.done | one.state.weak]]
        if len(timeouts := timeouts[timeouts > 0]):
            found[rank] = min(int(timeouts.min()) * 1_000_000, int(FAR))
    return found


# -- until when a wait is shown ----------------------------------------------------------------


def _shown_until(
    rows: Rows,
    watermarks: PairWatermarks,
    dump_times: DumpTimes,
    snapshot: Snapshot,
    stalls: StallTable,
    at: Int64s,
) -> tuple[Int64s, Int64s]:
    """Between which times the latest dump that shows each wait was taken."""
    earliest, latest = dump_times.earliest[at], dump_times.latest[at]
    collective = np.flatnonzero(stalls.seq != UNKNOWN_SEQ)
    keys = np.stack((stalls.group[collective], stalls.seq[collective]))
    instances, which = np.unique(keys, axis=1, return_inverse=True)
    which = which.reshape(-1)
    for number, (of, seq) in enumerate(instances.T.tolist()):
        mine = collective[which == number]
        others = at[mine]
        if is_synchronizing(snapshot.op(of, seq)):
            series = rows.series[of]
            absent = series.members[known_absent(rows, watermarks, series.pairs, seq)]
            others = np.concatenate((others, dump_times.rows(absent.astype(np.int64))))
        slack = dump_times.slack[others]
        first = int((dump_times.earliest[others] - slack).max())
        last = np.minimum(dump_times.latest[others] + slack, FAR).max()
        reach = dump_times.slack[at[mine]]
        earliest[mine] = np.maximum(earliest[mine], first - reach)
        latest[mine] = np.maximum(latest[mine], np.minimum(last + reach, FAR))
    return earliest, latest


def _since_earlier(rows: Rows, stalls: StallTable, earlier: Sequence[Trace]) -> Int64s:
    """Time from the first dump that shows each wait to the one that is analyzed, in ns.

    An op is the same when it has the same group, number and time of enqueue.
    """
    apart = np.zeros(len(stalls), np.int64)
    seen: dict[int, Mapping[tuple[str, int, int], int]] = {}
    for row, (of, rank) in enumerate(zip(stalls.group.tolist(), stalls.rank.tolist(), strict=True)):
        one = rows.ranks[rank]
        if rank not in seen:
            seen[rank] = _in_flight(one.trace, earlier)
        seq = int(stalls.seq[row])
        for entry in one.current[(one.series == of) & ~one.state.done].tolist():
            if seq in (UNKNOWN_SEQ, int(one.trace.seq[entry])):
                key = _key(rows.trace, one.trace, entry)
                apart[row] = max(apart[row], seen[rank].get(key, 0))
    return apart


def _in_flight(trace: RankTrace, earlier: Sequence[Trace]) -> Mapping[tuple[str, int, int], int]:
    """The ops that a rank had in flight in earlier dumps, with ns from that dump to this one."""
    found: dict[tuple[str, int, int], int] = {}
    for other in earlier:
        if (before := other.ranks.get(trace.rank)) is None:
            continue
        gap = trace.dumped_until_ns - before.dumped_until_ns
        if min(trace.dumped_until_ns, before.dumped_until_ns) <= 0 or gap <= 0:
            continue
        for entry in np.flatnonzero((before.state != COMPLETED) & (before.created_ns > 0)).tolist():
            key = _key(other, before, entry)
            found[key] = max(gap, found.get(key, 0))
    return found


def _key(trace: Trace, of: RankTrace, entry: int) -> tuple[str, int, int]:
    name = trace.groups[int(of.group[entry])].name
    return name, int(of.seq[entry]), int(of.created_ns[entry])
