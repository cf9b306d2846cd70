"""From diagnoses and exits to claims: labels, evidence and identities for the tracker."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from frd.engine.findings import builder, text
from frd.engine.findings.claim import Claim, ClaimStatus, anchor_of
from frd.engine.hangs.diagnosis import Diagnosis
from frd.engine.hangs.exits import SEEN_LATE_NS, TOGETHER_NS, Exit, Manner
from frd.engine.hangs.lost_ranks import STOP_TAKES_S, Loss, judged_after_s
from frd.engine.policy import Policy
from frd.engine.state.snapshot import GroupSnapshot, Snapshot
from frd.forms import clock_text, fold_ranks
from frd.model import (
    AlignedNs,
    Bools,
    CollectiveRef,
    Int32s,
    Kind,
    RankState,
    Reason,
    Suspect,
)

_PASSING: Final = frozenset({Reason.IN_COLLECTIVE_ALONE, Reason.DEVICE_STUCK})
"""Reasons that compare how far ranks have come."""
_OLD_NEWS_NS: Final = 30_000_000_000
"""A rank that exited this long before the service heard of the attempt was reported before."""


def claim_of(
    snapshot: Snapshot, diagnosis: Diagnosis, policy: Policy, gone: Sequence[Exit] = ()
) -> Claim:
    ref = collective_of(snapshot, diagnosis)
    stuck = {(snapshot.groups[g].info.group_id, seq, rank) for g, seq, rank in diagnosis.stalled}
    named = frozenset(suspect.rank for suspect in diagnosis.suspects)
    return Claim(
        kind=diagnosis.kind,
        about=f"{ref.group_id}/{ref.seq if ref.seq >= 0 else ref.op}",
        anchors=frozenset({*stuck, anchor_of(ref)}),
        status=_status(snapshot.now, diagnosis, policy, gone),
        since=diagnosis.since,
        reason=diagnosis.reason,
        collective=ref,
        groups_held_up=_labels_of(snapshot, diagnosis),
        suspects=_suspects_of(snapshot, diagnosis, policy.max_suspects),
        named=named,
        victims=diagnosis.victims,
        unknown=diagnosis.unknown,
        disagreement=diagnosis.disagreement,
        is_of_exited=bool(named) and named.issubset(exited.rank for exited in gone),
    )


def _status(
    now: AlignedNs, diagnosis: Diagnosis, policy: Policy, gone: Sequence[Exit]
) -> ClaimStatus:
    """A mismatch is certain. A claim that names a rank whose exit is still being judged opens
    nothing. Other claims are confirmed unless reports of different age could fake them."""
    if diagnosis.kind is Kind.MISMATCH:
        return ClaimStatus.CONFIRMED
    named = {suspect.rank for suspect in diagnosis.suspects}
    judged_s = judged_after_s(policy)
    if any(
        exited.rank in named
        and (now - exited.at) / 1e9 <= (STOP_TAKES_S if exited.manner is Manner.ASKED else judged_s)
        for exited in gone
    ):
        return ClaimStatus.CONTINUING
    reasons = {suspect.reason for suspect in diagnosis.suspects}
    return ClaimStatus.CONFIRMED if reasons and not reasons & _PASSING else ClaimStatus.UNCONFIRMED


def collective_of(snapshot: Snapshot, diagnosis: Diagnosis) -> CollectiveRef:
    info = snapshot.groups[diagnosis.instance.group].info
    return CollectiveRef(
        group=text.clean(info.label),
        group_id=info.group_id,
        group_size=len(info.ranks),
        seq=diagnosis.instance.seq,
        op=text.clean(diagnosis.op),
        waiting_ranks=diagnosis.waiting,
        missing_ranks=diagnosis.missing,
        waited_s=(snapshot.now - diagnosis.since) / 1e9,
    )


def _labels_of(snapshot: Snapshot, diagnosis: Diagnosis) -> tuple[str, ...]:
    """Labels of the groups that wait, the finding's own first, each once."""
    groups = [diagnosis.instance.group, *(stuck.group for stuck in diagnosis.stalled)]
    labels = (text.clean(snapshot.groups[group].info.label) for group in groups)
    return tuple(dict.fromkeys(labels))


def _suspects_of(snapshot: Snapshot, diagnosis: Diagnosis, most: int) -> tuple[Suspect, ...]:
    sure = sorted(
        diagnosis.suspects, key=lambda suspect: -builder.CONFIDENCES.index(suspect.confidence)
    )[:most]
    kept = {suspect.rank for suspect in sure}
    named = [suspect for suspect in diagnosis.suspects if suspect.rank in kept]
    suspects = [
        Suspect(b.rank, builder.node_of(snapshot, b.rank), b.reason, b.confidence, b.evidence)
        for b in named
    ]
    return builder.timed(suspects, [suspect.began for suspect in named])


# -- exits ---------------------------------------------------------------------------------------


def claim_of_loss(
    snapshot: Snapshot,
    loss: Loss,
    gone: Sequence[Exit],
    policy: Policy,
    reported: Collection[tuple[int, AlignedNs]],
) -> Claim | None:
    """The claim about exits that are news and not reported yet; None if there are none."""
    fresh = [
        exited
        for exited in loss.exits or gone
        if exited.at >= snapshot.created_at - _OLD_NEWS_NS
        and (exited.rank, exited.at) not in reported
    ]
    if not fresh:
        return None
    if loss.exits:
        loss = replace(loss, exits=tuple(fresh))
    named = {exited.rank for exited in loss.exits}
    others = {*range(snapshot.world_size), *snapshot.rank.tolist()} - named
    if not named:  # each rank that exited blames a peer
        others = {exited.rank for exited in gone}
    ref = held_up_by(snapshot, loss.exits)
    return Claim(
        kind=Kind.RANK_LOST,
        about=fold_ranks(named),
        anchors=frozenset({anchor_of(ref)} - {None}),
        since=min((exited.at for exited in loss.exits), default=snapshot.now),
        collective=ref,
        groups_held_up=(ref.group,) if ref is not None else (),
        suspects=_suspects_of_loss(snapshot, loss, policy.max_suspects),
        named=frozenset(named),
        victims=tuple(sorted(others)),
        exits=frozenset((exited.rank, exited.at) for exited in fresh),
    )


def _suspects_of_loss(snapshot: Snapshot, loss: Loss, most: int) -> tuple[Suspect, ...]:
    exits = loss.exits[:most]
    suspects = [
        Suspect(
            exited.rank,
            builder.node_of(snapshot, exited.rank),
            Reason.EXITED,
            loss.confidence,
            _exit_text(snapshot, exited),
        )
        for exited in exits
    ]
    return builder.timed(suspects, [exited.seen for exited in exits], TOGETHER_NS)


def _exit_text(snapshot: Snapshot, exited: Exit) -> str:
    """``was killed by SIGKILL at 10:02:11 (last joined all_reduce #249 on default_pg)``."""
    words = f"{text.ended(exited.how)} at {clock_text(exited.at)}"
    if last := _last_joined(snapshot, exited.rank, exited.at):
        words += f" ({last})"
    return f"{words}; {text.clean(exited.how.note)}" if exited.how.note else words


def _last_joined(snapshot: Snapshot, rank: int, ended_at: AlignedNs) -> str:
    """The last collective that a rank is known to have joined, in the group it joined last."""
    found: tuple[int, int, GroupSnapshot] | None = None
    for group in snapshot.groups:
        at = int(np.searchsorted(group.members, rank))
        if at == len(group.members) or group.members[at] != rank or group.enqueued[at] < 0:
            continue
        moved = int(group.moved_at[at]) if group.moved_at is not None else 0
        if found is None or (moved, len(group.members)) > (found[0], len(found[2].members)):
            found = moved, int(group.enqueued[at]), group
    if found is None:
        return ""
    _, seq, group = found
    way = "last joined" if _is_known_to_end(snapshot, rank, ended_at) else "last seen in"
    op = group.ops(seq)  # forgotten once all members have completed it
    what = text.collective(op, seq, group.info.label)
    return f"{way} {what if op else f'#{seq} on {text.clean(group.info.label)}'}"


def held_up_by(snapshot: Snapshot, lost: Sequence[Exit]) -> CollectiveRef | None:
    """The collective in which most ranks wait for one of these, or waited until it failed."""
    if not lost:
        return None
    ranks = [exited.rank for exited in lost]
    live = snapshot.rank[[state is RankState.LIVE for state in snapshot.state]]
    known = {exited.rank for exited in lost if _is_known_to_end(snapshot, exited.rank, exited.at)}
    found = [
        ref
        for group in snapshot.groups
        if (ref := _waits_in(group, np.isin(group.members, ranks), live, known)) is not None
    ]
    return max(found, key=lambda ref: (len(ref.waiting_ranks), ref.group_size), default=None)


def _waits_in(
    group: GroupSnapshot, lost: Bools, live: Int32s, known: set[int]
) -> CollectiveRef | None:
    """What members of a group wait in for its lost members; `known` are ranks known to the end."""
    if not lost.any():
        return None
    inside = ~lost & (group.enqueued > group.completed) & np.isin(group.members, live)
    if inside.any():
        seq = int(group.completed[inside].min()) + 1
        waiting = group.members[inside & (group.completed + 1 == seq)]
    elif known.issuperset(group.members[lost].tolist()) and group.enqueued[lost].min() >= 0:
        seq = int(group.enqueued[lost].min()) + 1
        waiting = group.members[~lost & (group.enqueued >= seq)]
    else:
        return None
    if not len(waiting):
        return None
    return CollectiveRef(
        group=text.clean(group.info.label),
        group_id=group.info.group_id,
        group_size=len(group.info.ranks),
        seq=seq,
        op=text.clean(group.ops(seq)),
        waiting_ranks=tuple(waiting.tolist()),
        missing_ranks=tuple(group.members[lost].tolist()),
        waited_s=0.0,
    )


def _is_known_to_end(snapshot: Snapshot, rank: int, ended_at: AlignedNs) -> bool:
    """Everything that the rank did until its end is known."""
    return bool(snapshot.as_of[int(np.searchsorted(snapshot.rank, rank))] >= ended_at)


def ended_by(
    gone: Sequence[Exit], ranks: Collection[int], named: Collection[int], after: AlignedNs
) -> str:
    """How the first of `ranks` ended after a time; ranks that exit much later exit because of it.

    If several ended alike, a rank of `named` is mentioned.
    """
    later = [exited for exited in gone if exited.rank in ranks and exited.at > after]
    if not later:
        return ""
    until = min(exited.at for exited in later) + SEEN_LATE_NS
    begun = min(
        (exited for exited in later if exited.at <= until),
        key=lambda e: (not e.is_interrupt, e.manner is Manner.REACTED, e.at),
    )
    alike = [e for e in later if text.ended_by(e.how) == text.ended_by(begun.how)]
    first = next((exited for exited in alike if exited.rank in named), begun)
    words = f"ended by {text.ended_by(first.how)} at {clock_text(alike[0].at)}"
    return words if first.manner is Manner.ASKED else f"rank {first.rank} {words}"
