"""What the arrivals of one collective tell: who made it wait, and whether clocks contradict it.

A collective begins when its last member comes. What passed between the last arrival and the latest
of all others is time that it lost to that one rank, and what passed between that and the latest on
any other node is time lost to the node; the two add up, so a slow rank of a slow node is charged
for its own part only. Time in which the collective before it still ran is lost to nobody: a
program that runs ahead of its device may come when it likes. Nobody is charged for less than
a `FLOOR_NS`, nor across nodes for less than their clocks may be off; and where the clock of a
member is not known at all, nothing is claimed of anybody.

Nobody completes an op whose outputs depend on all inputs before its last member has come. When
times say so nevertheless, the clocks of two nodes contradict each other; which of them is wrong
cannot be known from it.

Columns in, columns out, one pass for all that was retired at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, overload

import numpy as np

from frd.engine.clocks.uncertain_time import UNKNOWN_NS
from frd.engine.matching.open_collectives import RetiredCollectives
from frd.engine.state.snapshot import Bools
from frd.engine.state.tables import PairTable, RankTable
from frd.model import AlignedNs, Int32s, Int64s

FLOOR_NS: Final = 1_000_000
"""What schedulers and interpreters do to any program now and then."""
NOBODY: Final = -1
_MOST_HINTS: Final = 256


@dataclass(frozen=True, slots=True)
class GroupClocks:
    """How well the arrivals of each group's members compare; by group handle."""

    spans: Bools
    """Members have more than one clock."""
    bound_ns: Int64s
    """The largest uncertainty among them."""
    since: Int64s
    """What was told before this of some member was aligned by what is not believed any more."""

    def comparable(self, closed: RetiredCollectives) -> Bools:
        """The collectives whose arrivals can be held against each other."""
        group = closed.group
        known = (self.bound_ns < UNKNOWN_NS)[group] | ~self.spans[group]
        return known & (closed.first_created >= self.since[group])

    @classmethod
    def of(cls, groups: int, ranks: RankTable, pairs: PairTable) -> GroupClocks:
        spans, (bound, since) = np.zeros(groups, np.bool_), np.zeros((2, groups), np.int64)
        layout = pairs.layout()
        if ranks.count and len(layout.groups):
            rank = pairs.rank[layout.order]
            rank = np.where(rank < ranks.count, rank, 0)  # who was never declared never arrives
            node, uncertainty = ranks.node[rank], ranks.uncertainty_ns[rank]
            lowest = np.minimum.reduceat(node, layout.starts)
            spans[layout.groups] = lowest != np.maximum.reduceat(node, layout.starts)
            bound[layout.groups] = np.maximum.reduceat(uncertainty, layout.starts)
            since[layout.groups] = np.maximum.reduceat(ranks.clock_since[rank], layout.starts)
        return cls(spans, bound, since)


@dataclass(frozen=True, slots=True)
class LostTime:
    """Time that members of collectives waited for one rank or one node: parallel arrays."""

    group: Int32s
    culprit: Int64s
    """A rank, or a node as `as_culprit` numbers it; `NOBODY` when that is not known."""
    at: Int64s
    """Aligned ns at which it came."""
    lost_ns: Int64s


@overload
def as_culprit(node: int) -> int: ...
@overload
def as_culprit(node: Int32s | Int64s) -> Int64s: ...
def as_culprit(node: int | Int32s | Int64s) -> int | Int64s:
    """Nodes as numbers below those of all ranks; the same function turns them back."""
    return -2 - node if isinstance(node, int) else -2 - node.astype(np.int64)


def charges(
    closed: RetiredCollectives, judged: Bools, ranks: RankTable, clocks: GroupClocks
) -> LostTime:
    """Who is charged for those of these collectives that are `judged`: all members have joined, and
    waited for each other."""
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
    slow_node = as_culprit(ranks.node[some.last_rank[node]])
    return LostTime(
        np.concatenate((some.group[rank], some.group[node])),
        np.concatenate((some.last_rank[rank], slow_node)),
        np.concatenate((last[rank], last[node])),
        np.concatenate((alone[rank], together[node])),
    )


def waits(closed: RetiredCollectives, ended: Bools, fair: Bools) -> LostTime:
    """How long members waited in those collectives that have `ended`, on an average, and for whom.

    Of their arrivals the first and the last two are known; the others lie between. Where clocks do
    not compare (`fair`), somebody waited for somebody.
    """
    others = closed.first_created // 2 + closed.second_created // 2
    waited = np.where(closed.second_created > 0, closed.last_created - others, 0)
    row = np.flatnonzero(ended & (waited > FLOOR_NS))
    whom = np.where(fair[row], closed.last_rank[row], NOBODY)
    return LostTime(closed.group[row], whom.astype(np.int64), closed.last_created[row], waited[row])


@dataclass(frozen=True, slots=True)
class ClockHint:
    """A bound on two clocks: `early_rank` completed a collective `slack_ns` after `late_rank`,
    its last member, came to it. It cannot have been before."""

    early_rank: int
    late_rank: int
    slack_ns: int
    at: AlignedNs
    """When the last member came."""
    early_uncertainty_ns: int
    late_uncertainty_ns: int

    @property
    def contradicts(self) -> bool:
        """More than both clocks may be off."""
        return self.slack_ns < -(self.early_uncertainty_ns + self.late_uncertainty_ns)

    @property
    def early_least_ns(self) -> int:
        """What was told of the early one's clock is at least so much too early; mostly negative."""
        return -(self.slack_ns + self.late_uncertainty_ns)

    @property
    def late_most_ns(self) -> int:
        """What was told of the late one's clock is at most so much too early."""
        return self.slack_ns + self.early_uncertainty_ns


def clock_hints(closed: RetiredCollectives, telling: Bools, ranks: RankTable) -> list[ClockHint]:
    """What is news of clocks in those collectives that are `telling`: all members have joined, and
    none could complete before.

    Of two nodes the tightest bound only, and none that says less than is known already.
    """
    slack = closed.first_completed - closed.last_created
    known = ranks.uncertainty_ns[ranks.uncertainty_ns < UNKNOWN_NS]
    row = np.flatnonzero(telling & (slack < known.max(initial=0)))
    if not len(row):
        return []
    slack = slack[row]
    early, late = closed.first_done[row], closed.last_rank[row]
    mine, theirs = ranks.uncertainty_ns[early], ranks.uncertainty_ns[late]
    tells = (ranks.node[early] != ranks.node[late]) & (np.maximum(mine, theirs) < UNKNOWN_NS)
    tells &= slack < np.abs(np.where(tells, mine, 0) - np.where(tells, theirs, 0))
    at = np.flatnonzero(tells)
    if not len(at):
        return []
    at = at[np.argsort(slack[at], kind="stable")]
    nodes = np.stack((ranks.node[early[at]], ranks.node[late[at]]))
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
