"""The node's time, which is its raw clock, and the way there from stamps of its wall clock.

CLOCK_MONOTONIC_RAW is neither stepped nor slewed, so the agent keeps and reports all times by it.
What the agent sees itself it stamps with the raw clock. Ranks and recorders stamp with
CLOCK_REALTIME, and files have it, too; such a stamp is converted when it is read, with a reading of
both clocks from just then, so that a step of the wall clock moves no event, however long a row
waits for the service.

The only state of an agent that more than one thread uses: the sampler of memory and the inspector
convert, too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from frd.clocks.wall_clock import WallClock
from frd.model import Int64s, NodeNs, NodeRawNs
from frd_agent.counters import Counters

STEP_NS: Final = 1_000_000
"""A smaller step is neither counted nor logged."""
_TRIES: Final = 3
_GOOD_SLACK_NS: Final = 2_000

log = logging.getLogger(__name__)


class ClockReading(NamedTuple):
    raw_ns: NodeRawNs
    real_ns: NodeNs
    slack_ns: int
    """The two clocks were read at most this far apart."""


def raw_now() -> NodeRawNs:
    return NodeRawNs(time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW))


def read_clocks() -> ClockReading:
    """Both clocks: the closest of a few pairs of readings, as the kernel may preempt in between."""
    best = None
    for _ in range(_TRIES):
        before, real, after = raw_now(), NodeNs(time.time_ns()), raw_now()
        slack = (after - before + 1) // 2
        if best is None or slack < best.slack_ns:
            best = ClockReading(NodeRawNs(before + (after - before) // 2), real, slack)
        if slack <= _GOOD_SLACK_NS:
            break
    assert best is not None
    return best


@dataclass(slots=True, eq=False)
class NodeTime:
    """Safe to use from any thread."""

    stats: Counters
    read: Callable[[], ClockReading] = read_clocks
    now: Callable[[], NodeRawNs] = raw_now
    _wall: WallClock = field(default_factory=WallClock)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.look()  # steps are seen from here on

    def look(self) -> ClockReading:
        """Both clocks. A step of the wall clock since the last call is counted."""
        with self._lock:
            return self._look()

    def to_raw(self, walls: Int64s) -> Int64s:
        """Stamps of the wall clock as raw times; see `WallClock.one_to_raw`."""
        with self._lock:
            self._look()
            return self._wall.to_raw(walls)

    def one_to_raw(self, wall: NodeNs) -> NodeRawNs:
        with self._lock:
            self._look()
            return self._wall.one_to_raw(wall)

    def until(self, wall: NodeNs) -> NodeRawNs:
        """The latest moment at which a stamp was made: now, if its time is unknown."""
        return self.one_to_raw(wall) or self.now()

    def _look(self) -> ClockReading:
        reading = self.read()
        step_ns = self._wall.read(*reading)
        if abs(step_ns) > STEP_NS:
            self.stats.clock_steps += 1
            log.warning("the wall clock of this node stepped by %+.6f s", step_ns / 1e9)
        return reading
