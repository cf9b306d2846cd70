"""What completed collectives show of clocks, and whose arrivals compare at all.

No rank completes an op whose outputs depend on all inputs before the op's last member has arrived.
When the times of two nodes say so nevertheless, their clocks contradict each other; the collective
cannot show which of the two is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.engine.clocks.uncertain_time import UNKNOWN_NS
from frd.engine.matching.open_collectives import RetiredCollectives
from frd.engine.state.tables import PairTable, RankTable
from frd.model import AlignedNs, Bools, Int64s

_MOST_HINTS: Final = 256


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
