"""The line between two clouds of points: where a clock's offset lies if its drift is constant.

Every exchange bounds the offset from above and from below. The lines that pass under all upper
points and over all lower ones are the offsets that a constant drift permits; two of them are
extreme, the steepest and the flattest, and to the right of all points they are also the highest
and the lowest. Their bisector is the estimate (after Duda's hulls and Jabbarifar's bisector).

Points come from left to right. A point that no permitted line can touch will never be touched
later, since what is permitted only shrinks; it is forgotten at once. What is left are about as many
points as the hulls have vertices, the logarithm of those seen. Hence nothing leaves a strip either:
whoever wants a window keeps two strips of different age.

What is told here is an estimate, in floats relative to the first point. It says nothing when the
drift changes, and its caller must not rest a bound on it.
"""

from __future__ import annotations

from typing import Final

MOST_POINTS: Final = 32
"""On either side; beyond it the oldest are forgotten, which costs precision only."""


class Strip:
    """Lines ``y = offset(x)`` with a slope of at most `steepest` either way."""

    __slots__ = ("_high", "_low", "_lowers", "_steepest", "_uppers", "_x", "_y")

    def __init__(self, steepest: float, x: int, upper: int, lower: int) -> None:
        """The first two points, both at `x`."""
        self._x, self._y = x, upper
        self._steepest = steepest
        self._uppers = [(0, 0)]
        self._lowers = [(0, lower - upper)]
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
            rises = [(upper - b) / (x - a) for a, b in self._lowers]
            self._high = (x, upper, min(self._steepest, *rises))
            _keep(self._uppers, x, upper)
        if lower > low:
            falls = [(lower - b) / (x - a) for a, b in self._uppers if a < x]
            self._low = (x, lower, max(-self._steepest, *falls))
            _keep(self._lowers, x, lower)
        return True

    def at(self, x: int) -> int:
        """Height of the bisector at `x`."""
        x -= self._x
        x_high, y_high, rise = self._high
        x_low, y_low, fall = self._low
        return self._y + round((y_high + rise * (x - x_high) + y_low + fall * (x - x_low)) / 2)

    @property
    def slope(self) -> float:
        """Of the bisector."""
        return (self._high[2] + self._low[2]) / 2


def _keep(points: list[tuple[int, int]], x: int, y: int) -> None:
    points.append((x, y))
    if len(points) > MOST_POINTS:
        del points[0]
