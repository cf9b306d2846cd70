"""Which rank's memory rose first, decided from rises of single ranks as time goes on.

A rise is decided once no other rank can still turn out to have risen before it or with it: each
rank has a sample since its onset, and no rank has a smaller excursion that began as early and may
become a rise. At the end of a recording some rises may be undecided. A decision is final: a rank
that is named stays named, and a slow rise that is seen later, but began earlier, makes a tie.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from frd.engine.memory.baseline import REVEALED_NS, SECOND
from frd.engine.memory.onset import NEARLY_ALL
from frd.offline.memory.rises.decision import Decision, Outcome, ranks_of
from frd.offline.memory.rises.rank_rise import FOREVER, RankRise, RankSamples

_DOUBT_GAPS: Final = 10
"""Samples for which a small excursion may still become a rise, if that is longer than the time for
which the live engine waits."""
_MOST_STARTING: Final = 0.5
"""If more than this share of the ranks rises from the beginning on, the job is starting."""
_TOO_FEW: Final = 2
"""Of so few ranks, one whose memory rises a whole sample later is later. Of more ranks, whose steps
jitter, those that rise within neighbouring samples rise together."""
LINK_NS: Final = 60 * SECOND
"""A rise that begins within this long after another is likely to be its consequence."""


def decide(
    rises: Sequence[RankRise], samples: Mapping[int, RankSamples], reach_ns: int
) -> list[Decision]:
    """All rises as decisions, by onset.

    Args:
        rises: of all ranks; those that became no rise only delay others.
        samples: of all ranks.
        reach_ns: how far each host's clock may be off; onsets are wider by that already.
    """
    judge = _Judge(rises, samples, reach_ns)
    judge.run()
    return sorted(judge.decisions, key=lambda one: (one.lo, one.limit))


class _Judge:
    def __init__(
        self, rises: Sequence[RankRise], samples: Mapping[int, RankSamples], reach_ns: int
    ) -> None:
        self._samples = samples
        self._reach_ns = reach_ns
        self._end = max(int(one.at[-1]) for one in samples.values())
        self._open = sorted(rises, key=lambda one: one.hi)
        """Not in a decision yet, by onset."""
        self.decisions: list[Decision] = []

    def run(self) -> None:
        while waiting := [one for one in self._open if one.is_rise]:
            now = min(one.ready for one in waiting)
            now, together = self._closed(now)
            if now > self._end:
                break
            self._decide(now, together)
        self._leave_undecided()

    # -- when ------------------------------------------------------------------------------------

    def _closed(self, now: int) -> tuple[int, list[RankRise]]:
        """The first rise and all that overlap with it, and when all ranks were known to be in or
        not; later than the end if never."""
        while now <= self._end:
            together = self._together(now)
            wait = self._wait(now, together)
            if wait <= now:
                return now, together
            now = wait
        return now, []

    def _together(self, now: int) -> list[RankRise]:
        """Rises that overlap with the first one that is ready, directly or through others."""
        known = [one for one in self._open if one.ready <= now]
        chain = [known[0]]
        reach = _reach(known[0], now)
        for one in sorted(known[1:], key=lambda one: one.lo):
            if one.lo > reach or (one.lo == reach and len(self._samples) <= _TOO_FEW):
                break
            chain.append(one)
            reach = max(reach, _reach(one, now))
        return chain

    def _wait(self, now: int, together: Sequence[RankRise]) -> int:
        """Until when it is not known what belongs to these, or was before them; `now` if it is."""
        upto = max(one.hi for one in together) + self._reach_ns + 1
        inside = ranks_of(together)
        others = [shown for rank, shown in self._samples.items() if rank not in inside]
        wait = max((shown.shown_at(upto) for shown in others), default=now)
        for one in self._open:
            if one.lo < upto and one.seen <= now < one.ready and not _is_nothing(one, now):
                wait = max(wait, self._clear_at(one))
        return wait

    def _clear_at(self, one: RankRise) -> int:
        """When it was known whether an excursion is a rise; what stays small is not one."""
        doubt = max(REVEALED_NS, _DOUBT_GAPS * self._samples[one.rank].gap)
        clear = min(one.ready, one.end)
        return clear if one.established <= one.seen + doubt else min(clear, one.seen + doubt)

    # -- what ------------------------------------------------------------------------------------

    def _decide(self, now: int, together: Sequence[RankRise]) -> None:
        count = len(self._samples)
        starting = [one for one in together if one.from_start]
        is_start = count > 1 and len(ranks_of(starting)) > _MOST_STARTING * count
        if is_start or (count > 1 and len(ranks_of(together)) >= NEARLY_ALL * count):
            if is_start:
                decision = Decision(_first_of_each(together), Outcome.STARTING)
                self._take(decision)
                self._add_late_starters(decision)
            else:
                self._take(Decision(list(together), Outcome.TOGETHER))
            return
        before = [one for one in together if one.began_before]
        if before:
            self._take(Decision(before, Outcome.BEGAN_BEFORE))
            return
        limit = min(one.hi for one in together)
        first = [one for one in together if one.lo < limit]
        if self._joins(first, now):
            return
        decision = Decision(first, Outcome.FIRST)
        decision.doubtful = {
            one.rank
            for one in self._open
            if one.seen <= now < one.ready and one.lo < limit and not _is_nothing(one, now)
        } - decision.ranks
        decision.silent = {
            rank for rank, shown in self._samples.items() if shown.is_silent(limit)
        } - decision.ranks
        self._take(decision)
        if not decision.follows:
            decision.raised = self._raised(decision)

    def _raised(self, first: Decision) -> set[int]:
        lo, limit = first.lo, first.limit
        known = [one for before in self.decisions if before.lo < limit for one in before.rises]
        untrusted = [one for one in self._open if not one.is_rise and one.established < FOREVER]
        return {
            one.rank
            for one in [*known, *untrusted]
            if one.lo < limit and min(one.end, one.back) > lo
        } - first.ranks

    def _joins(self, first: Sequence[RankRise], now: int) -> bool:
        """A rise that was seen late, but may have begun before a rank that has been named, makes a
        tie. If it began before, but slowly, its onset is any time until it could be trusted."""
        lo, limit = min(one.lo for one in first), min(one.hi for one in first)
        named = [one for one in self.decisions if one.outcome is Outcome.FIRST]
        after = next((one for one in named if lo < one.limit < now), None)
        if after is None:
            return False
        for one in first:
            one.hi = one.ready if limit <= after.lo else one.hi
        after.extend(first)
        self._remove(first)
        return True

    def _take(self, decision: Decision) -> None:
        self._remove(decision.rises)
        decision.follows = any(_follows(decision, before) for before in reversed(self.decisions))
        self.decisions.append(decision)

    def _remove(self, rises: Iterable[RankRise]) -> None:
        taken = set(rises)
        self._open = [one for one in self._open if one not in taken]

    def _add_late_starters(self, start: Decision) -> None:
        """Ranks that begin to rise before the others have ended their start."""
        ended, started = start.grown, start.ranks
        late = _first_of_each(
            one for one in self._open if one.is_rise and one.lo <= ended and one.rank not in started
        )
        start.extend(late)
        self._remove(late)

    def _leave_undecided(self) -> None:
        while waiting := [one for one in self._open if one.is_rise]:
            first = waiting[0]
            tie = [one for one in waiting if one.lo < first.hi]
            decision = Decision(tie, Outcome.UNDECIDED)
            decision.doubtful = {
                one.rank for one in self._open if one.end == FOREVER and one.lo < first.hi
            } - decision.ranks
            self._take(decision)


def _follows(one: Decision, before: Decision) -> bool:
    """One may be a consequence of the other, or a late part of it."""
    if before.outcome in (Outcome.TOGETHER, Outcome.STARTING):
        is_late = before.ranks.isdisjoint(one.ranks)
        if before.outcome is Outcome.STARTING and not is_late:
            return False
        return one.lo <= before.latest + (REVEALED_NS if is_late else 0)
    if before.outcome is Outcome.UNDECIDED or before.back < one.lo:
        return False
    if abs(one.lo - min(before.grown, one.lo)) > LINK_NS:
        return False
    return before.ranks.isdisjoint(one.ranks)


def mark_followers(decisions: Sequence[Decision], ranks: int) -> None:
    """Say of each decision whether (nearly) all other ranks rose soon after it.

    Args:
        decisions: by onset.
    """
    onsets = [one.lo for one in decisions]
    for one in decisions:
        others = ranks - len(one.ranks)
        after = bisect_left(onsets, one.limit), bisect_right(onsets, one.limit + REVEALED_NS)
        soon = {rank for other in decisions[slice(*after)] for rank in other.ranks}
        one.others_follow = others > 0 and len(soon - one.ranks) >= NEARLY_ALL * others


def _first_of_each(rises: Iterable[RankRise]) -> list[RankRise]:
    """The first rise of each rank, of rises in order."""
    first: dict[int, RankRise] = {}
    for one in rises:
        first.setdefault(one.rank, one)
    return list(first.values())


def _is_nothing(one: RankRise, now: int) -> bool:
    """It ended before it became a rise."""
    return one.end <= now < one.ready


def _reach(one: RankRise, now: int) -> int:
    """Until when another onset overlaps: of a rise that the job starts with, while it grows."""
    return max(one.hi, min(one.grown, now)) if one.from_start else one.hi
