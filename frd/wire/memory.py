"""Batches of memory samples, and events: the structure is checked here, the values are not.

A batch that contradicts itself or what was declared ends its stream, like any other. An
impossible value (negative, too large, out of order) does not: samples come from drivers and from
files of the kernel, and one broken series must not stop the rest of its node. Such samples
are refused one by one in the engine, which knows their history.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from frd.errors import WireError
from frd.model import MemoryColumns, MemoryEvent, NodeNs
from frd.v1 import stream_pb2 as pb
from frd.wire.columns import I8, U4, check_below, check_time, check_times, column
from frd.wire.dictionary import Dictionary, check_text
from frd.wire.encode import EVENT_KINDS
from frd.wire.messages import MemoryEvents

_KIND_OF: Final = {number: kind for kind, number in EVENT_KINDS.items()}


class MemoryReader:
    """Decodes the memory messages of one stream, whose declarations are in `dictionary`."""

    def __init__(self, dictionary: Dictionary) -> None:
        self._dictionary = dictionary
        # Batch after batch has the same series: they are checked once.
        self._last_series_sent = b""
        self._series: npt.NDArray[Any] = np.empty(0, U4)

    def batch(self, m: pb.MemoryBatch) -> MemoryColumns:
        """`series` is the same array object as in the last batch if the series are the same."""
        series = self._series_of(m.series)
        begin = column("memory.begin_ns", m.begin_ns, I8)
        moments = len(begin)
        values = column("memory.values", m.values, I8, len(series) * moments)
        columns = MemoryColumns(
            series=series,
            capacity=column("memory.capacity", m.capacity, I8, len(series)),
            begin_ns=begin,
            end_ns=column("memory.end_ns", m.end_ns, I8, moments),
            values=values.reshape(len(series), moments),
        )
        check_times("memory.begin_ns", begin)
        check_times("memory.end_ns", columns.end_ns)
        return columns

    def _series_of(self, data: bytes) -> npt.NDArray[Any]:
        if data == self._last_series_sent and data:
            return self._series
        series = column("memory.series", data, U4)
        if not len(series):
            raise WireError("memory.series", "missing", "empty: send a batch that has series")
        check_below("memory.series", series, self._dictionary.series_count)
        self._dictionary.check_series("memory.series", series)
        if len(np.unique(series)) != len(series):
            raise WireError("memory.series", "disagree", "one series twice: send each once")
        self._last_series_sent, self._series = data, series
        return series

    def events(self, m: pb.MemoryEventBatch) -> MemoryEvents:
        return MemoryEvents(tuple([self._event(event) for event in m.events]))

    def _event(self, m: pb.MemoryEvent) -> MemoryEvent:
        self._dictionary.attempt_of_rank("memory_events.rank_index", m.rank_index)
        if (kind := _KIND_OF.get(m.kind)) is None:
            raise WireError(
                "memory_events.kind", "range", f"{m.kind}: send a kind of frd.v1.MemoryEventKind"
            )
        check_time("memory_events.at_ns", m.at_ns)
        if m.requested_bytes >= 2**63:
            raise WireError(
                "memory_events.requested_bytes", "range", f"{m.requested_bytes}: overflows"
            )
        return MemoryEvent(
            rank=m.rank_index,
            kind=kind,
            at_ns=NodeNs(m.at_ns),
            device=check_text("memory_events.device", m.device),
            requested_bytes=m.requested_bytes,
            detail=check_text("memory_events.detail", m.detail),
        )
