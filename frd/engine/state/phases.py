"""The phases of each rank's program, as its tap has published them.

A span says that the rank was in a phase all the time from its beginning to its end, whatever
shorter phases there were inside it. So a rank was certainly in a phase during an interval if a span
covers the interval; nothing is concluded from missing spans. Times are node times, as all that is
known of one rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from frd.engine.state.tables import RankTable
from frd.model import AlignedNs, Int64s, NodeRawNs, PhaseSpan, RankPhases, SuspectPhase

MAX_ENDED: Final = 16
"""Phases of a rank that have ended, the last."""
SETTLED_NS: Final = 5_000_000_000
"""A phase is known to the service this long after its beginning: the tap waits half a second,
whether it lasts, the agent up to a second for its next round, and a busy rank or node takes longer.
A suspect that goes from phase to phase changes the evidence at most this often. In half of it, some
phases come too late for the onset of memory; with twice as much, evidence shows an old phase."""


@dataclass(slots=True)
class _Known:
    """The phases of one rank."""

    open: tuple[PhaseSpan, ...] = ()
    ended: tuple[PhaseSpan, ...] = ()
    """In the order of their ends."""
    begun: dict[int, AlignedNs] = field(default_factory=dict)
    """Beginnings that findings show, by node time: better clocks do not change their text."""
    current: SuspectPhase | None = None
    """What `PhasesAt.current` returned last."""
    changed_at: AlignedNs | None = None


class Phases:
    def __init__(self) -> None:
        self._of: dict[int, _Known] = {}

    def observe(self, phases: RankPhases) -> None:
        """Add the phases that have ended, and replace those that go on."""
        known = self._of.setdefault(phases.rank, _Known())
        known.open = tuple(span for span in phases.spans if not span.until_ns)
        ended = dict.fromkeys((*known.ended, *(span for span in phases.spans if span.until_ns)))
        known.ended = tuple(sorted(ended, key=lambda span: span.until_ns)[-MAX_ENDED:])
        still = {span.since_ns for span in (*known.open, *known.ended)}
        known.begun = {since: at for since, at in known.begun.items() if since in still}

    def known(self, rank: int) -> _Known | None:
        return self._of.get(rank)

    def forget(self, rank: int) -> None:
        """Another process has the rank."""
        self._of.pop(rank, None)

    def clear(self) -> None:
        self._of.clear()

    def move_times(self, rank: int, by_ns: int) -> None:
        """The node time of a rank is by so much later from now on."""
        if (known := self._of.get(rank)) is not None:
            known.open = tuple(_moved(known.open, by_ns))
            known.ended = tuple(_moved(known.ended, by_ns))
            known.begun = {since + by_ns: at for since, at in known.begun.items()}


def _moved(spans: Iterable[PhaseSpan], by_ns: int) -> Iterable[PhaseSpan]:
    for span in spans:
        until_ns = span.until_ns + by_ns if span.until_ns else 0
        yield replace(span, since_ns=NodeRawNs(span.since_ns + by_ns), until_ns=NodeRawNs(until_ns))


@dataclass(frozen=True, slots=True)
class PhasesAt:
    """The phases of all ranks, looked at now, in aligned time."""

    _phases: Phases
    _ranks: RankTable
    _now: AlignedNs

    def current(self, rank: int) -> SuspectPhase | None:
        """The phase in which a rank was when it last reported; None if it is not known to be in
        one. Phases that follow each other fast are left out."""
        known = self._phases.known(rank)
        if known is None:
            return None
        found = self._deepest(rank, known, known.open)
        since = known.changed_at
        if found != known.current and (since is None or self._now - since >= SETTLED_NS):
            known.current, known.changed_at = found, self._now
        return known.current

    def during(self, rank: int, begin: int, end: int) -> SuspectPhase | None:
        """The innermost phase that is certain to have lasted from begin to end (aligned ns)."""
        known = self._phases.known(rank)
        spans = () if known is None else (*known.open, *known.ended)
        if known is None or not spans:
            return None
        reported = int(self._ranks.as_of[rank])  # what was open then went on until then
        times = [(span.since_ns, span.until_ns or max(reported, span.since_ns)) for span in spans]
        aligned = self._aligned(rank, np.array(times, np.int64))
        covers = (aligned[:, 0] <= begin) & (aligned[:, 1] >= end)
        return self._deepest(rank, known, [spans[at] for at in np.flatnonzero(covers).tolist()])

    def is_settled(self, rank: int, at: int) -> bool:
        """The phases of a rank at this time (aligned ns) are known for good."""
        reported = self._aligned(rank, np.array([self._ranks.as_of[rank]]))
        return int(reported[0]) >= at + SETTLED_NS

    def _deepest(self, rank: int, known: _Known, spans: Iterable[PhaseSpan]) -> SuspectPhase | None:
        span = max(spans, key=lambda one: (len(one.path), one.since_ns), default=None)
        if span is None:
            return None
        since = AlignedNs(int(self._aligned(rank, np.array([span.since_ns]))[0]))
        return SuspectPhase(span.path, known.begun.setdefault(span.since_ns, since))

    def _aligned(self, rank: int, times: Int64s) -> Int64s:
        return self._ranks.to_aligned(rank, times, self._now)
