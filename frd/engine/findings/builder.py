"""Builds findings from claims. A finding is built as a whole, never edited in place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from typing import Final

from frd.engine.clocks.uncertain_time import FOREVER, UncertainTime, ties
from frd.engine.findings import headlines, text
from frd.engine.findings.claim import NEVER, Claim, severity_of
from frd.engine.state.snapshot import Snapshot
from frd.forms import later
from frd.model import (
    Address,
    AlignedNs,
    AttemptKey,
    CollectiveRef,
    Confidence,
    Finding,
    FindingState,
    GroupInfo,
    Kind,
    Reason,
    Suspect,
    SuspectPhase,
)

CONFIDENCES: Final = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)
"""Ascending."""
CERTAIN: Final = CONFIDENCES.index(Confidence.HIGH)
"""What `surest` returns when a suspect is named with high confidence."""


def finding_id(key: AttemptKey, kind: Kind, about: str, opened_at: AlignedNs) -> str:
    parts = (key.job, str(key.attempt), kind.value, about, str(opened_at))
    encoded = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(encoded).hexdigest()[:16]


def finding_of(
    key: AttemptKey, claim: Claim, now: AlignedNs, critical_after_s: float = NEVER
) -> Finding:
    """The finding that a claim opens."""
    ref = claim.collective
    finding = Finding(
        id=finding_id(key, claim.kind, claim.about, now),
        kind=claim.kind,
        state=FindingState.OPEN,
        job=key.job,
        attempt=key.attempt,
        opened_at=now,
        collective=replace(ref, waited_s=max(0.0, ref.waited_s)) if ref is not None else None,
        reason=claim.reason,
        groups_held_up=claim.groups_held_up,
        suspects=listed(begun_by(claim.suspects, now)),
        victims=claim.victims,
        unknown=claim.unknown,
        disagreement=claim.disagreement,
        lost_s=claim.lost_s,
        severity=severity_of(claim.kind, 0.0, critical_after_s),
        headline=claim.headline,
        effect=claim.effect,
    )
    return headlines.worded(finding)


def timed(
    suspects: Sequence[Suspect], began: Sequence[UncertainTime], least_ns: int = 0
) -> tuple[Suspect, ...]:
    """The suspects with the time at which each began, and whether these times have an order."""
    return tuple(
        replace(
            suspect,
            onset_at=moment.at or None,
            onset_uncertainty_s=moment.uncertainty_s,
            tied=tied,
        )
        for suspect, moment, tied in zip(suspects, began, ties(began, least_ns), strict=True)
    )


def begun_by(suspects: Sequence[Suspect], at: AlignedNs) -> tuple[Suspect, ...]:
    """No cause is later than its finding, even if the clock of a rank is off."""
    return tuple(
        s if s.onset_at is None or s.onset_at <= at else replace(s, onset_at=at) for s in suspects
    )


def began_after(suspect: Suspect, opened_at: AlignedNs, as_of: Mapping[int, int]) -> bool:
    """True if it certainly began later. The end of a rank may be as old as its last report."""
    if suspect.onset_at is None or suspect.onset_at <= opened_at:
        return False
    if suspect.reason is Reason.UNREACHABLE or suspect.reason is Reason.EXITED:
        return as_of.get(suspect.rank, 0) > opened_at
    return True


def collective_ref(
    info: GroupInfo, seq: int, op: str, waiting: Iterable[int], missing: Iterable[int]
) -> CollectiveRef:
    return CollectiveRef(
        group=text.clean(info.label),
        group_id=info.group_id,
        group_size=len(info.ranks),
        seq=seq,
        op=text.clean(op),
        waiting_ranks=tuple(waiting),
        missing_ranks=tuple(missing),
        waited_s=0.0,
    )


def suspect(
    snapshot: Snapshot, rank: int, reason: Reason, confidence: Confidence, *evidence: str
) -> Suspect:
    """A suspect; parts of its evidence that are empty are left out."""
    info = snapshot.info.get(rank)
    return Suspect(
        *(rank, node_of(snapshot, rank), reason, confidence, "; ".join(filter(None, evidence))),
        address=_clean(info.address) if info is not None and info.address is not None else None,
    )


def _clean(address: Address) -> Address:
    pid, *texts = astuple(address)
    return Address(pid, *map(text.clean, texts))


def in_phase(
    suspect: Suspect, phase: SuspectPhase | None, utc_ahead_ns: int, when: str = "in"
) -> Suspect:
    """The suspect with a phase of its program, which its evidence mentions last."""
    if phase is None:
        return suspect
    words = text.phase(later(phase, utc_ahead_ns), when)
    evidence = "; ".join(filter(None, (suspect.evidence, words)))
    shown = replace(phase, path=tuple(map(text.clean, phase.path)))
    return replace(suspect, phase=shown, evidence=evidence)


def node_of(snapshot: Snapshot, rank: int) -> str:
    info = snapshot.info.get(rank)
    return text.clean(info.node) if info is not None else ""


def surest(suspects: Iterable[Suspect]) -> int:
    """The highest confidence of any suspect, as an index of `CONFIDENCES`; -1 for no suspects."""
    return max((CONFIDENCES.index(s.confidence) for s in suspects), default=-1)


def listed(suspects: Iterable[Suspect]) -> tuple[Suspect, ...]:
    """The surest first, of equally sure ones the first."""
    return tuple(sorted(suspects, key=lambda s: (-surest([s]), s.onset_at or FOREVER)))


def refined(old: Sequence[Suspect], new: Sequence[Suspect]) -> tuple[Suspect, ...]:
    """The surer version of each suspect; both name the same ranks for the same reasons."""
    before: Mapping[int, Suspect] = {s.rank: s for s in old}
    return tuple(s if surest([s]) >= surest([before[s.rank]]) else before[s.rank] for s in new)


def looks_alike(finding: Finding, other: Finding) -> bool:
    """True if a user sees no difference, except that time has passed."""
    return _timeless(finding) == _timeless(other)


def _timeless(finding: Finding) -> Finding:
    ref = finding.collective
    return replace(
        finding,
        effect="",
        summary="",
        collective=replace(ref, waited_s=0.0) if ref is not None else None,
        suspects=tuple(
            replace(
                s,
                onset_at=None,
                onset_uncertainty_s=None,
                waits_for=s.waits_for
                and replace(s.waits_for, text="", since_at=None, seen_at=None),
            )
            for s in finding.suspects
        ),
    )
