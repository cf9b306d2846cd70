"""Times with the uncertainty of the clock that measured them, and their order.

One time is before another only if the difference exceeds the uncertainty of both clocks; times of
one clock need no such margin. Everything else is a tie. In the same way, two states were true
together only if their intervals meet by more than both uncertainties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from frd.model import AlignedNs, Int32s, Int64s

UNKNOWN_NS = 2**62 - 1
"""The uncertainty of an unknown clock; the sum of two does not overflow."""


@dataclass(frozen=True, slots=True)
class UncertainTime:
    at: AlignedNs
    node: int
    """A number that times of one clock have in common."""
    uncertainty_ns: int | None
    """None when nothing bounds it."""

    @property
    def uncertainty_s(self) -> float | None:
        return None if self.uncertainty_ns is None else self.uncertainty_ns / 1e9

    def margin_ns(self, other: UncertainTime) -> int | None:
        """How far apart the two must be to have an order; None: they have none."""
        if self.node == other.node:
            return 0
        if self.uncertainty_ns is None or other.uncertainty_ns is None:
            return None
        return self.uncertainty_ns + other.uncertainty_ns

    def later(self, ns: int) -> UncertainTime:
        return UncertainTime(AlignedNs(self.at + ns), self.node, self.uncertainty_ns)

    def is_before(self, other: UncertainTime, least_ns: int = 0) -> bool:
        """Certainly earlier, by more than `least_ns`."""
        margin_ns = self.margin_ns(other)
        return margin_ns is not None and other.at - self.at > margin_ns + least_ns


FOREVER: Final = 2**62
"""The end of an interval that nothing ends; sums with an uncertainty do not overflow."""


class Interval(NamedTuple):
    """A stretch of time, on one clock, during which something is known to have been true."""

    since: int
    as_of: int
    node: int
    uncertainty_ns: int | None

    def meets(self, other: Interval) -> bool:
        """Both were true together at some moment, however far the two clocks are off within their
        uncertainty; see `assumed_ns`."""
        margin = 0
        if self.node != other.node:
            margin = (self.uncertainty_ns or 0) + (other.uncertainty_ns or 0)
        return self.since + margin <= other.as_of and other.since + margin <= self.as_of


def assumed_ns(uncertainty_ns: Int64s) -> Int64s:
    """What states are compared with. An unknown clock counts as exact, because a stall lasts longer
    than most clocks are off; but what rests on such a comparison is never certain."""
    return np.where(uncertainty_ns < UNKNOWN_NS, uncertainty_ns, 0)


@dataclass(frozen=True, slots=True)
class RankClocks:
    """How well the clocks of ranks are known: arrays parallel to the ranks of a snapshot."""

    node: Int32s
    """Ranks of one number share one clock."""
    uncertainty_ns: Int64s
    """`UNKNOWN_NS` while unsynchronized."""

    def moment(self, row: int, at: AlignedNs) -> UncertainTime:
        bound = int(self.uncertainty_ns[row])
        return UncertainTime(at, int(self.node[row]), bound if bound < UNKNOWN_NS else None)

    def margins_ns(self, rows: Int64s | slice, moment: UncertainTime) -> Int64s:
        """How much later than `moment` a time of these ranks must be to be after it; see
        `assumed_ns`."""
        margins = assumed_ns(self.uncertainty_ns[rows]) + (moment.uncertainty_ns or 0)
        return np.where(self.node[rows] == moment.node, 0, margins)


def ties(moments: Sequence[UncertainTime], least_ns: int = 0) -> list[bool]:
    """Which of them have no order with another; for an order they must be `least_ns` apart."""
    return [
        any(
            not one.is_before(other, least_ns) and not other.is_before(one, least_ns)
            for at, other in enumerate(moments)
            if at != number
        )
        for number, one in enumerate(moments)
    ]
