"""Open collectives as accumulators: one for each (group, seq), merged from all ranks.

Each group owns a power-of-two chunk of shared slot columns; seq s lives in slot ``s mod capacity``
of its chunk, so finding a slot is arithmetic on whole columns. A slot holds only what merges
(count, minimum, maximum, sum, and whether signatures were equal), hence rows may come in any order
across ranks. A window ``low..high`` of seqs slides over the chunk: it moves up when collectives are
retired, and when a chunk can grow no more its oldest collectives are evicted and counted.

Why not a dict of objects: at millions of entries a second a dict spends the whole core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from frd.engine.matching.signature_rules import Signatures
from frd.engine.state.tables import GrowingColumns, column
from frd.model import Bools, Int32s, Int64s

FIRST_CAPACITY: Final = 16
NEVER: Final = np.iinfo(np.int64).max
_EMPTY: Final = -1
_NONE: Final = np.empty(0, np.int64)
_ONE: Final = np.int32(1)


class Accumulators(GrowingColumns):
    """The accumulators of all groups."""

    seq: Int64s = column(np.int64, _EMPTY)
    signature: Int32s = column(np.int32)
    """The first signature seen; later ones are compared with it."""
    joined: Int32s = column(np.int32)
    first_created: Int64s = column(np.int64, NEVER)
    last_created: Int64s = column(np.int64)
    last_rank: Int32s = column(np.int32)
    """The rank that joined at `last_created`; any of several."""
    second_created: Int64s = column(np.int64)
    """The latest join of a rank other than `last_rank`, 0 for none."""
    other_created: Int64s = column(np.int64)
    """The latest join of a rank with another clock than `last_rank`, 0 for none."""
    first_completed: Int64s = column(np.int64, NEVER)
    """`NEVER` when no member's backend reports it."""
    first_done: Int32s = column(np.int32)
    """The rank that completed at `first_completed`."""
    last_completed: Int64s = column(np.int64)
    """0 when no member's backend reports it."""
    bounded: Bools = column(np.bool_)
    """The time at which a member completed it is an upper bound."""
    balance: Int64s = column(np.int64)
    """Elements that the members send minus elements that they receive (all_to_all)."""

    def holds(self, slot: Int64s, seq: Int64s | int) -> Bools:
        """Which slots hold these seqs."""
        held: Bools = (slot >= 0) & (self.seq[slot] == seq)
        return held


class SeqWindows(GrowingColumns):
    """Position of each group's chunk, and the seqs that it covers."""

    base: Int64s = column(np.int64)
    capacity: Int64s = column(np.int64)
    """0 before the first entry, and when there was no room for a chunk."""
    low: Int64s = column(np.int64)
    """Lowest seq that may be open."""
    high: Int64s = column(np.int64)
    """The highest seq plus 1; equal to `low` if nothing was ever open."""
    done: Int64s = column(np.int64, -1)
    """All seqs up to this one were retired or evicted; further rows of them are too late."""
    freed_at: Int64s = column(np.int64)
    """When the last of these was completed, 0 when unknown."""

    def slot(self, group: Int32s | int, seq: Int64s | int) -> Int64s:
        """Slots of rows; -1 where the seq is outside its group's window."""
        slot = self.base[group] + (seq & (self.capacity[group] - 1))
        return np.where((seq >= self.low[group]) & (seq < self.high[group]), slot, -1)


@dataclass(frozen=True, slots=True)
class RetiredCollectives:
    """Accumulators of collectives that are over: parallel arrays, one row a collective."""

    group: Int32s
    seq: Int64s
    signature: Int32s
    joined: Int32s
    first_created: Int64s
    last_created: Int64s
    last_rank: Int32s
    second_created: Int64s
    other_created: Int64s
    first_completed: Int64s
    first_done: Int32s
    last_completed: Int64s
    bounded: Bools
    freed_at: Int64s
    """When the group's previous collective was completed, 0 when unknown."""

    def __len__(self) -> int:
        return len(self.seq)

    def at(self, rows: Int64s) -> RetiredCollectives:
        return RetiredCollectives(*(getattr(self, column.name)[rows] for column in fields(self)))

    @classmethod
    def of(cls, parts: Sequence[RetiredCollectives]) -> RetiredCollectives:
        """The rows of all parts."""
        names = [column.name for column in fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


_RETIRED: Final = [c.name for c in fields(RetiredCollectives) if hasattr(Accumulators, c.name)]


@dataclass(frozen=True, slots=True)
class OpsAt:
    """The ops that are open: the windows of all groups, and what each slot holds."""

    windows: SeqWindows
    slots: Accumulators
    signatures: Signatures

    def frozen(self) -> OpsAt:
        """As they are now."""
        return OpsAt(
            self.windows.frozen(("base", "capacity", "low", "high")),
            self.slots.frozen(("seq", "signature")),
            self.signatures.frozen(("synchronizing",)),
        )

    def signature_of(self, group: Int32s | int, seq: Int64s | int) -> Int64s:
        """Handles of the signatures of open collectives, -1 when unknown."""
        slot = self.windows.slot(group, seq)
        return np.where(self.slots.holds(slot, seq), self.slots.signature[slot], -1)

    def ends_early(self, group: Int32s, seq: Int64s) -> Bools:
        """Whether a member may complete it before all members have joined, if its op is known."""
        signature = self.signature_of(group, seq)
        early = signature >= 0
        early[early] = ~self.signatures.synchronizing[signature[early]]
        return early

    def op(self, group: int, seq: int) -> str:
        """Empty when it is unknown."""
        signature = int(self.signature_of(group, seq))
        return self.signatures.known[signature].op if signature >= 0 else ""


def _distinct(places: Int64s, scratch: Int32s) -> int:
    """How many different places there are; leaves numbers in `scratch` there."""
    row = np.arange(len(places), dtype=np.int32)
    scratch[places] = row
    return int(np.count_nonzero(scratch[places] == row))


class OpenCollectives:
    """Accumulator slots of one attempt, by group handle and seq."""

    def __init__(self, limit: int, limit_per_group: int) -> None:
        self._limit = limit
        self._most = max(FIRST_CAPACITY, 1 << (limit_per_group.bit_length() - 1))
        self._free: dict[int, list[int]] = {}
        self.slots = Accumulators()
        self.slots.reserve(1)  # slot 0 is of no group: indexing with slot -1 is valid
        self.windows = SeqWindows()
        self.open = 0
        """Occupied slots."""
        self.evicted = 0

    # -- the window --------------------------------------------------------------------------

    def admit(self, group: Int32s, first: Int64s, last: Int64s) -> Int64s:
        """Extend the windows of these groups (distinct) to ``first..last``; returns the places of
        those whose chunks are too small for it."""
        w = self.windows
        low, high = w.low[group], w.high[group]
        low = np.maximum(w.done[group] + 1, np.where(low < high, np.minimum(low, first), first))
        high = np.maximum(high, last + 1)
        tight = high - low > w.capacity[group]
        if not tight.any():
            w.low[group], w.high[group] = low, high
            return _NONE
        fits = ~tight
        w.low[group[fits]], w.high[group[fits]] = low[fits], high[fits]
        return tight.nonzero()[0]

    def make_room(self, group: int, first: int, last: int) -> None:
        """As `admit`, of one group, but grows the chunk; at the limit it evicts the oldest seqs."""
        w = self.windows
        low, high = self._span(group, first, last)
        wanted = min(1 << max(high - low - 1, FIRST_CAPACITY - 1).bit_length(), self._most)
        while wanted > w.capacity.item(group) and not self._grow(group, wanted):
            wanted //= 2
        if high - low > w.capacity.item(group):
            gone = high - w.capacity.item(group) - 1
            self.evicted += len(self.take(np.array([group]), np.array([gone])))
            w.done[group] = gone
            low = gone + 1
        w.low[group], w.high[group] = low, high

    def _span(self, group: int, first: int, last: int) -> tuple[int, int]:
        w = self.windows
        low, high, oldest = w.low.item(group), w.high.item(group), w.done.item(group) + 1
        return max(oldest, min(low, first) if low < high else first), max(high, last + 1)

    def _grow(self, group: int, capacity: int) -> bool:
        base = self._chunk(capacity)
        if base is None:
            return False
        w, old = self.windows, self.windows.capacity.item(group)
        if old:
            seq = np.arange(w.low[group], w.high[group])
            self._move(w.base[group] + (seq & (old - 1)), base + (seq & (capacity - 1)))
            self._free.setdefault(old, []).append(w.base.item(group))
        w.base[group], w.capacity[group] = base, capacity
        return True

    def _chunk(self, capacity: int) -> int | None:
        if spare := self._free.get(capacity):
            return spare.pop()
        base = self.slots.count
        if base + capacity > self._limit:
            return None
        self.slots.reserve(base + capacity)
        return base

    def _move(self, source: Int64s, target: Int64s) -> None:
        for name in self.slots._fill:
            column = getattr(self.slots, name)
            column[target] = column[source]
        self.slots.clear_rows(source)

    # -- the accumulators --------------------------------------------------------------------

    def merge(
        self,
        slot: Int64s,
        seq: Int64s,
        signature: Int32s,
        created: Int64s,
        rank: Int64s | int,
        nodes: Int32s,
    ) -> Bools:
        """Count the rows of ranks into slots, each inside its window and at most once for each
        rank; `nodes` are by rank.

        Returns the rows whose signature is not the first one of its slot.
        """
        s = self.slots
        fresh = (s.seq.take(slot) != seq).nonzero()[0]
        if len(fresh):
            new = slot[fresh]
            self.open += _distinct(new, s.last_rank)
            s.seq[new] = seq[fresh]
            s.signature[new[::-1]] = signature[fresh][::-1]  # the first row of several stays
            s.last_rank[new] = 0
        np.add.at(s.joined, slot, _ONE)
        np.minimum.at(s.first_created, slot, created)
        self._arrive(slot, created, rank, nodes)
        other: Bools = s.signature.take(slot) != signature
        return other

    def _arrive(self, slot: Int64s, created: Int64s, rank: Int64s | int, nodes: Int32s) -> None:
        """Update the last rank, the latest of the others, and the latest on other nodes.

        Of a row that is the last one now, the last one before may be the latest of the rest; of
        any other row, the row itself may be.
        """
        s = self.slots
        rank = np.broadcast_to(np.asarray(rank, np.int32), slot.shape)
        before, last_before = s.last_created.take(slot), s.last_rank.take(slot)
        np.maximum.at(s.last_created, slot, created)
        later = ((created == s.last_created.take(slot)) & (created > before)).nonzero()[0]
        later = later[::-1]  # of several at the same time, the first row stays
        s.last_rank[slot[later]] = rank[later]
        last = s.last_rank.take(slot)
        is_last = last == rank
        passed = np.where(is_last, before, created)
        np.maximum.at(s.second_created, slot, passed)
        elsewhere = nodes.take(np.where(is_last, last_before, rank)) != nodes.take(last)
        if elsewhere.any():
            np.maximum.at(s.other_created, slot, passed * elsewhere)

    def complete(self, slot: Int64s, at: Int64s, rank: Int64s | int, bounded: Bools) -> None:
        """Note when ranks completed the collectives of these slots (0 where unknown), or by when
        they had (`bounded`)."""
        s = self.slots
        s.bounded[slot[bounded]] = True
        rank = np.broadcast_to(np.asarray(rank, np.int32), slot.shape)
        here = at > 0
        if not here.all():
            slot, at, rank = slot[here], at[here], rank[here]
        np.maximum.at(s.last_completed, slot, at)
        before = s.first_completed.take(slot)
        np.minimum.at(s.first_completed, slot, at)
        sooner = ((at == s.first_completed.take(slot)) & (at < before)).nonzero()[0][::-1]
        s.first_done[slot[sooner]] = rank[sooner]

    def take(self, group: npt.NDArray[Any], upto: Int64s) -> RetiredCollectives:
        """Remove the open collectives of these groups (distinct) up to one seq per group."""
        w, s = self.windows, self.slots
        end = np.minimum(upto + 1, w.high[group])
        length = np.maximum(end - w.low[group], 0)
        busy = np.flatnonzero(length)
        group, end, length = group[busy], end[busy], length[busy]
        of = np.repeat(np.arange(len(busy)), length)
        seq = np.arange(len(of)) - (np.cumsum(length) - length)[of] + w.low[group][of]
        slot = w.base[group][of] + (seq & (w.capacity[group] - 1)[of])
        w.low[group] = end
        w.done[group] = np.maximum(w.done[group], end - 1)
        held = np.flatnonzero(s.seq[slot] == seq)
        slot, of = slot[held], of[held]
        over = s.first_completed[slot]
        closed = RetiredCollectives(
            group=group[of].astype(np.int32),
            freed_at=self._freed(group, of, over),
            **{name: getattr(s, name)[slot] for name in _RETIRED},
        )
        s.clear_rows(slot)
        self.open -= len(slot)
        return closed

    def _freed(self, group: npt.NDArray[Any], of: Int64s, over: Int64s) -> Int64s:
        """When the collective before each of these was completed; row i is of ``group[of[i]]``."""
        freed = np.zeros(len(of), np.int64)
        if not len(of):
            return freed
        freed[1:] = over[:-1]
        edge = (of[1:] != of[:-1]).nonzero()[0]
        first, last = np.append(0, edge + 1), np.append(edge, len(of) - 1)
        freed[first] = self.windows.freed_at[group[of[first]]]
        self.windows.freed_at[group[of[last]]] = over[last]
        freed[freed == NEVER] = 0
        return freed

    def drop(self, group: npt.NDArray[Any]) -> None:
        """Forget the open collectives of these groups, and their windows."""
        w = self.windows
        self.take(group, w.high[group])
        for name in ("low", "high"):
            getattr(w, name)[group] = 0
        w.done[group] = -1
        w.freed_at[group] = 0
