"""Queue of memory samples for the service: bounded, read as columns.

Samples are not acknowledged, so a new stream sends the last samples of the previous stream again,
which may have been lost. Unsent samples are kept until space runs out; then the oldest are dropped
and counted. The sampler's thread adds and the event loop takes, so a lock protects the shared
state. This module reads no clock. Series get their numbers when they are taken, on the event loop.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.model import Int64s, MemoryColumns, MemoryEvent, SeriesInfo
from frd.wire.messages import MemoryEvents
from frd_agent.memory.table import Layout, Table
from frd_agent.memory.target import NO_SAMPLE, Reading

_UNSURE_NS: Final = 10_000_000_000
"""A broken stream may have lost this much: writes succeed until keepalive notices the break, after
7 s."""
_MESSAGE_VALUES: Final = 32_768
"""Of one message: 256 KiB."""
_MAX_EVENTS: Final = 1_024
_MOMENT_BYTES: Final = 256
"""Memory cost of a sample in addition to its values."""
MAX_MOMENTS: Final = 36_000
"""An hour of one attempt at 10 Hz."""


@dataclass(frozen=True, slots=True)
class _Moment:
    layout: Layout
    begin_ns: int
    end_ns: int
    values: Int64s

    @property
    def bytes(self) -> int:
        return _MOMENT_BYTES + self.values.nbytes


class Samples:
    def __init__(
        self,
        max_bytes: int,
        number_of: Callable[[SeriesInfo], int],
        max_moments: int = MAX_MOMENTS,
    ) -> None:
        """`number_of` gives the dictionary's number of a series; called from `next_batch` only."""
        self._max_bytes = max_bytes
        self._max_moments = max_moments
        self._number_of = number_of
        self._lock = threading.Lock()
        self._tables: dict[tuple[int, bool], Table] = {}
        """By attempt, and whether they are late; the sampler's side only."""
        self._waiting: deque[_Moment] = deque()
        self._sent: deque[_Moment] = deque()
        """Handed to the present stream, the last `_UNSURE_NS` only."""
        self._bytes = 0
        self._events: deque[MemoryEvent] = deque(maxlen=_MAX_EVENTS)
        self._sent_events: deque[MemoryEvent] = deque(maxlen=_MAX_EVENTS)
        self._jumped = False
        self.dropped = 0
        """Moments of an attempt that the service will never see."""

    # -- the sampler's side --------------------------------------------------------------------

    def add(
        self, begin_ns: int, end_ns: int, readings: Iterable[Reading], *, late: bool = False
    ) -> bool:
        """One moment of all attempts; True when a value has jumped.

        Moments must begin one after the other. Those that are `late` do so among themselves; one
        that does not is left out.
        """
        by_attempt: dict[int, list[Reading]] = {}
        for reading in readings:
            by_attempt.setdefault(reading.attempt, []).append(reading)
        jumped = False
        for attempt, some in by_attempt.items():
            table = self._tables.get((attempt, late))
            if table is None:
                table = self._tables[attempt, late] = Table(attempt, late)
            values = table.values(some)
            if other := self._tables.get((attempt, not late)):
                other.hide(some)
            if begin_ns > table.last_ns and (values != NO_SAMPLE).any():
                table.last_ns = begin_ns
                jumped |= table.jumps(values)
                with self._lock:
                    self._keep(_Moment(table.layout, begin_ns, end_ns, values))
        self._jumped |= jumped
        return jumped

    def event(self, event: MemoryEvent) -> None:
        with self._lock:
            self._events.append(event)

    def follow(self, attempts: Collection[int], ranks: Collection[int]) -> None:
        """These are alive, and no others."""
        self._tables = {key: table for key, table in self._tables.items() if key[0] in attempts}
        for table in self._tables.values():
            table.keep(ranks)

    def latest(self) -> dict[SeriesInfo, int]:
        """The last value of every series of a living rank; from any thread."""
        return {
            series: value
            for layout, latest in [table.shown for table in list(self._tables.values())]
            for series, value in zip(layout.series, latest.tolist(), strict=True)
            if value != NO_SAMPLE
        }

    def limit(self, max_bytes: int) -> None:
        """Another bound; from any thread."""
        with self._lock:
            self._max_bytes = max_bytes
            self._make_room()

    def _keep(self, moment: _Moment) -> None:
        self._waiting.append(moment)
        self._bytes += moment.bytes
        self._make_room()

    def _make_room(self) -> None:
        while self._bytes > self._max_bytes or self.moments > self._max_moments:
            if self._sent:
                self._bytes -= self._sent.popleft().bytes
            else:
                self._bytes -= self._waiting.popleft().bytes
                self.dropped += 1

    # -- the stream's side ---------------------------------------------------------------------

    @property
    def moments(self) -> int:
        """Kept here, sent or not."""
        return len(self._waiting) + len(self._sent)

    @property
    def waiting(self) -> int:
        """Moments that no stream was given."""
        return len(self._waiting)

    @property
    def urgent(self) -> bool:
        """There is something that should not wait for the next round."""
        return self._jumped or bool(self._events)

    def next_events(self) -> MemoryEvents | None:
        with self._lock:
            if not self._events:
                return None
            events = tuple(self._events)
            self._events.clear()
            self._sent_events.extend(events)
        return MemoryEvents(events)

    def next_batch(self) -> MemoryColumns | None:
        """Moments that the present stream was not given, the oldest and others like it.

        In numbers of the dictionary.
        """
        self._jumped = False
        with self._lock:
            if not self._waiting:
                return None
            moments = self._take_alike()
        layout = moments[0].layout
        return MemoryColumns(
            series=np.array([self._number_of(series) for series in layout.series], np.uint32),
            capacity=np.array(layout.capacity, np.int64),
            begin_ns=np.array([moment.begin_ns for moment in moments], np.int64),
            end_ns=np.array([moment.end_ns for moment in moments], np.int64),
            values=np.stack([moment.values for moment in moments], axis=1),
        )

    def rewind(self) -> None:
        """A new stream: the last samples of the previous stream are sent again."""
        with self._lock:
            self._waiting.extendleft(reversed(self._sent))
            self._sent.clear()
            self._events.extendleft(reversed(self._sent_events))
            self._sent_events.clear()

    def _take_alike(self) -> list[_Moment]:
        """Moments of one layout from among those of other tables."""
        layout = self._waiting[0].layout
        most = max(_MESSAGE_VALUES // len(layout.series), 1)
        taken: list[_Moment] = []
        others: list[_Moment] = []
        while self._waiting and len(taken) < most:
            moment = self._waiting[0]
            same_table = moment.layout.attempt == layout.attempt and (
                moment.layout.late == layout.late
            )
            if moment.layout is not layout and same_table:
                break
            (taken if moment.layout is layout else others).append(self._waiting.popleft())
        self._waiting.extendleft(reversed(others))
        self._sent.extend(taken)
        self._forget_sent(taken[-1].end_ns - _UNSURE_NS)
        return taken

    def _forget_sent(self, before_ns: int) -> None:
        while self._sent and self._sent[0].end_ns < before_ns:
            self._bytes -= self._sent.popleft().bytes
        while self._sent_events and self._sent_events[0].at_ns < before_ns:
            self._sent_events.popleft()
