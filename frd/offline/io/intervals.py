"""Sets of time: sorted, disjoint intervals as two columns, and what is in one but not in another.

`IntervalSet` takes spans as they come. Those of one file come nearly in order, because a trace is
ordered by the ends of calls; so only the last pieces are ever merged again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from frd.model import Int64s

_PIECE: Final = 1 << 18
"""Intervals that are compared with another set at a time: memory is limited, not the result."""
_NARROW: Final = 1 << 32
_SMALL: Final = 1 << 14
"""Pieces of fewer intervals are joined."""


def union(start: Int64s, end: Int64s) -> Int64s:
    """The intervals that spans cover together, shape (2, n): begins and ends, sorted, disjoint.

    Spans that touch are one interval; empty spans are left out.
    """
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    if not np.all(end > start):
        kept = end > start
        start, end = start[kept], end[kept]
    if not len(start):
        return np.empty((2, 0), np.int64)
    reach = np.maximum.accumulate(end)
    begins = np.concatenate(([True], start[1:] > reach[:-1]))
    at = np.flatnonzero(begins)
    last = np.concatenate((at[1:] - 1, [len(start) - 1]))
    return np.stack((start[at], reach[last]))


@dataclass(frozen=True, slots=True)
class _Packed:
    """A piece in half the memory, if it covers less than 2**32 units of time (in µs 71 minutes)."""

    base: int
    columns: npt.NDArray[Any]

    @classmethod
    def of(cls, piece: Int64s) -> _Packed:
        base = int(piece[0, 0])
        if int(piece[1, -1]) - base >= _NARROW:
            return cls(0, piece)
        return cls(base, (piece - base).astype(np.uint32))

    def unpacked(self) -> Int64s:
        return self.columns.astype(np.int64) + self.base

    @property
    def last(self) -> int:
        """The last end."""
        return self.base + int(self.columns[1, -1])

    def __len__(self) -> int:
        return int(self.columns.shape[1])


class IntervalSet:
    """A growing set of intervals; 8 bytes an interval, or 16 if it is sparse."""

    __slots__ = ("_pieces",)

    def __init__(self, pieces: Iterable[Int64s] = ()) -> None:
        """`pieces` are each as `union` returns it, and all in order."""
        self._pieces = [_Packed.of(piece) for piece in pieces if piece.shape[1]]

    @property
    def pieces(self) -> Iterator[Int64s]:
        """Sorted and disjoint, each of shape (2, n), n > 0."""
        return (piece.unpacked() for piece in self._pieces)

    @classmethod
    def merged(cls, sets: Iterable[IntervalSet]) -> IntervalSet:
        """The union. Pieces come in the order of their begin, so that only the last one changes:
        one set after the other would take each piece apart again."""
        out = cls()
        pieces = [one.pieces for one in sets]
        for piece in heapq.merge(*pieces, key=lambda piece: int(piece[0, 0])):
            out._append(piece)
        return out

    def add(self, start: Int64s, end: Int64s) -> None:
        """Spans in any order."""
        self._append(union(start, end))

    def mapped(self, change: Callable[[Int64s], Int64s]) -> IntervalSet:
        """With other times, in the same order; what becomes empty is left out."""
        changed = (change(piece) for piece in self.pieces)
        return IntervalSet(union(begin, end) for begin, end in changed)

    @property
    def length(self) -> int:
        return sum(int((piece[1] - piece[0]).sum()) for piece in self.pieces)

    def __len__(self) -> int:
        return sum(map(len, self._pieces))

    def minus(self, other: IntervalSet) -> IntervalSet:
        """What is in this set and not in `other`."""
        return IntervalSet(_differences(self.pieces, other.joined()))

    def joined(self) -> Int64s:
        """All of it as one array of shape (2, n)."""
        none: Int64s = np.empty((2, 0), np.int64)
        return np.concatenate([none, *self.pieces], axis=1)

    def within(self, begin: Int64s, end: Int64s) -> Int64s:
        """How much of it is in each of some windows."""
        out = np.zeros(len(begin), np.int64)
        for piece in self.pieces:
            out += _covered_before(piece, end) - _covered_before(piece, begin)
        return out

    def _append(self, piece: Int64s) -> None:
        if not piece.shape[1]:
            return
        first = int(piece[0, 0])
        over: list[Int64s] = []
        while self._pieces and (
            self._pieces[-1].last >= first or len(self._pieces[-1]) + piece.shape[1] < _SMALL
        ):
            last = self._pieces.pop().unpacked()
            apart = int(np.searchsorted(last[1], first)) if last.shape[1] >= _SMALL else 0
            if apart:
                self._pieces.append(_Packed.of(last[:, :apart]))
                over.append(last[:, apart:])
                break
            over.append(last)
            first = min(first, int(last[0, 0]))
        if over:
            together = np.concatenate([piece, *over], axis=1)
            piece = union(together[0], together[1])
        self._pieces.append(_Packed.of(piece))


def _covered_before(piece: Int64s, at: Int64s) -> Int64s:
    """How much of a piece is before each of some times."""
    lengths = np.concatenate(([0], np.cumsum(piece[1] - piece[0])))
    number = np.searchsorted(piece[0], at, side="right")
    last = np.maximum(number - 1, 0)
    beyond = np.maximum(piece[1][last] - at, 0) * (number > 0)
    covered: Int64s = lengths[number] - beyond
    return covered


def _differences(pieces: Iterable[Int64s], other: Int64s) -> Iterator[Int64s]:
    for piece in pieces:
        for first in range(0, piece.shape[1], _PIECE):
            part = piece[:, first : first + _PIECE]
            low = np.searchsorted(other[1], part[0, 0], side="right")
            high = np.searchsorted(other[0], part[1, -1])
            yield _difference(part, other[:, low:high])


def _difference(one: Int64s, other: Int64s) -> Int64s:
    """By a sweep over all begins and ends: the stretches where only `one` is open."""
    if not other.shape[1]:
        return one
    times = np.concatenate((one[0], one[1], other[0], other[1]))
    ones, others = one.shape[1], other.shape[1]
    inside = np.repeat(np.array([1, -1, 0, 0], np.int8), (ones, ones, others, others))
    outside = np.repeat(np.array([0, 0, 1, -1], np.int8), (ones, ones, others, others))
    order = np.argsort(times, kind="stable")
    times = times[order]
    is_open = np.cumsum(inside[order], dtype=np.int32) > 0
    is_open &= np.cumsum(outside[order], dtype=np.int32) == 0
    at = np.flatnonzero(is_open[:-1] & (times[1:] > times[:-1]))
    return np.stack((times[at], times[at + 1]))
