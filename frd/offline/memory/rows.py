"""Rows of samples in columns: joined, sorted by stream and time, and thinned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from frd.model import Int32s, Int64s
from frd.offline.memory.telemetry import TOTAL

_LONG_RUN: Final = 64


@dataclass(frozen=True, slots=True)
class Rows:
    stream: Int32s
    begin_ns: Int64s
    end_ns: Int64s
    """The same array as `begin_ns` if no row is thinned."""
    values: Int64s
    origin: Int32s

    def bins(self, width_ns: int) -> Int64s:
        """The first row of each bin; rows must be sorted."""
        new = np.ones(len(self.stream), np.bool_)
        new[1:] = (np.diff(self.stream) != 0) | (np.diff(self.begin_ns // width_ns) != 0)
        return np.flatnonzero(new)

    def joined(self, first: Int64s) -> Rows:
        """A row a bin: from its first moment to its last, the most of each counter."""
        if len(first) == len(self.stream):
            return self
        return Rows(
            self.stream[first],
            self.begin_ns[first],
            np.maximum.reduceat(self.end_ns, first),
            np.maximum.reduceat(self.values, first, axis=0),
            self.origin[first],
        )


def in_order(parts: list[Rows]) -> Rows:
    """All rows; `parts` is emptied, so that they are not in memory twice."""
    is_thinned = any(part.end_ns is not part.begin_ns for part in parts)
    columns: dict[str, npt.NDArray[Any]] = {
        "stream": np.empty(0, np.int32),
        "begin_ns": np.empty(0, np.int64),
        "values": np.empty((0, TOTAL), np.int64),
        "origin": np.empty(0, np.int32),
    }
    if is_thinned:
        columns["end_ns"] = columns["begin_ns"]
    by_name = {name: [getattr(part, name) for part in parts] for name in columns}
    parts.clear()
    for name, none in columns.items():
        columns[name] = np.concatenate([none, *by_name.pop(name)])
    runs = _runs(columns["stream"], columns["begin_ns"])
    if runs is not None:
        for name, column in columns.items():
            columns[name] = np.concatenate([column[run] for run in runs])
    order = _order(columns["stream"], columns["begin_ns"])
    if order is not None:
        for name in columns:
            columns[name] = columns[name][order]
    return Rows(**columns, **({} if is_thinned else {"end_ns": columns["begin_ns"]}))


def _runs(stream: Int32s, begin_ns: Int64s) -> list[slice] | None:
    """Runs of rows of one stream, by stream and time; None if they are so already, or short. With
    a file a rank each rank is a run: moving runs is faster than sorting rows."""
    edges = np.flatnonzero(np.diff(stream, prepend=-1, append=-1))
    count = len(edges) - 1
    if count < 1 or len(stream) < _LONG_RUN * count:
        return None
    first = edges[:-1]
    order = np.lexsort((begin_ns[first], stream[first]))
    if (np.diff(order) == 1).all():
        return None
    return [slice(edges[at], edges[at + 1]) for at in order.tolist()]


def _order(stream: Int32s, begin_ns: Int64s) -> Int32s | None:
    """The rows by stream, then time; None if they are in that order."""
    if _is_sorted(stream, begin_ns):
        return None
    # Each stream is in the order of time nearly always, and numbers of 16 bits are sorted fast.
    if int(stream.max()) < 1 << 16:
        order = np.argsort(stream.astype(np.uint16), kind="stable").astype(np.int32)
        if _is_sorted(stream[order], begin_ns[order]):
            return order
    return np.lexsort((begin_ns, stream)).astype(np.int32)


def _is_sorted(stream: Int32s, begin_ns: Int64s) -> bool:
    falls = stream[1:] < stream[:-1]
    falls |= (stream[1:] == stream[:-1]) & (begin_ns[1:] < begin_ns[:-1])
    return not falls.any()
