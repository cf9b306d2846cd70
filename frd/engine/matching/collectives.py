"""The collectives of one attempt: from joined rows to matched counts, skew and disagreements.

Rows of every rank meet in the accumulators of `frd.engine.matching.open_collectives`. A collective
is matched when the rows of all members have passed its completion; by then nothing more can come of
it, and what it left (arrival skew, duration) goes into the histograms and into the group's stall
threshold. Who is missing from an open one is none of this module's business: watermarks tell that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from frd.engine.matching.arrivals import ClockHint, GroupClocks, charges, clock_hints, waits
from frd.engine.matching.durations import OpHistograms
from frd.engine.matching.mismatches import Mismatches
from frd.engine.matching.open_collectives import OpenCollectives, RetiredCollectives
from frd.engine.matching.signature_rules import Signatures
from frd.engine.matching.usual_waits import GroupKind, LongWait, WaitHistory
from frd.engine.policy import Policy
from frd.engine.state.entry_batch import PairRuns, Places
from frd.engine.state.snapshot import Bools, MismatchFact
from frd.engine.state.tables import GroupTable, PairTable, RankTable
from frd.engine.stragglers.lateness import Lateness
from frd.model import AlignedNs, Int32s, Int64s

_EXPIRY_NS: Final = 60_000_000_000
"""How often tails are asked whether they have forgotten something."""
_TELL_AGAIN_NS: Final = 600_000_000_000
"""How often waits are told that change no threshold: they show that a pause is usual still."""
_MOST_RETIRED: Final = 8_192
"""Collectives that wait to be learnt from all at once."""
_MOST_HINTS: Final = 1_024
"""Kept for who may ask."""


class Collectives:
    """Accumulators and statistics over the tables of one attempt, which it reads and, for what
    concerns groups (`matched`, `threshold_ns`), writes."""

    def __init__(
        self,
        policy: Policy,
        ranks: RankTable,
        groups: GroupTable,
        pairs: PairTable,
        known: Mapping[GroupKind, Sequence[LongWait]],
        now: AlignedNs,
    ) -> None:
        """`known` is what earlier attempts of the job have shown."""
        self._policy = policy
        self._ranks = ranks
        self._groups = groups
        self._pairs = pairs
        self.signatures = Signatures(policy.max_signatures)
        self.open_collectives = OpenCollectives(
            policy.max_open_collectives, policy.max_open_collectives_per_group
        )
        self.skew = OpHistograms()
        self.duration = OpHistograms()
        self.lateness = Lateness(policy.straggler_window_s, policy.telemetry_late_s)
        self.clock_hints: deque[ClockHint] = deque(maxlen=_MOST_HINTS)
        """What collectives told of clocks, until somebody takes it."""
        self.contradictions: deque[ClockHint] = deque(maxlen=_MOST_HINTS)
        """Those of them that cannot be; for somebody else to take."""
        self._clocks = GroupClocks.of(0, ranks, pairs)
        self._clocks_as_of = (-1, -1, -1)
        self._mismatches = Mismatches()
        self._began_at = now
        self._tails = {sort: WaitHistory(now, waits) for sort, waits in known.items()}
        self._tails_asked_at = AlignedNs(0)
        self._sorts: list[GroupKind] = []
        """By group."""
        self._of_sort: dict[GroupKind, list[int]] = {}
        """Groups that pause alike."""
        self._went_on_at = 0
        """When the first member came to a collective that all have joined: the newest of these."""
        self._raised_at = 0
        """End of the wait that raised a threshold, until that is told; else 0."""
        self._waited = False
        """There are waits that were not told."""
        self._told_at = now
        self._unsettled = False
        self._retired: list[RetiredCollectives] = []
        """Out of the ring, and not learnt from yet."""
        self.late_rows = 0
        """Rows of collectives whose accumulators had been evicted."""

    def adopt(self, policy: Policy) -> None:
        """See `Engine.adopt`."""
        before, self._policy = self._policy, policy
        self.signatures.limit = policy.max_signatures
        self.open_collectives.bound(
            policy.max_open_collectives, policy.max_open_collectives_per_group
        )
        windows = (before.straggler_window_s, before.telemetry_late_s)
        if windows != (policy.straggler_window_s, policy.telemetry_late_s):
            self.lateness = Lateness(policy.straggler_window_s, policy.telemetry_late_s)
        self._groups.threshold_ns[: self._groups.count] = round(policy.stall_after_s * 1e9)
        self._tails_asked_at = AlignedNs(0)  # what is usual is asked again before anything stalls

    def add_group(self, group: int) -> None:
        """Its threshold is that of its sort."""
        info = self._groups.infos[group]
        sort = info.label, len(info.ranks)
        self._sorts.append(sort)
        alike = self._of_sort.setdefault(sort, [])
        alike.append(group)
        if alike[:-1]:
            self._groups.threshold_ns[group] = self._groups.threshold_ns[alike[0]]
        elif sort in self._tails:
            self._adapt([sort], self._began_at)

    # -- rows --------------------------------------------------------------------------------

    def join(
        self,
        runs: PairRuns,
        rank: int,
        signature: Int32s,
        created: Int64s,
        now: AlignedNs,
    ) -> Int64s | None:
        """Count joined rows of one rank, none of which was counted before; returns their slots, or
        None when some have none any more.

        Columns are in the order of the runs.
        """
        group = self._pairs.group[runs.pair]
        self._groups.note_first(group, runs.first)
        slots = slot = self._admit(runs, group, now)
        rows: Places = slice(None)
        if slot.min() < 0:
            rows = (slot >= 0).nonzero()[0]
            self.late_rows += len(slot) - len(rows)
        slot, seq, signature = slot[rows], runs.seq[rows], signature[rows]
        other = self.open_collectives.merge(
            slot, seq, signature, created[rows], rank, self._ranks.node
        )
        if other.any():
            groups = np.repeat(group, runs.count)[rows]
            self._compare(groups[other], slot[other], seq[other], signature[other], rank)
        if self.signatures.any_balanced:
            self.open_collectives.slots.balance[slot] += self.signatures.balance[signature]
            self._weigh(np.repeat(group, runs.count)[rows], slot, seq)
        self._pairs.joined_row[runs.pair] = runs.last
        return slots if len(slot) == len(slots) else None

    def _admit(self, runs: PairRuns, group: Int32s, now: AlignedNs) -> Int64s:
        """Slots of the rows, -1 for those whose accumulators are gone already."""
        open_collectives = self.open_collectives
        spans = list(zip(group.tolist(), runs.first.tolist(), runs.last.tolist(), strict=True))
        if tight := [span for span in spans if not open_collectives.admit(*span)]:
            over = np.array([of for of, _, _ in tight])
            self._retire(over, np.array([self._passed(of) for of in over.tolist()]), now)
            for span in tight:
                if not open_collectives.admit(*span):
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
        self, group: Int32s, slot: Int64s, seq: Int64s, signature: Int32s, rank: int
    ) -> None:
        first = self.open_collectives.slots.signature[slot]
        classes = self.signatures.match_class
        wrong = np.flatnonzero(classes[signature] != classes[first])
        for at in wrong.tolist():
            self._mismatches.differs(
                int(group[at]), int(seq[at]), int(first[at]), rank, int(signature[at])
            )

    def _weigh(self, group: Int32s, slot: Int64s, seq: Int64s) -> None:
        """Find the all_to_alls that all have joined and that do not add up."""
        slots = self.open_collectives.slots
        off = (slots.joined[slot] == self._groups.size[group]) & (slots.balance[slot] != 0)
        off &= self.signatures.balanced[slots.signature[slot]]
        for at in np.flatnonzero(off).tolist():
            first, surplus = slots.signature.item(slot[at]), slots.balance.item(slot[at])
            self._mismatches.unbalanced(int(group[at]), int(seq[at]), first, surplus)

    def complete(
        self, runs: PairRuns, rank: int, completed_ns: Int64s, slot: Int64s | None = None
    ) -> None:
        """Note when a rank's collectives completed (a column of the batch, 0 where unknown).

        `slot` is what `join` gave for these very rows.
        """
        if completed_ns.any():
            at = runs.column(completed_ns)
            if slot is None:
                slot = self._slots(runs, self._pairs.group[runs.pair])
                held = self.open_collectives.holds(slot, runs.seq)
                slot, at = slot[held], at[held]
            self.open_collectives.complete(slot, at, rank)
        self._pairs.completed_row[runs.pair] = runs.last
        self._unsettled = True

    def forget(self, groups: Int32s) -> None:
        """A member of these groups was replaced: what was open in them will never match."""
        self.open_collectives.drop(groups)
        for group in groups.tolist():
            self._mismatches.forget(group)

    # -- what is over ------------------------------------------------------------------------

    def settle(self, now: AlignedNs) -> None:
        """Retire what all members have passed, and let old facts and waits fade."""
        if self._unsettled:
            self._unsettled = False
            layout = self._pairs.layout()
            passed = np.minimum.reduceat(self._pairs.completed_row[layout.order], layout.starts)
            low = self.open_collectives.windows.low[layout.groups]
            over = np.flatnonzero(passed >= low)
            self._retire(layout.groups[over], passed[over], now)
        if self._retired:
            self._learn(now)
        if len(self._mismatches):
            self._mismatches.expire(self.open_collectives.windows.done, now)
        if self._tails and now - self._tails_asked_at > _EXPIRY_NS:
            self._tails_asked_at = now
            self._adapt(self._tails, now)

    def _passed(self, group: int) -> int:
        """The seq whose completion the rows of every member have passed."""
        return int(self._pairs.completed_row[self._groups.rows(group)].min())

    def _retire(self, group: Int32s | Int64s, upto: Int64s, now: AlignedNs) -> None:
        closed = self.open_collectives.take(group, upto)
        if len(closed):
            self._retired.append(closed)
            if sum(map(len, self._retired)) > _MOST_RETIRED:
                self._learn(now)

    def _learn(self, now: AlignedNs) -> None:
        """What retired collectives tell of their groups, members and clocks."""
        closed, self._retired = RetiredCollectives.of(self._retired), []
        groups, ops = self._groups, self.signatures.op[closed.signature]
        groups.matched[: groups.count] += np.bincount(closed.group, minlength=groups.count)
        full = closed.joined == groups.size[closed.group]
        if full.any():
            self._went_on_at = max(self._went_on_at, int(closed.first_created[full].max()))
        clocks = self._group_clocks()
        fair = full & clocks.comparable(closed)
        skew = closed.last_created - closed.first_created
        self.skew.add(ops[fair], skew[fair])
        timed = fair & (closed.last_completed > 0)
        spent = closed.last_completed - closed.first_created
        self.duration.add(ops[timed], np.maximum(spent[timed], 0))
        self._compare_arrivals(closed, full, fair, clocks, now)
        slow = fair & (skew * self._policy.stall_tail_factor > self._policy.stall_after_s * 1e9)
        if slow.any():
            self._remember(closed, np.flatnonzero(slow), now)

    def _group_clocks(self) -> GroupClocks:
        as_of = self._ranks.clock_revision, self._groups.count, self._pairs.count
        if self._clocks_as_of != as_of:
            self._clocks_as_of = as_of
            self._clocks = GroupClocks.of(self._groups.count, self._ranks, self._pairs)
        return self._clocks

    def _compare_arrivals(
        self,
        closed: RetiredCollectives,
        full: Bools,
        fair: Bools,
        clocks: GroupClocks,
        now: AlignedNs,
    ) -> None:
        """Who came late to these, and what they tell of clocks."""
        of, signatures = closed.signature, self.signatures
        ended = full & signatures.synchronizing[of] & (closed.joined > 1)
        judged = ended & fair
        charged = charges(closed, judged, self._ranks, clocks)
        waited = waits(closed, ended, fair)
        group, at = closed.group[judged], closed.last_created[judged]
        self.lateness.add(self._groups.count, group, at, charged, waited, now)
        telling = fair & signatures.strict[of] & clocks.spans[closed.group]
        hints = clock_hints(closed, telling, self._ranks)
        self.clock_hints += hints
        self.contradictions += [hint for hint in hints if hint.contradicts]

    def _remember(self, closed: RetiredCollectives, slow: Int64s, now: AlignedNs) -> None:
        """Waits that were long enough to move their group's threshold."""
        first, last = closed.first_created[slow].tolist(), closed.last_created[slow].tolist()
        waits: dict[GroupKind, list[LongWait]] = {}
        for group, start, end in zip(closed.group[slow].tolist(), first, last, strict=True):
            waits.setdefault(self._sorts[group], []).append(LongWait.of(start, end))
        for sort, news in waits.items():
            self._tails.setdefault(sort, WaitHistory(self._began_at)).add(news)
        self._waited = True
        if self._adapt(waits, now):
            self._raised_at = closed.last_created[slow].max().item()

    def _adapt(self, sorts: Iterable[GroupKind], now: AlignedNs) -> bool:
        """Whether a threshold is higher than before."""
        raised = False
        for sort in sorts:
            if alike := self._of_sort.get(sort):
                threshold_ns = self._tails[sort].threshold_ns(self._policy, now)
                raised |= threshold_ns > self._groups.threshold_ns[alike[0]]
                self._groups.threshold_ns[alike] = threshold_ns
        return raised

    def take_waits(self, now: AlignedNs) -> dict[GroupKind, list[LongWait]] | None:
        """Long waits after which the job went on; None while there is nothing new to tell."""
        is_raised = 0 < self._raised_at <= self._went_on_at
        if not is_raised and not (self._waited and now - self._told_at >= _TELL_AGAIN_NS):
            return None
        self._told_at, self._waited = now, False
        if is_raised:
            self._raised_at = 0
        survived = {
            sort: [wait for wait in tail.waits if wait.end <= self._went_on_at]
            for sort, tail in self._tails.items()
        }
        return {sort: waits for sort, waits in survived.items() if waits}

    # -- answers -----------------------------------------------------------------------------

    @property
    def disagrees(self) -> bool:
        return self._mismatches.any_facts

    def facts(self) -> list[MismatchFact]:
        return self._mismatches.facts(self._groups, self._pairs, self.signatures)

    def signature_of(self, group: Int32s, seq: Int64s) -> Int64s:
        """Handles of the signatures of open collectives, -1 when nobody told."""
        slot = self.open_collectives.locate(group, seq)
        return np.where(
            self.open_collectives.holds(slot, seq), self.open_collectives.slots.signature[slot], -1
        )

    def ends_early(self, group: Int32s, seq: Int64s) -> Bools:
        """A member may complete it before all have come, as far as is known of its op."""
        signature = self.signature_of(group, seq)
        early = signature >= 0
        early[early] = ~self.signatures.synchronizing[signature[early]]
        return early

    def ops(self) -> list[Callable[[int], str]]:
        """For each group, the op of a seq as things stand now, empty when nobody told."""
        w, seq = self.open_collectives.windows, self.open_collectives.slots.seq.copy()
        signature, known = self.open_collectives.slots.signature.copy(), self.signatures.known

        def lookup(base: int, capacity: int) -> Callable[[int], str]:
            def op(of: int) -> str:
                slot = base + (of & (capacity - 1))
                held = capacity > 0 and seq[slot] == of
                return known[signature[slot]].op if held else ""

            return op

        count = self._groups.count
        return list(map(lookup, w.base[:count].tolist(), w.capacity[:count].tolist()))

    def evicted(self) -> dict[str, int]:
        """Things dropped to stay within limits, by what."""
        return {
            "collectives": self.open_collectives.evicted,
            "rows": self.late_rows,
            "mismatches": self._mismatches.dropped,
        }
