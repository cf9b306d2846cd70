"""Members of a group as runs: 16,384 consecutive ranks are twelve bytes instead of 64 KB.

Parallel training slices the world regularly (blocks, strides), so the ranks of nearly every group
are one run of equal steps, or a few. The size matters because every agent declares every group of
its ranks on every stream, and one of these groups is the whole world.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Final

import numpy as np

from frd.errors import WireError

_RUN: Final = struct.Struct("<3i")
"""First rank, count, step."""


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


def count_ranks(data: bytes) -> int:
    """How many ranks these runs say that they have, without those that make no sense."""
    if len(data) % _RUN.size:
        return 0
    return sum([count for _, count, _ in _RUN.iter_unpack(data) if count > 0])


def unpack_ranks(field: str, data: bytes, limit: int) -> tuple[int, ...]:
    """The inverse of `pack_ranks`. A run costs about a microsecond, and a rank in it nothing but
    its place in the tuple.

    Raises:
        WireError: `data` is not such runs, or has more than `limit` ranks.
    """
    if len(data) % _RUN.size:
        raise WireError(field, "length", f"{len(data)} bytes: send whole runs of {_RUN.size} bytes")
    total, end = 0, 0
    runs = []
    for first, count, step in _RUN.iter_unpack(data):
        if first < 0 or count < 1 or step < 1:
            raise WireError(field, "range", "a run needs a rank, a count and a step of 1 or more")
        if (total := total + count) > limit:
            raise WireError(field, "too_large", f"over {limit} ranks: send {limit} or fewer")
        if first < end:
            raise WireError(field, "range", "send sorted distinct ranks")
        end = first + (count - 1) * step + 1
        runs.append(range(first, end, step))
    return tuple(runs[0]) if len(runs) == 1 else tuple(chain.from_iterable(runs))
