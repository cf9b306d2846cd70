"""One open finding: its cause, and what became of it afterwards.

Its kind, id and opening time are for life, and so is a cause that was named with high confidence:
who is named, and why, changes only from nobody to somebody, or to something surer while it is not
high. What happens later is a consequence. It cannot be the cause, because a cause is never later
than the finding; how the ranks ended is told in `ended_by`. Where the job has gone on and waits for
somebody else, that is another finding (`succeeds`). Events come out only when something changed
that people see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from frd.engine.findings import builder
from frd.engine.findings import text as summary
from frd.engine.findings.builder import Attachments, Key
from frd.engine.findings.severity import severity_of
from frd.engine.hangs.diagnosis import Verdict
from frd.engine.hangs.exits import SEEN_LATE_NS, Exit, Manner, bad_exits
from frd.engine.hangs.lost_ranks import Loss
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot
from frd.forms import clock_text, fold_ranks
from frd.model import (
    Activity,
    AlignedNs,
    AttemptKey,
    Change,
    Finding,
    FindingEvent,
    FindingState,
    Kind,
    Reason,
    Severity,
    Suspect,
)

_CHANGE_OF_MIND_NS = 1_500_000_000
"""How long other suspects must be seen before a finding names them instead."""


@dataclass(slots=True)
class Rivals:
    """Other suspects that the latest looks have shown, and since when."""

    claims: frozenset[tuple[int, Reason]] = frozenset()
    since: AlignedNs | None = None

    def stood(self, seen: Sequence[Suspect], now: AlignedNs) -> bool:
        """It is these, and has been for a while."""
        claims = _claims(seen)
        if claims != self.claims or self.since is None:
            self.claims, self.since = claims, now
        return now - self.since >= _CHANGE_OF_MIND_NS


@dataclass(slots=True)
class Claim:
    finding: Finding
    """As last told."""
    bare: tuple[Suspect, ...]
    """Its suspects without what was attached to them."""
    keys: set[Key]
    """What is stuck."""
    since: AlignedNs
    """When the wait, or the loss, began."""
    seen: AlignedNs
    """When something of it was last seen stuck."""
    extras: Attachments = field(default_factory=Attachments)
    rivals: Rivals = field(default_factory=Rivals)
    """Whom this finding may come to name."""
    successors: Rivals = field(default_factory=Rivals)
    """Whom another finding may name in its place."""
    restored_at: AlignedNs | None = None
    """Until this process of the service has seen it with its own eyes."""

    # -- coming into being -------------------------------------------------------------------

    @classmethod
    def of_verdict(
        cls,
        key: AttemptKey,
        snapshot: Snapshot,
        verdict: Verdict,
        keys: set[Key],
        policy: Policy,
    ) -> Claim:
        now = snapshot.now
        ref = builder.collective_of(snapshot, verdict, max(0.0, (now - verdict.since) / 1e9))
        bare = builder.begun_by(builder.suspects_of(snapshot, verdict, policy.max_suspects), now)
        about = f"{ref.group_id}/{ref.seq if ref.seq >= 0 else ref.op}"
        finding = Finding(
            id=builder.finding_id(key, verdict.kind, about, now),
            kind=verdict.kind,
            state=FindingState.OPEN,
            job=key.job,
            attempt=key.attempt,
            opened_at=now,
            collective=ref,
            reason=verdict.reason,
            groups_held_up=builder.labels_of(snapshot, verdict),
            suspects=bare,
            victims=verdict.victims,
            unknown=verdict.unknown,
            disagreement=verdict.disagreement,
            severity=severity_of(verdict.kind, 0.0, policy.critical_after_s),
        )
        return cls(builder.finished(finding), bare, keys, verdict.since, now)

    @classmethod
    def of_loss(cls, key: AttemptKey, snapshot: Snapshot, loss: Loss, policy: Policy) -> Claim:
        now = snapshot.now
        bare = builder.begun_by(builder.suspects_of_loss(snapshot, loss, policy.max_suspects), now)
        named = {one.rank for one in loss.exits}
        others = {*range(snapshot.world_size), *snapshot.rank.tolist()} - named
        if not named:  # each of those that are gone blames a peer
            others = {one.rank for one in bad_exits(snapshot)}
        ref = builder.held_up_by(snapshot, loss.exits)
        finding = Finding(
            id=builder.finding_id(key, Kind.RANK_LOST, fold_ranks(named), now),
            kind=Kind.RANK_LOST,
            state=FindingState.OPEN,
            job=key.job,
            attempt=key.attempt,
            opened_at=now,
            collective=ref,
            groups_held_up=(ref.group,) if ref is not None else (),
            suspects=bare,
            victims=tuple(sorted(others)),
            severity=severity_of(Kind.RANK_LOST, 0.0, policy.critical_after_s),
        )
        keys = {builder.key_of(ref)} if ref is not None else set()
        since = min((one.at for one in loss.exits), default=now)
        return cls(builder.finished(finding), bare, keys, since, now)

    @classmethod
    def restored(cls, finding: Finding, now: AlignedNs) -> Claim:
        finding = replace(finding, severity=finding.severity or Severity.WARNING)
        ref = finding.collective
        keys = {builder.key_of(ref)} if ref is not None else set()
        extras = Attachments.of(finding)
        return cls(finding, finding.suspects, keys, finding.opened_at, now, extras, restored_at=now)

    # -- questions ---------------------------------------------------------------------------

    @property
    def named(self) -> set[int]:
        return {suspect.rank for suspect in self.bare}

    def timed(self, now: AlignedNs) -> Finding:
        """The finding with the waiting time as of now."""
        ref = self.finding.collective
        if ref is None:
            return self.finding
        waited_s = max(ref.waited_s, (now - self.since) / 1e9)
        return builder.finished(replace(self.finding, collective=replace(ref, waited_s=waited_s)))

    def is_reported(self, snapshot: Snapshot) -> bool:
        """Those who waited have reported since this process of the service knows the finding."""
        if self.restored_at is None or self.finding.collective is None:
            return True
        as_of = dict(zip(snapshot.rank.tolist(), snapshot.as_of.tolist(), strict=True))
        waiting = self.finding.collective.waiting_ranks
        return all(as_of.get(rank, 0) > self.restored_at for rank in waiting)

    # -- changes -----------------------------------------------------------------------------

    def opened(self) -> FindingEvent:
        return FindingEvent(Change.OPENED, self.finding)

    def refine(
        self, snapshot: Snapshot, verdict: Verdict, keys: set[Key], most: int
    ) -> list[FindingEvent]:
        """What another look at the same incident adds."""
        self.restored_at = None
        if self.finding.kind is Kind.RANK_LOST:
            self.keys = keys
            return self._tell(self._with_collective(self.finding, snapshot, verdict), snapshot.now)
        seen = self._possible(snapshot, verdict, most)
        if seen is None:
            return []
        changed = _claims(seen) != _claims(self.bare)
        if changed and not self._changes_mind(seen, verdict.reason, snapshot.now):
            return []
        if not changed:
            self.rivals = Rivals()
        self.bare = seen if changed else builder.refined(self.bare, seen)
        named = self.named
        finding = self.finding
        ref = finding.collective
        about = builder.key_of(ref) if ref is not None else None
        if changed or about not in keys or about == builder.key_about(snapshot, verdict):
            finding = self._with_collective(finding, snapshot, verdict)
        self.keys = keys
        finding = replace(
            finding,
            reason=verdict.reason,
            victims=tuple(sorted({*finding.victims, *verdict.victims} - named)),
            unknown=verdict.unknown,
            disagreement=verdict.disagreement or finding.disagreement,
        )
        return self._tell(finding, snapshot.now)

    def succeeds(self, snapshot: Snapshot, verdict: Verdict, most: int) -> bool:
        """The job has gone on: whom this finding names came, and `verdict` names somebody else, no
        less surely and for a while. That is another finding; this one keeps its cause."""
        if not self.bare or self.finding.ended_by or self.finding.kind is Kind.RANK_LOST:
            return False
        seen = builder.suspects_of(snapshot, verdict, most)
        if not seen and verdict.reason is not Reason.NETWORK_OR_DEVICE:
            return False
        if self.named & {suspect.rank for suspect in seen} or not self.successors.stood(
            seen, snapshot.now
        ):
            return False
        if not seen:
            return not self._is_certain
        return builder.surest(seen) == builder.surest(self.bare)

    def hold_up(self, snapshot: Snapshot, lost: Sequence[Exit]) -> list[FindingEvent]:
        """Of a lost rank: which ranks turn out to wait for it before anything is called a stall.
        Their agents report one after another, so that there may be more of them later."""
        if self.finding.kind is not Kind.RANK_LOST:
            return []
        mine = [one for one in lost if one.rank in self.named]
        if not mine or (ref := builder.held_up_by(snapshot, mine)) is None:
            return []
        if (known := self.finding.collective) is not None:
            waiting = {*known.waiting_ranks, *ref.waiting_ranks}
            is_same = (known.group_id, known.seq) == (ref.group_id, ref.seq)
            if not is_same or len(waiting) == len(known.waiting_ranks):
                return []
            ref = replace(known, waiting_ranks=tuple(sorted(waiting)))
        self.keys = {builder.key_of(ref)}
        return self._tell(
            replace(self.finding, collective=ref, groups_held_up=(ref.group,)), snapshot.now
        )

    def ended(self, gone: Sequence[Exit], now: AlignedNs) -> list[FindingEvent]:
        """How ranks of the finding went after it had opened, the first of them: told beside the
        cause. Who goes much later goes because of that."""
        mine = {*self.named, *self.finding.victims, *self.finding.unknown}
        if self.finding.kind is Kind.RANK_LOST:
            mine -= self.named
        later = [one for one in gone if one.rank in mine and one.at > self.finding.opened_at]
        if not later:
            return []
        until = min(one.at for one in later) + SEEN_LATE_NS
        begun = min(
            (one for one in later if one.at <= until),
            key=lambda e: (not e.is_interrupt, e.manner is Manner.REACTED, e.at),
        )
        alike = [e for e in later if summary.ended_by(e.how) == summary.ended_by(begun.how)]
        told = next((one for one in alike if one.rank in self.named), begun)
        words = f"ended by {summary.ended_by(told.how)} at {clock_text(alike[0].at)}"
        if told.manner is not Manner.ASKED:
            words = f"rank {told.rank} {words}"
        return self._tell(replace(self.finding, ended_by=words), now)

    def attach(
        self,
        *,
        rank: int | None,
        activity: Activity | None,
        note: str,
        dump: str | None,
    ) -> list[FindingEvent]:
        """Better evidence: of a suspect, or of a victim, who may become the witness."""
        self.extras.add(rank=rank, activity=activity, note=note, dump=dump)
        return self._tell(self.finding, self.seen)

    def confirm_loss(self, gone: set[int]) -> None:
        """These ranks are seen to be gone, by this process of the service too."""
        lost = self.named or {*self.finding.victims}  # nobody is named where each blames a peer
        if self.finding.kind is Kind.RANK_LOST and lost & gone:
            self.restored_at = None

    def escalated(self, now: AlignedNs, policy: Policy) -> list[FindingEvent]:
        """It becomes critical when it has lasted. A finding of an earlier process of the service
        has to be seen again first: the job may have moved on while nobody watched."""
        lasted_s = (now - self.finding.opened_at) / 1e9
        severity = severity_of(self.finding.kind, lasted_s, policy.critical_after_s)
        if self.restored_at is not None or severity in (self.finding.severity, Severity.WARNING):
            return []
        return self._tell(replace(self.finding, severity=severity, critical_at=now), now)

    def closed(self, now: AlignedNs, reason: str) -> FindingEvent:
        finding = replace(
            self.timed(self.seen), state=FindingState.CLOSED, closed_at=now, close_reason=reason
        )
        self.finding = builder.finished(finding)
        return FindingEvent(Change.CLOSED, self.finding)

    def _possible(
        self, snapshot: Snapshot, verdict: Verdict, most: int
    ) -> tuple[Suspect, ...] | None:
        """Whom the verdict names, but for those who began after the finding had opened; None when
        nobody else is left."""
        opened_at = self.finding.opened_at
        told = builder.suspects_of(snapshot, verdict, most)
        seen = builder.begun_by(
            [s for s in told if not builder.began_after(snapshot, s, opened_at)], opened_at
        )
        return seen if seen or not told else None

    @property
    def _is_certain(self) -> bool:
        return builder.surest(self.bare) == builder.CERTAIN

    def _changes_mind(self, seen: Sequence[Suspect], reason: Reason | None, now: AlignedNs) -> bool:
        """At once from nobody to somebody; to more than was known, or while nothing is certain to
        something surer, when that was seen for a while. Not once its ranks end: see `ended`."""
        stood = self.rivals.stood(seen, now)
        if self.finding.ended_by:
            return False
        if not self.bare:
            is_certain = builder.surest(seen) == builder.CERTAIN
            return is_certain or self.finding.reason is not Reason.NETWORK_OR_DEVICE
        fresh = [s for s in seen if (s.rank, s.reason) not in _claims(self.bare)]
        if _claims(seen) > _claims(self.bare):
            least = min(builder.surest([s]) for s in fresh)
            return stood and least >= builder.surest(self.bare)
        return stood and builder.surest(seen) > builder.surest(self.bare)

    def _with_collective(self, finding: Finding, snapshot: Snapshot, verdict: Verdict) -> Finding:
        if finding.kind is not Kind.RANK_LOST:
            self.since = verdict.since
        ref = builder.collective_of(snapshot, verdict, (snapshot.now - verdict.since) / 1e9)
        old = finding.collective
        if old is not None and not ref.op and (old.group_id, old.seq) == (ref.group_id, ref.seq):
            ref = replace(ref, op=old.op)  # entries that were forgotten told it
        return replace(finding, collective=ref, groups_held_up=builder.labels_of(snapshot, verdict))

    def _tell(self, finding: Finding, now: AlignedNs) -> list[FindingEvent]:
        """The new version; an event when people see a difference."""
        before = self.finding
        self.finding = self.extras.dressed(finding, self.bare)
        self.finding = self.timed(now)
        alike = builder.looks_alike(before, self.finding)
        return [] if alike else [FindingEvent(Change.UPDATED, self.finding)]


def _claims(suspects: Sequence[Suspect]) -> frozenset[tuple[int, Reason]]:
    return frozenset((s.rank, s.reason) for s in suspects)
