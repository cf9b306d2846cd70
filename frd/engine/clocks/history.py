"""The past of one node's real clock, as segments of knots in bounded memory.

Knots come about once a second and are thinned as they age: the older, the wider apart. Steps end
segments. Only the readings around a step are known; so a segment reaches as far as the clock could
have got before the step, and the next one begins where it could have landed.
"""

from __future__ import annotations

from typing import Final

from frd.engine.clocks.alignment import FAR_NS, Knot, Segment

MOST_SEGMENTS: Final = 8
MOST_KNOTS: Final = 24
"""Of one segment."""
_FRESH_KNOTS: Final = 8
"""The newest ones, which are all kept."""
_AHEAD_NS: Final = 60_000_000_000
"""How far beyond its last knot the current segment may reach: alignments are used for a while."""


class OffsetHistory:
    """Segments that are over, and the current one, which starts at `start_ns` of the real clock."""

    __slots__ = ("_knots", "_past", "start_ns")

    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self._past: list[Segment] = []
        self._knots: list[Knot] = []

    def add(self, knot: Knot) -> None:
        """A knot that is later than the others of the current segment, or the last one once more,
        now that more is known."""
        knots = self._knots
        if knots and knots[-1][0] == knot[0]:
            knots[-1] = knot
            return
        knots.append(knot)
        if len(knots) > MOST_KNOTS:
            del knots[1:-_FRESH_KNOTS:2]

    def step(self, before_ns: int, gap_ns: int, after_ns: int) -> None:
        """The node's clock showed `before_ns`, and `gap_ns` later `after_ns`."""
        gap_ns += gap_ns // 1_000
        self._end(before_ns + gap_ns, after_ns - gap_ns)

    def shift(self, now_ns: int) -> None:
        """The service's clock stepped, some time between the last knot and `now_ns`."""
        self._end(now_ns, self._knots[-1][0] if self._knots else self.start_ns)

    def distrust(self, now_ns: int) -> None:
        """All that is known of times before `now_ns` is contradicted."""
        self._end(now_ns, now_ns)
        self._past = [segment._replace(sure=False) for segment in self._past]

    def segments(self) -> tuple[Segment, ...]:
        knots = self._knots
        end = knots[-1][0] + _AHEAD_NS if knots else FAR_NS
        current = Segment(self.start_ns, end, bool(knots), tuple(knots))
        return (*self._past, current) if self._past else (current,)

    def line(self, from_ns: int) -> tuple[int, int]:
        """From `from_ns` or later, until when times are of the current segment only."""
        end = self._knots[-1][0] + _AHEAD_NS if self._knots else FAR_NS
        reach = max([segment.end_ns for segment in self._past], default=0)
        return max(self.start_ns, from_ns), end if reach > end else FAR_NS

    def _end(self, end_ns: int, start_ns: int) -> None:
        """The current segment is over, and another one starts."""
        past, knots = self._past, self._knots
        past.append(Segment(self.start_ns, end_ns, bool(knots), tuple(knots)))
        self.start_ns, self._knots = start_ns, []
        if len(past) > MOST_SEGMENTS:
            first, second = past[:2]
            start, end = min(first.start_ns, second.start_ns), max(first.end_ns, second.end_ns)
            past[:2] = [Segment(start, end, False, ())]
