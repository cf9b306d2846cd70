"""One open finding: what it says, and what a new claim about it may change.

Kind, id and opening time never change. Of findings that keep their cause, a cause that was named
with high confidence never changes either: suspects change only from none to some, or to surer ones
while none is certain. It is narrowed, however: a suspect that turns out to wait for another one in
something that no recorder shows was never a first cause. What happens later is a consequence,
because a cause is never later than its finding; how the ranks ended is reported in `ended_by`. If
the job has gone on and waits for another rank, that is another finding (`is_succeeded_by`). An
event is returned only when a user sees a difference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from frd.engine.findings import builder
from frd.engine.findings.attachments import Attachments, Evidence
from frd.engine.findings.builder import (
    NEVER,
    Anchors,
    Claim,
    Lifetime,
    Look,
    anchor_of,
    severity_of,
)
from frd.engine.findings.headlines import worded
from frd.model import (
    AlignedNs,
    AttemptKey,
    Change,
    Finding,
    FindingEvent,
    FindingState,
    Reason,
    Severity,
    Suspect,
)


@dataclass(slots=True)
class Rivals:
    """Other suspects that the latest looks showed, and since when. Reports on what ranks wait for
    come one after another, so that one look alone may show a part of the picture."""

    named: frozenset[tuple[int, Reason]] = frozenset()
    since: AlignedNs | None = None

    def have_lasted(self, suspects: Sequence[Suspect], now: AlignedNs, life: Lifetime) -> bool:
        """The latest looks all showed these suspects, for as long as confirms a claim."""
        named = _named(suspects)
        if named != self.named or self.since is None:
            self.named, self.since = named, now
        return now - self.since >= life.confirm_s * 1e9


@dataclass(slots=True)
class OpenFinding:
    finding: Finding
    """As last reported."""
    suspects: tuple[Suspect, ...]
    """Its suspects without attachments."""
    anchors: Anchors
    since: AlignedNs
    """When the wait, or the loss, began."""
    seen: AlignedNs
    """When a look last showed it."""
    attachments: Attachments = field(default_factory=Attachments)
    updated_at: AlignedNs | None = None
    """When an event last reported it. After a restart of the service: when it was first looked at,
    None before that."""
    restored_at: AlignedNs | None = None
    """When an earlier process's finding was restored; None once this process has seen it."""
    dismissed: Finding | None = None
    """As it was closed by hand. It stays known, so that the same incident opens no other finding,
    but its changes are reported no more."""
    is_resting: bool = False
    """Closed because nothing is heard of the job any more; it may open again, see `reopen`."""
    heard_at: AlignedNs | None = None
    """When the job was heard again while it rests."""
    rivals: Rivals = field(default_factory=Rivals)
    """Suspects that this finding may come to name."""
    successors: Rivals = field(default_factory=Rivals)
    """Suspects that another finding may name in its place."""
    fewer: Rivals = field(default_factory=Rivals)
    """The suspects that are left without those that wait for others."""
    cleared: set[int] = field(default_factory=set)
    """Ranks that are no suspects any more, for good."""

    @classmethod
    def of(cls, key: AttemptKey, claim: Claim, now: AlignedNs, life: Lifetime) -> OpenFinding:
        finding = builder.finding_of(key, claim, now, life.critical_after_s)
        return cls(finding, finding.suspects, claim.anchors, claim.since, now, updated_at=now)

    @classmethod
    def restored(cls, finding: Finding, now: AlignedNs, life: Lifetime) -> OpenFinding:
        """A finding of an earlier process of the service; if it is closed, it was dismissed there,
        and what it is about lasts."""
        dismissed = finding if finding.state is FindingState.CLOSED else None
        finding = replace(finding, state=FindingState.OPEN, closed_at=None, close_reason="")
        if life.critical_after_s < NEVER and finding.severity is None:
            finding = replace(finding, severity=Severity.WARNING)
        return cls(
            finding,
            builder.listed(finding.suspects),
            life.anchors_of(finding),
            finding.opened_at,
            now,
            Attachments.of(finding),
            restored_at=now,
            dismissed=dismissed,
        )

    @classmethod
    def remembered(cls, finding: Finding) -> OpenFinding:
        """A closed finding, for better evidence about it."""
        finding = replace(finding, severity=finding.severity or Severity.WARNING)
        at = finding.closed_at or finding.opened_at
        known = Attachments.of(finding)
        return cls(finding, finding.suspects, frozenset(), finding.opened_at, at, known)

    def rest(self) -> None:
        self.is_resting, self.heard_at = True, None

    def heard(self, now: AlignedNs) -> None:
        """The job is heard again: what has become of the finding is not known, as after a restart
        of the service."""
        if self.is_resting and self.heard_at is None:
            self.heard_at = self.seen = self.restored_at = now
            self.updated_at = None

    def reopen(self, look: Look, life: Lifetime) -> list[FindingEvent]:
        """Open again what a look still shows when the agents have had time to report."""
        if self.heard_at is None or not self.is_resting or self.seen < look.at:
            return []
        if look.at - self.heard_at < life.confirm_s * 1e9:
            return []
        self.is_resting = False
        return [] if self.dismissed else [FindingEvent(Change.OPENED, self.finding)]

    # -- questions ---------------------------------------------------------------------------

    @property
    def is_hidden(self) -> bool:
        """Known, but closed for users."""
        return self.dismissed is not None or self.is_resting

    @property
    def named(self) -> set[int]:
        return {suspect.rank for suspect in self.suspects}

    def as_of(self, now: AlignedNs) -> Finding:
        """The finding with the waiting time up to `now`."""
        ref = self.finding.collective
        if ref is None:
            return self.finding
        waited_s = ref.waited_s
        if self.since > 0:  # else no rank is seen waiting
            waited_s = max(waited_s, (now - self.since) / 1e9)
        return worded(replace(self.finding, collective=replace(ref, waited_s=waited_s)))

    def closed(self, now: AlignedNs, reason: str, *, as_of: AlignedNs) -> Finding:
        # A replica whose clock was ahead may have opened it.
        at = max(now, self.finding.opened_at)
        return worded(
            replace(self.as_of(as_of), state=FindingState.CLOSED, closed_at=at, close_reason=reason)
        )

    def is_over(self, look: Look, life: Lifetime) -> bool:
        """No look has shown the finding for its `close_after_s`, and this look could have."""
        if self.seen >= look.at or self.finding.kind in life.final:
            return False
        after_s, since = life.close_after_s, self.seen
        if self.restored_at is not None and life.restored_close_after_s < NEVER:
            after_s, since = life.restored_close_after_s, self.updated_at or look.at
        if look.at - since < after_s * 1e9:
            return False
        if not look.exited.isdisjoint({*self.named, *self.finding.victims}):
            return False  # its ranks exited: the job did not go on
        return self._is_reported(look)

    def _is_reported(self, look: Look) -> bool:
        """All ranks that waited have reported since the service restarted."""
        ref = self.finding.collective
        if self.restored_at is None or ref is None:
            return True
        # That a rank still waits in a call, which has no group, takes two more stacks to prove.
        seen_at = look.as_of if ref.group_id else look.outside
        return all(seen_at.get(rank, 0) > self.restored_at for rank in ref.waiting_ranks)

    def is_succeeded_by(self, claim: Claim, now: AlignedNs, life: Lifetime) -> bool:
        """The job went on: the suspects of this finding came, and for a while `claim` has named
        other ranks just as surely. That is another finding; this one keeps its cause."""
        if not self.suspects or self.finding.ended_by or self.finding.kind in life.final:
            return False
        if not claim.suspects and claim.reason is not Reason.NETWORK_OR_DEVICE:
            return False
        if self.named & {suspect.rank for suspect in claim.suspects}:
            return False
        if self.named <= claim.cleared:  # they never came: they wait, see `_clear`
            return False
        if not self.successors.have_lasted(claim.suspects, now, life):
            return False
        known = builder.surest(self.suspects)
        if not claim.suspects:
            return known < builder.CERTAIN
        return builder.surest(claim.suspects) == known

    # -- changes -----------------------------------------------------------------------------

    def update(self, claim: Claim, look: Look, life: Lifetime) -> list[FindingEvent]:
        """What another look at the same trouble adds."""
        self.seen, self.restored_at = look.at, None
        if not life.keeps_cause:
            return self._replaced(claim, look.at, life)
        if self.finding.kind in life.final:
            self.anchors = claim.anchors
            return self._report(self._with_collective(self.finding, claim), look.at)
        suspects = self._possible(claim, look)
        if suspects is None:
            return []
        self._clear(suspects, claim, look, life)
        changed = _named(suspects) != _named(self.suspects)
        if changed and not self._changes_mind(suspects, look, life):
            return []
        if not changed:
            self.rivals = Rivals()
        if not self._ended_by(look, life):
            self.suspects = suspects if changed else builder.refined(self.suspects, suspects)
        finding = self.finding
        if changed or self._is_about(claim):
            self.since = claim.since
            finding = self._with_collective(finding, claim)
        self.anchors = claim.anchors
        finding = replace(
            finding,
            reason=claim.reason,
            victims=tuple(sorted({*finding.victims, *claim.victims} - self.named)),
            unknown=claim.unknown,
            disagreement=claim.disagreement or finding.disagreement,
        )
        return self._report(finding, look.at)

    def _replaced(self, claim: Claim, now: AlignedNs, life: Lifetime) -> list[FindingEvent]:
        """The claim says everything; changes are reported every `life.update_every_s`."""
        self.suspects = claim.suspects
        is_due = now - (self.updated_at or now) >= life.update_every_s * 1e9
        if is_due:
            self.updated_at = now
        opened = self.finding
        finding = builder.finding_of(AttemptKey(opened.job, opened.attempt), claim, now)
        events = self._report(replace(finding, id=opened.id, opened_at=opened.opened_at), now)
        return events if is_due else []

    def _possible(self, claim: Claim, look: Look) -> tuple[Suspect, ...] | None:
        """The suspects of a claim without those that began after the finding opened, or that were
        cleared; None if there were some and none is left."""
        opened_at = self.finding.opened_at
        suspects = [
            s
            for s in claim.suspects
            if s.rank not in self.cleared and not builder.began_after(s, opened_at, look.as_of)
        ]
        if len([s for s in suspects if s.tied]) < 2:
            suspects = [replace(s, tied=False) for s in suspects]
        return builder.begun_by(suspects, opened_at) if suspects or not claim.suspects else None

    def _clear(self, suspects: Sequence[Suspect], claim: Claim, look: Look, life: Lifetime) -> None:
        """Narrow the suspects to those that the claim still names, if all others are cleared, and
        that has lasted: a suspect that is left may turn out to wait for one that is not. If none is
        left, those for which they all wait take their place."""
        still = _named(suspects) & _named(self.suspects)
        kept = tuple(s for s in self.suspects if (s.rank, s.reason) in still)
        others = self.named - {s.rank for s in kept}
        kept = kept or tuple(suspects)
        if not (kept and others and others <= claim.cleared) or self.finding.ended_by:
            self.fewer = Rivals()
        elif self.fewer.have_lasted(kept, look.at, life):
            self.suspects = kept
            self.cleared |= others

    def _changes_mind(self, suspects: Sequence[Suspect], look: Look, life: Lifetime) -> bool:
        """From no suspect to some: immediately. To more suspects, or, while none is certain, to
        surer ones: when they have lasted. Never after its ranks ended. Suspects that did not report
        when the finding opened, and do now, count no more."""
        lasted = self.rivals.have_lasted(suspects, look.at, life)
        if self.finding.ended_by:
            return False
        if not self.suspects:
            is_certain = builder.surest(suspects) == builder.CERTAIN
            return is_certain or self.finding.reason is not Reason.NETWORK_OR_DEVICE
        if _named(suspects) > _named(self.suspects):
            fresh = [s for s in suspects if (s.rank, s.reason) not in _named(self.suspects)]
            least = min(builder.surest([s]) for s in fresh)
            return lasted and least >= builder.surest(self.suspects)
        known = [s for s in self.suspects if not self._is_heard_again(s, look)]
        surest = builder.surest(suspects)
        return lasted and surest > builder.surest(known) and surest >= builder.surest(self.suspects)

    def _is_heard_again(self, suspect: Suspect, look: Look) -> bool:
        """Only its silence made it a suspect, and it, or its end, was reported since."""
        if suspect.reason is not Reason.UNREACHABLE or builder.surest([suspect]) == builder.CERTAIN:
            return False
        as_of = look.as_of.get(suspect.rank, 0)
        return as_of > self.finding.opened_at or suspect.rank in look.exited

    def _is_about(self, claim: Claim) -> bool:
        """The claim is about the finding's collective, or that collective is no longer stuck."""
        anchor = anchor_of(self.finding.collective)
        return anchor not in claim.anchors or anchor == anchor_of(claim.collective)

    def _with_collective(self, finding: Finding, claim: Claim) -> Finding:
        ref, old = claim.collective, finding.collective
        if ref is not None and old is not None and not ref.op:
            is_same = (old.group_id, old.seq) == (ref.group_id, ref.seq)
            ref = replace(ref, op=old.op if is_same else "")  # the entries may be forgotten
        return replace(finding, collective=ref, groups_held_up=claim.groups_held_up)

    def look_around(self, look: Look, life: Lifetime) -> list[FindingEvent]:
        """What a look shows of the finding's ranks apart from claims: how they ended, and which
        ranks wait for a lost one."""
        events = self.note_end(look, life)
        if self.finding.kind in life.final:
            events += self._hold_up(look)
        return events

    def note_end(self, look: Look, life: Lifetime) -> list[FindingEvent]:
        """How ranks of the finding ended after it had opened."""
        words = self._ended_by(look, life)
        return self._report(replace(self.finding, ended_by=words), look.at) if words else []

    def _ended_by(self, look: Look, life: Lifetime) -> str:
        ranks = {*self.named, *self.finding.victims, *self.finding.unknown}
        if self.finding.kind in life.final:
            ranks -= self.named
        return look.ended_by(ranks, self.named, self.finding.opened_at)

    def _hold_up(self, look: Look) -> list[FindingEvent]:
        """Ranks that wait for a lost rank before their wait counts as a stall. Their agents report
        one after another, so there may be more of them later."""
        ref = look.held_up_by(self.named)
        if ref is None:
            return []
        if (known := self.finding.collective) is not None:
            waiting = {*known.waiting_ranks, *ref.waiting_ranks}
            is_same = (known.group_id, known.seq) == (ref.group_id, ref.seq)
            if not is_same or len(waiting) == len(known.waiting_ranks):
                return []
            ref = replace(known, waiting_ranks=tuple(sorted(waiting)))
        self.anchors = frozenset({anchor_of(ref)})
        finding = replace(self.finding, collective=ref, groups_held_up=(ref.group,))
        return self._report(finding, look.at)

    def escalate(self, look: Look, life: Lifetime) -> list[FindingEvent]:
        """Make the finding critical when it has lasted. A look must show a restored finding first:
        the job may have gone on while the service was down."""
        if self.finding.kind in life.final and look.exited & (
            self.named or {*self.finding.victims}
        ):
            self.restored_at = None
        lasted_s = (look.at - self.finding.opened_at) / 1e9
        severity = severity_of(self.finding.kind, lasted_s, life.critical_after_s)
        if self.restored_at is not None or severity in (self.finding.severity, Severity.WARNING):
            return []
        finding = replace(self.finding, severity=severity, critical_at=look.at)
        return self._report(finding, look.at)

    def begin_with(self, known: Iterable[Evidence], now: AlignedNs) -> None:
        """What ranks have answered before the finding opened."""
        for evidence in known:
            self.attachments.add(evidence)
        self._report(self.finding, now)

    def attach(self, evidence: Evidence) -> list[FindingEvent]:
        """Better evidence about a suspect, or about a victim, which may become the witness. What
        they do after they ended, or came out of their wait, shows nothing of it."""
        if self.finding.ended_by or not self.finding.lasts:
            evidence = replace(evidence, activity=None, waits_for=None)
        self.attachments.add(evidence)
        return self._report(self.finding, self.seen)

    def _report(self, finding: Finding, now: AlignedNs) -> list[FindingEvent]:
        """Keep a new version; an event if a user sees a difference."""
        before = self.finding
        self.finding = self.attachments.attached_to(finding, self.suspects)
        self.finding = self.as_of(now)
        if self.is_hidden or builder.looks_alike(before, self.finding):
            return []
        return [FindingEvent(Change.UPDATED, self.finding)]


def _named(suspects: Collection[Suspect]) -> frozenset[tuple[int, Reason]]:
    return frozenset((s.rank, s.reason) for s in suspects)
