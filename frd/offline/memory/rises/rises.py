"""All rises of a recording, from its samples: the entry point of this package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from frd.engine.memory.baseline import REVEALED_NS
from frd.model import Confidence, Finding
from frd.offline.memory.feed import Lane, by_rank
from frd.offline.memory.rises.decision import Decision, Outcome
from frd.offline.memory.rises.decisions import LINK_NS, decide, mark_followers
from frd.offline.memory.rises.rank_rise import RankRise
from frd.offline.memory.rises.rise import Rise, RiseSuspect
from frd.offline.memory.rises.series import SeriesRise, joined, rank_rises, samples_of
from frd.offline.memory.rises.words import with_text
from frd.offline.memory.samples import Recorded
from frd.offline.memory.telemetry import Origin
from frd.offline.phases.answer import PhaseAnswer

MIN_RISE_BYTES: Final = 1 << 26
_MOST_HIGH: Final = 1
_MOST_MEDIUM: Final = 2

_COMMON: Final = (Outcome.TOGETHER, Outcome.STARTING)

PhaseAt = Callable[[int, tuple[int, int], Origin | None], PhaseAnswer]
"""The phase of a rank over an interval of its host's clock (ns), in which a sample was taken."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The job whose rises are looked for."""

    job: str
    lanes: Sequence[Lane]
    """By rank, then time."""
    missing: Sequence[int]
    clock_uncertainty_ns: int
    """Of every host."""
    findings: Sequence[Finding]
    phase_at: PhaseAt


def find_rises(recorded: Recorded, watched: Watched, min_rise: int, warmup_ns: int) -> list[Rise]:
    """Every rise of one job, in the order of onset.

    Args:
        recorded: the samples of all jobs.
        min_rise: bytes; what is smaller is not a rise.
        warmup_ns: so much from the beginning is not looked at.
    """
    since = min(lane.first_ns for lane in watched.lanes) + warmup_ns
    reach = watched.clock_uncertainty_ns
    samples, rises = {}, []
    shown: dict[RankRise, SeriesRise] = {}
    uncertain = set(watched.missing)
    for rank, lanes in by_rank(watched.lanes):
        if any(lane.stream in recorded.backward for lane in lanes):
            uncertain.add(rank)
        if (times := samples_of(recorded, lanes, since)) is None:
            uncertain.add(rank)
            continue
        samples[rank] = times
        for rise, figures in rank_rises(recorded, lanes, min_rise, since, reach):
            rises.append(rise)
            shown[rise] = figures
    if not samples:
        return []
    decisions = decide(rises, samples, reach)
    mark_followers(decisions, len(samples))
    return _Report(watched, shown, uncertain).rises(_merged(decisions, shown))


def _merged(decisions: Sequence[Decision], shown: dict[RankRise, SeriesRise]) -> list[Decision]:
    """A rise that goes on after a pause (a staircase) is one rise."""
    merged: list[Decision] = []
    latest: dict[frozenset[int], Decision] = {}
    for one in decisions:
        ranks = frozenset(one.ranks)
        before = latest.get(ranks)
        if before is not None and _goes_on(before, one, shown):
            later = {rise.rank: rise for rise in one.rises}
            for rise in before.rises:
                shown[rise] = joined(shown[rise], shown[later[rise.rank]])
            continue
        merged.append(one)
        latest[ranks] = one
    return merged


def _goes_on(before: Decision, one: Decision, shown: dict[RankRise, SeriesRise]) -> bool:
    if before.outcome is not one.outcome and before.outcome is not Outcome.BEGAN_BEFORE:
        return False
    if one.outcome not in (Outcome.FIRST, Outcome.TOGETHER):
        return False
    series = {rise.rank: shown[rise].series for rise in before.rises}
    if any(shown[rise].series != series[rise.rank] for rise in one.rises):
        return False  # Host memory does not go on in a device.
    ended = max(shown[rise].end_ns for rise in before.rises)
    fell_back = any(shown[rise].fell_back for rise in before.rises)
    return one.lo - ended <= (REVEALED_NS if fell_back else LINK_NS)


class _Report:
    """Says of decisions what people want to know."""

    def __init__(
        self, watched: Watched, shown: dict[RankRise, SeriesRise], uncertain: set[int]
    ) -> None:
        self._watched = watched
        self._shown = shown
        self._uncertain = uncertain
        """Ranks whose memory is not known, or not when."""

    def rises(self, decisions: Sequence[Decision]) -> list[Rise]:
        alarming = self._alarming(decisions)
        return [
            self._rise(one, decisions, place, alarming.get(place))
            for place, one in enumerate(decisions)
        ]

    def _rise(
        self,
        one: Decision,
        decisions: Sequence[Decision],
        place: int,
        finding: Finding | None,
    ) -> Rise:
        first = min(one.rises, key=lambda rise: rise.hi)
        figures = self._shown[first]
        following = self._next(one, islice(decisions, place + 1, None))
        unknown = {*one.doubtful, *one.silent, *self._uncertain}
        rise = Rise(
            job=self._watched.job,
            ranks=tuple(sorted(one.ranks)),
            suspects=self._suspects(one, finding),
            series=figures.kind,
            device=figures.device,
            onset=(one.lo, one.limit),
            end_ns=max(self._shown[rise].end_ns for rise in one.rises),
            bytes=figures.peak - figures.high,
            took_s=max(figures.grown_ns - first.lo, 0) / 1e9,
            peak_bytes=figures.peak,
            fell_back=figures.fell_back,
            alarming=finding is not None,
            common_cause=one.outcome in _COMMON,
            next_rank=following.rank if following is not None else None,
            lead_ns=max(following.lo - one.limit, 0) if following is not None else 0,
            unknown=() if one.outcome in _COMMON else tuple(sorted(unknown - one.ranks)),
            attribution=figures.attribution,
            phase=self._watched.phase_at(first.rank, figures.began, figures.origin),
            text="",
        )
        return with_text(rise, one.outcome, self._followed(one, islice(decisions, place)))

    def _suspects(self, one: Decision, finding: Finding | None) -> tuple[RiseSuspect, ...]:
        if one.outcome is not Outcome.FIRST:
            return ()
        confidence = self._confidence(one)
        if (
            one.follows
            and finding is not None
            and {suspect.rank for suspect in finding.suspects} == one.ranks
        ):
            confidence = Confidence.MEDIUM
        ranks = dict.fromkeys(rise.rank for rise in one.rises)
        return tuple(RiseSuspect(rank, confidence) for rank in ranks)

    def _confidence(self, one: Decision) -> Confidence:
        """High is a promise: this rank rose first, and no other can have risen as early."""
        if one.follows or len(one.ranks) > _MOST_MEDIUM:
            return Confidence.LOW
        unclear = one.doubtful or one.silent or one.raised or self._uncertain
        is_open = unclear or one.others_follow
        if len(one.ranks) > _MOST_HIGH or is_open or not one.rises[0].is_certain:
            return Confidence.MEDIUM
        return Confidence.HIGH

    def _next(self, one: Decision, later: Iterable[Decision]) -> RankRise | None:
        """The first rise of a rank that is not in this decision; `later` is in order of onset."""
        found: RankRise | None = None
        for other in later:
            if found is not None and other.lo >= found.lo:
                break
            for rise in other.rises:
                is_after = rise.lo >= one.limit and rise.rank not in one.ranks
                if is_after and (found is None or rise.lo < found.lo):
                    found = rise
        return found

    def _followed(self, one: Decision, earlier: Iterable[Decision]) -> int | None:
        """The rank whose rise this one may be a consequence of."""
        if not one.follows:
            return None
        causes = (
            before.rises[0].rank
            for before in earlier
            if before.outcome not in _COMMON and not before.ranks & one.ranks
        )
        return next(causes, None)

    def _alarming(self, decisions: Sequence[Decision]) -> dict[int, Finding]:
        """Findings by the place of the decision that they are about: of each finding the last one
        that had begun when it was opened."""
        alarming: dict[int, Finding] = {}
        for finding in self._watched.findings:
            ranks = {suspect.rank for suspect in finding.suspects} or set(finding.victims)
            about = (
                place
                for place in range(len(decisions) - 1, -1, -1)
                if decisions[place].lo <= finding.opened_at and decisions[place].ranks & ranks
            )
            if (place := next(about, None)) is not None:
                alarming[place] = finding
        return alarming
