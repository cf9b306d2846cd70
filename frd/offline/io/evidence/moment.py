"""The moment of which traces are asked: when a suspect was last seen, by the dumps of its job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from frd.model import Finding, Suspect
from frd.offline.analysis.analyze import Analysis
from frd.offline.io.evidence.activity import NEVER

_LEAST_WAIT_NS: Final = 10**9
_START_NS: Final = 3_600 * 10**9
"""A rank without entries may have begun so long before the first entry of the job."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a suspect was last seen, and what its dump shows; aligned nanoseconds."""

    at: int
    is_measured: bool
    """It was asked for its dump then; else this is the last time in the dumps, and the dumps were
    taken later."""
    since: int
    """Since when its peers had waited, if that is known."""
    wait: int
    """How long its peers had waited when the dumps were taken, at least."""
    entered: int
    """When it made its last collective; `NEVER` if it made none."""
    begun: int
    """A trace that ended before this is of another run."""


def moment_of(analysis: Analysis, finding: Finding, suspect: Suspect) -> Moment:
    at, is_measured = _last_seen_ns(analysis, finding, suspect)
    times = {rank: found for rank in analysis.trace.ranks if (found := _entered(analysis, rank))}
    first, last = times.get(suspect.rank, (NEVER, NEVER))
    if first == NEVER and times:
        first = min(begin for begin, _ in times.values()) - _START_NS
    since = at if suspect.onset_at is None else min(suspect.onset_at, at)
    wait = max(at - since, int(analysis.stall_after_s * 1e9), _LEAST_WAIT_NS)
    return Moment(at, is_measured, since, wait, entered=min(last, at), begun=first)


def _entered(analysis: Analysis, rank: int) -> tuple[int, int] | None:
    """When a rank made the first and the last collective that its dump has."""
    created = analysis.trace.ranks[rank].created_ns
    created = created[created > 0]
    if not len(created):
        return None
    offset = analysis.clock_offsets_ns.get(rank, 0)
    return int(created.min()) + offset, int(created.max()) + offset


def _last_seen_ns(analysis: Analysis, finding: Finding, suspect: Suspect) -> tuple[int, bool]:
    """When the rank was asked for its dump; else the last moment that a dump of the job shows.

    The time of a file alone is no evidence: it may have been copied.
    """
    trace = analysis.trace
    offsets = analysis.clock_offsets_ns
    one = trace.ranks.get(suspect.rank)
    if one is not None and one.dumped_from_ns:
        return one.dumped_from_ns + offsets.get(suspect.rank, 0), True
    times = [
        int(of.created_ns.max()) + offsets.get(rank, 0)
        for rank, of in trace.ranks.items()
        if len(of)
    ]
    return max([*times, finding.opened_at, suspect.onset_at or 0]), False
