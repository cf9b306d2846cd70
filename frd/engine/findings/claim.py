"""What a detector hands to the tracker: claims about one moment, and how its findings live.

A detector looks at an attempt and says what is wrong *now*. It does not know which findings are
open. Everything the tracker needs to recognise the same trouble at the next look travels with the
claim, as `anchors`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from frd.model import AlignedNs, CollectiveRef, Finding, Kind, Reason, Severity, Suspect

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
