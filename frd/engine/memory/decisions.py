"""Which rank's memory rose first, decided from rises of single ranks as time goes on.

A rise is decided once no other rank can still turn out to have risen before it or with it: each
rank has a sample since its onset, and no rank has a smaller excursion that began as early and may
become a rise. A decision is final: a rank that is named stays named, and a slow rise that is seen
later, but began earlier, makes a tie.

`Decisions` passes from one time at which something can be decided to the next, up to the horizon of
the samples. As of each it uses only what was known then, so its decisions are the same however
often, and for which horizons, it is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from frd.engine.memory.coverage import Coverage
from frd.engine.memory.walk.levels import REVEALED_NS, TRAINING_STEP, WINDOW_NS
from frd.engine.memory.walk.rank_rise import FOREVER, RankRise

NEARLY_ALL: Final = 0.8
"""Share of the ranks that counts as nearly all."""
COMPARABLE: Final = 0.2
"""Rises are alike if the smaller one is at least this share of the larger one."""
_TOO_FEW: Final = 2
"""Of so few ranks, one whose memory rises a whole sample later is later. Of more ranks, whose steps
jitter, those that rise within neighbouring samples rise together."""


class Outcome(Enum):
    """What is known of rises that belong together."""

    FIRST = auto()
    """One of these ranks rose first."""
    TOGETHER = auto()
    """(Nearly) all ranks rose together; or all but those that rose much further."""
    STARTING = auto()
    """They rose together from the beginning on: the job was starting."""
    BEGAN_BEFORE = auto()
    """It rose already in the first samples; when it began to is not known."""
    UNDECIDED = auto()
    """It is not known yet which rank was first."""
    EARLIEST = auto()
    """The recording ends before that is known, but (nearly) all others rose later."""


COMMON: Final = (Outcome.TOGETHER, Outcome.STARTING)
"""No rank is the cause."""


@dataclass(slots=True, eq=False)
class Decision:
    """Rises that belong together."""

    rises: list[RankRise]
    """By the onset; the first ranks, or all that rose together."""
    outcome: Outcome
    doubtful: set[int] = field(default_factory=set)
    """Ranks with a smaller excursion that began as early."""
    silent: set[int] = field(default_factory=set)
    """Ranks without samples at the onset."""
    raised: set[int] = field(default_factory=set)
    """Ranks whose memory was above its usual level for another reason, or for one that cannot be
    trusted: another rise within that may not be seen."""
    follows: bool = False
    """It began soon after an earlier rise of another rank, or is a late part of a common one."""
    cause: int | None = None
    """The rank of that earlier rise, if it was not a common one."""

    lo: int = field(init=False)
    limit: int = field(init=False)
    """The latest time at which the first of them began."""
    latest: int = field(init=False)
    """The latest time at which any of them began."""
    ranks: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self._update()

    @property
    def end(self) -> int:
        """When all were over."""
        return max(one.end for one in self.rises)

    @property
    def back(self) -> int:
        """When all had fallen back."""
        return max(one.back for one in self.rises)

    def extend(self, rises: Iterable[RankRise]) -> None:
        self.rises = sorted([*self.rises, *rises], key=_by_onset)
        self._update()

    def _update(self) -> None:
        """What no longer changes is kept: each decision is compared with all before it."""
        self.lo = min(one.lo for one in self.rises)
        self.limit = min(one.hi for one in self.rises)
        self.latest = max(one.hi for one in self.rises)
        self.ranks = ranks_of(self.rises)


class Decisions:
    """The rises of one job, decided as time goes on."""

    def __init__(self) -> None:
        self.decided: list[Decision] = []
        """In the order in which they were made; `frd.engine.memory.report` sorts them by onset."""
        self._open: list[RankRise] = []
        """In no decision yet."""

    @property
    def is_busy(self) -> bool:
        """There is something to decide or to report."""
        return bool(self._open or self.decided)

    def advance(self, horizon_ns: int, rises: Iterable[RankRise], coverage: Coverage) -> None:
        """Decide what the samples up to the horizon decide.

        Args:
            horizon_ns: no sample that was known by then will be added, or change a rise.
            rises: those that are new; they are updated in place until they are over.
            coverage: which samples there are.
        """
        self._open += rises
        while (now := min((one.ready for one in self._open), default=FOREVER)) <= horizon_ns:
            now, together = self._due(now, horizon_ns, coverage)
            if now > horizon_ns:
                return
            self._decide(now, together, coverage)
        self._open = [
            one for one in self._open if one.end > horizon_ns or one.established < FOREVER
        ]  # Nothing will be decided as of a time when the others were open.

    def forget(self, before_ns: int) -> None:
        """Drop what was over by then, which should be `WINDOW_NS` before the horizon or earlier: it
        is neither compared nor reported any more."""
        self._open = [one for one in self._open if one.end >= before_ns or one.ready < FOREVER]
        self.decided = [one for one in self.decided if one.end >= before_ns]

    def may_be_earlier(self, limit: int) -> set[int]:
        """Ranks with a small excursion that began by then and may become a rise."""
        return {
            one.rank
            for one in self._open
            if one.lo_when_seen <= limit and not one.from_start and one.ready == one.end == FOREVER
        }

    def undecided(
        self, horizon_ns: int, coverage: Coverage, *, is_over: bool = False
    ) -> list[Decision]:
        """Rises that are in no decision yet, by onset; nothing is decided by that.

        `is_over`: the recording ends here, so that no more will be known.
        """
        found: list[Decision] = []
        waiting = sorted((one for one in self._open if one.is_rise), key=_by_onset)
        small = [one for one in self._open if not one.is_rise]
        if is_over and waiting and self._is_earliest(waiting[0], horizon_ns, coverage):
            found.append(Decision([waiting.pop(0)], Outcome.EARLIEST))
        while waiting:
            limit = waiting[0].hi
            decision = Decision([one for one in waiting if one.lo < limit], Outcome.UNDECIDED)
            decision.doubtful = {
                one.rank for one in small if one.end == FOREVER and one.lo < limit
            } - decision.ranks
            found.append(decision)
            waiting = [one for one in waiting if one.lo >= limit]
        return found

    # -- when ------------------------------------------------------------------------------------

    def _due(self, now: int, horizon: int, coverage: Coverage) -> tuple[int, list[RankRise]]:
        """The first rise and all that overlap with it, and when all ranks were known to be in or
        not; after the horizon if that is not known there."""
        while now <= horizon:
            together = self._together(now, coverage.ranks)
            wait = self._wait(now, together, coverage)
            if wait <= now:
                return now, together
            now = wait
        return now, []

    def _together(self, now: int, ranks: int) -> list[RankRise]:
        """Rises that overlap with the first one that is ready, directly or through others."""
        known = sorted((one for one in self._open if one.ready <= now), key=_by_onset)
        chain = [known[0]]
        reach = _reach(known[0], now)
        for one in sorted(known[1:], key=lambda one: one.lo):
            if one.lo > reach or (one.lo == reach and ranks <= _TOO_FEW):
                break
            chain.append(one)
            reach = max(reach, _reach(one, now))
        return chain

    def _wait(self, now: int, together: Sequence[RankRise], coverage: Coverage) -> int:
        """Until when it is not known what belongs to these, or was before them, or how far they
        rise if that matters; `now` if it is."""
        upto = max(one.hi for one in together) + 1
        inside = ranks_of(together)
        wait = max(now, coverage.shown_at(upto, inside))
        for one in self._open:
            if one.lo_when_seen < upto and one.may_be_rise(now):
                wait = max(wait, _clear_at(one, coverage.gap(one.rank)))
        named = self._overtaken(together, now)
        if _are_common(together, named, coverage.ranks):
            sized = [one.sized for one in together]
            sized += [one.sized for one in named.rises] if named is not None else []
            wait = max(wait, *sized)
        return wait

    def _overtaken(self, rises: Iterable[RankRise], now: int) -> Decision | None:
        """The decision that rises which are seen late, but may have begun earlier, belong to."""
        lo = min(one.lo for one in rises)
        named = (one for one in self.decided if one.outcome is Outcome.FIRST)
        return next((one for one in named if lo < one.limit < now), None)

    # -- what ------------------------------------------------------------------------------------

    def _decide(self, now: int, together: list[RankRise], coverage: Coverage) -> None:
        if self._takes_late_starters(together):
            return
        if _is_start(together, coverage.ranks):
            self._take(Decision(_first_of_each(together), Outcome.STARTING))
            return
        if self._takes_common(together, self._overtaken(together, now), coverage.ranks):
            return
        if before := [one for one in together if one.began_before]:
            self._take(Decision(before, Outcome.BEGAN_BEFORE))
            return
        limit = min(one.hi for one in together)
        first = Decision([one for one in together if one.lo < limit], Outcome.FIRST)
        if (named := self._overtaken(first.rises, now)) is not None:
            self._join(first.rises, named)
            return
        first.doubtful = {
            one.rank for one in self._open if one.lo_when_seen < limit and one.may_be_rise(now)
        } - first.ranks
        first.silent = coverage.silent_at(limit) - first.ranks
        self._take(first)
        if not first.follows:
            first.raised = self._raised(first, now)

    def _takes_late_starters(self, together: Sequence[RankRise]) -> bool:
        """Ranks that began to rise before the others had ended their start belong to it."""
        start = next((one for one in self.decided if one.outcome is Outcome.STARTING), None)
        if start is None:
            return False
        late = [one for one in together if one.lo <= start.end and one.rank not in start.ranks]
        if late:
            late = _first_of_each(late)
            start.extend(late)
            self._remove(late)
        return bool(late)

    def _takes_common(self, together: list[RankRise], named: Decision | None, ranks: int) -> bool:
        """(Nearly) all rose together, unless few of them, or those that are named, rose much
        further than all others did: these are first, whatever the others have in common."""
        if not _are_common(together, named, ranks):
            return False
        sizes: dict[int, int] = {}
        for one in [*together, *(named.rises if named is not None else ())]:
            sizes[one.rank] = max(one.size, sizes.get(one.rank, 0))
        least = COMPARABLE * max(sizes.values())
        far = {rank for rank, size in sizes.items() if size >= least}
        first = [one for one in together if one.rank in far]
        rest = [one for one in together if one.rank not in far]
        are_few = len(far) < NEARLY_ALL * ranks and _are_nearly_all(rest, ranks - len(far))
        if are_few and (named is None or (named.ranks <= far and not first)):
            if first:
                self._take(Decision(first, Outcome.FIRST))
            self._take(Decision(rest, Outcome.TOGETHER))
            return True
        if _are_nearly_all(together, ranks):
            self._take(Decision(together, Outcome.TOGETHER))
            return True
        return False

    def _join(self, rises: Sequence[RankRise], named: Decision) -> None:
        """A rise that was seen late, but may have begun before a rank that has been named, makes a
        tie. If it began before, but slowly, its onset is any time until it could be trusted."""
        limit = min(one.hi for one in rises)
        for one in rises:
            one.hi = one.ready if limit <= named.lo else one.hi
        named.extend(rises)
        self._remove(rises)

    def _raised(self, first: Decision, now: int) -> set[int]:
        known = [one for before in self.decided for one in before.rises]
        untrusted = [one for one in self._open if one.established <= now and one.end <= now]
        return {
            one.rank
            for one in [*known, *untrusted]
            if one.lo < first.limit and min(one.end, one.back) > first.lo
        } - first.ranks

    def _take(self, decision: Decision) -> None:
        self._remove(decision.rises)
        before = next((one for one in reversed(self.decided) if _follows(decision, one)), None)
        if before is not None:
            decision.follows = True
            decision.cause = before.cause
            if before.cause in {None, *decision.ranks}:
                decision.cause = before.rises[0].rank if before.outcome not in COMMON else None
        self.decided.append(decision)

    def _remove(self, rises: Iterable[RankRise]) -> None:
        taken = set(rises)
        self._open = [one for one in self._open if one not in taken]

    def _is_earliest(self, first: RankRise, horizon: int, coverage: Coverage) -> bool:
        """In a recording that ends before any level was known, (nearly) all others rose later: they
        had not risen yet when this one had."""
        others = [one for one in self._open if one.rank != first.rank]
        later = [one for one in others if one.is_rise and not one.began_before]
        return (
            not self.decided
            and coverage.ranks > 1
            and _are_nearly_all(later, coverage.ranks - 1)
            and all(one.from_start and one.lo_when_seen >= first.hi for one in others)
            and coverage.shown_at(first.hi, {first.rank}) <= horizon
            and horizon - first.hi <= TRAINING_STEP * coverage.gap(first.rank)
        )


def ranks_of(rises: Iterable[RankRise]) -> set[int]:
    return {one.rank for one in rises}


def _by_onset(one: RankRise) -> tuple[int, int, str]:
    return one.hi, one.rank, one.kind.value


def _reach(one: RankRise, now: int) -> int:
    """Until when another onset overlaps: of a rise that the job starts with, while it goes on."""
    return max(one.hi, min(one.end, now)) if one.from_start else one.hi


def _clear_at(one: RankRise, gap: int) -> int:
    """When it was known whether an excursion is a rise; what stays small is not one."""
    # A small excursion may still become a rise while its step of the program goes on.
    doubted_until = one.seen + max(REVEALED_NS, TRAINING_STEP * gap)
    clear = min(one.ready, one.end)
    return clear if one.established <= doubted_until else min(clear, doubted_until)


def _are_nearly_all(rises: Iterable[RankRise], ranks: int) -> bool:
    return len(ranks_of(rises)) >= NEARLY_ALL * ranks


def _is_start(together: Iterable[RankRise], ranks: int) -> bool:
    """Most ranks rise from the beginning on."""
    return ranks > 1 and 2 * len(ranks_of(one for one in together if one.from_start)) > ranks


def _are_common(together: Sequence[RankRise], named: Decision | None, ranks: int) -> bool:
    """(Nearly) all ranks rise, but for those that are named, and not because the job starts."""
    ranks -= len(named.ranks) if named is not None else 0
    return ranks > 1 and not _is_start(together, ranks) and _are_nearly_all(together, ranks)


def _first_of_each(rises: Iterable[RankRise]) -> list[RankRise]:
    """The first rise of each rank, of rises in order."""
    first: dict[int, RankRise] = {}
    for one in rises:
        first.setdefault(one.rank, one)
    return list(first.values())


def _follows(one: Decision, before: Decision) -> bool:
    """One may be a consequence of the other, or a late part of it."""
    if before.outcome in COMMON:
        is_late = before.ranks.isdisjoint(one.ranks)
        if before.outcome is Outcome.STARTING and not is_late:
            return False
        return one.lo <= before.latest + (REVEALED_NS if is_late else 0)
    if before.back < one.lo or abs(one.lo - min(before.end, one.lo)) > WINDOW_NS:
        return False
    return before.ranks.isdisjoint(one.ranks)
