"""The wall clock of a node, as readings of it together with the raw clock show it: for people.

No decision rests on it. It says how far the node's wall clock is off and how often it was set. The
raw clock only counts; the wall clock is slewed (by a little) and stepped. Two messages whose last
readings differ by more than slewing explains have a step between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from frd.clocks.wall_clock import SLEW_PPM
from frd.engine.clocks.exchange import Refusal, refuse_readings

MOST_READINGS: Final = 64
"""Of one message."""
_START_OVER: Final = 8
"""Refusals in a row after which the readings are compared with nothing older."""


class WallReadings:
    """Of one agent session."""

    def __init__(self) -> None:
        self.steps = 0
        """Of the wall clock against the raw one."""
        self.last: tuple[int, int, int] | None = None
        """The newest reading: raw time, wall time, slack."""
        self._refused = 0

    def ahead(self, raw: int) -> tuple[int, int] | None:
        """How far the wall clock is ahead of the raw one, and the largest error of that."""
        if self.last is None:
            return None
        at, wall, slack = self.last
        return wall - at, slack + abs(raw - at) * SLEW_PPM // 1_000_000 + 1

    def read(
        self, raws: Sequence[int], reals: Sequence[int], slacks: Sequence[int]
    ) -> Refusal | None:
        """Readings of both clocks, in order; the whole batch is refused when it is bad. The last
        one counts, unless it shows less exactly what the one before shows by now."""
        if len(raws) > MOST_READINGS:
            return Refusal.FLOOD
        rows = list(zip(raws, reals, slacks, strict=True))
        refusal = refuse_readings(rows, self.last[0] if self.last else 0)
        if refusal is not None:
            self._refused += 1
            if self._refused >= _START_OVER:
                self._refused, self.last = 0, None
            return refusal
        self._refused = 0
        for raw, wall, slack in rows[-1:]:
            if (known := self.ahead(raw)) is not None:
                ahead, by_now = known
                if abs(wall - raw - ahead) > by_now + slack:
                    self.steps += 1
                elif slack > by_now:
                    return None
            self.last = raw, wall, slack
        return None
