"""Exchanges of timestamps: which are refused, and how they bound the offset of two raw clocks.

A refusal is a value: the sender is wrong, not the program. Timestamps are refused if no honest host
can send them, whatever its clocks are set to. Timestamps that contradict earlier ones for a
possible reason (the host slept, its clock was set) are accepted, and `frd.engine.clocks.estimator`
handles them.

Raw clocks are neither stepped nor slewed; two of them drift apart by at most 100 ppm, however the
drift changes. So a bound that held at one time holds at another if it is widened by that much of
the time between. Of all bounds from one side only the tightest matters: a newer exchange that is
tighter replaces it, and nothing else needs to be remembered.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from frd.engine.clocks.alignment import FAR_NS
from frd.model import NodeRawNs, ServiceRawNs

MOST_AHEAD_NS: Final = 3600 * 1_000_000_000
"""A node's raw clock cannot get further ahead of the service's between two messages."""
SILENT_NS: Final = 120_000_000_000
"""What was learned longer ago counts no more: a drift of 100 ppm makes 12 ms of it, and a clock
without an exchange for so long is unsynchronized."""
MOST_SLACK_NS: Final = 1_000_000_000
"""Two clocks that were read further apart show nothing: a process that is scheduled at all reads
both within a second."""
DRIFT: Final = 9_900
"""One part in so many is a drift of 101 ppm: 100, and the error of measuring it with a clock that
drifts itself."""


class Refusal(StrEnum):
    """Values of a metric's label."""

    ZERO = "zero"
    NEGATIVE = "negative"
    BACKWARDS = "backwards"
    FUTURE = "future"
    LOOSE = "loose"
    """The two clocks were read too far apart to compare."""
    FLOOD = "flood"
    """More at a time, or more often, than agents send."""


class Exchange(NamedTuple):
    """A ping and its pong: sent, received, answered, answer received."""

    t1: NodeRawNs
    t2: ServiceRawNs
    t3: ServiceRawNs
    t4: NodeRawNs


def refuse_exchange(x: Exchange, last: Exchange | None) -> Refusal | None:
    """`last` is the previous exchange that was accepted."""
    t1, t2, t3, t4 = x
    if t1 <= 0 or t4 <= 0 or t2 <= 0:
        return Refusal.NEGATIVE if min(t1, t2, t4) < 0 else Refusal.ZERO
    if t1 >= FAR_NS or t4 >= FAR_NS or t3 >= FAR_NS:
        return Refusal.FUTURE
    held = t3 - t2
    if held < 0 or t4 - t1 < held - held // DRIFT - 2:
        return Refusal.BACKWARDS
    if last is not None:
        last_t1, last_t2, last_t3, last_t4 = last
        if t1 <= last_t1 or t4 <= last_t4 or t2 <= last_t2:
            return Refusal.BACKWARDS
        if t4 - last_t4 - (t3 - last_t3) > MOST_AHEAD_NS:
            return Refusal.FUTURE
    return None


def refuse_readings(rows: Iterable[tuple[int, int, int]], last_raw: int) -> Refusal | None:
    """Rows of raw, real and slack; all must be later than `last_raw`."""
    for raw, real, slack in rows:
        if raw <= last_raw or real <= 0 or slack < 0:
            if min(raw, real, slack) < 0:
                return Refusal.NEGATIVE
            return Refusal.BACKWARDS if raw and real else Refusal.ZERO
        if raw >= FAR_NS or real >= FAR_NS:
            return Refusal.FUTURE
        if slack > MOST_SLACK_NS:
            return Refusal.LOOSE
        last_raw = raw
    return None


class OffsetBounds:
    """The interval of service raw minus node raw, at times of the node's raw clock."""

    def __init__(self, first: Exchange) -> None:
        self._high, self._high_at = first.t2 - first.t1, first.t1
        self._low, self._low_at = first.t3 - first.t4, first.t4

    def narrow(self, x: Exchange) -> bool:
        """Keep what binds from now on; False when the interval is empty."""
        t1, t2, t3, t4 = x
        if (t2 - t1 - self._high) * DRIFT <= t1 - self._high_at:
            self._high, self._high_at = t2 - t1, t1
        if (t4 - t3 + self._low) * DRIFT <= t4 - self._low_at:
            self._low, self._low_at = t3 - t4, t4
        return (self._low - self._high - 2) * DRIFT <= abs(self._low_at - self._high_at)

    def at(self, raw: int) -> tuple[int, int]:
        return (
            self._low - abs(raw - self._low_at) // DRIFT - 1,
            self._high + abs(raw - self._high_at) // DRIFT + 1,
        )
