"""Fewer points of a line that look the same: the lowest and the highest of each part of it."""

from __future__ import annotations

import numpy as np

from frd.model import Int64s


def extremes(values: Int64s, most: int) -> Int64s:
    """Indexes of at most `most` values, in order, with the first, the last, and all peaks.

    Values are split into parts of equal length; each keeps its lowest and its highest value.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    parts = max((most - 2) // 2, 1)
    starts = np.arange(parts) * count // parts
    part = np.repeat(np.arange(parts), np.diff(starts, append=count))
    # Sorted by value within each part, the first and the last are what is wanted.
    order = np.lexsort((values, part))
    ends = np.append(starts[1:], count) - 1
    return np.unique(np.concatenate(([0, count - 1], order[starts], order[ends])))


def changes(values: Int64s) -> Int64s:
    """Indexes at which a value differs from the one before, and of the last value."""
    new = np.ones(len(values), np.bool_)
    new[1:-1] = values[1:-1] != values[:-2]
    return np.flatnonzero(new)
