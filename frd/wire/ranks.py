"""Members of a group as runs: 16,384 consecutive ranks are twelve bytes instead of 64 KB.

Parallel training slices the world regularly (blocks, strides), so the ranks of nearly every group
are one run of equal steps, or a few. The size matters because every agent declares every group of
its ranks on every stream, and one of these groups is the whole world.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frd.errors import WireError
from frd.model import Int64s


def pack_ranks(ranks: Sequence[int]) -> bytes:
    """Runs of (first, count, step) for sorted distinct `ranks`."""
    ordered = np.asarray(ranks, np.int64)
    steps = np.diff(ordered)
    # Where the step changes; a run may end only there.
    bends = (np.flatnonzero(np.diff(steps)) + 1).tolist()
    runs = []
    start = 0
    for end in [*bends, len(ordered) - 1]:
        if end >= start:
            step = int(steps[start]) if end > start else 1
            runs.append((int(ordered[start]), end - start + 1, step))
            start = end + 1
    return np.array(runs, "<i4").tobytes()


def unpack_ranks(field: str, data: bytes, limit: int) -> Int64s:
    """The inverse of `pack_ranks`.

    Raises:
        WireError: `data` is not such runs, or has more than `limit` ranks.
    """
    if len(data) % 12:
        raise WireError(field, "length", f"{len(data)} bytes: send whole runs of 12 bytes")
    if not data:
        return np.empty(0, np.int64)
    first, count, step = np.frombuffer(data, "<i4").reshape(-1, 3).astype(np.int64).T
    if first.min() < 0 or count.min() < 1 or step.min() < 1:
        raise WireError(field, "range", "a run needs a rank, a count and a step of 1 or more")
    if count.sum() > limit:
        raise WireError(field, "too_large", f"{count.sum()} ranks: send {limit} or fewer")
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    ranks: Int64s = np.repeat(first, count) + np.repeat(step, count) * within
    if (np.diff(ranks) <= 0).any():
        raise WireError(field, "range", "send sorted distinct ranks")
    return ranks
