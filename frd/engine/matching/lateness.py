"""Which rank or node made the members of a collective wait, for how long, and how often.

A collective begins when its last member arrives. The time between the last arrival and the latest
of all others is lost to that one rank; the time between that and the latest arrival on any other
node is lost to the node. The two add up, so a slow rank on a slow node is charged for its own part
only. Time in which the collective before it still ran is not lost: a program that runs ahead of its
device may arrive at any time in it. No rank is charged for less than `FLOOR_NS`, nor across
nodes for less than the uncertainty of their clocks; and where the clock of a member is unknown, no
rank is charged at all. Columns in, columns out, one pass over all collectives that were retired
together.

Completed collectives show of clocks whose arrivals compare at all: no rank completes an op whose
outputs depend on all inputs before the op's last member has arrived. When the times of two nodes
say so nevertheless, their clocks contradict each other; the collective cannot show which of the two
is wrong.

Charges and waits are counted by group, culprit and size, in buckets of time. Sizes are powers of
two, so that a rank that is very late now and then is found even if another is always a little late.
A bucket is reported when no more of it is expected, so that a charge is never judged without the
charges that may excuse it. Memory grows with the number of late ranks, not with the number of
collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Final, overload

import numpy as np

from frd.engine.clocks.alignment import UNKNOWN_NS
from frd.engine.matching.open_collectives import RetiredCollectives
from frd.engine.policy import Policy
from frd.engine.state.tables import PairTable, RankTable
from frd.model import AlignedNs, Bools, Int32s, Int64s

BUCKETS: Final = 6
"""Buckets of one window."""
LEVELS: Final = 16
"""Sizes of charges: 1 ms and above, 2 ms and above, and so on."""
_MOST_PARTS_APART: Final = 64
_CULPRIT_BITS, _LEVEL_BITS = 36, 4
FLOOR_NS: Final = 1_000_000
"""Schedulers and interpreters delay any program by this much now and then. With half of it, ranks
are charged for their node's interrupts; with twice as much, a rank that is 1.5 ms late in each of
hundreds of collectives a second, which costs a third of all time, is no straggler."""
NOBODY: Final = -1
_MOST_HINTS: Final = 256


@dataclass(frozen=True, slots=True)
class LostTime:
    """Time that members of collectives lost to one rank or one node: parallel arrays."""

    group: Int32s
    culprit: Int64s
    """A rank, or a node as `as_culprit` numbers it; `NOBODY` when it is unknown."""
    at: Int64s
    """Aligned ns at which it arrived."""
    lost_ns: Int64s


@overload
def as_culprit(node: int) -> int: ...
@overload
def as_culprit(node: Int32s | Int64s) -> Int64s: ...
def as_culprit(node: int | Int32s | Int64s) -> int | Int64s:
    """Clocks of nodes as numbers below those of all ranks; the function is its own inverse."""
    return -2 - node if isinstance(node, int) else -2 - node.astype(np.int64)


def charges(
    closed: RetiredCollectives, judged: Bools, ranks: RankTable, clocks: GroupClocks
) -> LostTime:
    """Time lost to the last rank, or its node, of the collectives that are `judged`: all members
    joined and waited for each other."""
    spread = closed.last_created - closed.second_created > FLOOR_NS
    spread |= clocks.spans[closed.group] & (closed.second_created - closed.other_created > FLOOR_NS)
    some = closed.at(np.flatnonzero(judged & spread))
    last, second, other = some.last_created, some.second_created, some.other_created
    spans = clocks.spans[some.group]
    bound = ranks.uncertainty_ns[some.last_rank] + clocks.bound_ns[some.group]
    bound = np.where(spans, bound, 0)
    busy = np.where(some.freed_at > 0, some.freed_at + bound, 0)
    least = bound + FLOOR_NS
    known = (second > 0) & (~spans | (other > 0))
    alone = last - np.maximum(second, busy)
    rank = np.flatnonzero(known & (alone > FLOOR_NS) & (~spans | (last - other > least)))
    together = second - np.maximum(other, busy)
    node = np.flatnonzero(known & spans & (second > other) & (together > least))
    slow_node = as_culprit(ranks.session[some.last_rank[node]])
    return LostTime(
        np.concatenate((some.group[rank], some.group[node])),
        np.concatenate((some.last_rank[rank], slow_node)),
        np.concatenate((last[rank], last[node])),
        np.concatenate((alone[rank], together[node])),
    )


def waits(closed: RetiredCollectives, ended: Bools, fair: Bools) -> LostTime:
    """How long members of the collectives that have `ended` waited on average, and for which rank.

    Of the arrivals the first and the last two are known; the others lie between. The rank is
    unknown where the arrivals do not compare (not `fair`).
    """
    others = closed.first_created // 2 + closed.second_created // 2
    waited = np.where(closed.second_created > 0, closed.last_created - others, 0)
    row = np.flatnonzero(ended & (waited > FLOOR_NS))
    culprit = np.where(fair[row], closed.last_rank[row], NOBODY)
    return LostTime(
        closed.group[row], culprit.astype(np.int64), closed.last_created[row], waited[row]
    )


@dataclass(frozen=True, slots=True)
class GroupClocks:
    """How well the arrivals of each group's members compare; by group handle."""

    spans: Bools
    """Members have more than one clock."""
    bound_ns: Int64s
    """The largest uncertainty among them."""
    since: Int64s
    """Times before this were aligned, of some member, with an offset that has proved wrong."""

    def comparable(self, closed: RetiredCollectives) -> Bools:
        """The collectives whose arrivals can be compared."""
        group = closed.group
        known = (self.bound_ns < UNKNOWN_NS)[group] | ~self.spans[group]
        return known & (closed.first_created >= self.since[group])

    @classmethod
    def of(cls, groups: int, ranks: RankTable, pairs: PairTable) -> GroupClocks:
        spans, (bound, since) = np.zeros(groups, np.bool_), np.zeros((2, groups), np.int64)
        layout = pairs.layout()
        if ranks.count and len(layout.groups):
            rank = pairs.rank[layout.order]
            rank = np.where(rank < ranks.count, rank, 0)  # an undeclared rank never arrives
            session, uncertainty = ranks.session[rank], ranks.uncertainty_ns[rank]
            lowest = np.minimum.reduceat(session, layout.starts)
            spans[layout.groups] = lowest != np.maximum.reduceat(session, layout.starts)
            bound[layout.groups] = np.maximum.reduceat(uncertainty, layout.starts)
            since[layout.groups] = np.maximum.reduceat(ranks.clock_since[rank], layout.starts)
        return cls(spans, bound, since)


@dataclass(frozen=True, slots=True)
class ClockHint:
    """A bound on two clocks: `early_rank` completed a collective `slack_ns` after `late_rank`,
    its last member, arrived. A negative slack is impossible on one clock."""

    early_rank: int
    late_rank: int
    slack_ns: int
    at: AlignedNs
    """When the last member arrived."""
    early_uncertainty_ns: int
    late_uncertainty_ns: int

    @property
    def contradicts(self) -> bool:
        """The clocks disagree by more than their uncertainties allow."""
        return self.slack_ns < -(self.early_uncertainty_ns + self.late_uncertainty_ns)

    @property
    def early_least_ns(self) -> int:
        """The times of `early_rank` are too early by at least this; mostly negative."""
        return -(self.slack_ns + self.late_uncertainty_ns)

    @property
    def late_most_ns(self) -> int:
        """The times of `late_rank` are too early by at most this."""
        return self.slack_ns + self.early_uncertainty_ns


def clock_hints(
    closed: RetiredCollectives, synchronized: Bools, ranks: RankTable
) -> list[ClockHint]:
    """Bounds from the collectives that are `synchronized`: all members joined, and none could
    complete before the last one.

    Of two clocks only the tightest bound, and none that is looser than what is known already.
    """
    slack = closed.first_completed - closed.last_created
    known = ranks.uncertainty_ns[ranks.uncertainty_ns < UNKNOWN_NS]
    row = np.flatnonzero(synchronized & (slack < known.max(initial=0)))
    if not len(row):
        return []
    slack = slack[row]
    early, late = closed.first_done[row], closed.last_rank[row]
    mine, theirs = ranks.uncertainty_ns[early], ranks.uncertainty_ns[late]
    bounds = (ranks.session[early] != ranks.session[late]) & (np.maximum(mine, theirs) < UNKNOWN_NS)
    bounds &= slack < np.abs(np.where(bounds, mine, 0) - np.where(bounds, theirs, 0))
    at = np.flatnonzero(bounds)
    if not len(at):
        return []
    at = at[np.argsort(slack[at], kind="stable")]
    nodes = np.stack((ranks.session[early[at]], ranks.session[late[at]]))
    at = at[np.sort(np.unique(nodes, axis=1, return_index=True)[1])][:_MOST_HINTS]
    return [
        ClockHint(
            early_rank=int(early[i]),
            late_rank=int(late[i]),
            slack_ns=int(slack[i]),
            at=AlignedNs(int(closed.last_created[row[i]])),
            early_uncertainty_ns=int(mine[i]),
            late_uncertainty_ns=int(theirs[i]),
        )
        for i in at.tolist()
    ]


@dataclass(frozen=True, slots=True)
class _Counts:
    """By key (group, culprit, level), ascending: parallel arrays."""

    key: Int64s
    count: Int64s
    lost_ns: Int64s

    @classmethod
    def of(cls, key: Int64s, count: Int64s, lost_ns: Int64s) -> _Counts:
        """The sum of the rows of each key."""
        order = np.argsort(key, kind="stable")
        key = key[order]
        first = np.flatnonzero(np.diff(key, prepend=-1))
        if not len(first):
            return cls(key, count, lost_ns)
        counts, lost = (np.add.reduceat(of[order], first) for of in (count, lost_ns))
        return cls(key[first], counts, lost)

    @classmethod
    def joined(cls, parts: Sequence[_Counts]) -> _Counts:
        columns = ([p.key for p in parts], [p.count for p in parts], [p.lost_ns for p in parts])
        return cls.of(*map(np.concatenate, columns)) if parts else _NOTHING

    def lost_by(self, pair: Int64s) -> Int64s:
        """Nanoseconds lost to each of these (group, culprit) pairs."""
        until = np.append(0, np.cumsum(self.lost_ns))
        first, end = np.searchsorted(self.key, (pair << _LEVEL_BITS, (pair + 1) << _LEVEL_BITS))
        lost: Int64s = until[end] - until[first]
        return lost

    def costly(self, least_ns: float) -> Int64s:
        """(group, culprit) pairs that lost at least this much."""
        pair = self.key >> _LEVEL_BITS
        first = np.flatnonzero(np.diff(pair, prepend=-1))
        if not len(first):
            return pair
        return pair[first[np.add.reduceat(self.lost_ns, first) >= least_ns]]

    def rows(self, group: int) -> slice:
        keys = np.array([group, group + 1]) << (_CULPRIT_BITS + _LEVEL_BITS)
        return slice(*np.searchsorted(self.key, keys).tolist())


_NOTHING: Final = _Counts(*np.zeros((3, 0), np.int64))


class _Parts:
    """Counts that arrive in parts, merged when there are many."""

    def __init__(self) -> None:
        self._parts: list[_Counts] = []

    def add(self, lost: LostTime, rows: Bools) -> None:
        if rows.any():
            self._parts.append(_counted(lost.group[rows], lost.culprit[rows], lost.lost_ns[rows]))
        if len(self._parts) > _MOST_PARTS_APART:
            self.whole()

    def whole(self) -> _Counts:
        self._parts = [_Counts.joined(self._parts)]
        return self._parts[0]


@dataclass(slots=True)
class _Bucket:
    judged: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    """Collectives that could be judged, by group."""
    charges: _Parts = field(default_factory=_Parts)
    waits: _Parts = field(default_factory=_Parts)


@dataclass(frozen=True, slots=True)
class Table:
    """The counts of one group: parallel arrays, by culprit, then level."""

    culprit: Int64s
    level: Int64s
    count: Int64s
    lost_ns: Int64s
    bucket: Int64s
    fresh: Bools
    """No earlier window contained the bucket."""

    def where(self, rows: Bools) -> Table:
        return Table(*(getattr(self, column.name)[rows] for column in fields(self)))


@dataclass(frozen=True, slots=True)
class Window:
    """Counts of the last buckets. In a large job many ranks are late now and then, so rows are
    merged only for the culprits that are looked up."""

    seconds: float
    judged: Int64s
    """Collectives that could be judged, by group."""
    _charges: Sequence[_Counts]
    _waits: Sequence[_Counts]
    _fresh: Sequence[bool]

    def charges(self, group: int) -> Table:
        """Charges to each culprit."""
        return self._table(self._charges, group)

    def waits(self, group: int) -> Table:
        """How long members waited on average, by the last rank."""
        return self._table(self._waits, group)

    def _table(self, parts: Sequence[_Counts], group: int) -> Table:
        rows = [part.rows(group) for part in parts]
        sizes = [row.stop - row.start for row in rows]
        key = np.concatenate([part.key[row] for part, row in zip(parts, rows, strict=True)])
        return Table(
            _culprit_of(key >> _LEVEL_BITS),
            level=key & (LEVELS - 1),
            count=np.concatenate([p.count[row] for p, row in zip(parts, rows, strict=True)]),
            lost_ns=np.concatenate([p.lost_ns[row] for p, row in zip(parts, rows, strict=True)]),
            bucket=np.repeat(np.arange(len(parts)), sizes),
            fresh=np.repeat(np.array(self._fresh, np.bool_), sizes),
        )

    def costly(self, least_ns: float, most: int) -> list[tuple[int, int]]:
        """(group, culprit) pairs that cost at least this much, the most expensive first."""
        some = [part.costly(least_ns / len(self._charges)) for part in self._charges]
        pair = np.unique(np.concatenate(some))
        lost = sum((part.lost_by(pair) for part in self._charges), np.zeros(len(pair), np.int64))
        order = np.argsort(-lost, kind="stable")
        pair = pair[order[lost[order] >= least_ns]][:most]
        return list(zip((pair >> _CULPRIT_BITS).tolist(), _culprit_of(pair).tolist(), strict=True))

    def charged(self, group: int, culprit: int, level: int) -> tuple[int, int]:
        """Time (ns) that the group lost to a culprit at this level and above: in the window, and
        in its fresh buckets."""
        rows = self.charges(group)
        charged = rows.where((rows.culprit == culprit) & (rows.level >= level))
        return int(charged.lost_ns.sum()), int(charged.lost_ns[charged.fresh].sum())


def _culprit_of(pair: Int64s) -> Int64s:
    code = pair & ((1 << _CULPRIT_BITS) - 1)
    return np.where(code & 1, as_culprit((code >> 1) - 1), code >> 1)


class Lateness:
    """Charges and waits of one attempt, counted into buckets of time."""

    def __init__(self, policy: Policy) -> None:
        self._bucket_ns = self._settle_ns = 0
        self._buckets: dict[int, _Bucket] = {}
        self._next: int | None = None
        """The first bucket that no window has contained."""
        self.adopt(policy)

    def adopt(self, policy: Policy) -> None:
        """See `Engine.adopt`."""
        before = self._bucket_ns, self._settle_ns
        self._bucket_ns = max(1, round(policy.straggler_window_s * 1e9 / BUCKETS))
        self._settle_ns = round(policy.telemetry_late_s * 1e9)
        if before != (self._bucket_ns, self._settle_ns):
            self.clear()

    def clear(self) -> None:
        """Forget all counts."""
        self._buckets.clear()
        self._next = None

    def _ripe(self, now: AlignedNs) -> int:
        """The first bucket that may still grow."""
        return (now - self._settle_ns) // self._bucket_ns

    def add(
        self,
        groups: int,
        judged: Int32s,
        at: Int64s,
        charges: LostTime,
        waits: LostTime,
        now: AlignedNs,
    ) -> None:
        """Collectives of the groups `judged`, whose last members joined `at`, with their charges.

        `groups` is the number of all groups. Events that come too late for their own bucket are
        counted in the next one.
        """
        oldest = self._ripe(now) - BUCKETS
        self._next = oldest if self._next is None else max(self._next, oldest)
        for old in [number for number in self._buckets if number < oldest]:
            del self._buckets[old]
        newest = max(now // self._bucket_ns, self._next)
        edges = np.arange(self._next + 1, newest + 1) * self._bucket_ns
        times = (at, charges.at, waits.at)
        of, charged, waited = (np.searchsorted(edges, time, side="right") for time in times)
        for number in np.flatnonzero(np.bincount(np.append(of, waited))).tolist():
            bucket = self._buckets.setdefault(self._next + number, _Bucket())
            counted = np.bincount(judged[of == number], minlength=groups)
            bucket.judged = _sum(bucket.judged, counted)
            bucket.charges.add(charges, charged == number)
            bucket.waits.add(waits, waited == number)

    def window(self, now: AlignedNs) -> Window | None:
        """The last complete buckets; None if that window was returned before. Each bucket is fresh
        in one window only."""
        fresh_from, end = self._next, self._ripe(now)
        if fresh_from is None or end <= fresh_from:
            return None
        self._next = end
        numbers = range(end - BUCKETS, end)
        buckets = [self._buckets.get(number) or _Bucket() for number in numbers]
        judged = np.zeros(0, np.int64)
        for bucket in buckets:
            judged = _sum(judged, bucket.judged)
        return Window(
            BUCKETS * self._bucket_ns / 1e9,
            judged,
            [bucket.charges.whole() for bucket in buckets],
            [bucket.waits.whole() for bucket in buckets],
            [number >= fresh_from for number in numbers],
        )


def _sum(one: Int64s, other: Int64s) -> Int64s:
    """The sum of two arrays by group; one may have fewer groups."""
    total = np.zeros(max(len(one), len(other)), np.int64)
    total[: len(one)] += one
    total[: len(other)] += other
    return total


def _counted(group: Int32s, culprit: Int64s, lost_ns: Int64s) -> _Counts:
    level = np.minimum(np.log2(lost_ns / FLOOR_NS).astype(np.int64), LEVELS - 1)
    code = np.where(culprit < 0, 2 * (as_culprit(culprit) + 1) + 1, 2 * culprit)
    key = (group.astype(np.int64) << _CULPRIT_BITS | code) << _LEVEL_BITS | level
    return _Counts.of(key, np.ones(len(key), np.int64), lost_ns)
