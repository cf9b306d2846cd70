"""Where the times of a process come from, and how they become aligned nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.model import Int64s

LATEST_NS: Final = 1 << 62
"""No clock shows more; a damaged line may. Sums of two such times fit 64 bits."""


@dataclass(frozen=True, slots=True)
class Source:
    """One process in one part."""

    part: int
    """Index of the part."""
    pid: int
    unit_ns: int
    """Nanoseconds in a unit of the trace's times."""
    offset_ns: int
    """Added to get times of the aligned clock."""
    is_child: bool = False
    """It descends from another traced process of its rank, as a loader's worker does."""

    def aligned(self, at: Int64s) -> Int64s:
        """Times in nanoseconds, not negative; impossible ones are the nearest possible ones."""
        return np.maximum(self.span(at) + self.offset_ns, 0)

    def span(self, length: Int64s) -> Int64s:
        """Lengths of time in nanoseconds."""
        scaled: Int64s = np.clip(length, 0, LATEST_NS // self.unit_ns) * self.unit_ns
        return scaled

    def aligned_one(self, at: int) -> int:
        return int(self.aligned(np.array([at], np.int64))[0])
