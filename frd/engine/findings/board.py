"""The open findings of one watcher: what each is about, how it was last told, when it was seen.

A watcher (`frd.engine.evaluation`) looks for one sort of trouble and says what it sees now, as a
whole finding; the board knows whether that is news. Of each subject there is one finding, with one
id from its opening to its end. Stacks and dumps that others attach stay through all versions.

Stalls have lives of their own (`frd.engine.hangs.incidents`): their subjects merge and change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field, replace

from frd.engine.findings import builder
from frd.engine.findings.builder import Attachments
from frd.engine.findings.severity import severity_of
from frd.model import (
    Activity,
    AlignedNs,
    AttemptKey,
    Change,
    Finding,
    FindingEvent,
    FindingState,
    Kind,
)


@dataclass(slots=True)
class _Told:
    claim: Finding
    """As the watcher said it."""
    finding: Finding
    """The same with what was attached."""
    seen: AlignedNs
    extras: Attachments = field(default_factory=Attachments)


class Board:
    """Findings by subject; `subject_of` tells it of a finding, one from before a restart too."""

    def __init__(self, kinds: frozenset[Kind], subject_of: Callable[[Finding], Hashable]) -> None:
        self.kinds = kinds
        self._subject_of = subject_of
        self._open: dict[Hashable, _Told] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, subject: Hashable) -> bool:
        return subject in self._open

    def __iter__(self) -> Iterator[Hashable]:
        """The subjects."""
        return iter(list(self._open))

    def findings(self, now: AlignedNs) -> list[Finding]:
        return [told.finding for told in self._open.values()]

    def get(self, subject: Hashable) -> Finding | None:
        """What was said of a subject last, without attachments."""
        told = self._open.get(subject)
        return told.claim if told is not None else None

    # -- changes -----------------------------------------------------------------------------

    def put(self, claim: Finding, now: AlignedNs, *, quiet: bool = False) -> list[FindingEvent]:
        """What is seen of a subject now; `id`, `opened_at` and `severity` are the board's to set.

        With `quiet`, only an opening is an event: what has changed is told when somebody asks.
        """
        subject = self._subject_of(claim)
        told = self._open.get(subject)
        claim = replace(claim, severity=severity_of(claim.kind, 0.0, math.inf))
        if told is None:
            key = AttemptKey(claim.job, claim.attempt)
            finding_id = builder.finding_id(key, claim.kind, repr(subject), now)
            claim = builder.finished(replace(claim, id=finding_id, opened_at=now))
            self._open[subject] = _Told(claim, claim, now)
            return [FindingEvent(Change.OPENED, claim)]
        told.claim = replace(claim, id=told.claim.id, opened_at=told.claim.opened_at)
        told.seen = now
        return [] if self._dress(told) or quiet else [FindingEvent(Change.UPDATED, told.finding)]

    def close(self, subject: Hashable, now: AlignedNs, reason: str) -> list[FindingEvent]:
        told = self._open.pop(subject, None)
        if told is None:
            return []
        closed = replace(
            told.finding, state=FindingState.CLOSED, closed_at=now, close_reason=reason
        )
        return [FindingEvent(Change.CLOSED, builder.finished(closed))]

    def close_all(
        self, now: AlignedNs, reason: str, *, but: Collection[Kind] = ()
    ) -> list[FindingEvent]:
        over = [s for s, told in self._open.items() if told.claim.kind not in but]
        return [event for subject in over for event in self.close(subject, now, reason)]

    def expire(self, now: AlignedNs, after_s: float) -> list[FindingEvent]:
        """Close what no watcher has seen for this long."""
        over = [s for s, told in self._open.items() if now - told.seen >= after_s * 1e9]
        reason = f"nothing new for {after_s:.0f} s"
        return [event for subject in over for event in self.close(subject, now, reason)]

    def restore(self, finding: Finding, now: AlignedNs) -> None:
        """Go on with a finding of an earlier process of the service."""
        told = _Told(finding, finding, now, Attachments.of(finding))
        self._open[self._subject_of(finding)] = told

    def attach(
        self,
        finding_id: str,
        *,
        rank: int | None,
        activity: Activity | None,
        note: str,
        dump: str | None,
    ) -> list[FindingEvent] | None:
        """Better evidence for a finding; None when it is not among these."""
        for told in self._open.values():
            if told.claim.id == finding_id:
                told.extras.add(rank=rank, activity=activity, note=note, dump=dump)
                return [] if self._dress(told) else [FindingEvent(Change.UPDATED, told.finding)]
        return None

    def _dress(self, told: _Told) -> bool:
        """Put the finding together anew; true when it looks as before."""
        before = told.finding
        told.finding = builder.finished(told.extras.dressed(told.claim, told.claim.suspects))
        return builder.looks_alike(before, told.finding)
