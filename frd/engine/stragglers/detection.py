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
from frd.engine.policy import Policy
from frd.engine.stragglers.arrivals import as_culprit
from frd.engine.stragglers.lateness import BUCKETS, LEVELS, Table, Window
from frd.model import Int32s, Int64s

CHANCE_NATS: Final = 21.0
"""Peers that are alike differ this much with a chance of e**-21, one in 10**9."""
MOST_BUCKETS: Final = BUCKETS * 2 // 3
"""A straggler is late in this many of them."""
TIMES: Final = 3.0
"""A straggler is late this many times as often as its average peer."""
_MOST_LATE: Final = 64
"""How many are examined, starting with those that cost most."""


@dataclass(frozen=True, slots=True)
class Roll:
    """Which rank is in which group and on which node."""

    members: Callable[[int], Int32s]
    """The ranks of a group."""
    groups: Callable[[int], Int32s]
    """The groups of a rank."""
    is_dark: Callable[[int], bool]
    """An agent of a member of the group does not report."""
    node: Int32s
    """By rank."""
    sends: Callable[[int], bool] = lambda rank: False
    """A rank sends or receives, or may: how long it waits there is unknown."""

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
    """From this level on, chance does not explain its lateness."""
    count: int
    """Collectives in which it was late, of `judged`."""
    judged: int
    lost_ns: int
    beyond: tuple[float, float]
    """The part of count and lost_ns that an average peer does not have."""
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
    """It may be late because it waits in sends and receives."""
    is_held_up: bool = False
    """A node that is late in another group for others, which may be the same time again."""


@dataclass(frozen=True, slots=True)
class Judgement:
    stragglers: tuple[Straggler, ...]
    held_up: frozenset[int]
    """Culprits that other ranks delay."""


def judge(window: Window, roll: Roll, policy: Policy) -> Judgement:
    lates = _lates(window, roll, policy)
    if not lates:
        return Judgement((), frozenset())
    ends = _ends(lates, window, roll)
    nodes = {late.culprit for late in lates if late.culprit < 0 and late not in ends}
    stragglers = [
        replace(one, is_held_up=one.culprit in nodes)
        for one in _stragglers([late for late in lates if late in ends], roll)
    ]
    named = {rank for one in stragglers for rank in one.ranks}
    held_up = {late.culprit for late in lates if late.culprit >= 0} - named
    return Judgement(tuple(stragglers), frozenset(held_up))


# -- who is late more than chance has it ---------------------------------------------------------


def _lates(window: Window, roll: Roll, policy: Policy) -> list[Late]:
    costly = window.costly(policy.straggler_min_lost_s * 1e9, _MOST_LATE)
    found = (_late(window, roll, policy, group, culprit) for group, culprit in costly)
    return [late for late in found if late is not None]


def _late(window: Window, roll: Roll, policy: Policy, group: int, culprit: int) -> Late | None:
    """At the smallest size at which all conditions hold; None if there is none."""
    ones = roll.late_ones(group, culprit)
    if culprit < 0 and not 1 < len(ones) < len(roll.members(group)):
        return None  # counted when these ranks had another clock: a new agent brings a new one
    mine, waits = window.charges(group), window.waits(group)
    mine = mine.where(mine.culprit == culprit)
    inside = np.isin(waits.culprit, ones)
    theirs, own = waits.where(~inside), waits.where(inside)
    count, lost_ns = _at_least(mine, mine.count), _at_least(mine, mine.lost_ns)
    counts, losses = _at_least(theirs, theirs.count), _at_least(theirs, theirs.lost_ns)
    alone = _at_least(own, own.count)
    judged = int(window.judged[group])
    (chance, *of_node) = _chances(roll, group, culprit)
    for level in range(LEVELS):
        k, lost = int(count[level]), int(lost_ns[level])
        if lost < policy.straggler_min_lost_s * 1e9 or k < policy.straggler_share * judged:
            break
        as_long = max(level - 1, 0)
        spread = len(np.unique(mine.bucket[mine.level >= level]))
        rivals = [(int(counts[as_long]), chance)]
        rivals += [(int(alone[as_long]) - k, together) for together in of_node]
        often = all(k >= TIMES * _odds(p) * others for others, p in rivals)
        nats = min(_unlikely(k, k + max(others, 0), p) for others, p in rivals)
        if often and spread >= MOST_BUCKETS and nats >= CHANCE_NATS:
            share = _odds(chance)
            beyond = k - share * counts[as_long], lost - share * losses[as_long]
            return Late(group, culprit, level, k, judged, lost, beyond, nats)
    return None


def _at_least(of: Table, column: Int64s) -> Int64s:
    """Sums of a column of the table by level, of that level and above."""
    by_level = np.zeros(LEVELS, np.int64)
    np.add.at(by_level, of.level, column)
    return by_level[::-1].cumsum()[::-1]


def _chances(roll: Roll, group: int, culprit: int) -> tuple[float, ...]:
    """How likely a charge is among peers that are alike, compared with what could take its place.

    Of a rank, that it comes last and no other does. Of a node, that the last two are of it and not
    the last one of another node; and that they are, and not the last one alone: a slow rank would
    look like that, if the rank before it happens to share its node.
    """
    members = len(roll.members(group))
    if culprit >= 0:
        return (1 / members,)
    size = len(roll.late_ones(group, culprit))
    both = size * (size - 1) / (members * (members - 1))
    elsewhere = (members - size) / members
    return both / (both + elsewhere), (size - 1) / (members - 1)


def _odds(chance: float) -> float:
    return chance / (1 - chance) if chance < 1 else float("inf")


def _unlikely(k: int, of: int, chance: float) -> float:
    """Bound, as -log, of the chance that `k` or more of `of` are one's, each with `chance`."""
    share = k / of
    if share <= chance:
        return 0.0
    rest = (1 - share) * log((1 - share) / (1 - chance)) if share < 1 else 0.0
    return of * (share * log(share / chance) + rest)


# -- who is held up by others --------------------------------------------------------------------


class _Others(NamedTuple):
    """Members of a group that are late now and then, each no more than chance explains."""

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
    """The late culprit and its node, which cannot excuse it."""
    if late.culprit < 0:
        return (late.culprit,)
    return late.culprit, as_culprit(int(roll.node[late.culprit]))


def _excuses(late: Late, window: Window, roll: Roll) -> list[int]:
    """The groups in which others delayed the late culprit, or may have: in a group with members
    that do not report it is unknown."""
    ones = roll.late_ones(late.group, late.culprit)
    kept_waiting = roll.members(late.group)
    found = []
    for group in _shared(ones, roll):
        if group == late.group or np.isin(kept_waiting, roll.members(group)).all():
            continue
        waits = window.waits(group)
        others = waits.level >= late.level - 1
        for itself in _same(late, roll):
            others &= waits.culprit != itself
        theirs = waits.count[others].sum(), waits.lost_ns[others].sum()
        held_up = all(2 * sum_ >= own for sum_, own in zip(theirs, late.beyond, strict=True))
        if held_up or roll.is_dark(group):
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
        sends = any(map(roll.sends, ranks))
        found.append(Straggler(culprit, tuple(sorted(ranks)), tuple(some), sends))
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
