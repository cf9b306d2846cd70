"""One row of the table of phases: a scope of one thread, from phase events or from traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from frd.offline.io.spans import longest

EVENTS: Final = "phase events"
TRACES: Final = "traces"
"""Where a span is from."""

MAX_SPANS: Final = 1 << 18
"""Most spans of each source, about 100 MB; of more than that the shortest are left out."""
LAST_NS: Final = 1 << 62
"""No clock shows more; a damaged line may."""

Process: TypeAlias = tuple[str, int, int, str]
"""Job, rank, pid and session, as events of telemetry have them."""


class PhaseThread(NamedTuple):
    """A thread of a rank that was in phases."""

    job: str
    rank: int
    host: str
    pid: int
    session: str
    thread_id: int
    name: str

    @property
    def is_main(self) -> bool:
        return self.name == "MainThread" or self.thread_id == self.pid


class PhaseSpan(NamedTuple):
    """One scope. A time is in it from `begin_ns` on, and before `end_ns`."""

    thread: PhaseThread
    path: tuple[str, ...]
    """Outermost phase first; its own name is the last."""
    begin_ns: int
    """On the clock of the host, as is `end_ns`."""
    end_ns: int
    """When the recording ended, if it is open."""
    is_open: bool
    scope_id: str
    source: str
    """`EVENTS` or `TRACES`."""

    @property
    def stop_ns(self) -> int:
        """The first time after it: the last sample of a recording is in an open scope."""
        return self.end_ns + self.is_open


def longest_of(spans: Sequence[PhaseSpan]) -> Sequence[PhaseSpan]:
    """At most `MAX_SPANS` of them, the longest, in the same order."""
    if len(spans) <= MAX_SPANS:
        return spans
    lengths = np.array([span.end_ns - span.begin_ns for span in spans], np.int64)
    return [spans[at] for at in longest(lengths, MAX_SPANS).tolist()]
