"""Counters of the agent itself; `frd_agent.metrics` exposes them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

POLL_BOUNDS: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
"""Upper bounds of the buckets, in seconds."""


@dataclass(slots=True)
class Counters:
    streams: int = 0
    """Streams opened, the present one included."""
    pongs: int = 0
    """Pings that the service answered."""
    clock_steps: int = 0
    """Of this node's wall clock."""
    ranks: int = 0
    """Rank processes under watch that are alive."""
    inspected: int = 0
    """Ranks whose processes are inspected now, because the service suspects them."""
    inspection_timeouts: int = 0
    """Readings of the memory of a suspect, or of its trace, that missed their deadline."""
    broken_trace_lines: int = 0
    """Of DFTracer traces of suspects: lines and gzip members that were left out."""
    dumps: Counter[str] = field(default_factory=Counter)
    """Dumps requested from ranks, by reason."""
    refused_files: Counter[str] = field(default_factory=Counter)
    """Files of ranks that could not be used, by kind: ``identity``, ``dump``, ``stage``,
    ``phases``, ``claim`` (of a process that is another rank already, or of too many)."""
    ras: Counter[str] = field(default_factory=Counter)
    """Questions to NCCL's RAS service, by result: ``answered``, ``failed``."""
    dropped_rows: Counter[str] = field(default_factory=Counter)
    """Rows that will never reach the service, by reason: ``overrun``, ``refused``."""
    poll_buckets: list[int] = field(default_factory=lambda: [0] * (len(POLL_BOUNDS) + 1))
    poll_sum_s: float = 0.0

    def polled(self, seconds: float) -> None:
        self.poll_buckets[bisect_left(POLL_BOUNDS, seconds)] += 1
        self.poll_sum_s += seconds
