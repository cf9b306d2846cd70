"""From diagnoses and exits to claims: labels, evidence and identities for the tracker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from frd.engine.findings import builder, text
from frd.engine.findings.claim import Claim, ClaimStatus, anchor_of
from frd.engine.hangs.attribution import manner_in_calls
from frd.engine.hangs.diagnosis import NO_ENTRY, Diagnosis
from frd.engine.losses.exits import Exit, Manner
from frd.engine.losses.lost_ranks import JUDGED_AFTER_S, STOP_TAKES_S
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot
from frd.model import AlignedNs, Kind, Reason

_PASSING: Final = frozenset({Reason.IN_COLLECTIVE_ALONE, Reason.DEVICE_STUCK})
"""Reasons that compare how far ranks have come."""


def claim_of(
    snapshot: Snapshot, diagnosis: Diagnosis, policy: Policy, gone: Sequence[Exit] = ()
) -> Claim:
    waited_ns = snapshot.now - diagnosis.since if diagnosis.since > 0 else 0  # none is seen waiting
    ref = replace(diagnosis.collective, waited_s=waited_ns / 1e9)
    bad = [one for one in gone if one.is_bad]
    if diagnosis.instance == NO_ENTRY:
        # No exit opens anything while it is judged, however clean it is: the ranks of a job that
        # ends leave one by one, and the last are still seen waiting.
        gone = [replace(one, manner=manner_in_calls(snapshot, one.rank)) for one in gone]
    else:
        gone = bad
    stuck = {(snapshot.groups[g].group_id, seq, rank) for g, seq, rank in diagnosis.stalled}
    named, victims = frozenset(diagnosis.onsets), {*diagnosis.victims}
    if diagnosis.kind is Kind.MISMATCH:  # those that left because of it as well
        members = {*snapshot.groups[diagnosis.instance.group].ranks} - named
        victims |= members & {e.rank for e in gone if e.manner is Manner.REACTED}
    began = [diagnosis.onsets[suspect.rank] for suspect in diagnosis.suspects]
    suspects = builder.listed(builder.timed(diagnosis.suspects, began))
    return Claim(
        kind=diagnosis.kind,
        about=f"{ref.group_id or 'call'}/{ref.seq if ref.seq >= 0 else ref.op}",
        anchors=frozenset({*stuck, anchor_of(ref)}),
        status=_status_of(snapshot.now, diagnosis, gone),
        since=diagnosis.since,
        reason=diagnosis.reason,
        collective=ref,
        groups_held_up=_labels_of(snapshot, diagnosis),
        suspects=suspects[: policy.max_suspects],
        named=named,
        victims=tuple(sorted(victims)),
        cleared=frozenset(diagnosis.cleared),
        unknown=diagnosis.unknown,
        disagreement=diagnosis.disagreement,
        is_of_exited=bool(named) and named.issubset(exited.rank for exited in bad),
    )


def _status_of(now: AlignedNs, diagnosis: Diagnosis, gone: Sequence[Exit]) -> ClaimStatus:
    """A mismatch is certain. A claim that names a rank whose exit is still being judged opens
    nothing. Other claims are confirmed unless reports of different age could fake them."""
    if diagnosis.kind is Kind.MISMATCH:
        return ClaimStatus.CONFIRMED
    if any(
        exited.rank in diagnosis.onsets
        and (now - exited.at) / 1e9
        <= (STOP_TAKES_S if exited.manner is Manner.ASKED else JUDGED_AFTER_S)
        for exited in gone
    ):
        return ClaimStatus.CONTINUING
    reasons = {suspect.reason for suspect in diagnosis.suspects}
    return ClaimStatus.CONFIRMED if reasons and not reasons & _PASSING else ClaimStatus.UNCONFIRMED


def _labels_of(snapshot: Snapshot, diagnosis: Diagnosis) -> tuple[str, ...]:
    """Labels of the groups that wait, the finding's own first, each once."""
    groups = [diagnosis.instance.group, *(stuck.group for stuck in diagnosis.stalled)]
    groups = [group for group in groups if group >= 0]
    labels = (text.clean(snapshot.groups[group].label) for group in groups)
    return tuple(dict.fromkeys(labels))
