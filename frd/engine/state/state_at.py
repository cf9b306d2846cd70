"""What the tables of an attempt hold at one time, for readers in other threads.

Made every second and read far less often. So columns are copied, and what follows from them is
computed when it is first read, in whatever thread, by the functions that make a `Snapshot`.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from frd.engine.clocks.uncertain_time import UNKNOWN_NS
from frd.engine.state import snapshot_parts
from frd.engine.state.attempt_tables import AttemptTables
from frd.engine.state.snapshot_parts import EndsEarly, OpenWaits, Reached
from frd.engine.state.tables import EXITED, LIVE
from frd.model import AlignedNs, Bools, Int32s, Int64s


class StateAt:
    """A rank of a group may be beyond all ranks of the table: no agent has declared it."""

    def __init__(
        self, tables: AttemptTables, ends_early: EndsEarly, least_ns: int, now: AlignedNs
    ) -> None:
        """`ends_early` must not change afterwards; `least_ns`: see `snapshot_parts.stalls`."""
        self.now = now
        self.tables = tables.frozen()
        self._ends_early = ends_early
        self._least_ns = least_ns

    @cached_property
    def reached(self) -> Reached:
        return snapshot_parts.reached(self.tables, self._ends_early, self.now)

    @cached_property
    def waits(self) -> OpenWaits:
        """All of them; most have just begun."""
        usual_ns = snapshot_parts.thresholds_ns(self.tables, self._least_ns)
        return snapshot_parts.open_waits(self.tables, usual_ns, 0, self._ends_early, self.now)

    @cached_property
    def _as_of(self) -> Int64s:
        """By rank, aligned; the last one is of unknown ranks."""
        ranks = self.tables.ranks
        as_of = ranks.to_aligned(np.arange(ranks.count), ranks.as_of, self.now)
        return np.append(as_of, 0)

    def has_not_joined(self, row: Int64s, seq: Int64s | int, since: Int64s | int) -> Bools:
        """Which of these members are known not to have joined an op that others wait in since then.
        Absence proves nothing of a rank that no agent has declared, whose rows are missing, or of
        which nothing is known since; nor of one that may have joined before its first report."""
        come = self.reached
        heard = self._as_of.take(self.tables.pairs.rank[row], mode="clip") >= since
        return heard & (come.joined[row] < seq) & ~come.in_doubt[row]

    def is_unknown(self, rank: Int32s, late_s: float) -> Bools:
        """Ranks that no agent has declared, or has reported lately."""
        return self.now - self._as_of.take(rank, mode="clip") > late_s * 1e9

    def is_gone(self, rank: Int32s) -> Bools:
        """Which of these ranks have no process any more."""
        return np.append(self.tables.ranks.state, LIVE).take(rank, mode="clip") >= EXITED

    def knows_clock(self, rank: int) -> bool:
        ranks = self.tables.ranks
        return rank < ranks.count and int(ranks.uncertainty_ns[rank]) < UNKNOWN_NS
