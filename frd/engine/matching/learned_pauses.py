"""The long waits that the attempts of a job have shown, kept by the job's name.

A job writes checkpoints in its next run too. Therefore the waits of its attempts are kept, in
bounded memory, and every new attempt begins with them. A wait is kept only if the job went on
afterwards: a wait in which the job ended is not a usual one.

How the newest attempt of a job failed is kept in the same way, so that the job stays in sight after
its attempt is forgotten, and after a restart of the service.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import msgspec

from frd.engine.matching.usual_waits import GroupKind, LongWait, united
from frd.model import AlignedNs, AttemptKey, Failure

KEPT_NS: Final = 14 * 24 * 3600 * 1_000_000_000
"""A job remembers a wait for so long. With half of it, a job that runs once a week or after a
holiday starts without pauses and is reported at its first checkpoint; with twice as much, it is
judged by the pauses of a program that has changed since."""
KEPT_WAITS: Final = 8
"""Waits kept per kind of group, for the next attempts."""
KEPT_KINDS: Final = 16
"""Kinds of group kept per job."""
KEPT_JOBS: Final = 256
"""Jobs with pauses, and as many that have none and failed: neither sort takes the other's place."""


@dataclass(frozen=True, slots=True)
class JobPauses:
    """The long waits that the attempts of one job have shown."""

    job: str
    learned_at: AlignedNs
    waits: Mapping[GroupKind, Sequence[LongWait]] = field(default_factory=dict)
    failure: Failure | None = None
    """How its newest attempt failed; None if it did not, or a long time ago."""

    def with_more(self, news: Mapping[GroupKind, Sequence[LongWait]], now: AlignedNs) -> JobPauses:
        """The longest waits of the last weeks, including `news`, those of an attempt."""
        waits: dict[GroupKind, list[LongWait]] = {}
        for kind in sorted({*self.waits, *news}):
            known = [*self.waits.get(kind, ()), *news.get(kind, ())]
            fresh = [wait for wait in known if now - wait.end <= KEPT_NS]
            if fresh:
                waits[kind] = united(fresh, KEPT_WAITS)
        if len(waits) > KEPT_KINDS:
            longest = sorted(waits, key=lambda kind: max(wait.length for wait in waits[kind]))
            waits = {kind: waits[kind] for kind in sorted(longest[-KEPT_KINDS:])}
        return replace(self, learned_at=now, waits=waits)

    def encode(self) -> str:
        """ASCII JSON, which carries any label."""
        groups = [[*kind, waits] for kind, waits in self.waits.items()]
        document = {"job": self.job, "learned_at": self.learned_at, "groups": groups}
        document["failure"] = self.failure and asdict(self.failure)
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
            failure = msgspec.convert(found.get("failure"), Failure | None)
            return JobPauses(str(found["job"]), AlignedNs(int(found["learned_at"])), waits, failure)
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
        self._keep((self._jobs.get(job) or JobPauses(job, now)).with_more(waits, now))

    def fail(self, job: str, failure: Failure | None, now: AlignedNs) -> None:
        """How the newest attempt of a job failed; None if it did not."""
        known = self._jobs.get(job) or JobPauses(job, now)
        if known.failure != failure:
            self._keep(replace(known, learned_at=now, failure=failure))

    def _keep(self, one: JobPauses) -> None:
        self._jobs.pop(one.job, None)
        self._jobs[one.job] = self._news[one.job] = one
        alike = [job for job, known in self._jobs.items() if bool(known.waits) is bool(one.waits)]
        for job in alike[:-KEPT_JOBS]:
            del self._jobs[job]
            self.evicted += 1

    def failure(self, job: str) -> Failure | None:
        known = self._jobs.get(job)
        return known.failure if known is not None else None

    def failures(self, after: int, until: int) -> dict[AttemptKey, Failure]:
        """Attempts, each the newest of its job, that failed after one time and until another."""
        each = [(job, one.failure) for job, one in self._jobs.items() if one.failure is not None]
        return {AttemptKey(job, one.attempt): one for job, one in each if after < one.at <= until}

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
