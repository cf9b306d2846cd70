"""Timestamps that a node tells of its clocks, and which of them are not believed.

A refusal is a value: the sender is wrong, not the program. What is refused here is what no honest
host can send, whatever its clocks are set to; what contradicts earlier timestamps in a way that a
host can come into (it slept, its clock was set) is believed, and dealt with by the clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from frd.engine.clocks.alignment import FAR_NS
from frd.model import NodeRawNs, ServiceRawNs

MOST_AHEAD_NS: Final = 3600 * 1_000_000_000
"""A node's raw clock cannot get further ahead of the service's between two messages."""
MOST_SLACK_NS: Final = 1_000_000_000
_DRIFT: Final = 9_900
"""One part in so many is a drift of 101 ppm."""


class Refusal(StrEnum):
    """Words for a metric's label."""

    ZERO = "zero"
    NEGATIVE = "negative"
    BACKWARDS = "backwards"
    FUTURE = "future"
    LOOSE = "loose"
    """Two clocks were read so far apart that it says nothing."""
    FLOOD = "flood"
    """More at a time, or more often, than an agent sends."""


class Exchange(NamedTuple):
    """A ping and its pong: sent, received, answered, answer received."""

    t1: NodeRawNs
    t2: ServiceRawNs
    t3: ServiceRawNs
    t4: NodeRawNs


def refuse_exchange(x: Exchange, last: Exchange | None) -> Refusal | None:
    """`last` is the previous one that was believed."""
    t1, t2, t3, t4 = x
    if t1 <= 0 or t4 <= 0 or t2 <= 0:
        return Refusal.NEGATIVE if min(t1, t2, t4) < 0 else Refusal.ZERO
    if t1 >= FAR_NS or t4 >= FAR_NS or t3 >= FAR_NS:
        return Refusal.FUTURE
    held = t3 - t2
    if held < 0 or t4 - t1 < held - held // _DRIFT - 2:
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
