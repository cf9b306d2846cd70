"""Counts charges and waits by group, culprit and size, in buckets of time.

Sizes are powers of two, so that a rank that is very late now and then is found even if another is
always a little late. A bucket is reported when no more of it is expected, so that a charge is never
judged without the charges that may excuse it. Memory grows with the number of late ranks, not with
the number of collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Final

import numpy as np

from frd.engine.matching.arrivals import FLOOR_NS, LostTime, as_culprit
from frd.engine.policy import Policy
from frd.model import AlignedNs, Bools, Int32s, Int64s

BUCKETS: Final = 6
"""Buckets of one window."""
LEVELS: Final = 16
"""Sizes of charges: 1 ms and above, 2 ms and above, and so on."""
_MOST_PARTS_APART: Final = 64
_CULPRIT_BITS, _LEVEL_BITS = 36, 4


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
