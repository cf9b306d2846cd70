"""The rise of one rank as one series shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.model import SeriesKind

FOREVER: Final = int(np.iinfo(np.int64).max)


@dataclass(slots=True, eq=False)
class RankRise:
    rank: int
    row: int
    on_host: bool
    kind: SeriesKind
    device: str
    lo: int
    hi: int
    seen: int
    grown: int
    from_start: bool
    began_before: bool
    high: int
    peak: int
    established: int = FOREVER
    ready: int = FOREVER
    end: int = FOREVER
    back: int = FOREVER
    is_certain: bool = False
    alarming_at: int = FOREVER

    @property
    def is_rise(self) -> bool:
        return self.ready < FOREVER or (self.established < FOREVER and self.end == FOREVER)
