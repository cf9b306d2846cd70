"""Detects hangs and lost ranks: decides when to look, and what to claim.

In a healthy job a look costs a few cheap checks. The detector takes a snapshot and looks for
causes only while something is stuck, lost, mismatched or open. The pause between two looks grows
with the job, so that a large hanging job leaves the processor to the sessions that receive reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from frd.engine.findings import builder, text
from frd.engine.findings.attachments import shows_place
from frd.engine.findings.builder import Claim, ClaimStatus, Known, Lifetime, Look, anchor_of
from frd.engine.hangs.attribution import manner_in_calls
from frd.engine.hangs.diagnosis import NO_ENTRY, Diagnosis, diagnose
from frd.engine.hangs.unrecorded import outside
from frd.engine.losses.claims import claim_of_loss, ended_by, held_up_by
from frd.engine.losses.exits import Exit, Manner, exits
from frd.engine.losses.lost_ranks import JUDGED_AFTER_S, STOP_TAKES_S, first_lost
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Mismatch, Snapshot, StallTable
from frd.engine.tick import Tick
from frd.model import AlignedNs, Kind, RankState, Reason

_CONFIRM_S: Final = 1.5
"""How long a claim must last if reports of different age could fake it."""
_MISMATCH_GRACE_NS: Final = 1_000_000_000
"""How long to wait for all members' signatures before naming a minority."""
_LOOK_AGAIN_NS: Final = 1_000_000_000
"""How often to look if nothing new was reported: telemetry becomes late, and claims last."""
_PAUSE_NS_PER_RANK: Final = 25_000
"""The least time between two looks, per rank of the job: 2.5 s for 98,304 ranks. A look takes about
5 µs a rank, so a hanging job leaves four fifths of a core to the sessions. With half of it, looks
take two fifths; with twice as much, a hang of a very large job is confirmed a look later, 5 s."""
_PASSING: Final = frozenset({Reason.IN_COLLECTIVE_ALONE, Reason.DEVICE_STUCK})
"""Reasons that compare how far ranks have come."""


def pause_ns(world_size: int, least_ns: int = _LOOK_AGAIN_NS) -> int:
    """The least time between two looks for causes."""
    return max(world_size * _PAUSE_NS_PER_RANK, least_ns)


class HangDetector:
    def __init__(self) -> None:
        self._looked_at = AlignedNs(0)
        self._looked_revision = -1

    def lifetime(self, policy: Policy) -> Lifetime:
        return Lifetime(
            kinds=frozenset(
                {Kind.STALL, Kind.MISMATCH, Kind.ORDER, Kind.RANK_LOST, Kind.TELEMETRY_GAP}
            ),
            anchors_of=lambda finding: frozenset({anchor_of(finding.collective)} - {None}),
            keeps_cause=True,
            final=frozenset({Kind.RANK_LOST}),
            confirm_s=_CONFIRM_S,
            close_after_s=policy.close_after_s,
            close_reason="the job moved on",
            critical_after_s=policy.critical_after_s,
        )

    def evaluate(self, tick: Tick, known: Known) -> Look | None:
        is_quiet = not (len(tick.stalls) or tick.has_mismatches or tick.has_exits or tick.has_calls)
        if is_quiet and not known.findings:
            return None
        since_ns = tick.now - self._looked_at
        if since_ns < pause_ns(tick.world_size, least_ns=0) or (
            tick.revision == self._looked_revision and since_ns < _LOOK_AGAIN_NS
        ):
            return None
        self._looked_at, self._looked_revision = tick.now, tick.revision
        snapshot = tick.snapshot()
        shown = [(s, f.opened_at) for f in known.findings for s in f.suspects if shows_place(s)]
        placed = {**{suspect.rank: opened_at for suspect, opened_at in shown}, **tick.placed()}
        snapshot = replace(snapshot, mismatches=_ripe(snapshot, tick), placed=placed)
        diagnoses = diagnose(snapshot, tick.stalls, tick.policy)
        return look_at(snapshot, tick.stalls, diagnoses, tick.policy, known)


def _ripe(snapshot: Snapshot, tick: Tick) -> list[Mismatch]:
    """Mismatches that may be claimed: all members that live joined, or had time to join."""
    if not (mismatches := snapshot.mismatches):
        return []
    gone = snapshot.rank[snapshot.in_state(RankState.EXITED, RankState.FINISHED)].tolist()
    stuck = set(zip(tick.stalls.group.tolist(), tick.stalls.seq.tolist(), strict=True))
    latest = tick.now - _MISMATCH_GRACE_NS
    return [
        one
        for one in mismatches
        if (one.group, one.seq) in stuck or one.known_at <= latest or _is_whole(one, snapshot, gone)
    ]


def _is_whole(one: Mismatch, snapshot: Snapshot, gone: Iterable[int]) -> bool:
    members = {*snapshot.groups[one.group].ranks}.difference(gone, *(of for _, of in one.classes))
    return one.complete or (one.group_size > 0 and not members)


def look_at(
    snapshot: Snapshot,
    stalled: StallTable | None,
    diagnoses: Iterable[Diagnosis],
    policy: Policy,
    known: Known,
) -> Look:
    """What the tracker needs of one look; `stalled` is None at the last look at an attempt."""
    gone = exits(snapshot)
    bad = [exited for exited in gone if exited.is_bad]
    claims = [claim_of(snapshot, diagnosis, policy, gone) for diagnosis in diagnoses]
    loss = first_lost(snapshot, gone, policy, final=stalled is None)
    if loss is not None and (lost := claim_of_loss(snapshot, loss, bad, policy, known)) is not None:
        claims.append(lost)
    stuck = stalled.ops() if stalled is not None else ()
    return Look(
        at=snapshot.now,
        claims=claims,
        still_stuck=frozenset((snapshot.groups[op.group].group_id, *op[1:]) for op in stuck),
        exited=frozenset(exited.rank for exited in bad),
        as_of=dict(zip(snapshot.rank.tolist(), snapshot.as_of.tolist(), strict=True)),
        outside={rank: one.as_of_ns for rank, one in outside(snapshot).items()},
        ended_by=partial(ended_by, snapshot, bad),
        held_up_by=partial(held_up_by, snapshot, bad),
    )


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
