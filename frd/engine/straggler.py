"""Which ranks make their peers wait again and again: pure statistics over counted charges.

Somebody is always last, so being last says nothing. The question is whether a rank is last more
often than its peers, by a margin that chance does not explain: at each size of lateness its count
is held against that of all members, of which each would have an equal share if they were alike
(Chernoff's bound for the binomial). So a rank that is 200 ms late every now and then is seen beside
another that is always 5 ms late. To be a straggler it must also cost enough, be late in a
sufficient share of the collectives, and in most parts of the window: a checkpoint, a first step or
a bad minute is none. The same for the nodes of a group.

A rank that waited elsewhere is late for it: *a late rank is held up when in another of its groups,
one that does not hold everybody whom it keeps waiting, others were late at least half as often and
half as long*. A group that holds them all excuses nobody, for those who waited together are not
behind each other for it. Following that from group to group, as waiting is followed for stalls, the
ends are the stragglers; on a circle all are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from frd.engine.arrivals import as_culprit
from frd.engine.graph import components
from frd.engine.lateness import BUCKETS, LEVELS, Window
from frd.engine.picture import Bools
from frd.engine.policy import Policy
from frd.model import Int32s, Int64s

CHANCE_NATS: Final = 21.0
"""Peers who are alike come to differ so much with a chance of e**-21, one in 10**9."""
MOST_BUCKETS: Final = BUCKETS * 2 // 3
"""A straggler is late in this many of them."""
TIMES: Final = 3.0
"""A straggler is late this many times as often as its average peer."""
_MOST_LATE: Final = 64
"""Looked at more closely, those who cost most first."""


@dataclass(frozen=True, slots=True)
class Roll:
    """Who is where."""

    members: Callable[[int], Int32s]
    """The ranks of a group."""
    groups: Callable[[int], Int32s]
    """The groups of a rank."""
    node: Int32s
    """By rank."""

    def late_ones(self, group: int, culprit: int) -> Int32s:
        """The ranks that a culprit of this group is."""
        if culprit >= 0:
            return np.array([culprit], np.int32)
        members = self.members(group)
        here: Int32s = members[self.node[members] == as_culprit(culprit)]
        return here


@dataclass(frozen=True, slots=True)
class Late:
    """One rank or node that is late in one group more than its peers."""

    group: int
    culprit: int
    level: int
    """From here on its size of lateness is told from chance."""
    count: int
    """Collectives in which it was late, of `judged`."""
    judged: int
    lost_ns: int
    nats: float
    """How little chance explains it."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """One culprit with all groups that it keeps waiting, those that lose most first.

    What it costs is what one group lost: what another lost is mostly the same time again.
    """

    culprit: int
    ranks: tuple[int, ...]
    lates: tuple[Late, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    stragglers: tuple[Straggler, ...]
    held_up: frozenset[int]
    """Culprits that are late because others are."""


def judge(window: Window, roll: Roll, policy: Policy) -> Judgement:
    lates = _lates(window, roll, policy)
    if not lates:
        return Judgement((), frozenset())
    ends = _ends(lates, window, roll)
    stragglers = _stragglers([late for late in lates if late in ends], roll)
    named = {rank for one in stragglers for rank in one.ranks}
    held_up = {late.culprit for late in lates if late.culprit >= 0} - named
    return Judgement(tuple(stragglers), frozenset(held_up))


# -- who is late more than chance has it ---------------------------------------------------------


def _lates(window: Window, roll: Roll, policy: Policy) -> list[Late]:
    if not len(window.group):
        return []
    edge = (np.diff(window.group, prepend=-1) != 0) | (np.diff(window.culprit, prepend=0) != 0)
    first = np.flatnonzero(edge | (np.arange(len(edge)) == 0))
    lost = np.add.reduceat(window.lost_ns, first)
    costly = np.flatnonzero(lost >= policy.straggler_min_lost_s * 1e9)
    costly = costly[np.argsort(-lost[costly], kind="stable")][:_MOST_LATE]
    found = []
    for row in first[costly].tolist():
        late = _late(window, roll, policy, int(window.group[row]), int(window.culprit[row]))
        if late is not None:
            found.append(late)
    return found


def _late(window: Window, roll: Roll, policy: Policy, group: int, culprit: int) -> Late | None:
    """At the least size at which all conditions hold; None when there is none."""
    rows = window.rows(group)
    mine = window.culprit[rows] == culprit
    alike = (window.culprit[rows] < 0) == (culprit < 0)
    count, lost_ns = (_at_least(window, rows, mine, of) for of in (window.count, window.lost_ns))
    all_counts = _at_least(window, rows, alike, window.count)
    judged, chance = int(window.judged[group]), _chance(roll, group, culprit)
    least_ns, least = policy.straggler_min_lost_s * 1e9, policy.straggler_share * judged
    for level in range(LEVELS):
        k, of = int(count[level]), int(all_counts[level])
        if lost_ns[level] < least_ns or k < least:
            break
        there = mine & (window.level[rows] >= level)
        spread = int(np.bitwise_or.reduce(window.buckets[rows][there])).bit_count()
        often = k * (1 - chance) >= TIMES * chance * (of - k)
        nats = _unlikely(k, of, chance)
        if often and spread >= MOST_BUCKETS and nats >= CHANCE_NATS:
            return Late(group, culprit, level, k, judged, int(lost_ns[level]), nats)
    return None


def _at_least(window: Window, rows: slice, which: Bools, column: Int64s) -> Int64s:
    """Sums of a column over `which` of the rows, by level, of that level and above."""
    by_level = np.zeros(LEVELS, np.int64)
    np.add.at(by_level, window.level[rows][which], column[rows][which])
    return by_level[::-1].cumsum()[::-1]


def _chance(roll: Roll, group: int, culprit: int) -> float:
    """How likely it is among peers who are alike that it is this one who is late.

    Of a node, that the two who come last are both of it.
    """
    members = roll.members(group)
    if culprit >= 0:
        return 1 / len(members)
    sizes = np.unique(roll.node[members], return_counts=True)[1]
    mine = int((roll.node[members] == as_culprit(culprit)).sum())
    pairs = int((sizes * (sizes - 1)).sum())
    return mine * (mine - 1) / pairs if pairs else 1.0


def _unlikely(k: int, of: int, chance: float) -> float:
    """Bound, as -log, of the chance that `k` or more of `of` are one's, each with `chance`."""
    share = k / of
    if share <= chance:
        return 0.0
    rest = (1 - share) * log((1 - share) / (1 - chance)) if share < 1 else 0.0
    return of * (share * log(share / chance) + rest)


# -- who is held up by others --------------------------------------------------------------------


class _Others(NamedTuple):
    """The members of a group who are late now and then, none of them more than chance has it."""

    group: int


_Cause: TypeAlias = Late | _Others


def _ends(lates: Sequence[Late], window: Window, roll: Roll) -> set[_Cause]:
    edges: dict[_Cause, list[_Cause]] = {}
    for late in lates:
        edges[late] = []
        for group in _excuses(late, window, roll):
            itself = _same(late, roll)
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


def _same(late: Late, roll: Roll) -> tuple[int, ...]:
    """The one who is late, and its node: who cannot excuse it."""
    if late.culprit < 0:
        return (late.culprit,)
    return late.culprit, as_culprit(int(roll.node[late.culprit]))


def _excuses(late: Late, window: Window, roll: Roll) -> list[int]:
    """The groups in which others held up the one who is late."""
    ones = roll.late_ones(late.group, late.culprit)
    kept_waiting = roll.members(late.group)
    found = []
    for group in _shared(ones, roll):
        if group == late.group or np.isin(kept_waiting, roll.members(group)).all():
            continue
        rows = window.rows(group)
        others = window.level[rows] >= late.level - 1
        for itself in _same(late, roll):
            others &= window.culprit[rows] != itself
        often = 2 * window.count[rows][others].sum() >= late.count
        if often and 2 * window.lost_ns[rows][others].sum() >= late.lost_ns:
            found.append(group)
    return found


def _shared(ranks: Iterable[int] | Int32s, roll: Roll) -> list[int]:
    """Groups that can hold these ranks up: of a rank all of its groups, of several those that
    two of them are in."""
    groups = [roll.groups(int(rank)) for rank in ranks]
    if not groups:
        return []
    group, count = np.unique(np.concatenate(groups), return_counts=True)
    return [int(one) for one in group[count >= min(2, len(groups))]]


# -- one straggler, one culprit ------------------------------------------------------------------


def _stragglers(lates: Sequence[Late], roll: Roll) -> list[Straggler]:
    """By what they cost. A node all of whose ranks are late is late itself."""
    of: dict[int, list[Late]] = defaultdict(list)
    for late in lates:
        of[late.culprit].append(late)
    for node in _slow_nodes(of, roll):
        here = [c for c in of if c >= 0 and roll.node[c] == node]
        for culprit in here:
            of[as_culprit(node)] += of.pop(culprit)
    found = []
    for culprit, some in of.items():
        ranks = {int(r) for late in some for r in roll.late_ones(late.group, late.culprit)}
        some.sort(key=lambda late: -late.lost_ns)
        found.append(Straggler(culprit, tuple(sorted(ranks)), tuple(some)))
    return sorted(found, key=lambda one: (-one.lates[0].lost_ns, one.culprit))


def _slow_nodes(of: Mapping[int, Sequence[Late]], roll: Roll) -> set[int]:
    """Nodes that are late as such, and those all of whose ranks are, if there are others."""
    nodes = {as_culprit(culprit) for culprit in of if culprit < 0}
    numbers, sizes = np.unique(roll.node, return_counts=True)
    for number, size in zip(numbers.tolist(), sizes.tolist(), strict=True):
        late = sum(1 for culprit in of if culprit >= 0 and roll.node[culprit] == number)
        if len(numbers) > 1 and size > 1 and late == size:
            nodes.add(number)
    return nodes
