"""How long the members of one group usually wait for each other: its slow tail.

A wait becomes usual by happening again. The tail is the second longest of the remembered waits, so
one bad hour does not blunt the detector, and a checkpoint that makes everybody wait for rank 0
stops being reported once it has been seen twice. Collectives that waited through the same
minutes (a rank that is late is late for all of its buckets) are one wait.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from frd.model import AlignedNs

MEMORY_NS: Final = 6 * 3600 * 1_000_000_000
"""Longer than the pause between two checkpoints of any job that writes them at all."""
MOST_WAITS: Final = 32


class SlowTail:
    """The long waits of one group, newest last, as (start, end)."""

    def __init__(self) -> None:
        self._waits: deque[tuple[int, int]] = deque(maxlen=MOST_WAITS)

    def add(self, start: int, end: int) -> None:
        """The first member arrived at `start`, the last one at `end` (aligned ns)."""
        if self._waits and start <= self._waits[-1][1]:
            before = self._waits.pop()
            start, end = min(start, before[0]), max(end, before[1])
        self._waits.append((start, end))

    def usual_ns(self, now: AlignedNs) -> int:
        """The second longest remembered wait; 0 when there were fewer than two."""
        while self._waits and now - self._waits[0][1] > MEMORY_NS:
            self._waits.popleft()
        lengths = sorted(end - start for start, end in self._waits)
        return lengths[-2] if len(lengths) > 1 else 0
