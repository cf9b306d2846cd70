"""The line between two clouds of points: where a clock's offset lies if its drift is constant.

Every exchange bounds the offset from above and from below. The lines that pass under all upper
points and over all lower ones are the offsets that a constant drift permits; two of them are
extreme, the steepest and the flattest, and to the right of all points they are also the highest
and the lowest. Their bisector is the estimate (after Duda's hulls and Jabbarifar's bisector).

Points come from left to right. A point that no permitted line can touch will never be touched
later, since what is permitted only shrinks; it is forgotten at once, and most are like that. The
others are kept as hulls, by a monotone chain. Nothing leaves a strip: whoever wants a window keeps
two strips of different age.

What is told here is an estimate, in floats relative to the first point. It says nothing when the
drift changes, and its caller must not rest a bound on it.
"""

from __future__ import annotations

from typing import Final, TypeAlias

MOST_POINTS: Final = 32
"""Of a hull; beyond it the oldest are forgotten, which costs precision only."""

Hull: TypeAlias = list[tuple[int, int]]
"""Convex from below. That of the lower points is kept upside down."""


class Strip:
    """Lines ``y = offset(x)`` with a slope of at most `steepest` either way."""

    __slots__ = ("_high", "_low", "_lowers", "_steepest", "_uppers", "_x", "_y")

    def __init__(self, steepest: float, x: int, upper: int, lower: int) -> None:
        """The first two points, both at `x`."""
        self._x, self._y = x, upper
        self._steepest = steepest
        self._uppers: Hull = [(0, 0)]
        self._lowers: Hull = [(0, upper - lower)]
        self._high = (0, 0, steepest)
        self._low = (0, lower - upper, -steepest)

    def add(self, x: int, upper: int, lower: int) -> bool:
        """Two more points at `x`, to the right of the others; False: no line would be left."""
        x -= self._x
        upper -= self._y
        lower -= self._y
        x_high, y_high, rise = self._high
        x_low, y_low, fall = self._low
        high = y_high + rise * (x - x_high)
        low = y_low + fall * (x - x_low)
        if upper < low or lower > high:
            return False
        if upper < high:
            self._high = (x, upper, min(_flattest(self._lowers, x, upper), self._steepest))
        if lower > low:
            self._low = (x, lower, -min(_flattest(self._uppers, x, -lower), self._steepest))
            _append(self._lowers, x, -lower)
        if upper < high:
            _append(self._uppers, x, upper)
        return True

    def idle(self, x: int, upper: int, lower: int) -> bool:
        """These points would touch no line, neither here nor in an older strip."""
        x -= self._x
        x_high, y_high, rise = self._high
        x_low, y_low, fall = self._low
        return upper - self._y >= y_high + rise * (
            x - x_high
        ) and lower - self._y <= y_low + fall * (x - x_low)

    def line(self, x: int) -> tuple[int, float]:
        """Height and slope of the bisector at `x`."""
        x -= self._x
        x_high, y_high, rise = self._high
        x_low, y_low, fall = self._low
        twice = y_high + rise * (x - x_high) + y_low + fall * (x - x_low)
        return self._y + int(twice / 2), (rise + fall) / 2


def _flattest(hull: Hull, x: int, y: int) -> float:
    """The least slope by which a line reaches (x, y) from a point that mirrors one of the hull."""
    return min([(y + b) / (x - a) for a, b in hull])


def _append(hull: Hull, x: int, y: int) -> None:
    while len(hull) > 1:
        (x_1, y_1), (x_2, y_2) = hull[-2:]
        if (y_2 - y_1) * (x - x_2) < (y - y_2) * (x_2 - x_1):
            break
        del hull[-1]
    hull.append((x, y))
    if len(hull) > MOST_POINTS:
        del hull[0]
