"""What the telemetry of one rank proves: that it is gone, that it moved, that it did not join.

Absence is claimed only with proof: the rank's own telemetry is fresh and complete, and shows that
the rank had not joined while others were waiting. Otherwise the rank is an `UnknownRank`.
"""

from __future__ import annotations

from collections.abc import Iterable

from frd.engine.clocks.uncertain_time import UncertainTime
from frd.engine.hangs.ops_in_flight import Waits
from frd.engine.hangs.wait_nodes import Member, TelemetryFault, UnknownRank
from frd.model import AlignedNs, Int32s, RankState

GONE_STATES = frozenset({RankState.EXITED, RankState.FINISHED, RankState.SILENT})
"""States in which an agent has positive evidence that the rank no longer takes part."""

_MOVED_LATELY_S = 2.0
"""A rank in no op must show no progress for this long: two reports of its agent."""


class RankEvidence:
    """Questions about single ranks; telemetry older than `late_s` proves nothing."""

    def __init__(self, waits: Waits, late_s: float) -> None:
        snapshot = self.snapshot = waits.snapshot
        self._waits = waits
        self._late_s = late_s
        ranks = list(zip(snapshot.rank.tolist(), snapshot.state, strict=True))
        self._gone = frozenset(rank for rank, state in ranks if state in GONE_STATES)
        self.finished_at: dict[int, int] = {
            rank: at
            for (rank, state), at in zip(ranks, snapshot.state_since.tolist(), strict=True)
            if state is RankState.FINISHED
        }
        """When ranks finished cleanly."""

    def is_gone(self, rank: int) -> bool:
        return rank in self._gone

    def as_of(self, rank: int) -> AlignedNs:
        """Everything that the rank did until then is known; the rank must be declared."""
        return AlignedNs(int(self.snapshot.as_of[self._waits.row(rank)]))

    def gone_at(self, rank: int) -> int:
        """When the state of the rank last changed; 0 if unknown."""
        return int(self.snapshot.state_since[self._waits.row(rank)])

    def moved_at(self, rank: int) -> int:
        """When a watermark of the rank last advanced; 0 if never, or unknown."""
        return int(self.snapshot.moved_at[self._waits.row(rank)])

    def moved_lately(self, rank: int) -> bool:
        """The rank moved shortly before its last report; nothing is known of the time since."""
        moved_at = self.moved_at(rank)
        return moved_at > 0 and self.as_of(rank) - moved_at < _MOVED_LATELY_S * 1e9

    def is_known_until(self, rank: int, until: int) -> bool:
        """Everything that the rank did until then is known, even if its clock is off."""
        as_of = self.snapshot.moment(rank, self.as_of(rank))
        return self.is_gone(rank) or as_of.at - (as_of.uncertainty_ns or 0) >= until

    def is_fresh(self, rank: int, group: int, since: int) -> bool:
        """Too little of the wait since `since` is known: less than a quarter of the threshold."""
        return self.as_of(rank) - since < max(0.5e9, int(self.snapshot.threshold_ns[group]) / 4)

    def telemetry_fault(self, rank: int) -> TelemetryFault | None:
        """Why the telemetry of a rank proves nothing now; None if it does."""
        row = self._waits.row(rank)
        if row < 0 or self.snapshot.as_of[row] <= 0:
            return TelemetryFault.NEVER_SEEN
        if not self.snapshot.connected[row]:
            return TelemetryFault.DISCONNECTED
        if self.snapshot.now - int(self.snapshot.as_of[row]) > self._late_s * 1e9:
            return TelemetryFault.LATE
        return None

    def present(self, rank: int) -> Member | UnknownRank:
        """The node of a rank for which others wait."""
        fault = None if self.is_gone(rank) else self.telemetry_fault(rank)
        return Member(rank) if fault is None else UnknownRank(rank, fault)

    def all_present(self, ranks: Iterable[int] | Int32s) -> list[Member | UnknownRank]:
        return [self.present(int(rank)) for rank in ranks]

    def absentee(self, rank: int, since: UncertainTime) -> Member | UnknownRank:
        """The node of a rank that has not joined an op in which others wait since `since`."""
        if not self.is_gone(rank) and self.telemetry_fault(rank) is None:
            as_of = self.snapshot.moment(rank, self.as_of(rank))
            # An unbounded clock is used as it is: a stall lasts longer than the clock is off.
            if as_of.at < since.at + (as_of.margin_ns(since) or 0):
                return UnknownRank(rank, TelemetryFault.UNPROVEN)
        return self.present(rank)

    def agents_of(self, ranks: Iterable[int] | Int32s) -> set[int]:
        """Numbers of the agents that report these ranks."""
        return {int(self.snapshot.clocks.node[self._waits.row(int(rank))]) for rank in ranks}
