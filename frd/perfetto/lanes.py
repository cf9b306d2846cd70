"""Intervals that overlap, in lanes: Perfetto draws the slices of one track without overlaps."""

from __future__ import annotations

from typing import Final

import numpy as np

from frd.model import Int64s

NO_LANE: Final = -1


def lanes(begin: Int64s, end: Int64s, most: int) -> Int64s:
    """A lane for each interval, sorted by `begin`, such that intervals in one lane do not touch.

    `NO_LANE` for those that end before they begin, and for intervals that would need more than
    `most` lanes.
    """
    free_at: list[int] = []
    out = []
    for first, last in zip(begin.tolist(), end.tolist(), strict=True):
        lane = NO_LANE
        if last >= first:
            lane = next((at for at, free in enumerate(free_at) if free < first), len(free_at))
            if lane == most:
                lane = NO_LANE
            elif lane == len(free_at):
                free_at.append(last)
            else:
                free_at[lane] = last
        out.append(lane)
    return np.array(out, np.int64)
