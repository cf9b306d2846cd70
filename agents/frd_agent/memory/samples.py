"""Queue of memory samples for the service: bounded, read as columns.

Samples are not acknowledged, so a new stream sends the last samples of the previous stream again,
which may have been lost. Unsent samples are kept until space runs out; then the oldest are dropped
and counted. The sampler's thread adds and the event loop takes, so a lock protects the shared
state. This module reads no clock. Series get their numbers when they are taken, on the event loop.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from frd.model import MemoryColumns, MemoryEvent, SeriesInfo
from frd.wire.messages import MemoryEvents
from frd_agent.memory.table import Layout, Table
from frd_agent.memory.target import NO_SAMPLE, Reading

_UNSURE_NS: Final = 10_000_000_000
"""A broken stream may have lost this much: writes succeed until keepalive notices the break, after
7 s."""
_EVENTS_KEPT_NS: Final = 60_000_000_000
"""A replica that is cut off from its cluster leaves to the next one nothing of what it was sent."""
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
    values: array[int]

    @property
    def bytes(self) -> int:
        return _MOMENT_BYTES + self.values.itemsize * len(self.values)


@dataclass(slots=True, eq=False)
class Samples:
    max_bytes: int
    number_of: Callable[[SeriesInfo], int]
    """Gives the dictionary's number of a series; called from `next_batch` only."""
    max_moments: int = MAX_MOMENTS
    dropped: int = 0
    """Moments of an attempt that the service will never see."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _tables: dict[tuple[int, bool], Table] = field(default_factory=dict)
    """By attempt, and whether they are late; the sampler's side only."""
    _waiting: deque[_Moment] = field(default_factory=deque)
    _sent: deque[_Moment] = field(default_factory=deque)
    """Given to the present stream, the last `_UNSURE_NS` only."""
    _bytes: int = 0
    _events: deque[MemoryEvent] = field(default_factory=lambda: deque(maxlen=_MAX_EVENTS))
    _sent_events: deque[MemoryEvent] = field(default_factory=lambda: deque(maxlen=_MAX_EVENTS))
    _jumped: bool = False

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
            if begin_ns > table.last_ns and max(values) != NO_SAMPLE:
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
            for series, value in zip(layout.series, latest, strict=True)
            if value != NO_SAMPLE
        }

    def limit(self, max_bytes: int) -> None:
        """Another bound; from any thread."""
        with self._lock:
            self.max_bytes = max_bytes
            self._make_room()

    def _keep(self, moment: _Moment) -> None:
        self._waiting.append(moment)
        self._bytes += moment.bytes
        self._make_room()

    def _make_room(self) -> None:
        while self._bytes > self.max_bytes or self.moments > self.max_moments:
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
            series=np.array([self.number_of(series) for series in layout.series], np.uint32),
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
        self._forget_sent(taken[-1].end_ns)
        return taken

    def _forget_sent(self, last_ns: int) -> None:
        while self._sent and self._sent[0].end_ns < last_ns - _UNSURE_NS:
            self._bytes -= self._sent.popleft().bytes
        while self._sent_events and self._sent_events[0].at_ns < last_ns - _EVENTS_KEPT_NS:
            self._sent_events.popleft()


class NodeSamples:
    """The samples of all jobs of a node, for the sampler, which knows attempts but no jobs.

    Every job has its own queue, because it has its own stream. The sampler's thread adds while the
    event loop adds and removes queues, so a table of them is replaced, never changed.
    """

    def __init__(self, job_of: Callable[[int], str], attempt_of: Callable[[int], int]) -> None:
        """`job_of` gives the job of an attempt, `attempt_of` the attempt of a rank, by the
        dictionary's numbers. Both are called on the sampler's thread, too."""
        self._job_of = job_of
        self._attempt_of = attempt_of
        self._queues: Mapping[str, Samples] = {}

    def use(self, queues: Mapping[str, Samples]) -> None:
        """The queues by job, from now on."""
        self._queues = dict(queues)

    # -- the sampler's side --------------------------------------------------------------------

    def add(
        self, begin_ns: int, end_ns: int, readings: Iterable[Reading], *, late: bool = False
    ) -> bool:
        """As `Samples.add`. Readings of a job without a queue, which has just ended, are left
        out."""
        queues = self._queues
        by_job: dict[str, list[Reading]] = {}
        for reading in readings:
            by_job.setdefault(self._job_of(reading.attempt), []).append(reading)
        jumped = False
        for job, some in by_job.items():
            if (queue := queues.get(job)) is not None:
                jumped |= queue.add(begin_ns, end_ns, some, late=late)
        return jumped

    def event(self, event: MemoryEvent) -> None:
        queue = self._queues.get(self._job_of(self._attempt_of(event.rank)))
        if queue is not None:
            queue.event(event)

    def follow(self, attempts: Collection[int], ranks: Collection[int]) -> None:
        """These are alive, and no others."""
        for queue in self._queues.values():
            queue.follow(attempts, ranks)

    def latest(self) -> dict[SeriesInfo, int]:
        """As `Samples.latest`; from any thread."""
        return {
            series: value
            for queue in self._queues.values()
            for series, value in queue.latest().items()
        }


Sink: TypeAlias = Samples | NodeSamples
"""Takes what is sampled."""
