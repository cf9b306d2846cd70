"""The columns of one attempt: which series a moment has values of, in which order.

A column stays as long as its rank lives, read or not, so that moment after moment has the same
ones: the service looks them up once. What a table also knows is when a value has gone far enough
to be news.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.model import Int64s, SeriesInfo, SeriesKind
from frd_agent.memory.target import ABSURD_BYTES, NO_SAMPLE, Reading

_JUMP_BYTES: Final = 64 * 1024 * 1024
_JUMP_SHARE: Final = 64
"""64 MiB, or this fraction of what a series can rise to if that is more, is a jump."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The series that the values of a moment are of; told apart by identity."""

    attempt: int
    series: tuple[SeriesInfo, ...]
    capacity: tuple[int, ...]


class Table:
    def __init__(self, attempt: int) -> None:
        self.layout = Layout(attempt, (), ())
        self._place: dict[SeriesInfo, int] = {}
        self._far: Int64s = np.empty(0, np.int64)
        """By column: from here on it is a jump."""
        self._from: Int64s = np.empty(0, np.int64)
        """By column: the value that a jump is measured from."""

    def values(self, readings: Iterable[Reading]) -> Int64s:
        """In the order of `layout`, which has grown if need be; `NO_SAMPLE` where nothing is
        known, or nothing that can be believed."""
        readings = list(readings)
        capacity = self.layout.capacity
        for reading in readings:
            place = self._place.get(reading.series)
            if place is None or capacity[place] != reading.capacity:
                self._grow(readings)
                break
        values = np.full(len(self._place), NO_SAMPLE, np.int64)
        for reading in readings:
            if 0 <= reading.value < ABSURD_BYTES:
                values[self._place[reading.series]] = reading.value
        return values

    def jumps(self, values: Int64s) -> bool:
        """Some value is far from where it was when it last jumped, or first was read."""
        read = values != NO_SAMPLE
        first = read & (self._from == NO_SAMPLE)
        self._from[first] = values[first]
        far = read & (np.abs(values - self._from) > self._far)
        self._from[far] = values[far]
        return bool(far.any())

    def keep(self, ranks: Collection[int]) -> None:
        """Only the columns of these ranks stay."""
        columns = zip(self.layout.series, self.layout.capacity, strict=True)
        self._arrange({series: size for series, size in columns if series.rank in ranks})

    def _grow(self, readings: Iterable[Reading]) -> None:
        columns = dict(zip(self.layout.series, self.layout.capacity, strict=True))
        self._arrange(columns | {reading.series: reading.capacity for reading in readings})

    def _arrange(self, columns: dict[SeriesInfo, int]) -> None:
        known = dict(zip(self.layout.series, self._from.tolist(), strict=True))
        self.layout = Layout(self.layout.attempt, tuple(columns), tuple(columns.values()))
        self._place = {series: place for place, series in enumerate(columns)}
        self._from = np.array([known.get(series, NO_SAMPLE) for series in columns], np.int64)
        self._far = np.array([_far(*column) for column in columns.items()], np.int64)


def _far(series: SeriesInfo, capacity: int) -> int:
    """What tensors take swings by gigabytes in every step of a healthy job, and is no news."""
    if series.kind is SeriesKind.TORCH_ALLOCATED:
        return ABSURD_BYTES
    return max(_JUMP_BYTES, capacity // _JUMP_SHARE)
