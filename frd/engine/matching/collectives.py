"""The collectives of one attempt: from joined rows to matched counts, skew and disagreements.

Rows of every rank meet in the accumulators of `frd.engine.matching.open_collectives`. A collective
is matched when the rows of all members have passed its completion. Its arrival skew and duration
then go into the histograms, its wait into the stall threshold of its group, and its late ranks into
`lateness`. Which ranks are missing from an open collective is a question to the watermarks, not to
this module.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from frd.engine.matching.lateness import (
    ClockHint,
    GroupClocks,
    Lateness,
    charges,
    clock_hints,
    waits,
)
from frd.engine.matching.mismatches import Mismatches
from frd.engine.matching.open_collectives import OpenCollectives, OpsAt, RetiredCollectives
from frd.engine.matching.signature_rules import Signatures
from frd.engine.matching.usual_waits import GroupKind, LongWait, StallThresholds
from frd.engine.policy import Policy
from frd.engine.state.attempt_tables import AttemptTables
from frd.engine.state.entry_batch import PairRuns, Places
from frd.engine.state.snapshot import Mismatch
from frd.engine.views import Histogram
from frd.model import AlignedNs, Bools, Int32s, Int64s

MAX_OPEN: Final = 1_000_000
"""Accumulator slots over all groups of an attempt."""
MAX_OPEN_OF_GROUP: Final = 8_192
_MOST_RETIRED: Final = 8_192
"""Retired collectives that wait to be evaluated together."""
_MOST_HINTS: Final = 1_024
"""Kept until they are taken."""


BOUNDS_S: Final = (0.0001, 0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0)
"""Bounds of the buckets that users see: from what a switch adds, over the time of an op on a slow
link, to a checkpoint. No rule reads them; each bound costs a time series per job and op."""
_EDGES: Final = np.array([round(bound * 1e9) for bound in BOUNDS_S])
"""The same in nanoseconds."""
_WIDTH: Final = len(BOUNDS_S) + 1


class OpHistograms:
    """Histograms by op index; a row is added when its op first has a value."""

    def __init__(self) -> None:
        self._counts: Int64s = np.zeros((0, _WIDTH), np.int64)
        self._total_ns: Int64s = np.zeros(0, np.int64)

    def add(self, op: Int32s, value_ns: npt.NDArray[Any]) -> None:
        if not len(op):
            return
        if (need := int(op.max()) + 1 - len(self._total_ns)) > 0:
            self._counts = np.append(self._counts, np.zeros((need, _WIDTH), np.int64), axis=0)
            self._total_ns = np.append(self._total_ns, np.zeros(need, np.int64))
        cell = op * _WIDTH + np.searchsorted(_EDGES, value_ns)
        ops = len(self._total_ns)
        self._counts += np.bincount(cell, minlength=ops * _WIDTH).reshape(ops, _WIDTH)
        # Integers, so that the sum does not depend on the order.
        self._total_ns += np.bincount(op, value_ns, minlength=ops).astype(np.int64)

    def by_op(self, names: Sequence[str]) -> dict[str, Histogram]:
        """Histograms of the ops that have values; `names` are the ops by index."""
        return {
            name: Histogram(BOUNDS_S, tuple(counts), total / 1e9)
            for name, counts, total in zip(
                names, self._counts.tolist(), self._total_ns.tolist(), strict=False
            )
            if any(counts)
        }


class Collectives:
    """Accumulators and statistics over the tables of one attempt, which it reads and, for what
    concerns groups (`matched`, `threshold_ns`), writes."""

    def __init__(
        self,
        policy: Policy,
        tables: AttemptTables,
        known: Mapping[GroupKind, Sequence[LongWait]],
        now: AlignedNs,
    ) -> None:
        """`known` are long waits of earlier attempts of the job."""
        self._ranks = tables.ranks
        self._groups = tables.groups
        self._pairs = tables.pairs
        self.thresholds = StallThresholds(policy, tables.groups, known, now)
        self.signatures = Signatures()
        self.open_collectives = OpenCollectives(MAX_OPEN, MAX_OPEN_OF_GROUP)
        windows, slots = self.open_collectives.windows, self.open_collectives.slots
        self.ops = OpsAt(windows, slots, self.signatures)
        """Up to date."""
        self.skew = OpHistograms()
        self.duration = OpHistograms()
        self.transfer = OpHistograms()
        self.lateness = Lateness(policy)
        self.clock_hints: deque[ClockHint] = deque(maxlen=_MOST_HINTS)
        """Bounds of clocks from collectives, until another module takes them."""
        self.contradictions: deque[ClockHint] = deque(maxlen=_MOST_HINTS)
        """The hints that contradict the clocks' uncertainties, for another reader."""
        self._clocks = GroupClocks.of(0, tables.ranks, tables.pairs)
        self._clocks_as_of = (-1, -1, -1)
        self._mismatches = Mismatches()
        self._unsettled = False
        self._retired: list[RetiredCollectives] = []
        """Retired, but not evaluated yet."""
        self.untimed = 0
        """Matched collectives whose end has no time, because a member's recorder gives none."""
        self.late_rows = 0
        """Rows of collectives whose accumulators had been evicted."""

    def adopt(self, policy: Policy) -> None:
        """See `Engine.adopt`."""
        self.thresholds.adopt(policy)
        self.lateness.adopt(policy)

    # -- rows --------------------------------------------------------------------------------

    def join(
        self,
        runs: PairRuns,
        rank: Int64s,
        signature: Int32s,
        created: Int64s,
        now: AlignedNs,
    ) -> Int64s | None:
        """Count joined rows, none of which was counted before; returns their slots, or None when
        some have none any more.

        Columns are in the order of the runs.
        """
        group = self._pairs.group[runs.pair]
        np.minimum.at(self._groups.first_seq, group, runs.first)
        slots = slot = self._admit(runs, group, now)
        rows: Places = slice(None)
        if slot.min() < 0:
            rows = (slot >= 0).nonzero()[0]
            self.late_rows += len(slot) - len(rows)
        if not isinstance(rows, slice):
            slot, signature, created, rank = slot[rows], signature[rows], created[rows], rank[rows]
        seq = runs.seq[rows]
        other = self.open_collectives.merge(
            slot, seq, signature, created, rank, self._ranks.session
        )
        if other.any():
            groups = np.repeat(group, runs.count)[rows]
            self._compare(
                groups[other], slot[other], seq[other], signature[other], rank[other], now
            )
        if self.signatures.any_balanced:
            surplus = self.signatures.balance[signature]
            np.add.at(self.open_collectives.slots.balance, slot, surplus)
            self._check_balance(np.repeat(group, runs.count)[rows], slot, seq, now)
        self._pairs.joined_row[runs.pair] = runs.last
        return slots if len(slot) == len(slots) else None

    def _admit(self, runs: PairRuns, group: Int32s, now: AlignedNs) -> Int64s:
        """Slots of the rows; -1 where the accumulator was removed already."""
        open_collectives = self.open_collectives
        order = np.argsort(group, kind="stable")
        of = group[order]
        begins = np.flatnonzero(np.diff(of, prepend=-1))
        of, first, last = (
            of[begins],
            np.minimum.reduceat(runs.first[order], begins),
            np.maximum.reduceat(runs.last[order], begins),
        )
        tight = open_collectives.admit(of, first, last)
        if len(tight):
            self._retire(of[tight], self._passed(of[tight]), now)
            tight = tight[open_collectives.admit(of[tight], first[tight], last[tight])]
            for span in zip(*(column[tight].tolist() for column in (of, first, last)), strict=True):
                open_collectives.make_room(*span)
        return self._slots(runs, group)

    def _slots(self, runs: PairRuns, group: Int32s) -> Int64s:
        """Slots of rows; -1 where the seq is outside its group's window."""
        w = self.open_collectives.windows
        low, high, mask = w.low[group], w.high[group], w.capacity[group] - 1
        slot = runs.spread(w.base[group]) + (runs.seq & runs.spread(mask))
        if (runs.first < low).any() or (runs.last >= high).any():
            slot[(runs.seq < runs.spread(low)) | (runs.seq >= runs.spread(high))] = -1
        return slot

    def _compare(
        self,
        group: Int32s,
        slot: Int64s,
        seq: Int64s,
        signature: Int32s,
        rank: Int64s,
        now: AlignedNs,
    ) -> None:
        first = self.open_collectives.slots.signature[slot]
        classes = self.signatures.match_class
        wrong = np.flatnonzero(classes[signature] != classes[first])
        for at in wrong.tolist():
            self._mismatches.differs(
                int(group[at]), int(seq[at]), int(first[at]), int(rank[at]), int(signature[at]), now
            )

    def _check_balance(self, group: Int32s, slot: Int64s, seq: Int64s, now: AlignedNs) -> None:
        """Find the all_to_alls that all members joined and whose sizes do not balance."""
        slots = self.open_collectives.slots
        off = (slots.joined[slot] == self._groups.size[group]) & (slots.balance[slot] != 0)
        off &= self.signatures.balanced[slots.signature[slot]]
        rows = np.flatnonzero(off)
        for at in rows[np.unique(slot[rows], return_index=True)[1]].tolist():
            first, surplus = slots.signature.item(slot[at]), slots.balance.item(slot[at])
            self._mismatches.unbalanced(int(group[at]), int(seq[at]), first, surplus, now)

    def complete(
        self,
        runs: PairRuns,
        rank: Int64s,
        at: Int64s,
        bounded: Bools,
        slot: Int64s | None = None,
    ) -> None:
        """Note when ranks completed collectives (`at`, 0 where unknown), or by when they had
        (`bounded`).

        Columns are in the order of the runs; `slot` is the result of `join` for the same rows.
        """
        if at.any():
            if slot is None:
                slot = self._slots(runs, self._pairs.group[runs.pair])
                held = self.open_collectives.slots.holds(slot, runs.seq)
                slot, at, rank, bounded = slot[held], at[held], rank[held], bounded[held]
            self.open_collectives.complete(slot, at, rank, bounded)
        self._pairs.completed_row[runs.pair] = runs.last
        self._unsettled = True

    def forget(self, groups: Int32s) -> None:
        """A member of these groups was replaced: what was open in them will never match."""
        self.open_collectives.drop(groups)
        for group in groups.tolist():
            self._mismatches.forget(group)

    # -- completed collectives ---------------------------------------------------------------

    def settle(self, now: AlignedNs) -> None:
        """Retire the collectives that all members have passed; drop old mismatches and waits."""
        if self._unsettled:
            self._unsettled = False
            layout = self._pairs.layout()
            passed = np.minimum.reduceat(layout.view(self._pairs.completed_row), layout.starts)
            low = self.open_collectives.windows.low[layout.groups]
            over = np.flatnonzero(passed >= low)
            self._retire(layout.groups[over], passed[over], now)
        if self._retired:
            self._evaluate_retired(now)
        if len(self._mismatches):
            self._mismatches.expire(self.open_collectives.windows.done, now)
        self.thresholds.expire(now)

    def _passed(self, groups: Int32s) -> Int64s:
        """The seq whose completion the rows of every member of these groups have passed."""
        done, rows_of = self._pairs.completed_row, self._groups.rows
        return np.array([done[rows_of(group)].min() for group in groups.tolist()], np.int64)

    def _retire(self, group: Int32s | Int64s, upto: Int64s, now: AlignedNs) -> None:
        closed = self.open_collectives.take(group, upto)
        if len(closed):
            self._retired.append(closed)
            if sum(map(len, self._retired)) > _MOST_RETIRED:
                self._evaluate_retired(now)

    def _evaluate_retired(self, now: AlignedNs) -> None:
        """Evaluate the retired collectives: histograms, thresholds, lateness and clocks.

        `full`: all members joined, at times that are known. `fair`: and their arrivals compare,
        because their clocks are known. `ended`: all joined and waited for each other.
        """
        closed, self._retired = RetiredCollectives.of(self._retired), []
        groups, signatures, of = self._groups, self.signatures, closed.signature
        groups.matched[: groups.count] += np.bincount(closed.group, minlength=groups.count)
        full = (closed.joined == groups.size[closed.group]) & (closed.first_created > 0)
        clocks = self._group_clocks()
        fair = full & clocks.comparable(closed)
        ops, skew = signatures.op[of], closed.last_created - closed.first_created
        self.skew.add(ops[fair], skew[fair])
        has_end = (closed.last_completed > 0) & ~closed.bounded
        self.untimed += int(np.count_nonzero(full & ~has_end))
        timed = fair & has_end
        spent = closed.last_completed - closed.first_created
        self.duration.add(ops[timed], np.maximum(spent[timed], 0))
        self.transfer.add(ops[timed], np.maximum((spent - skew)[timed], 0))
        ended = full & signatures.synchronizing[of] & (closed.joined > 1)
        judged = ended & fair
        if self._pairs.unshown.any():  # a late arrival there may be that of a rank that runs ahead
            judged &= ~np.isin(closed.group, self._pairs.group[self._pairs.unshown])
        self.lateness.add(
            groups.count,
            closed.group[judged],
            closed.last_created[judged],
            charges(closed, judged, self._ranks, clocks),
            waits(closed, ended, fair),
            now,
        )
        hints = clock_hints(
            closed, fair & signatures.strict[of] & clocks.spans[closed.group], self._ranks
        )
        self.clock_hints += hints
        self.contradictions += [hint for hint in hints if hint.contradicts]
        self.thresholds.learn(closed, full, fair, now)

    def _group_clocks(self) -> GroupClocks:
        as_of = self._ranks.clock_revision, self._groups.count, self._pairs.count
        if self._clocks_as_of != as_of:
            self._clocks_as_of = as_of
            self._clocks = GroupClocks.of(self._groups.count, self._ranks, self._pairs)
        return self._clocks

    # -- answers -----------------------------------------------------------------------------

    @property
    def disagrees(self) -> bool:
        return self._mismatches.any_facts

    def facts(self) -> list[Mismatch]:
        return self._mismatches.facts(self._groups, self._pairs, self.signatures)

    def evicted(self) -> dict[str, int]:
        """Things dropped to stay within limits, by what."""
        return {
            "collectives": self.open_collectives.evicted,
            "rows": self.late_rows,
            "mismatches": self._mismatches.dropped,
        }
