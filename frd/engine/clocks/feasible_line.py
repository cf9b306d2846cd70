"""The line between two clouds of points: the clock's offset if its drift is constant.

Every exchange bounds the offset from above and from below; how loosely depends on the
network and on how busy both hosts are. Of the exchanges of a few seconds, a batch, only the best
upper and the best lower point count. Over a window of two minutes these are two clouds, and the
estimate is the line in the middle of the widest corridor between their hulls: the bisector of the
two parallel lines that touch them. (Hulls: Duda; the widest corridor: Huygens, there called a
support vector machine.)

Slope and height come from different batches. A batch that was much luckier than the others (the
burst at connect) would bend the line, and so would an unlucky one, often on one side only; so the
slope is that of typical batches. At this slope the luckiest points of all give the height.

The result is an estimate, in floats relative to the first point. It is poor when the drift changes,
so no bound may rest on it.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

BATCH_NS: Final = 10_000_000_000
MOST_BATCHES: Final = 12
_FEW: Final = 4
"""With fewer batches than this every better point counts immediately."""
_TYPICAL: Final = 1.5
"""Batches are typical whose luck is within this factor of the median."""
_FIT_EVERY: Final = 4
"""After this many batches the line is fitted again, even if no new point cuts into the corridor."""

Point: TypeAlias = tuple[int, int]
PointPair: TypeAlias = tuple[Point, Point]
"""Its best upper and its best lower point."""


class FeasibleLine:
    """Points come from left to right, as nanoseconds."""

    __slots__ = (
        "_bottom",
        "_end",
        "_fitted",
        "_lower",
        "_lowers",
        "_steepest",
        "_top",
        "_upper",
        "_uppers",
        "_x",
        "_y",
        "slope",
    )

    def __init__(self, steepest: float, x: int, upper: int, lower: int) -> None:
        """The first two points, both at `x`. No line may be steeper than `steepest`."""
        self._x, self._y = x, upper
        self._steepest = steepest
        self._upper: Point = (0, 0)
        """The best of the current batch, as is `_lower`."""
        self._lower: Point = (0, lower - upper)
        self._end = BATCH_NS
        self._uppers: deque[Point] = deque(maxlen=MOST_BATCHES)
        """The best of each batch before."""
        self._lowers: deque[Point] = deque(maxlen=MOST_BATCHES)
        self._fitted = 0
        """Batches since the last fit."""
        self.slope = 0.0
        self._top, self._bottom = 0.0, float(lower - upper)
        """Heights of the corridor's edges above the first point."""

    def add(self, x: int, upper: int, lower: int) -> None:
        """Two more points at `x`, to the right of the others."""
        x -= self._x
        upper -= self._y
        lower -= self._y
        if x > self._end:
            self._next((x, upper), (x, lower))
            return
        slope = self.slope
        x_upper, y_upper = self._upper
        x_lower, y_lower = self._lower
        if upper - y_upper < slope * (x - x_upper):
            self._upper = (x, upper)
        if lower - y_lower > slope * (x - x_lower):
            self._lower = (x, lower)
        if len(self._uppers) < _FEW and self._is_cut():
            self._fit()

    def at(self, x: int) -> int:
        """Height of the line at `x`."""
        return self._y + int((self._top + self._bottom) / 2 + self.slope * (x - self._x))

    def _next(self, upper: Point, lower: Point) -> None:
        """The current batch is over; these begin another."""
        is_cut = self._is_cut()
        self._uppers.append(self._upper)
        self._lowers.append(self._lower)
        self._upper, self._lower = upper, lower
        self._end = upper[0] + BATCH_NS
        self._fitted += 1
        if is_cut or self._fitted >= _FIT_EVERY:
            self._fit()

    def _is_cut(self) -> bool:
        """A point of this batch is within the corridor."""
        x_upper, y_upper = self._upper
        x_lower, y_lower = self._lower
        slope = self.slope
        return y_upper - slope * x_upper < self._top or y_lower - slope * x_lower > self._bottom

    def _fit(self) -> None:
        """Fit the corridor again; when the drift has changed, between younger points only."""
        self._fitted = 0
        batches = [
            *zip(self._uppers, self._lowers, strict=True),
            (self._upper, self._lower),
        ]
        typical = _typical(batches, self.slope)
        if len(typical) > 1 and self._lay(_widest(typical), batches):
            return
        while not self._lay(_widest(batches), batches) and len(batches) > 1:
            batches = batches[(len(batches) + 1) // 2 :]

    def _lay(self, slope: float, batches: list[PointPair]) -> bool:
        """Between all points of these batches; False: there is no room at this slope."""
        self.slope = slope = max(-self._steepest, min(slope, self._steepest))
        self._top = min([y - slope * x for (x, y), _ in batches])
        self._bottom = max([y - slope * x for _, (x, y) in batches])
        return self._top >= self._bottom


def _typical(batches: list[PointPair], slope: float) -> list[PointPair]:
    """Those that leave corridors of about the median width."""
    widths = [y - y_low - slope * (x - x_low) for (x, y), (x_low, y_low) in batches]
    median = sorted(widths)[len(widths) // 2]
    least, most = median / _TYPICAL, median * _TYPICAL
    return [batch for batch, width in zip(batches, widths, strict=True) if least <= width <= most]


def _widest(batches: list[PointPair]) -> float:
    """Slope of the widest corridor between these points.

    The steeper a line, the further right it touches the upper hull and the further left the lower
    one; the corridor is widest where these pass each other.
    """
    high = _hull([upper for upper, _ in batches])
    low = _hull([(x, -y) for _, (x, y) in batches])
    i, j = 0, len(low) - 1
    slope = 0.0
    while high[i][0] < low[j][0]:
        rise = _slope(high[i], high[i + 1]) if i + 1 < len(high) else None
        fall = -_slope(low[j - 1], low[j]) if j else None
        if fall is None or (rise is not None and rise < fall):
            if rise is None:
                break
            slope = rise
            i += 1
        else:
            slope = fall
            j -= 1
    return slope


def _hull(points: list[Point]) -> list[Point]:
    """Convex from below; a monotone chain."""
    hull: list[Point] = []
    for x, y in points:
        while len(hull) > 1:
            (x_1, y_1), (x_2, y_2) = hull[-2:]
            if (y_2 - y_1) * (x - x_2) < (y - y_2) * (x_2 - x_1):
                break
            del hull[-1]
        hull.append((x, y))
    return hull


def _slope(a: Point, b: Point) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])
