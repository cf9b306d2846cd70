"""What a detector hands to the tracker, and the findings that are built from it.

A detector looks at an attempt and says what is wrong *now*: a `Claim`, with how its findings live.
It does not know which findings are open. Everything the tracker needs to recognise the same trouble
at the next look travels with the claim, as `anchors`. A finding is built as a whole, never edited
in place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from enum import Enum
from typing import Final, TypeAlias

from frd.engine.clocks.alignment import FOREVER, UncertainTime, ties
from frd.engine.findings import headlines, text
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
    Severity,
    Suspect,
    SuspectPhase,
)

CONFIDENCES: Final = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)
"""Ascending."""
CERTAIN: Final = CONFIDENCES.index(Confidence.HIGH)
"""What `surest` returns when a suspect is named with high confidence."""
Anchors: TypeAlias = frozenset[Hashable]
"""What stays the same while the same trouble lasts: a collective that is stuck, a set of ranks."""
EXPLAINING: Final = frozenset(
    {Kind.STALL, Kind.ORDER, Kind.MISMATCH, Kind.RANK_LOST, Kind.OOM, Kind.TELEMETRY_GAP}
)
"""Kinds that explain why nothing moves."""
NEVER: Final = float("inf")
_UNKNOWN: Final = AlignedNs(0)


class ClaimStatus(Enum):
    """What a claim may do."""

    CONFIRMED = "opens a finding"
    UNCONFIRMED = "opens a finding when it has been seen for `Lifetime.confirm_s`"
    CONTINUING = "continues an open finding, but opens none"


@dataclass(frozen=True, slots=True)
class Claim:
    """What is wrong, as seen at one look."""

    kind: Kind
    about: str
    """The subject, as part of a new finding's id."""
    anchors: Anchors
    status: ClaimStatus = ClaimStatus.CONFIRMED
    since: AlignedNs = _UNKNOWN
    """When the wait, or the loss, began."""
    reason: Reason | None = None
    collective: CollectiveRef | None = None
    groups_held_up: tuple[str, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    """As many as a finding lists, the surest."""
    named: frozenset[int] = frozenset()
    """The ranks of all suspects, listed or not."""
    victims: tuple[int, ...] = ()
    cleared: frozenset[int] = frozenset()
    """Victims that provably wait in something that no recorder shows: such a rank was never a
    first cause, even if it was named as one."""
    unknown: tuple[int, ...] = ()
    disagreement: str = ""
    lost_s: float | None = None
    headline: str = ""
    """This and the next: for kinds whose texts do not follow from the other fields."""
    effect: str = ""
    exits: frozenset[tuple[int, int]] = frozenset()
    """The exits (rank, process id) that the claim reports. Each exit is reported once."""
    is_of_exited: bool = False
    """Every rank that it names has exited."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a detector saw at one moment, and what the tracker may ask about that moment."""

    at: AlignedNs
    claims: Sequence[Claim] = ()
    over: Mapping[Anchors, str] = field(default_factory=dict)
    """Anchors of findings that are over, each with the reason to close them."""
    still_stuck: Anchors = frozenset()
    """Anchors that still hold although no claim carries them."""
    exited: frozenset[int] = frozenset()
    """Ranks whose exit needs an explanation. A finding about one does not pass."""
    as_of: Mapping[int, int] = field(default_factory=dict)
    """Aligned ns up to which everything is known of each rank."""
    outside: Mapping[int, int] = field(default_factory=dict)
    """Aligned ns at which ranks were last seen in no call that recorders do not show."""
    ended_by: Callable[[Collection[int], Collection[int], AlignedNs], str] = (
        lambda ranks, named, after: ""
    )
    """How the first of `ranks` ended after a time, in words; empty when none of them did."""
    held_up_by: Callable[[Collection[int]], CollectiveRef | None] = lambda ranks: None
    """The collective in which other ranks wait for these lost ranks."""


@dataclass(frozen=True, slots=True)
class Known:
    """What became of a detector's earlier claims."""

    findings: Sequence[Finding] = ()
    """The open findings of its kinds, dismissed ones included."""
    reported_exits: Collection[tuple[int, int]] = ()
    """Exits (rank, process id) that were reported."""
    is_explained: bool = False
    """An open finding of any detector says why nothing of the job moves."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How findings of some kinds open, change and close. One value for each detector."""

    kinds: frozenset[Kind]
    anchors_of: Callable[[Finding], Anchors]
    """Recognises a finding that an earlier process of the service opened."""
    keeps_cause: bool = False
    """True: a cause stays named unless a surer one lasts, and a claim that names the same ranks is
    the same incident. False: the newest claim replaces what the finding said."""
    final: frozenset[Kind] = frozenset()
    """Kinds whose cause is known for good when they open. Only the ranks that wait may change, and
    they stay open until the attempt ends. What goes wrong afterwards is their consequence."""
    confirm_s: float = 0.0
    """How long an `UNCONFIRMED` claim must last before it opens a finding, and other suspects
    before they replace those of a finding that keeps its cause."""
    update_every_s: float = 0.0
    """Changes within this time after the last update are no event."""
    close_after_s: float = NEVER
    """A finding that no look has shown for this long is over. `NEVER`: the detector says when."""
    restored_close_after_s: float = NEVER
    """The same for a finding of an earlier process, from the first look on. `NEVER`: as above."""
    close_reason: str = ""
    critical_after_s: float = NEVER
    """A finding that has been open for this long becomes critical, where its kind can."""


def anchor_of(ref: CollectiveRef | None) -> Hashable:
    """What stays the same of a collective, of one rank's wait in a P2P op, or of a call that no
    recorder shows, while it is stuck."""
    if ref is None:
        return None
    if not ref.group_id:  # a call that no recorder shows
        return ref.op
    return ref.group_id, ref.seq, min(ref.waiting_ranks, default=-1) if ref.seq < 0 else -1


def severity_of(kind: Kind, lasted_s: float, critical_after_s: float) -> Severity:
    """How urgent a finding is that has been open for `lasted_s`.

    A job that makes no progress for a while may be healthy: a checkpoint, an evaluation, a launcher
    that ends one rank after another. A finding about ranks that wait or are gone is therefore a
    warning first, and critical once it has lasted. Memory that has run out is critical from the
    start. All other findings stay warnings, because the job goes on.
    """
    if kind in (Kind.STALL, Kind.ORDER, Kind.MISMATCH, Kind.RANK_LOST):
        return Severity.CRITICAL if lasted_s >= critical_after_s else Severity.WARNING
    return Severity.CRITICAL if kind is Kind.OOM else Severity.WARNING


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
