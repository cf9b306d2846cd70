"""What is known of one rank: its rises, and when there are samples of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.engine.memory.baseline import BATCH_NS
from frd.model import Int64s

FOREVER: Final = int(np.iinfo(np.int64).max)
_SILENT_GAPS: Final = 3
"""A rank without samples for so many of its gaps has stopped."""


@dataclass(slots=True, eq=False)
class RankRise:
    """A rise, or what may become one, of one rank. Times are aligned ns."""

    rank: int
    lo: int
    hi: int
    """The interval of its onset, as wide as clocks make it."""
    seen: int
    """When it was first seen; the sample of `hi`, without the uncertainty of clocks."""
    established: int
    """When it was large enough for a rise; `FOREVER` if it never was."""
    ready: int
    """When it could be trusted; `FOREVER` if it could not."""
    grown: int
    """When it last grew."""
    end: int
    """When it was over; `FOREVER` if it was not."""
    back: int
    """When it fell back; `FOREVER` if it did not."""
    from_start: bool
    """The level before it is unknown."""
    began_before: bool
    """It rose already when the recording began."""
    is_certain: bool
    """The level before it is well known."""
    is_rise: bool
    """It has grown large enough."""


@dataclass(frozen=True, slots=True)
class RankSamples:
    """The times of a rank's samples, (n,) aligned ns, and how far apart they usually are."""

    at: Int64s
    gap: int

    def shown_at(self, when: int) -> int:
        """When it was known what the rank did until `when`: at a sample, or when it was silent."""
        place = int(self.at.searchsorted(when))
        following = int(self.at[place]) if place < len(self.at) else FOREVER
        before = int(self.at[place - 1]) if place else int(self.at[0])
        return max(when, min(following, before + self._silence))

    def is_silent(self, when: int) -> bool:
        """There is no sample around that time."""
        place = int(self.at.searchsorted(when))
        following = int(self.at[place]) if place < len(self.at) else FOREVER
        return place == 0 or following - int(self.at[place - 1]) > self._silence

    @property
    def _silence(self) -> int:
        return max(_SILENT_GAPS * self.gap, BATCH_NS)
