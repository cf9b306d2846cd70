"""All rises of a recording, from its samples: the entry point of this package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from frd.engine.memory.baseline import SECOND
from frd.engine.memory.decisions import Decision, Decisions
from frd.engine.memory.rank_rise import RankRise
from frd.engine.memory.report import report
from frd.engine.memory.rises import Rise
from frd.engine.policy import Policy
from frd.model import Finding, Int64s
from frd.offline.memory.feed import Lane, by_rank
from frd.offline.memory.rises.series import RecordedCoverage, rank_rises, samples_of
from frd.offline.memory.samples import Recorded

MIN_RISE_BYTES: Final = 1 << 26
LINK_NS: Final = round(Policy().memory_link_s * SECOND)


@dataclass(frozen=True, slots=True)
class Watched:
    """The job whose rises are looked for."""

    lanes: Sequence[Lane]
    """By rank, then time."""
    missing: Sequence[int]
    clock_uncertainty_ns: int
    """Of every host."""
    findings: Sequence[Finding]


@dataclass(slots=True)
class Walked:
    """What the samples of each rank show."""

    uncertain: set[int]
    """Ranks whose memory is not known, or not when."""
    samples: dict[int, Int64s] = field(default_factory=dict)
    """Their times, by rank."""
    rises: list[RankRise] = field(default_factory=list)


def find_rises(
    recorded: Recorded, watched: Watched, min_rise: int, warmup_ns: int
) -> list[tuple[Rise, RankRise]]:
    """Every rise of one job, in the order of onset, each with that of its first rank.

    Args:
        recorded: the samples of all jobs.
        min_rise: bytes; what is smaller is not a rise.
        warmup_ns: so much from the beginning is not looked at.
    """
    walked = walk(recorded, watched, min_rise, warmup_ns)
    if not walked.samples:
        return []
    coverage = RecordedCoverage(walked.samples, watched.clock_uncertainty_ns)
    decisions = Decisions(LINK_NS)
    decisions.advance(coverage.newest, walked.rises, coverage)
    found = [
        *decisions.decided,
        *decisions.undecided(coverage.newest, coverage, is_over=True),
    ]
    _mark_alarming(found, watched.findings)
    return list(report(found, coverage.ranks, coverage.newest, LINK_NS, walked.uncertain))


def walk(recorded: Recorded, watched: Watched, min_rise: int, warmup_ns: int) -> Walked:
    """What `find_rises` decides from."""
    since = min(lane.first_ns for lane in watched.lanes) + warmup_ns
    walked = Walked(uncertain=set(watched.missing))
    for rank, lanes in by_rank(watched.lanes):
        if any(lane.stream in recorded.backward for lane in lanes):
            walked.uncertain.add(rank)
        if (times := samples_of(recorded, lanes, since)) is None:
            walked.uncertain.add(rank)
            continue
        walked.samples[rank] = times
        reach = watched.clock_uncertainty_ns
        walked.rises += rank_rises(recorded, lanes, min_rise, since, reach)
    return walked


def _mark_alarming(decisions: Sequence[Decision], findings: Sequence[Finding]) -> None:
    """Each finding is about the last decision that had begun when it was opened."""
    for finding in findings:
        ranks = {suspect.rank for suspect in finding.suspects} or set(finding.victims)
        about = [one for one in decisions if one.lo <= finding.opened_at and one.ranks & ranks]
        if about:
            last = max(about, key=lambda one: (one.lo, one.limit))
            last.rises[0].alarming_at = finding.opened_at
