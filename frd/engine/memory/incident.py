"""A memory incident: what the detector knows of rises that belong together.

Samples that showed a rise are gone when the next ones arrive, so an incident remembers which ranks
were named and the figures of that moment. A rank that was named stays named. Whether there is a
finding about the incident is up to the tracker of findings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from frd.engine.memory.decisions import Decision
from frd.engine.memory.rise import MemoryRise
from frd.engine.memory.walk.rank_rise import RankRise
from frd.model import Confidence, Kind

RAN_OUT: Final = "memory ran out"
"""Why a spike is over that an OOM replaces."""


@dataclass(slots=True)
class MemoryIncident:
    number: int
    """Of the incident, within its attempt."""
    kind: Kind
    """`MEMORY_SPIKE` or `OOM`."""
    on_host: bool
    """Host memory, not that of devices."""
    limit: int
    """Latest time (aligned ns) at which the first of its ranks began to rise."""
    leak: bool = False
    """A slow, steady rise over a long time."""
    of_others: bool = False
    """Processes took the memory that belong to no rank: no rank is the cause."""
    is_known: bool = True
    """What the processes of ranks hold there is known."""
    common: bool = False
    """(Nearly) all ranks rose together: none of them is the cause."""
    rows: dict[int, int] = field(default_factory=dict)
    """Ranks that may each have been first, with the row of the series; -1 for none."""
    rises: dict[int, MemoryRise] = field(default_factory=dict)
    """Rises of as many of these ranks as a finding lists, as of when each was named."""
    last: int = 0
    """Latest onset (aligned ns) of any rank of the incident."""
    unknown: set[int] = field(default_factory=set)
    """Ranks that may have risen as early: their samples are missing or late."""
    victims: set[int] = field(default_factory=set)
    """Ranks that rose, or ran out of memory, later."""
    failed: set[int] = field(default_factory=set)
    """Ranks whose allocations failed, or that were killed because memory ran out."""
    is_certain: bool = False
    """No rank can have risen earlier without being seen by now."""
    nearly_all_rose: bool = False
    """(Nearly) all ranks rose soon after, perhaps for the same reason as the first one."""
    decision: Decision | None = field(default=None, compare=False)
    """Which ranks were first; None if no rise shows it."""
    members: list[RankRise] = field(default_factory=list, compare=False)
    keep_until: int = 0
    """It is not over before then (aligned ns), because an allocation failed."""
    over: str = ""
    """Why it is over; empty while it is not."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.rows))

    @property
    def confidence(self) -> Confidence:
        if len(self.rows) > 1:
            return Confidence.MEDIUM if len(self.rows) == 2 else Confidence.LOW
        has_samples = all(row >= 0 for row in self.rows.values())
        is_high = has_samples and self.is_certain and not self.nearly_all_rose and not self.unknown
        return Confidence.HIGH if is_high else Confidence.MEDIUM

    def drop_forecasts(self, is_flat: Callable[[int], bool]) -> bool:
        """Of rises that have ended, by row; True if there were some."""
        before = dict(self.rises)
        for rank, rise in self.rises.items():
            if rise.bytes_per_s and is_flat(self.rows[rank]):
                self.rises[rank] = replace(rise, bytes_per_s=0.0)
        return self.rises != before

    def name(self, rank: int, row: int, most: int) -> bool:
        """A rank may have risen first; returns whether its rise is to be kept: `most` are."""
        self.rows[rank] = row
        self.victims.discard(rank)
        return len(self.rises) < most
