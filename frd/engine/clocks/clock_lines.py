"""Node times of many rows as aligned times, one line per row; see the columns of `RankTable`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frd.model import AlignedNs, Float64s, Int32s, Int64s


@dataclass(frozen=True, slots=True)
class ClockLines:
    """Looked up once per row, for several columns of times. Each is one item per row."""

    at: Int64s
    """Node time of a moment."""
    aligned: Int64s
    """Aligned time of that moment."""
    rate: Float64s
    """How fast aligned time gains on node time, in ns per ns."""

    def take(self, rows: Int32s | Int64s | int) -> ClockLines:
        """The lines of some rows, of which one beyond the last counts as the last."""
        return ClockLines(
            self.at.take(rows, mode="clip"),
            self.aligned.take(rows, mode="clip"),
            self.rate.take(rows, mode="clip"),
        )

    def to_aligned(self, node_ns: Int64s, now: AlignedNs | Int64s) -> Int64s:
        """Aligned times, not after `now` (of all rows, or by row): what was reported has happened.
        0, which says unknown, stays 0."""
        passed = node_ns - self.at
        gained = (passed * self.rate).astype(np.int64)
        aligned = np.minimum(gained + passed + self.aligned, now)
        return np.where(node_ns == 0, 0, aligned)
