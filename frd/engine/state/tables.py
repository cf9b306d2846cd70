"""The tables of one attempt: ranks, groups, and pairs (one row per group and member).

Columns are plain numpy arrays that double when they are full, so that every frequent question of
the engine ("which pairs wait", "lowest completed of each group") is one pass over one array.
Handles are rows: a rank's handle is its global rank, groups and pairs count up from 0 in the order
in which they were declared. The tables hold numbers, whatever they mean, and enforce no limits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from frd.engine.clocks.alignment import UNKNOWN_NS, ClockLines
from frd.model import (
    INITIALIZATION,
    UNKNOWN_SEQ,
    AlignedNs,
    Bools,
    ExitInfo,
    Float64s,
    GroupInfo,
    Int32s,
    Int64s,
    RankInfo,
    RankStatus,
    UInt8s,
)

Ranks: TypeAlias = Int32s | Int64s | int
"""One rank, or a column of them."""
LIVE, SILENT, EXITED, FINISHED = range(4)
"""`frd.engine.views.STATES` as the numbers that the state column holds."""


class _Column(NamedTuple):
    dtype: type[np.generic]
    fill: int
    shape: tuple[int, ...]


def column(dtype: type[np.generic], fill: int = 0, *shape: int) -> Any:
    """A column of a `GrowingColumns`, what its new rows hold, and the shape of one row."""
    return _Column(dtype, fill, shape)


class GrowingColumns:
    """Equally long arrays that grow together; a subclass declares each with `column`."""

    _fill: ClassVar[dict[str, _Column]]

    def __init_subclass__(cls) -> None:
        cls._fill = {name: c for name, c in vars(cls).items() if isinstance(c, _Column)}

    def __init__(self) -> None:
        self.count = 0
        for name, (dtype, _, shape) in self._fill.items():
            setattr(self, name, np.empty((0, *shape), dtype))

    def reserve(self, count: int) -> None:
        """Make rows ``0..count-1`` exist; new ones hold the fill values."""
        if count > self._capacity():
            capacity = max(count, 2 * self._capacity(), 16)
            # All of them before the first is replaced: there may be no memory for one.
            grown = {
                name: np.full((capacity, *shape), fill, dtype)
                for name, (dtype, fill, shape) in self._fill.items()
            }
            for name, column in grown.items():
                column[: self.count] = getattr(self, name)[: self.count]
                setattr(self, name, column)
        self.count = max(self.count, count)

    def clear_rows(self, rows: Any, *, keep: Collection[str] = ()) -> None:
        """Give these rows the fill values, in all columns but `keep`."""
        for name, (_, fill, _) in self._fill.items():
            if name not in keep:
                getattr(self, name)[rows] = fill

    def frozen(self, names: Collection[str] = ()) -> Self:
        """A copy of what it holds now, only with these columns; with all, if none is named."""
        made = copy(self)
        for name, value in vars(self).items():
            if name in self._fill:
                count = self.count if name in names or not names else 0
                setattr(made, name, value[:count].copy())
            elif isinstance(value, dict | list | set):
                setattr(made, name, value.copy())
        return made

    def _capacity(self) -> int:
        return len(getattr(self, next(iter(self._fill))))


def repeats(numbers: Int32s | Int64s) -> bool:
    """Whether a number, of which none is negative, occurs more than once."""
    if not len(numbers):
        return False
    order = np.arange(len(numbers))
    last = np.empty(int(numbers.max()) + 1, np.int64)
    last[numbers] = order
    return not bool((last[numbers] == order).all())


class RankTable(GrowingColumns):
    """One row per global rank up to the highest one declared."""

    declared: Bools = column(np.bool_)
    as_of: Int64s = column(np.int64)
    """Node time up to which all is known of the rank."""
    gap_at: Int64s = column(np.int64, -1)
    """Node time at which the last loss of rows was reported; in effect until `as_of` has passed
    it."""
    state: UInt8s = column(np.uint8, LIVE)
    state_since: Int64s = column(np.int64)
    """Node time."""
    connected: Bools = column(np.bool_)
    left: Bools = column(np.bool_)
    """While it lived, its agent was asked to stop or said goodbye, and no other has come since."""
    session: Int32s = column(np.int32, -1)
    """Number of the rank's agent session, whose ranks share one clock; -1 until it is known."""
    as_of_session: Int32s = column(np.int32, -1)
    """The session that reported `as_of` last."""
    clock_at: Int64s = column(np.int64)
    """Node time of a moment; with the next two, the line from node times to aligned ones."""
    clock_aligned: Int64s = column(np.int64)
    """Aligned time of that moment."""
    clock_rate: Float64s = column(np.float64)
    """How fast aligned time gains on node time, in ns per ns."""
    uncertainty_ns: Int64s = column(np.int64, UNKNOWN_NS)
    """How far aligned times of the rank may be off; `UNKNOWN_NS` while unsynchronized."""
    clock_since: Int64s = column(np.int64)
    """Entries that the rank reported before this were aligned with an offset that is now known to
    be wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.clock_revision = 0
        """Changes with all that is known of clocks."""
        self.infos: dict[int, RankInfo] = {}
        self.statuses: dict[int, RankStatus] = {}
        self.exits: dict[int, ExitInfo] = {}
        """How ranks ended, of the statuses that say it."""
        self.unread: dict[int, str] = {}
        """Why collectives of ranks cannot be read, of the statuses that say it."""
        self.initializing: set[int] = set()
        """Ranks whose status says that they are inside a call that makes process groups."""
        self._sorted: Int32s | None = None
        self._namespace: str | None = None

    def declare(self, info: RankInfo) -> None:
        """A new process of this rank: nothing of an earlier one is kept."""
        self.reserve(info.rank + 1)
        self.infos[info.rank] = info
        self._forget_status(info.rank)
        self.clear_rows(info.rank)
        self.declared[info.rank] = True
        self.clock_revision += 1
        self._sorted = self._namespace = None

    def set_status(self, status: RankStatus) -> None:
        """Replace the status of a rank; the columns of its state are written elsewhere."""
        rank = status.rank
        self._forget_status(rank)
        self.statuses[rank] = status
        if status.exit is not None:
            self.exits[rank] = status.exit
        elif status.stage is not None and status.stage.op in INITIALIZATION:
            self.initializing.add(rank)
        if status.unread:
            self.unread[rank] = status.unread

    def _forget_status(self, rank: int) -> None:
        self.statuses.pop(rank, None)
        self.exits.pop(rank, None)
        self.unread.pop(rank, None)
        self.initializing.discard(rank)

    def to_aligned(self, rank: Ranks, node_ns: Int64s, now: AlignedNs) -> Int64s:
        """Node times of these ranks as aligned times, not after `now`: what was reported has
        happened. 0, which says unknown, stays 0."""
        if not self.count:
            return node_ns
        return self.clock_lines(rank).to_aligned(node_ns, now)

    def clock_lines(self, rank: Ranks) -> ClockLines:
        """The clocks of these ranks, looked up once for several columns of times."""
        return ClockLines(self.clock_at, self.clock_aligned, self.clock_rate).take(rank)

    def to_node(self, rank: Ranks, aligned: AlignedNs) -> Int64s:
        """The node time of these ranks at an aligned time."""
        passed = aligned - self.clock_aligned[rank]
        rate = self.clock_rate[rank]
        gained = (passed * (rate / (1 + rate))).astype(np.int64)
        return self.clock_at[rank] + passed - gained

    def set_clock(
        self,
        rank: Int64s,
        session: int,
        uncertainty_ns: int,
        now: AlignedNs,
        line: tuple[int, int, float] = (0, 0, 0.0),
    ) -> None:
        """These ranks share a clock: `line` are its columns at, aligned and rate. An unknown clock
        counts as changed at every new estimate."""
        self.clock_at[rank], self.clock_aligned[rank], self.clock_rate[rank] = line
        was = self.uncertainty_ns[rank]
        is_same = (was == uncertainty_ns).all() and (self.session[rank] == session).all()
        if is_same and uncertainty_ns < UNKNOWN_NS:
            return
        moved = (was == UNKNOWN_NS) & (self.session[rank] >= 0)
        self.clock_since[rank] = np.where(moved, now, self.clock_since[rank])
        self.session[rank] = session
        self.uncertainty_ns[rank] = uncertainty_ns
        self.clock_revision += 1

    def clear(self) -> None:
        """As if none had ever been declared; the rows stay."""
        self.clear_rows(slice(None))
        self.infos, self.statuses, self.exits, self.unread = {}, {}, {}, {}
        self.initializing = set()
        self._sorted = self._namespace = None
        self.clock_revision += 1

    def knows(self, rank: Int32s) -> Bools:
        """Which of these ranks were declared; any rank may be asked for."""
        inside = rank < self.count
        return inside & self.declared[np.where(inside, rank, 0)] if self.count else inside

    def sorted(self) -> Int32s:
        """All declared ranks, ascending."""
        if self._sorted is None:
            self._sorted = np.flatnonzero(self.declared[: self.count]).astype(np.int32)
        return self._sorted

    def namespace(self) -> str:
        """See `frd.engine.views.AttemptView`."""
        if self._namespace is None:
            known = Counter(i.address.namespace for i in self.infos.values() if i.address)
            self._namespace = max(known, key=known.__getitem__, default="")
        return self._namespace


class GroupTable(GrowingColumns):
    """One row per process group."""

    size: Int32s = column(np.int32)
    """0 when the membership is unknown."""
    first_seq: Int64s = column(np.int64, np.iinfo(np.int64).max)
    """Lowest seq of all entries: in a fresh group 0 or 1, by backend."""
    matched: Int64s = column(np.int64)
    threshold_ns: Int64s = column(np.int64)
    label: Int32s = column(np.int32)
    """Index in `labels`: many groups may share one."""

    def __init__(self) -> None:
        super().__init__()
        self.infos: list[GroupInfo] = []
        self.labels: dict[str, int] = {}
        """Labels in the order in which they were first declared, each with its index."""
        self.by_id: dict[str, int] = {}
        self.first_pair: list[int] = []
        self.strangers: dict[int, dict[int, int]] = {}
        """Pairs of the groups whose membership is unknown: group -> rank -> pair."""

    def declare(self, info: GroupInfo, first_pair: int, threshold_ns: int) -> int:
        handle = self.count
        self.reserve(handle + 1)
        self.infos.append(info)
        self.by_id[info.group_id] = handle
        self.first_pair.append(first_pair)
        self.size[handle] = len(info.ranks)
        self.label[handle] = self.labels.setdefault(info.label, len(self.labels))
        self.threshold_ns[handle] = threshold_ns
        return handle

    def pair(self, rank: int, group: int) -> int:
        """The pair's row; -1 when the rank is no known member."""
        members = self.infos[group].ranks
        if not members:
            return self.strangers.setdefault(group, {}).get(rank, -1)
        at = bisect_left(members, rank)
        return self.first_pair[group] + at if members[at : at + 1] == (rank,) else -1

    def rows(self, group: int) -> slice | list[int]:
        """The pairs of a group, as an index into the columns of `PairTable`."""
        if not self.infos[group].ranks:
            return list(self.strangers.get(group, {}).values())
        first = self.first_pair[group]
        return slice(first, first + len(self.infos[group].ranks))


@dataclass(frozen=True, slots=True)
class PairsByGroup:
    """Pairs by group: segment i of `order` belongs to ``groups[i]``, ranks ascending.

    Groups without any pair are left out, for `numpy.ufunc.reduceat` cannot see an empty segment.
    """

    order: Int64s
    starts: Int64s
    groups: Int32s
    is_whole: bool
    """`order` is that of the table: no group has gained a member after it was declared."""

    def rows(self, group: int) -> Int64s:
        """The pairs of a group."""
        at = int(np.searchsorted(self.groups, group))
        if at == len(self.groups) or self.groups[at] != group:
            return self.order[:0]
        end = self.starts[at + 1] if at + 1 < len(self.starts) else len(self.order)
        return self.order[self.starts[at] : end]

    def view(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A column in this order, to be read; it may be the table's own."""
        return column[: len(self.order)] if self.is_whole else column[self.order]

    def copy(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A column in this order, to be changed or kept."""
        return column[: len(self.order)].copy() if self.is_whole else column[self.order]


class PairTable(GrowingColumns):
    """One row per (group, member): watermarks, and how far the member's rows have come."""

    group: Int32s = column(np.int32)
    rank: Int32s = column(np.int32)
    enqueued: Int64s = column(np.int64, UNKNOWN_SEQ)
    started: Int64s = column(np.int64, UNKNOWN_SEQ)
    completed: Int64s = column(np.int64, UNKNOWN_SEQ)
    unshown: Bools = column(np.bool_)
    """No entry shows when an op of the member ends."""
    hidden: Bools = column(np.bool_)
    """The member may wait in a batch of sends, which has no entry."""
    head: Int64s = column(np.int64)
    """Node time at which the oldest outstanding collective was enqueued; 0 for none, or when that
    collective may be over: the agent session that reported it is gone."""
    idle_until: Int64s = column(np.int64)
    """Node time at which the collective before the head was not complete: the head's wait counts
    from here at the earliest, even if the program enqueued it before."""
    enqueued_at: Int64s = column(np.int64)
    """Node time by which the member had reached `enqueued`: the time of the event, or else up to
    when all was known in the first report that shows it. 0 until one of the two is known."""
    started_at: Int64s = column(np.int64)
    completed_at: Int64s = column(np.int64)
    row_session: Int32s = column(np.int32, -1)
    """The agent session that reports rows of it, if it is not the first one."""
    last_session: Int32s = column(np.int32, -1)
    """The agent session that reported anything of it last."""
    joined_row: Int64s = column(np.int64, UNKNOWN_SEQ)
    """Highest seq whose joined row was applied: what makes a replay harmless."""
    completed_row: Int64s = column(np.int64, UNKNOWN_SEQ)

    def __init__(self) -> None:
        super().__init__()
        self._layout: PairsByGroup | None = None

    def add(self, group: int, ranks: tuple[int, ...]) -> int:
        """Append the members of a group; returns the row of the first."""
        first = self.count
        self.reserve(first + len(ranks))
        self.group[first : self.count] = group
        self.rank[first : self.count] = ranks
        self._layout = None
        return first

    def has(self, rank: int) -> bool:
        """The rank is a member of a group."""
        return rank in self.rank[: self.count]

    def reset(self, rank: int) -> Int64s:
        """Forget what is known of a rank in all of its groups; returns the rows."""
        rows = np.flatnonzero(self.rank[: self.count] == rank)
        self.clear_rows(rows, keep=("group", "rank"))
        return rows

    def reset_all(self) -> None:
        """Forget what is known of every rank; the rows stay."""
        self.clear_rows(slice(None), keep=("group", "rank"))

    def inside(self) -> PairTable:
        """A copy of how far members have come and what they wait in. To copy costs a page fault for
        every 4 KiB that are written: so `head` and `idle_until` are 0 where nothing is open."""
        self.layout()  # made once for all copies
        made = self.frozen(("enqueued", "completed", "completed_at", "last_session"))
        made.group, made.rank = self.group[: self.count], self.rank[: self.count]  # never change
        made.head, made.idle_until = np.zeros((2, self.count), np.int64)
        row = np.flatnonzero(made.enqueued > made.completed)
        made.head[row], made.idle_until[row] = self.head[row], self.idle_until[row]
        return made

    def layout(self) -> PairsByGroup:
        if self._layout is None:
            group, rank = self.group[: self.count], self.rank[: self.count]
            later = (group[1:] > group[:-1]) | (group[1:] == group[:-1]) & (rank[1:] > rank[:-1])
            is_whole = bool(later.all())
            order = np.arange(self.count) if is_whole else np.lexsort((rank, group))
            grouped = group[order]
            first = np.flatnonzero(np.diff(grouped, prepend=-1))
            self._layout = PairsByGroup(order, first, grouped[first], is_whole)
        return self._layout
