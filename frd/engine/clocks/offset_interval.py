"""The interval of the offset between two raw clocks, narrowed by the drift that was observed.

`OffsetBounds` proves an interval from exchanges and a drift of at most 100 ppm. A node that pings
once a second on a LAN would be known to 300 µs by that, of which 150 µs are drift that no real
clock shows, and 60 µs are the shortest way, which no message beats. This interval is narrower by
two assumptions about hosts and networks.

**A drift changes slowly.** A quartz drifts by some ppm, steadily; its temperature changes that, by
0.2 ppm a degree (the example of chrony's `tempcomp`) to 1 ppm a degree (Mills). The relative drift
of two hosts changes by at most `WANDER_PPM` a second: both warm up or cool down, in opposite
directions, by 15 degrees a minute at 0.2 ppm a degree. So the drift itself is within a range. Two
exchanges bound its mean between them, from above by the later upper and the earlier lower bound of
the offset, and reversed; the drift now is at most half the time between them, and what has passed
since, times `WANDER_PPM` away from that mean. From a minute of exchanges on a LAN the range is 5
ppm to either side. The offset leaves its interval only as fast as the range permits: linearly in
age by the range, and with its square by `WANDER_PPM`. This is TrueTime's window (a bound that grows
with time since the last exchange), with an observed drift, like chrony's skew, in place of the
worst one.

**A message takes time.** Both ways end in Python and gRPC on a host and cross two network stacks.
No way takes less than `LEAST_WAY_NS`, or than a quarter of the shortest round trip if that is less,
for software that is faster than ours. Longer ways may be as asymmetric as they like: queues in
one direction, or another route back, break neither. Nothing is subtracted until `FEW` round trips
have been seen. At most half of the interval that exchanges prove is subtracted.

Exchanges can refute the first assumption: a virtual machine that is moved to another host drifts
differently from then on. Then the interval would become empty, and it starts again from what is
proven. They cannot refute the second one: if a way took less, the interval would miss the truth by
the difference, 35 µs at most.

The past is a few batches of exchanges; of each, the best upper and the best lower bound is kept.
Batches are a quarter as long as the past until that is long enough, so that a young clock learns
its drift from every exchange. Offsets are whole nanoseconds, rounded outward; drifts are floats.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

from frd.engine.clocks.alignment import WANDER_PPM
from frd.engine.clocks.exchange import DRIFT, Exchange, OffsetBounds

LEAST_WAY_NS: Final = 35_000
"""A message from an agent to the service, or back, takes longer: on loopback, which no network
beats, 150 µs at least; two programs that only answer each other take 92 µs there and back."""
FEW: Final = 16
"""The shortest of fewer round trips may be much longer than the ways take."""
_LONGEST_BATCH_NS: Final = 7_000_000_000
"""The drift is best bounded by exchanges that are about a minute apart: eight batches. Over a
longer time it may change too much."""
_MOST_BATCHES: Final = 8
_STEEPEST: Final = 1 / DRIFT
_WANDER: Final = WANDER_PPM / 1e15
"""The same as parts of 1, per nanosecond."""

Point: TypeAlias = tuple[int, int]
"""Time of the node's raw clock, and a bound of the offset then."""


class OffsetInterval:
    """The interval of service raw minus node raw; exchanges come in order of time."""

    def __init__(self, first: Exchange) -> None:
        self.drift = 0.0
        """Growth of the offset, in ns per ns: about the middle of its range, and smooth, so that an
        hour before now stays where it was."""
        self._proven = OffsetBounds(first)
        self._shortest = first.t4 - first.t1 - first.t3 + first.t2
        self._trips = 1
        self._spare = 0
        """What each way takes at least."""
        self._batches: deque[tuple[Point, Point]] = deque(maxlen=_MOST_BATCHES)
        """Of each batch that is over, its best upper and its best lower bound."""
        at: int = first.t4
        self._since = self._end = at
        """When the first batch began, and when the current one ends."""
        self._at = at
        """What follows holds at this time: the interval, which each way may be narrowed by
        `_spare`, and the range of the drift."""
        self._low, self._high = self._proven.at(at)
        self._slowest, self._fastest = -_STEEPEST, _STEEPEST
        self._upper: Point = (at, self._high)
        """The best of the current batch, as is `_lower`."""
        self._lower: Point = (at, self._low)

    def narrow(self, x: Exchange) -> bool:
        """Learn from an exchange; False when it contradicts what earlier ones prove."""
        if not self._proven.narrow(x):
            return False
        t1, t2, t3, at = x
        trip = at - t1 - t3 + t2
        upper, lower = t2 - t1 + (at - t1) // DRIFT + 1, t3 - at
        self._low, self._high = self._at_later(at - self._at)
        bend = _WANDER * (at - self._at)
        self._fastest += bend
        self._slowest -= bend
        self._at = at
        self._trips += 1
        if trip < self._shortest or self._trips == FEW:
            self._shorten(min(trip, self._shortest))
        self._high = min(self._high, upper)
        self._low = max(self._low, lower)
        if at > self._end:
            self._next((at, upper), (at, lower))
        else:
            x_upper, y_upper = self._upper
            x_lower, y_lower = self._lower
            if upper - y_upper < self.drift * (at - x_upper):
                self._upper = (at, upper)
            if lower - y_lower > self.drift * (at - x_lower):
                self._lower = (at, lower)
        if self._high - self._low < 2 * self._spare or self._fastest < self._slowest:
            self._start_over()
        return True

    def settle(self, raw: int) -> tuple[int, int]:
        """The offset at a time of the node's raw clock: the interval's middle, half its width."""
        low, high = self._at_later(raw - self._at)
        middle = (low + high) // 2
        return middle, high - middle - self._spare

    def growth_ppm(self, raw: int) -> float:
        """How far from `drift` the drift may be then."""
        wander = _WANDER * abs(raw - self._at)
        return (max(self._fastest - self.drift, self.drift - self._slowest) + wander) * 1e6

    def _at_later(self, passed: int) -> tuple[int, int]:
        """The interval so much later, or earlier."""
        bend = _WANDER / 2 * abs(passed)
        fastest = min(self._fastest + bend, _STEEPEST)
        slowest = max(self._slowest - bend, -_STEEPEST)
        if passed < 0:
            fastest, slowest = slowest, fastest
        return self._low + int(passed * slowest) - 1, self._high + int(passed * fastest) + 1

    def _start_over(self) -> None:
        """Claim what is proven and forget the drift: it has changed faster than assumed."""
        at = self._at
        self._batches.clear()
        self._widen()
        self._since = self._end = at
        self._upper, self._lower = (at, self._high), (at, self._low)

    def _widen(self) -> None:
        self._low, self._high = self._proven.at(self._at)
        self._slowest, self._fastest = -_STEEPEST, _STEEPEST

    def _shorten(self, trip: int) -> None:
        """`trip` is the shortest of all. If there is less to subtract than before, what was learned
        with more is learned again."""
        self._shortest = trip
        if self._trips < FEW:
            return
        before, self._spare = self._spare, min(LEAST_WAY_NS, trip // 4)
        if self._spare < before:
            self._widen()
            self._narrow_drift()

    def _next(self, upper: Point, lower: Point) -> None:
        """The current batch is over; these begin another."""
        self._batches.append((self._upper, self._lower))
        self._narrow_drift()
        self._upper, self._lower = upper, lower
        self._end = self._at + min((self._at - self._since) // 4, _LONGEST_BATCH_NS)

    def _narrow_drift(self) -> None:
        """By the mean drifts from each batch to the newest one."""
        if not self._batches:
            return
        now, slowest, fastest = self._at, self._slowest, self._fastest
        (x_upper, y_upper), (x_lower, y_lower) = self._batches[-1]
        y_upper -= 2 * self._spare
        y_lower += 2 * self._spare
        for (x_high, y_high), (x_low, y_low) in self._batches:
            if x_upper > x_low:
                mean = (y_upper - y_low) / (x_upper - x_low)
                fastest = min(fastest, mean + (now - (x_upper + x_low) / 2) * _WANDER)
            if x_lower > x_high:
                mean = (y_lower - y_high) / (x_lower - x_high)
                slowest = max(slowest, mean - (now - (x_lower + x_high) / 2) * _WANDER)
        self._slowest, self._fastest = slowest, fastest
        middle, near = (slowest + fastest) / 2, (fastest - slowest) / 8
        drift = self.drift + (middle - self.drift) / 16
        self.drift = min(max(drift, middle - near), middle + near)
