"""How long the members of groups usually wait for each other, and the stall threshold of that.

Groups with the same label and size are of one *sort*, and what one of them shows holds for all: a
checkpoint makes another group wait each time. What teaches is a wait that ended because all members
came. A wait that is seen twice is usual, whatever its length: the threshold is a multiple of the
second longest, but no more than some minutes above it, or two outages of a quarter of an hour would
hide a hang for an hour. A wait that was seen once, and was over before it would have been critical,
is usual up to twice its length; a longer one may have been an accident, and one bad hour must not
blunt the detector. Collectives that waited through the same minutes (a rank that is late is late
for all of its buckets) are one wait, as long as the longest of them: where programs run ahead, the
waits of one step reach into the next, for hours.

A job writes checkpoints in its next run too. So what its attempts have seen is kept by the job's
name, in bounded memory, and every new attempt begins with it. A wait is kept only if the job went
on afterwards: what ends with the job teaches nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from frd.engine.policy import Policy
from frd.model import AlignedNs

MEMORY_NS: Final = 6 * 3600 * 1_000_000_000
"""An attempt remembers a wait for so long: longer than between two checkpoints of any job."""
MOST_WAITS: Final = 32
"""The longest ones, of a sort of group in one attempt."""
KEPT_NS: Final = 14 * 24 * 3600 * 1_000_000_000
"""A job remembers a wait for so long."""
KEPT_WAITS: Final = 8
"""Of a sort of group, for the next attempts."""
KEPT_SORTS: Final = 16
"""Of a job."""
KEPT_JOBS: Final = 256
_FAR: Final = 1 << 64
_ONCE_FACTOR: Final = 2.0
"""The next pause may be so much longer than the only one that has been seen."""

GroupKind: TypeAlias = tuple[str, int]
"""Label and size of a group."""


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
            ValueError: no clock tells such times.
        """
        if max(map(abs, (start, end, length))) > _FAR:
            raise ValueError("times beyond 64 bits")
        return cls(start, end, length)


def united(waits: Iterable[LongWait], most: int) -> list[LongWait]:
    """Waits that overlap are one; the `most` longest, in the order of time."""
    found: list[LongWait] = []
    for wait in sorted(waits):
        if found and wait.start <= found[-1].end:
            last = found[-1]
            found[-1] = LongWait(last.start, max(last.end, wait.end), max(last.length, wait.length))
        else:
            found.append(wait)
    if len(found) > most:
        found = sorted(sorted(found, key=_length)[-most:])
    return found


def _length(wait: LongWait) -> int:
    return wait.length


class WaitHistory:
    """The long waits of one sort of group in one attempt."""

    def __init__(self, since: AlignedNs, known: Iterable[LongWait] = ()) -> None:
        """`known` are those of earlier attempts; in this one they count from `since` on."""
        self.waits = list(known)
        self._since = since

    def add(self, waits: Iterable[LongWait]) -> None:
        self.waits = united([*self.waits, *waits], MOST_WAITS)

    def threshold_ns(self, policy: Policy, now: AlignedNs) -> int:
        self.waits = [w for w in self.waits if now - max(w.end, self._since) <= MEMORY_NS]
        lengths = sorted(map(_length, self.waits))
        passing = (policy.stall_after_s + policy.critical_after_s) * 1e9
        again = lengths[-2] if len(lengths) > 1 else 0
        once = max((length for length in lengths if length <= passing), default=0)
        factor = policy.stall_tail_factor
        usual = max(
            again + min(again, passing) * (factor - 1),
            once * min(factor, _ONCE_FACTOR),
        )
        threshold_s = max(policy.stall_after_s, min(usual / 1e9, policy.stall_after_max_s))
        return round(threshold_s * 1e9)


# -- kept by the job's name --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobPauses:
    """What the attempts of one job have shown."""

    job: str
    learned_at: AlignedNs
    waits: Mapping[GroupKind, Sequence[LongWait]] = field(default_factory=dict)

    def with_more(self, news: Mapping[GroupKind, Sequence[LongWait]], now: AlignedNs) -> JobPauses:
        """The longest waits of the last weeks, those of an attempt among them."""
        waits: dict[GroupKind, list[LongWait]] = {}
        for sort in sorted({*self.waits, *news}):
            known = [*self.waits.get(sort, ()), *news.get(sort, ())]
            fresh = [wait for wait in known if now - wait.end <= KEPT_NS]
            if fresh:
                waits[sort] = united(fresh, KEPT_WAITS)
        if len(waits) > KEPT_SORTS:
            longest = sorted(waits, key=lambda sort: max(map(_length, waits[sort])))
            waits = {sort: waits[sort] for sort in sorted(longest[-KEPT_SORTS:])}
        return JobPauses(self.job, now, waits)

    def encode(self) -> str:
        """ASCII JSON, which carries any label."""
        groups = [[*sort, waits] for sort, waits in self.waits.items()]
        document = {"job": self.job, "learned_at": self.learned_at, "groups": groups}
        return json.dumps(document, separators=(",", ":"))

    @staticmethod
    def decode(text: str | bytes) -> JobPauses:
        """
        Raises:
            ValueError: `text` is not what `encode` gives.
        """
        try:
            found: dict[str, Any] = json.loads(text)
            waits = {
                (str(label), int(size)): [LongWait.of_numbers(*map(int, wait)) for wait in waits]
                for label, size, waits in found["groups"]
            }
            return JobPauses(str(found["job"]), AlignedNs(int(found["learned_at"])), waits)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"pauses of a job: {error!r}") from None


class LearnedPauses:
    """The pauses of all jobs, those that learned last at the end."""

    def __init__(self) -> None:
        self.evicted = 0
        """Jobs that were forgotten to stay within the limit."""
        self._jobs: dict[str, JobPauses] = {}
        self._news: dict[str, JobPauses] = {}

    def recall(self, jobs: Iterable[JobPauses]) -> None:
        """Replace all that is known."""
        self._jobs = {one.job: one for one in sorted(jobs, key=lambda one: one.learned_at)}

    def learn(
        self, job: str, waits: Mapping[GroupKind, Sequence[LongWait]], now: AlignedNs
    ) -> None:
        known = self._jobs.pop(job, None) or JobPauses(job, now)
        self._jobs[job] = self._news[job] = known.with_more(waits, now)
        while len(self._jobs) > KEPT_JOBS:
            del self._jobs[next(iter(self._jobs))]
            self.evicted += 1

    def of(self, job: str, now: AlignedNs) -> Mapping[GroupKind, Sequence[LongWait]]:
        """What a new attempt of the job begins with."""
        known = self._jobs.get(job)
        return known.with_more({}, now).waits if known is not None else {}

    def all(self) -> list[JobPauses]:
        return list(self._jobs.values())

    def take_news(self) -> list[JobPauses]:
        """Jobs that have learned something since the last call."""
        news, self._news = self._news, {}
        return list(news.values())
