"""Charges and waits, counted: by group, culprit and size, in buckets of time.

Sizes are powers of two, so that a rank that is very late now and then is not lost beside one that
is always a little late. A bucket is told of when no more of it is to be expected, so that a charge
is never judged without those that may excuse it. What is kept does not grow with the number of
collectives, but with the number of those who are late in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

import numpy as np

from frd.engine.arrivals import FLOOR_NS, Charges, as_culprit
from frd.engine.picture import Bools
from frd.model import AlignedNs, Int32s, Int64s

BUCKETS: Final = 6
"""Of a window."""
LEVELS: Final = 16
"""Sizes of charges: 1 ms and above, 2 ms and above, and so on."""
_MOST_PARTS_APART: Final = 64
_CULPRIT_BITS, _LEVEL_BITS = 36, 4


@dataclass(frozen=True, slots=True)
class _Counts:
    """Charges by key (group, culprit, level), ascending: parallel arrays."""

    key: Int64s
    count: Int64s
    lost_ns: Int64s

    @classmethod
    def of(cls, key: Int64s, count: Int64s, lost_ns: Int64s) -> _Counts:
        """Rows of one key added up."""
        keys, row = np.unique(key, return_inverse=True)
        counts, lost = np.zeros((2, len(keys)), np.int64)
        np.add.at(counts, row, count)
        np.add.at(lost, row, lost_ns)
        return cls(keys, counts, lost)

    @classmethod
    def joined(cls, parts: Sequence[_Counts]) -> _Counts:
        columns = ([p.key for p in parts], [p.count for p in parts], [p.lost_ns for p in parts])
        return cls.of(*map(np.concatenate, columns)) if parts else _NOTHING


_NOTHING: Final = _Counts(*np.zeros((3, 0), np.int64))


class _Parts:
    """Counts that come bit by bit."""

    def __init__(self) -> None:
        self._parts: list[_Counts] = []

    def add(self, of: Charges, rows: Bools) -> None:
        if rows.any():
            self._parts.append(_counted(of.group[rows], of.culprit[rows], of.lost_ns[rows]))
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
    """Parallel arrays, by group, then culprit, then level."""

    group: Int64s
    culprit: Int64s
    level: Int64s
    count: Int64s
    lost_ns: Int64s
    fresh_ns: Int64s
    """Of `lost_ns`, what no window before this one has told."""
    buckets: Int64s
    """A bit for each bucket that has any."""

    def __len__(self) -> int:
        return len(self.group)

    def of(self, group: int) -> Table:
        """The rows of one group."""
        first, end = np.searchsorted(self.group, (group, group + 1)).tolist()
        return self.where(slice(first, end))

    def where(self, rows: slice | Bools) -> Table:
        return Table(*(getattr(self, column.name)[rows] for column in fields(self)))


@dataclass(frozen=True, slots=True)
class Window:
    """What was counted in the last buckets."""

    seconds: float
    judged: Int64s
    """Collectives that could be judged, by group."""
    charges: Table
    """What each culprit alone cost."""
    waits: Table
    """What members waited on an average, by who came last."""

    def charged(self, group: int, culprit: int, level: int) -> tuple[int, int]:
        """What the group lost to one culprit at this level and above: in all, and what is fresh."""
        rows = self.charges.of(group)
        mine = (rows.culprit == culprit) & (rows.level >= level)
        return int(rows.lost_ns[mine].sum()), int(rows.fresh_ns[mine].sum())


class Lateness:
    """Charges and waits of one attempt, counted into buckets of time."""

    def __init__(self, window_s: float, settle_s: float) -> None:
        self._bucket_ns = max(1, round(window_s * 1e9 / BUCKETS))
        self._settle_ns = round(settle_s * 1e9)
        self._buckets: dict[int, _Bucket] = {}
        self._next: int | None = None
        """The first bucket that no window has told of."""

    def _ripe(self, now: AlignedNs) -> int:
        """The first bucket of which more may come."""
        return (now - self._settle_ns) // self._bucket_ns

    def is_ripe(self, now: AlignedNs) -> bool:
        """There is a window that has not been told."""
        return self._next is not None and self._ripe(now) > self._next

    def add(
        self,
        groups: int,
        judged: Int32s,
        at: Int64s,
        charges: Charges,
        waits: Charges,
        now: AlignedNs,
    ) -> None:
        """Collectives of the groups `judged`, whose last members came `at`, and what they tell.

        What comes too late for its own bucket is counted in the next one.
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

    def window(self, now: AlignedNs) -> Window:
        """The last buckets that are complete; what is fresh in them is told once."""
        end = self._ripe(now)
        fresh_from = end if self._next is None else min(self._next, end)
        self._next = end
        numbers = range(end - BUCKETS, end)
        buckets = [self._buckets.get(number) or _Bucket() for number in numbers]
        fresh = [number >= fresh_from for number in numbers]
        judged = np.zeros(0, np.int64)
        for bucket in buckets:
            judged = _sum(judged, bucket.judged)
        return Window(
            BUCKETS * self._bucket_ns / 1e9,
            judged,
            charges=_table([bucket.charges.whole() for bucket in buckets], fresh),
            waits=_table([bucket.waits.whole() for bucket in buckets], fresh),
        )


def _sum(one: Int64s, other: Int64s) -> Int64s:
    """Of arrays by group, one of which may know of fewer groups."""
    total = np.zeros(max(len(one), len(other)), np.int64)
    total[: len(one)] += one
    total[: len(other)] += other
    return total


def _counted(group: Int32s, culprit: Int64s, lost_ns: Int64s) -> _Counts:
    level = np.minimum(np.log2(lost_ns / FLOOR_NS).astype(np.int64), LEVELS - 1)
    code = np.where(culprit < 0, 2 * (as_culprit(culprit) + 1) + 1, 2 * culprit)
    key = (group.astype(np.int64) << _CULPRIT_BITS | code) << _LEVEL_BITS | level
    return _Counts.of(key, np.ones(len(key), np.int64), lost_ns)


def _table(parts: Sequence[_Counts], fresh: Iterable[bool]) -> Table:
    whole = _Counts.joined(parts)
    fresh_ns, buckets = np.zeros((2, len(whole.key)), np.int64)
    for at, (part, is_fresh) in enumerate(zip(parts, fresh, strict=True)):
        row = np.searchsorted(whole.key, part.key)
        buckets[row] |= 1 << at
        if is_fresh:
            fresh_ns[row] += part.lost_ns
    pair = whole.key >> _LEVEL_BITS
    code = pair & ((1 << _CULPRIT_BITS) - 1)
    return Table(
        group=pair >> _CULPRIT_BITS,
        culprit=np.where(code & 1, as_culprit((code >> 1) - 1), code >> 1),
        level=whole.key & (LEVELS - 1),
        count=whole.count,
        lost_ns=whole.lost_ns,
        fresh_ns=fresh_ns,
        buckets=buckets,
    )
