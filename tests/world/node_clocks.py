"""The time of a node whose clocks the test moves."""

from __future__ import annotations

from collections.abc import Callable

from frd.model import NodeNs, NodeRawNs
from frd_agent.counters import Counters
from frd_agent.node_time import ClockReading, NodeTime
from tests.world.clocks import EPOCH, S


class Clocks:
    """Both clocks of a node; they stand still until the test moves them."""

    def __init__(self) -> None:
        self.raw = 7 * S
        self.wall = EPOCH
        self.slack = 300
        self.stats = Counters()
        self.time = NodeTime(self.stats, self._read, lambda: NodeRawNs(self.raw))

    def passes(self, length: int) -> None:
        self.raw += length
        self.wall += length

    def _read(self) -> ClockReading:
        return ClockReading(NodeRawNs(self.raw), NodeNs(self.wall), self.slack)


def time_of(raw: Callable[[], int], ahead_ns: int) -> NodeTime:
    """The wall clock is always `ahead_ns` ahead of the raw one."""

    def now() -> NodeRawNs:
        return NodeRawNs(raw())

    return NodeTime(Counters(), lambda: ClockReading(now(), NodeNs(now() + ahead_ns), 100), now)
