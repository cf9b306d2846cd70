"""The columns of one attempt: the series of its samples and their order.

A column stays as long as its rank lives, even without new values, so that successive samples have
the same columns and the service looks them up once. The table also detects values that have changed
enough to be sent immediately. A node has a few dozen columns, for which numpy would take longer.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from frd.model import SeriesInfo, SeriesKind
from frd_agent.memory.target import ABSURD_BYTES, NO_SAMPLE, Reading

_JUMP_BYTES: Final = 64 * 1024 * 1024
_JUMP_SHARE: Final = 64
"""A jump is a change of 64 MiB, or of this fraction of the capacity if that is more."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The series of a sample's values; layouts are compared by identity."""

    attempt: int
    late: bool
    """Of moments that were over before others that have been added already."""
    series: tuple[SeriesInfo, ...]
    capacity: tuple[int, ...]


class Table:
    def __init__(self, attempt: int, late: bool) -> None:
        self.layout = Layout(attempt, late, (), ())
        self.last_ns = 0
        """When the last moment began: they rise."""
        self.shown: tuple[Layout, list[int]] = (self.layout, [])
        """The last value that there was of each column; replaced as a whole, for other threads."""
        self._place: dict[SeriesInfo, int] = {}
        self._capacity: dict[SeriesInfo, int] = {}
        self._far: list[int] = []
        """By column: a larger change is a jump."""
        self._from: list[int] = []
        """By column: the value that a jump is measured from."""

    def values(self, readings: Sequence[Reading]) -> array[int]:
        """In the order of `layout`, which has grown if need be; `NO_SAMPLE` where nothing is
        known, or nothing that can be believed."""
        if any(self._capacity.get(one.series) != one.capacity for one in readings):
            self._arrange(self._capacity | {one.series: one.capacity for one in readings})
        values = array("q", [NO_SAMPLE]) * len(self._place)
        for one in readings:
            if 0 <= one.value < ABSURD_BYTES:
                place = self._place[one.series]
                values[place] = self.shown[1][place] = one.value
        return values

    def hide(self, readings: Sequence[Reading]) -> None:
        """The other table of the attempt has newer values of these series."""
        for reading in readings:
            if (place := self._place.get(reading.series)) is not None:
                self.shown[1][place] = NO_SAMPLE

    def jumps(self, values: array[int]) -> bool:
        """Some value is far from its value at its last jump, or at its first sample."""
        has_jumped = False
        for place, value in enumerate(values):
            start = self._from[place]
            is_far = abs(value - start) > self._far[place]
            if value != NO_SAMPLE and (is_far or start == NO_SAMPLE):
                self._from[place] = value
                has_jumped |= start != NO_SAMPLE
        return has_jumped

    def keep(self, ranks: Collection[int]) -> None:
        """Only the columns of these ranks stay."""
        kept = {one: size for one, size in self._capacity.items() if one.rank in ranks}
        self._arrange(kept)

    def _arrange(self, columns: dict[SeriesInfo, int]) -> None:
        before = dict(zip(self.layout.series, self._from, strict=True))
        shown = dict(zip(self.layout.series, self.shown[1], strict=True))
        self.layout = replace(self.layout, series=tuple(columns), capacity=tuple(columns.values()))
        self._capacity = columns
        self._place = {series: place for place, series in enumerate(columns)}
        self._from = [before.get(series, NO_SAMPLE) for series in columns]
        self.shown = (self.layout, [shown.get(series, NO_SAMPLE) for series in columns])
        self._far = [_far(*column) for column in columns.items()]


def _far(series: SeriesInfo, capacity: int) -> int:
    """Tensors swing by gigabytes in every step of a healthy job, so their changes are no jumps."""
    if series.kind is SeriesKind.TORCH_ALLOCATED:
        return ABSURD_BYTES
    return max(_JUMP_BYTES, capacity // _JUMP_SHARE)
