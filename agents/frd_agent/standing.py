"""Where a rank stands now: its rings as last read, carried forward by its tap's counters.

Absence is evidence only up to the moment for which all numbers are the whole truth, so each answer
says that moment: the publication of the counters where every one of them is unchanged since the
dump or can be turned into a seq, else the last dump. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from frd.flight import Status
from frd.model import NodeNs
from frd_agent.progress import Marks
from frd_agent.transitions import Ring
from frd_agent.watch import Raw


@dataclass(frozen=True, slots=True)
class Recorder:
    """One kind of recorder that a rank may offer."""

    handler: str
    params: Mapping[str, str]
    number: int | None
    """The tap's name for it; None when the tap has no counters of it."""


@dataclass(frozen=True, slots=True)
class Standing:
    marks: list[tuple[int, Marks]]
    """By group index."""
    as_of_ns: NodeNs
    """0 when nothing is known."""
    exact: bool
    """The counters sufficed: `as_of_ns` is as new as they are."""


def stand(
    rings: Iterable[tuple[Recorder, Ring]], raw: Raw | None, published_at_ns: NodeNs
) -> Standing:
    """`raw` is None when the tap publishes nothing, or nothing that can be read."""
    marks: list[tuple[int, Marks]] = []
    as_of: int | None = None
    exact = raw is not None
    for recorder, ring in rings:
        counters = _of(recorder, raw) if raw is not None else None
        if counters is None or published_at_ns <= ring.taken_at_ns or not ring.taken_at_ns:
            ring_marks = [(progress.group, progress.marks) for progress in ring.groups]
            until: int = ring.taken_at_ns
            exact = exact and recorder.number is not None and ring.taken_at_ns > 0
        else:
            ring_marks, complete = _carried(ring, counters, published_at_ns)
            until = published_at_ns if complete else ring.taken_at_ns
            exact = exact and complete
        marks += ring_marks
        as_of = until if as_of is None else min(as_of, until)
    return Standing(marks, NodeNs(as_of or 0), exact)


def raw_of(rings: Iterable[tuple[Recorder, Ring]]) -> dict[tuple[int, int], Status]:
    """The counters as of the last dump, in the tap's terms."""
    return {
        (recorder.number, pg_id): status
        for recorder, ring in rings
        if recorder.number is not None
        for pg_id, status in ring.status.items()
    }


def _of(recorder: Recorder, raw: Raw) -> dict[int, Status] | None:
    if recorder.number is None:
        return None
    return {pg_id: status for (number, pg_id), status in raw.items() if number == recorder.number}


def _carried(
    ring: Ring, counters: Mapping[int, Status], at_ns: NodeNs
) -> tuple[list[tuple[int, Marks]], bool]:
    """The ring's marks at `at_ns`, and whether they are the whole truth then."""
    marks = []
    complete = True
    read = set()
    for progress in ring.groups:
        read.add(progress.pg_id)
        status, before = counters.get(progress.pg_id), ring.status.get(progress.pg_id)
        if progress.closed or (status == before and status is not None and not ring.held):
            marks.append((progress.group, progress.marks))
            continue
        if status is None:  # entries without counters (torchcomms) may have followed unseen
            marks.append((progress.group, progress.marks))
            complete = False
            continue
        carried = progress.translated(status, at_ns)
        complete = complete and carried is not None
        marks.append((progress.group, carried or progress.marks))
    unread = (
        pg_id
        for pg_id, status in counters.items()
        if pg_id not in read and status != ring.status.get(pg_id)
    )
    return marks, complete and next(unread, None) is None
