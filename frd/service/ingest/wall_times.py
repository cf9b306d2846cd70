"""Times of an agent that sends wall times (protocol 1), as times of its node's raw clock.

Its watermark messages carry readings of both clocks. Times before the first reading cannot be
converted, so node times of such an agent are raw times plus a constant: the distance of the two
clocks at the first reading. Before it, the wall clock itself is the node's clock.
"""

from __future__ import annotations

from typing import Final

from frd.clocks.wall_clock import WallClock
from frd.engine.clocks.alignment import Alignment
from frd.model import Int64s, NodeNs, NodeRawNs
from frd.wire.messages import Watermarks

_EVER: Final = NodeRawNs(1 << 62)


class WallTimes:
    """Of one agent session."""

    def __init__(self) -> None:
        self._wall = WallClock()
        self._base: int | None = None
        """Node time minus raw time; None before the first reading."""

    def read(self, marks: Watermarks) -> int:
        """The reading in a message; returns the node time at which it was sent."""
        raw = marks.sent_raw_ns
        if raw is None:
            return marks.sent_at_ns
        self._read(raw, marks.sent_at_ns, marks.sent_slack_ns)
        return raw + (self._base or 0)

    def _read(self, raw: int, wall: int, slack_ns: int) -> None:
        if self._base is None:
            self._base = wall - raw
        self._wall.read(NodeRawNs(raw), NodeNs(wall), slack_ns)

    def to_node(self, walls: Int64s, latest: int) -> Int64s:
        """Wall times that were sent before `latest`, a node time; 0 stays 0."""
        if self._base is None:
            return walls
        raws = self._wall.to_raw(walls.ravel(), NodeRawNs(latest - self._base))
        raws[raws != 0] += self._base
        return raws.reshape(walls.shape)

    def alignment(self, alignment: Alignment) -> Alignment:
        """Of node times."""
        if alignment.reading is not None:
            self._read(*alignment.reading)
        if self._base is None:
            return alignment
        if not alignment.is_wall:
            return alignment._replace(at_ns=alignment.at_ns + self._base)
        raw = self._wall.one_to_raw(NodeNs(alignment.at_ns), _EVER)
        return alignment._replace(at_ns=raw + self._base)
