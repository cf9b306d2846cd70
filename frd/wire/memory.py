"""Batches of memory samples, and events: the structure is checked here, the values are not.

A batch that contradicts itself or what was declared ends its stream, like any other. An
impossible value (negative, too large, out of order) does not: samples come from drivers and from
files of the kernel, and one broken series must not stop the rest of its node. Such samples
are refused one by one in the engine, which knows their history.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from frd.errors import WireError
from frd.model import MemoryColumns, MemoryEvent
from frd.v1 import stream_pb2 as pb
from frd.wire.columns import SAMPLE_TIMES, SAMPLE_VALUES, SERIES_COLUMNS, read_columns
from frd.wire.declarations import Declarations
from frd.wire.fields import read
from frd.wire.messages import MemoryEvents


class MemoryReader:
    """Decodes the memory messages of one stream, whose declarations are `known`."""

    def __init__(self, known: Declarations) -> None:
        self._known = known
        # Batch after batch has the same series: they are checked once.
        self._last_series_sent = b""
        self._series: npt.NDArray[Any]

    def batch(self, m: pb.MemoryBatch) -> MemoryColumns:
        """`series` is the same array object as in the last batch if the series are the same."""
        if not m.series:
            raise WireError("memory.series", "missing", "empty: send a batch that has series")
        by_series, times = read_columns(m, SERIES_COLUMNS), read_columns(m, SAMPLE_TIMES)
        if m.series != self._last_series_sent:
            self._check_series(by_series["series"])
            self._last_series_sent, self._series = m.series, by_series["series"]
        by_series["series"] = self._series
        shape = len(self._series), len(times["begin_ns"])
        values = read_columns(m, SAMPLE_VALUES, shape[0] * shape[1])["values"]
        return MemoryColumns(**by_series, **times, values=values.reshape(shape))

    def _check_series(self, series: npt.NDArray[Any]) -> None:
        attempt = self._known.series.attempt_of("memory.series", int(series[0]))
        self._known.series.check("memory.series", series, attempt)
        if len(np.unique(series)) != len(series):
            raise WireError("memory.series", "disagree", "one series twice: send each once")

    def events(self, m: pb.MemoryEventBatch) -> MemoryEvents:
        for event in m.events:
            self._known.ranks.attempt_of("memory_events.rank_index", event.rank_index)
        return MemoryEvents(tuple([read(MemoryEvent, one, "memory_events") for one in m.events]))
