"""How long the members of groups usually wait for each other, and the stall threshold of that.

Groups with the same label and size are of one *kind*, and what one of them shows holds for all: a
checkpoint makes another group wait each time. Only waits that ended because all members came are
learned. A wait that is seen twice is usual, whatever its length: the threshold is a multiple of the
second longest, but no more than some minutes above it, because otherwise two outages of a quarter
of an hour would hide a hang for an hour. A wait that was seen once, and ended before it would have
been critical, is usual up to twice its length; a longer one may have been an accident, and one bad
hour must not make the detector insensitive.

Collectives that waited through the same minutes (a rank that is late is late for all of its
buckets) are one wait, as long as the longest of them: where programs run ahead, the waits of one
step reach into the next, for hours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from frd.engine.matching.open_collectives import RetiredCollectives
from frd.engine.policy import Policy
from frd.engine.state.tables import GroupTable
from frd.model import AlignedNs, Bools

MEMORY_NS: Final = 6 * 3600 * 1_000_000_000
"""An attempt remembers a wait for so long: longer than between two checkpoints of any job. In half
of it, a job with a checkpoint every four hours is reported at each of them; with twice as much, a
night's outage hides hangs as long as itself for the day after."""
MOST_WAITS: Final = 32
"""Waits kept per kind of group in one attempt: the longest."""
_REVIEW_NS: Final = 600_000_000_000
"""How often thresholds are computed again because waits grow old, and waits are returned that raise
no threshold: they show that a pause is still usual. Small compared with `MEMORY_NS`. With half of
it, the store writes a job's pauses twice as often; with twice as much, a restart of the service
forgets more of what a job has just shown."""
_FAR: Final = 1 << 64
_FACTOR: Final = 5.0
"""The threshold is this many times a repeated wait."""
_ONCE_FACTOR: Final = 2.0
"""How many times as long as the only known pause the next one may be."""

_REST: Final = ("standstill", 0)
"""Under which the rests of the whole job are kept."""
_REST_FACTOR: Final = 10
"""How many times as long as the longest rest before the next one may be."""
_LOOKS_AT_REST: Final = 60
"""Looks in `standstill_after_s`, so that the pause between two of them counts for a sixth of it: a
job that moves has no rest. With twice as many, a rest is measured twice as exactly, and what the
looks cost doubles: a pass over all pairs."""

GroupKind: TypeAlias = tuple[str, int]
"""Label and size of a group; size 0 for the calls of that name that no recorder shows."""


class LongWait(NamedTuple):
    """Collectives that waited at the same time."""

    start: int
    """Aligned ns: when the first member came."""
    end: int
    """When the last one came."""
    length: int
    """Of the longest of them, ns."""

    @classmethod
    def of(cls, start: int, end: int) -> LongWait:
        return cls(start, end, end - start)

    @classmethod
    def of_numbers(cls, start: int, end: int, length: int) -> LongWait:
        """
        Raises:
            ValueError: no clock shows such times.
        """
        if max(map(abs, (start, end, length))) > _FAR:
            raise ValueError("times beyond 64 bits")
        return cls(start, end, length)


def united(waits: Iterable[LongWait], most: int) -> list[LongWait]:
    """Overlapping waits as one; of these the `most` longest, in the order of time."""
    found: list[LongWait] = []
    for wait in sorted(waits):
        if found and wait.start <= found[-1].end:
            last = found[-1]
            found[-1] = LongWait(last.start, max(last.end, wait.end), max(last.length, wait.length))
        else:
            found.append(wait)
    if len(found) > most:
        found = sorted(sorted(found, key=attrgetter("length"))[-most:])
    return found


class Rest(NamedTuple):
    """For how long nothing of an attempt has moved."""

    since: AlignedNs = AlignedNs(0)
    """When anything moved last; 0 before the first group."""
    seen_at: AlignedNs = AlignedNs(0)
    """When that was looked at."""
    longest_ns: int = 0
    """The longest rest of the job before."""

    @property
    def lasted_ns(self) -> int:
        return self.seen_at - self.since if self.since > 0 else 0

    def may_last_ns(self, policy: Policy) -> float:
        return max(policy.standstill_after_s * 1e9, _REST_FACTOR * self.longest_ns)


class WaitHistory:
    """The long waits of one kind of group in one attempt."""

    def __init__(self, since: AlignedNs, known: Iterable[LongWait] = ()) -> None:
        """`known` are those of earlier attempts; in this one they count from `since` on."""
        self.waits = list(known)
        self._since = since

    def add(self, waits: Iterable[LongWait]) -> None:
        self.waits = united([*self.waits, *waits], MOST_WAITS)

    def threshold_ns(self, policy: Policy, now: AlignedNs) -> int:
        self.waits = [w for w in self.waits if now - max(w.end, self._since) <= MEMORY_NS]
        lengths = sorted(wait.length for wait in self.waits)
        passing = (policy.stall_after_s + policy.critical_after_s) * 1e9
        again = lengths[-2] if len(lengths) > 1 else 0
        once = max((length for length in lengths if length <= passing), default=0)
        usual = max(
            again + min(again, passing) * (_FACTOR - 1),
            once * _ONCE_FACTOR,
        )
        threshold_s = max(policy.stall_after_s, min(usual / 1e9, policy.stall_after_max_s))
        return round(threshold_s * 1e9)


class StallThresholds:
    """The stall thresholds of all groups of an attempt, in `GroupTable.threshold_ns`."""

    def __init__(
        self,
        policy: Policy,
        groups: GroupTable,
        known: Mapping[GroupKind, Sequence[LongWait]],
        now: AlignedNs,
    ) -> None:
        """`known` are long waits of earlier attempts of the job."""
        self._policy = policy
        self._groups = groups
        self._began_at = now
        self._history = {kind: WaitHistory(now, waits) for kind, waits in known.items()}
        self._expired_at = AlignedNs(0)
        self._kinds: list[GroupKind] = []
        """By group."""
        self._of_kind: dict[GroupKind, list[int]] = {}
        self._went_on_at = 0
        """Arrival of the first member at the newest collective that all members joined."""
        self._raised_at = 0
        """End of the wait that raised a threshold, until `take_waits` has returned it; else 0."""
        self._waited = False
        """There are waits that `take_waits` has not returned."""
        self._taken_at = now
        self._rest = Rest()

    def adopt(self, policy: Policy) -> None:
        self._policy = policy
        self._groups.threshold_ns[: self._groups.count] = policy.stall_after_ns
        self._expired_at = AlignedNs(0)  # so that the histories apply before anything stalls

    def add_group(self, group: int) -> None:
        """Its threshold is that of its kind."""
        info = self._groups.infos[group]
        kind = info.label, len(info.ranks)
        self._kinds.append(kind)
        alike = self._of_kind.setdefault(kind, [])
        alike.append(group)
        if len(alike) > 1:
            self._groups.threshold_ns[group] = self._groups.threshold_ns[alike[0]]
        elif kind in self._history:
            self._adapt([kind], self._began_at)

    def learn(self, closed: RetiredCollectives, full: Bools, fair: Bools, now: AlignedNs) -> None:
        """Waits that were long enough to raise their group's threshold; `full`: all members
        joined, `fair`: and their arrivals compare."""
        if full.any():
            self._went_on_at = max(self._went_on_at, int(closed.first_created[full].max()))
        skew = closed.last_created - closed.first_created
        policy = self._policy
        slow = np.flatnonzero(fair & (skew * _FACTOR > policy.stall_after_s * 1e9))
        if not len(slow):
            return
        first, last = closed.first_created[slow].tolist(), closed.last_created[slow].tolist()
        waits: dict[GroupKind, list[LongWait]] = {}
        for group, start, end in zip(closed.group[slow].tolist(), first, last, strict=True):
            waits.setdefault(self._kinds[group], []).append(LongWait.of(start, end))
        for kind, news in waits.items():
            self._history.setdefault(kind, WaitHistory(self._began_at)).add(news)
        self._waited = True
        if self._adapt(waits, now):
            self._raised_at = max(last)

    def learn_calls(self, ended: Mapping[str, Sequence[tuple[int, int]]], now: AlignedNs) -> None:
        """Ranks have come out of calls that no recorder shows, by name: from when to when each was
        seen there. Only what is too long for a call is learned."""
        for op, waits in ended.items():
            least_ns = self._policy.call_stall_after_s(op) * 1e9
            if slow := [LongWait.of(*times) for times in waits if times[1] - times[0] >= least_ns]:
                history = self._history.setdefault((op, 0), WaitHistory(self._began_at))
                before_ns = history.threshold_ns(self._policy, now)
                history.add(slow)
                end = max(wait.end for wait in slow)
                self._went_on_at = max(self._went_on_at, end)
                self._waited = True
                if history.threshold_ns(self._policy, now) > before_ns:
                    self._raised_at = max(self._raised_at, end)

    def of_calls(self, now: AlignedNs) -> dict[str, int]:
        """How long calls that no recorder shows may take, in ns, by name; of the learned ones."""
        return {
            op: history.threshold_ns(self._policy, now)
            for (op, size), history in self._history.items()
            if size == 0
        }

    def look_at_rest(self, moved_at: Callable[[AlignedNs], int], now: AlignedNs) -> Rest:
        """Now and then, when anything of the attempt last moved, and whether that ended a rest."""
        known, after_ns = self._rest, self._policy.standstill_after_s * 1e9
        pause_ns = round(after_ns / _LOOKS_AT_REST)
        if now - known.seen_at < pause_ns:
            return known
        since = AlignedNs(moved_at(now))
        # After the end of the rest before, which would be one with it.
        over = LongWait.of(known.since + 1, min(since, known.seen_at + pause_ns))
        waits = self._history.setdefault(_REST, WaitHistory(self._began_at))
        if known.since > 0 and _REST_FACTOR * over.length > after_ns:
            waits.add([over])
            self._waited = True
        longest_ns = max((wait.length for wait in waits.waits), default=0)
        self._rest = Rest(since, now, longest_ns)
        return self._rest

    def expire(self, now: AlignedNs) -> None:
        """Lower thresholds whose waits are too long ago; cheap, to be called often."""
        if self._history and now - self._expired_at > _REVIEW_NS:
            self._expired_at = now
            self._adapt(self._history, now)

    def _adapt(self, kinds: Iterable[GroupKind], now: AlignedNs) -> bool:
        """Whether a threshold is higher than before."""
        raised = False
        for kind in kinds:
            if alike := self._of_kind.get(kind):
                threshold_ns = self._history[kind].threshold_ns(self._policy, now)
                raised |= threshold_ns > self._groups.threshold_ns[alike[0]]
                self._groups.threshold_ns[alike] = threshold_ns
        return raised

    def take_waits(self, now: AlignedNs) -> dict[GroupKind, list[LongWait]] | None:
        """Long waits after which the job went on; None while there is nothing new."""
        is_raised = 0 < self._raised_at <= self._went_on_at
        if not is_raised and not (self._waited and now - self._taken_at >= _REVIEW_NS):
            return None
        self._taken_at, self._waited = now, False
        if is_raised:
            self._raised_at = 0
        survived = {
            kind: [wait for wait in history.waits if wait.end <= self._went_on_at]
            for kind, history in self._history.items()
        }
        return {kind: waits for kind, waits in survived.items() if waits}
