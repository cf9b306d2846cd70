"""Which rank or node made the members of a collective wait, and for how long.

A collective begins when its last member arrives. The time between the last arrival and the latest
of all others is lost to that one rank; the time between that and the latest arrival on any other
node is lost to the node. The two add up, so a slow rank on a slow node is charged for its own part
only. Time in which the collective before it still ran is not lost: a program that runs ahead of its
device may arrive at any time in it. No rank is charged for less than `FLOOR_NS`, nor across
nodes for less than the uncertainty of their clocks; and where the clock of a member is unknown, no
rank is charged at all.

Columns in, columns out, one pass over all collectives that were retired together.

Completed collectives show of clocks whose arrivals compare at all: no rank completes an op whose
outputs depend on all inputs before the op's last member has arrived. When the times of two nodes
say so nevertheless, their clocks contradict each other; the collective cannot show which of the two
is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, overload

import numpy as np

from frd.engine.clocks.alignment import UNKNOWN_NS
from frd.engine.matching.open_collectives import RetiredCollectives
from frd.engine.state.tables import PairTable, RankTable
from frd.model import AlignedNs, Bools, Int32s, Int64s

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
