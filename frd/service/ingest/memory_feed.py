"""The memory of one stream's ranks: from stream indexes and node times to the engine.

A session has one of these. What an interval of time is worth depends on how well the node's clock
is known: the onset of a rise is between two samples, extended by the clock uncertainty.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from frd.engine.attempt import Attempt
from frd.model import AlignedNs, Int64s, MemoryColumns, MemoryEvent, SeriesInfo
from frd.service.ingest.stream_handles import IndexColumn

UNKNOWN_UNCERTAINTY_NS: Final = 50_000_000
"""Uncertainty of a clock without pings: more than the delay of a slow network, and little
compared with the 100 ms between two samples."""


class MemoryFeed:
    """Series in the order of their declaration."""

    def __init__(self) -> None:
        self._refused = 0
        self._handles = IndexColumn()
        self._attempts: list[Attempt | None] = []

    def declare(self) -> int:
        """The index of a series of which nothing counts until it is entered."""
        self._handles.append(0)
        self._attempts.append(None)
        return len(self._attempts) - 1

    def enter(self, index: int, attempt: Attempt, rank: int, info: SeriesInfo) -> None:
        """A declared series is of the global `rank`; `info` has the rank's stream index."""
        self._handles.put(index, attempt.memory_series(replace(info, rank=rank)))
        self._attempts[index] = attempt

    def leave(self, index: int) -> None:
        """What is reported of the series counts no more."""
        self._attempts[index] = None

    def observe(
        self,
        batch: MemoryColumns,
        begin: Int64s,
        uncertainty_ns: int | None,
        now: AlignedNs,
    ) -> None:
        """Samples whose reading began at the aligned times `begin`.

        It took a few milliseconds, which are as long on any clock. The wire has seen to it that
        all series of a batch are of one attempt.
        """
        if (attempt := self._attempts[int(batch.series[0])]) is None:
            return
        slack_ns = UNKNOWN_UNCERTAINTY_NS if uncertainty_ns is None else uncertainty_ns
        columns = MemoryColumns(
            series=self._handles.take(batch.series),
            capacity=batch.capacity,
            begin_ns=begin - slack_ns,
            end_ns=begin + (batch.end_ns - batch.begin_ns + slack_ns),
            values=batch.values,
        )
        self._refused += attempt.memory.observe(columns, now)

    def take_refused(self) -> int:
        """Samples since the last call that cannot be true."""
        refused, self._refused = self._refused, 0
        return refused


def observe_event(
    attempt: Attempt,
    event: MemoryEvent,
    at: AlignedNs,
    uncertainty_ns: int | None,
    now: AlignedNs,
) -> None:
    """What happened to the global rank of `event`, at an aligned time."""
    slack_ns = UNKNOWN_UNCERTAINTY_NS if uncertainty_ns is None else uncertainty_ns
    attempt.memory.event(event, AlignedNs(min(at, now)), slack_ns, now)
