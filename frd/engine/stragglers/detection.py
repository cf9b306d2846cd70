"""Which ranks make their peers wait again and again: pure statistics over counted charges.

One rank is always last, so being last means nothing. The question is whether a rank is last more
often than its peers, by a margin that chance does not explain. At each size of lateness its count
is compared with how often the group waited about as long for others; if the members were alike,
each would have an equal share (Chernoff's bound for the binomial). So a rank that is 200 ms late
now and then is found even if another is always 5 ms late. Waiting for several ranks that join
together counts, too, although no single rank is charged with it. To be a straggler a rank must also
cost enough, be late in a sufficient share of the collectives, and in most parts of the window: a
checkpoint, a first step or a bad minute is no straggler. The same holds for the nodes of a group.

A rank that waited in another group is late because of that: *a late rank is held up if, in another
of its groups that does not contain all ranks it keeps waiting, members waited for others at least
half as often and half as long as it is late beyond its share*. Lateness that chance explains needs
no excuse. A group that contains all these ranks excuses no rank, because ranks that waited together
are not behind each other. Followed from group to group, as for stalls, this ends at the stragglers;
on a circle all are stragglers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from frd.engine.graph import components
from frd.engine.matching.lateness import BUCKETS, LEVELS, Table, Window, as_culprit
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot
from frd.model import Int32s, Int64s

CHANCE_NATS: Final = 21.0
"""Peers that are alike differ this much with a chance of e**-21, one in 10**9."""
MOST_BUCKETS: Final = BUCKETS * 2 // 3
"""A straggler is late in this many of them."""
TIMES: Final = 3.0
"""A straggler is late this many times as often as its average peer."""
_MOST_LATE: Final = 64
"""Limit of the culprits examined, starting with the most expensive."""


@dataclass(frozen=True, slots=True)
class Late:
    """One rank or node that is late in one group more than its peers."""

    group: int
    culprit: int
    level: int
    """From this level on, chance does not explain its lateness."""
    count: int
    """Collectives in which it was late, of `judged`."""
    judged: int
    lost_ns: int
    beyond: tuple[float, float]
    """`count` and `lost_ns` in excess of an average peer's."""
    nats: float
    """-log of the chance that it is an ordinary peer."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """One culprit with all groups that wait for it, largest loss first.

    Its cost is the loss of one group: the losses of others are mostly the same time.
    """

    culprit: int
    ranks: tuple[int, ...]
    lates: tuple[Late, ...]
    sends: bool = False
    """True if it may be late because it waits in sends and receives."""
    is_held_up: bool = False
    """True of a node that waits for others in another group: this may be the same time again."""


@dataclass(frozen=True, slots=True)
class Judgement:
    stragglers: tuple[Straggler, ...]
    held_up: frozenset[int]
    """Culprits that other ranks delay."""


def judge(window: Window, snapshot: Callable[[], Snapshot], policy: Policy) -> Judgement:
    """The stragglers of a window; a snapshot is taken only if a culprit cost enough."""
    costly = window.costly(policy.straggler_min_lost_s * 1e9, _MOST_LATE)
    if not costly:
        return Judgement((), frozenset())
    topology = Topology(snapshot())
    found = (_late(window, topology, policy, group, culprit) for group, culprit in costly)
    lates = [late for late in found if late is not None]
    ends = _ends(lates, window, topology)
    nodes = {late.culprit for late in lates if late.culprit < 0 and late not in ends}
    stragglers = [
        replace(straggler, is_held_up=straggler.culprit in nodes)
        for straggler in _stragglers([late for late in lates if late in ends], topology)
    ]
    named = {rank for straggler in stragglers for rank in straggler.ranks}
    held_up = {late.culprit for late in lates if late.culprit >= 0} - named
    return Judgement(tuple(stragglers), frozenset(held_up))


# -- late more often than by chance ---------------------------------------------------------------


def _late(
    window: Window, topology: Topology, policy: Policy, group: int, culprit: int
) -> Late | None:
    """The culprit's lateness at the smallest size at which all conditions hold; None if it is no
    straggler in this group."""
    culprit_ranks = topology.late_ones(group, culprit)
    if culprit < 0 and not 1 < len(culprit_ranks) < len(topology.members(group)):
        return None  # counted when these ranks had another clock: a new agent brings a new one
    charges, waits = window.charges(group), window.waits(group)
    charges = charges.where(charges.culprit == culprit)
    inside = np.isin(waits.culprit, culprit_ranks)
    waits_for_others, waits_inside = waits.where(~inside), waits.where(inside)
    count, lost_ns = _at_least(charges, charges.count), _at_least(charges, charges.lost_ns)
    counts = _at_least(waits_for_others, waits_for_others.count)
    losses = _at_least(waits_for_others, waits_for_others.lost_ns)
    counts_inside = _at_least(waits_inside, waits_inside.count)
    judged = int(window.judged[group])
    (chance, *of_node) = _chances(topology, group, culprit)
    for level in range(LEVELS):
        late_count, lost_at_level = int(count[level]), int(lost_ns[level])
        if (
            lost_at_level < policy.straggler_min_lost_s * 1e9
            or late_count < policy.straggler_share * judged
        ):
            break
        as_long = max(level - 1, 0)
        buckets = len(np.unique(charges.bucket[charges.level >= level]))
        alternatives = [(int(counts[as_long]), chance)]
        alternatives += [
            (int(counts_inside[as_long]) - late_count, together) for together in of_node
        ]
        is_often = all(late_count >= TIMES * _odds(p) * others for others, p in alternatives)
        nats = min(
            _unlikely(late_count, late_count + max(others, 0), p) for others, p in alternatives
        )
        if is_often and buckets >= MOST_BUCKETS and nats >= CHANCE_NATS:
            share = _odds(chance)
            beyond = late_count - share * counts[as_long], lost_at_level - share * losses[as_long]
            return Late(group, culprit, level, late_count, judged, lost_at_level, beyond, nats)
    return None


def _at_least(table: Table, column: Int64s) -> Int64s:
    """Sums of a column of the table for each level: rows of that level and above."""
    by_level = np.zeros(LEVELS, np.int64)
    np.add.at(by_level, table.level, column)
    return by_level[::-1].cumsum()[::-1]


def _chances(topology: Topology, group: int, culprit: int) -> tuple[float, ...]:
    """Chance of a charge to the culprit if all members are alike, one for each alternative.

    A rank: it comes last instead of another rank. A node: the last two ranks are on it, instead of
    the last one on another node; and the last two ranks are on it, instead of only the last one. A
    slow rank alone would look like the latter if the rank before it happens to share its node.
    """
    members = len(topology.members(group))
    if culprit >= 0:
        return (1 / members,)
    size = len(topology.late_ones(group, culprit))
    both = size * (size - 1) / (members * (members - 1))
    elsewhere = (members - size) / members
    return both / (both + elsewhere), (size - 1) / (members - 1)


def _odds(chance: float) -> float:
    return chance / (1 - chance) if chance < 1 else float("inf")


def _unlikely(k: int, of: int, chance: float) -> float:
    """Lower bound of -log of the chance of `k` or more hits in `of` tries with `chance` each
    (Chernoff)."""
    share = k / of
    if share <= chance:
        return 0.0
    rest = (1 - share) * log((1 - share) / (1 - chance)) if share < 1 else 0.0
    return of * (share * log(share / chance) + rest)


# -- delayed by others ----------------------------------------------------------------------------


class _Others(NamedTuple):
    """Members of a group that are late now and then, each no more than chance explains."""

    group: int


_Cause: TypeAlias = Late | _Others


def _ends(lates: Sequence[Late], window: Window, topology: Topology) -> set[_Cause]:
    edges: dict[_Cause, list[_Cause]] = {}
    for late in lates:
        edges[late] = []
        for group in _excuses(late, window, topology):
            itself = _same(late, topology)
            others = [o for o in lates if o.group == group and o.culprit not in itself]
            edges[late] += others or [_Others(group)]
    for cause in [cause for causes in edges.values() for cause in causes]:
        edges.setdefault(cause, [])
    return {
        cause
        for part in components(edges)
        if {target for cause in part for target in edges[cause]} <= set(part)
        for cause in part
    }


def _same(late: Late, topology: Topology) -> tuple[int, ...]:
    """The late culprit and its node, which cannot excuse it."""
    if late.culprit < 0:
        return (late.culprit,)
    return late.culprit, as_culprit(int(topology.node[late.culprit]))


def _excuses(late: Late, window: Window, topology: Topology) -> list[int]:
    """Groups in which others delayed the culprit, or may have: a member does not report there."""
    culprit_ranks = topology.late_ones(late.group, late.culprit)
    kept_waiting = topology.members(late.group)
    excusing = []
    for group in _shared(culprit_ranks, topology):
        if group == late.group or np.isin(kept_waiting, topology.members(group)).all():
            continue
        waits = window.waits(group)
        others = waits.level >= late.level - 1
        for itself in _same(late, topology):
            others &= waits.culprit != itself
        waited = waits.count[others].sum(), waits.lost_ns[others].sum()
        held_up = all(2 * sum_ >= beyond for sum_, beyond in zip(waited, late.beyond, strict=True))
        if held_up or topology.is_dark(group):
            excusing.append(group)
    return excusing


def _shared(ranks: Iterable[int] | Int32s, topology: Topology) -> list[int]:
    """Groups that can delay these ranks: all groups of a single rank, or the groups that contain at
    least two of several ranks."""
    groups = [topology.groups(int(rank)) for rank in ranks]
    if not groups:
        return []
    group, count = np.unique(np.concatenate(groups), return_counts=True)
    return [int(handle) for handle in group[count >= min(2, len(groups))]]


# -- stragglers from late culprits ---------------------------------------------------------------


def _stragglers(lates: Sequence[Late], topology: Topology) -> list[Straggler]:
    """Stragglers, the most expensive first. A node is late if all its ranks are late."""
    lates_of: dict[int, list[Late]] = defaultdict(list)
    for late in lates:
        lates_of[late.culprit].append(late)
    for node in _slow_nodes(lates_of, topology):
        culprits = [
            culprit for culprit in lates_of if culprit >= 0 and topology.node[culprit] == node
        ]
        for culprit in culprits:
            lates_of[as_culprit(node)] += lates_of.pop(culprit)
    stragglers = []
    for culprit, culprit_lates in lates_of.items():
        ranks = {
            int(r) for late in culprit_lates for r in topology.late_ones(late.group, late.culprit)
        }
        culprit_lates.sort(key=lambda late: -late.lost_ns)
        sends = any(map(topology.may_send, ranks))
        stragglers.append(Straggler(culprit, tuple(sorted(ranks)), tuple(culprit_lates), sends))
    return sorted(stragglers, key=lambda found: (-found.lates[0].lost_ns, found.culprit))


def _slow_nodes(lates_of: Mapping[int, Sequence[Late]], topology: Topology) -> set[int]:
    """Nodes that are charged themselves and, of several nodes, nodes whose ranks are all late."""
    nodes = {as_culprit(culprit) for culprit in lates_of if culprit < 0}
    numbers, sizes = np.unique(topology.node[topology.node >= 0], return_counts=True)
    for number, size in zip(numbers.tolist(), sizes.tolist(), strict=True):
        late = sum(1 for culprit in lates_of if culprit >= 0 and topology.node[culprit] == number)
        if len(numbers) > 1 and size > 1 and late == size:
            nodes.add(number)
    return nodes


# -- groups and nodes of a snapshot -------------------------------------------------------------


class Topology:
    """Which rank is in which group and on which node, and which ranks may send."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._member = snapshot.pairs.rank
        self._group = snapshot.pairs.groups()
        ranks = 1 + max(snapshot.rank.max(initial=-1), self._member.max(initial=-1))
        self.node = np.full(ranks, -1, np.int32)
        """By rank; -1 where no agent has reported it yet."""
        self.node[snapshot.rank] = snapshot.clocks.node

    def members(self, group: int) -> Int32s:
        return self._member[self._snapshot.pairs.rows(group)]

    def groups(self, rank: int) -> Int64s:
        """The groups of a rank."""
        groups: Int64s = self._group[self._member == rank]
        return groups

    def late_ones(self, group: int, culprit: int) -> Int32s:
        """The ranks of a culprit: the rank itself, or the group's ranks on that node."""
        if culprit >= 0:
            return np.array([culprit], np.int32)
        members = self.members(group)
        here: Int32s = members[self.node[members] == as_culprit(culprit)]
        return here

    def is_dark(self, group: int) -> bool:
        """The agent of some member is not connected, or a member was never declared."""
        reported = self._snapshot.rank[self._snapshot.connected]
        return not np.isin(self.members(group), reported).all()

    def may_send(self, rank: int) -> bool:
        """The rank sends or receives, or may do so: its waits there are not recorded.

        Gloo's recorder shows no sends and receives, and a group in which all members do nothing
        else shows no collectives.
        """
        snapshot = self._snapshot
        if rank in snapshot.p2p_ranks:
            return True
        info = snapshot.info.get(rank)
        if info is None or "gloo" not in info.backends:
            return False
        pairs = snapshot.pairs
        joined = [pairs.joined[pairs.rows(group)] for group in self.groups(rank).tolist()]
        return any(len(members) > 1 and members.max() < 0 for members in joined)
