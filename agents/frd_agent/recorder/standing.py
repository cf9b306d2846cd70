"""Progress of a rank: its recorders as last read, and the time up to which that is complete.

The absence of an op proves something only up to that time: the time at which the tap published its
counters, if none of them has changed since the dump; otherwise the time of the dump. Counters that
changed only say that there is something to read (`progress` says why). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from frd.flight import Status
from frd.model import NodeNs
from frd_agent.ranks.poll_schedule import Raw
from frd_agent.recorder.progress import Marks
from frd_agent.recorder.transitions import Ring


@dataclass(frozen=True, slots=True)
class Recorder:
    """One kind of recorder that a rank may offer."""

    handler: str
    params: Mapping[str, str]
    number: int | None
    """The tap's number for it; None if the tap has no counters of it."""


@dataclass(frozen=True, slots=True)
class Standing:
    marks: list[tuple[int, Marks]]
    """By group index."""
    as_of_ns: NodeNs
    """0 when nothing is known."""
    exact: bool
    """`as_of_ns` is as new as the counters."""


def stand(
    rings: Iterable[tuple[Recorder, Ring]], raw: Raw | None, published_at_ns: NodeNs
) -> Standing:
    """`raw`: the tap's counters, None if it publishes none that can be read."""
    marks: list[tuple[int, Marks]] = []
    rings = list(rings)
    seems_idle = not any(ring.is_waiting for _, ring in rings)
    as_of: int | None = None
    exact = raw is not None and bool(rings)
    for recorder, ring in rings:
        marks += [(progress.group, progress.marks) for progress in ring.groups]
        until: int = ring.taken_at_ns
        if seems_idle and ring.is_blind:
            exact, until = False, ring.seen_until_ns
        elif raw is None or recorder.number is None or not ring.taken_at_ns:
            exact = False
        elif published_at_ns > ring.taken_at_ns:
            if _has_rested(ring, _of(recorder.number, raw)):
                until = published_at_ns
            else:
                exact = False
        as_of = until if as_of is None else min(as_of, until)
    return Standing(marks, NodeNs(as_of or 0), exact)


def stand_at_end(
    rings: Iterable[tuple[Recorder, Ring]], raw: Raw | None, published_at_ns: NodeNs
) -> Standing | None:
    """Where a process ended whose tap wrote its counters at the very end; None if the counters do
    not say how far it came."""
    marks: list[tuple[int, Marks]] = []
    rings = list(rings)
    if raw is None or not rings:
        return None
    for recorder, ring in rings:
        if recorder.number is None or not ring.taken_at_ns or not ring.is_whole:
            return None
        counters = _of(recorder.number, raw)
        read = {progress.pg_id: progress for progress in ring.groups}
        if any(status.enqueued > 0 and pg_id not in read for pg_id, status in counters.items()):
            return None  # a group that no dump has shown
        for pg_id, progress in read.items():
            last = counters.get(pg_id)
            known = progress.last_marks(last, published_at_ns) if last is not None else None
            if known is None:
                return None
            marks.append((progress.group, known))
    return Standing(marks, published_at_ns, exact=True)


def raw_of(rings: Iterable[tuple[Recorder, Ring]]) -> dict[tuple[int, int], Status]:
    """The counters as of the last dump, in the tap's terms."""
    return {
        (recorder.number, pg_id): status
        for recorder, ring in rings
        if recorder.number is not None
        for pg_id, status in ring.status.items()
    }


def _of(number: int, raw: Raw) -> dict[int, Status]:
    return {pg_id: status for (recorder, pg_id), status in raw.items() if recorder == number}


def _has_rested(ring: Ring, counters: Mapping[int, Status]) -> bool:
    """Nothing has been enqueued or completed since the dump."""
    closed = {progress.pg_id for progress in ring.groups if progress.closed}
    alive = {progress.pg_id for progress in ring.groups if not progress.closed}
    # A group without counters (torchcomms) may have unread entries.
    return (
        ring.is_whole
        and alive <= counters.keys()
        and all(
            status == ring.status.get(pg_id)
            for pg_id, status in counters.items()
            if pg_id not in closed
        )
    )
