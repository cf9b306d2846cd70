"""From a loss to the tracker's claim: labels, evidence, who waits for the lost, how ranks ended."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from frd.engine.findings import builder, text
from frd.engine.findings.builder import Claim, Known, anchor_of
from frd.engine.losses.exits import SEEN_LATE_NS, TOGETHER_NS, Exit, Manner
from frd.engine.losses.lost_ranks import Loss
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot
from frd.forms import fold_ranks
from frd.model import AlignedNs, CollectiveRef, Confidence, Int32s, Kind, RankState, Reason, Suspect

_OLD_NEWS_NS: Final = 30_000_000_000
"""A rank that exited this long before the service heard of the attempt was reported before."""


def claim_of_loss(
    snapshot: Snapshot, loss: Loss, bad: Sequence[Exit], policy: Policy, known: Known
) -> Claim | None:
    """The claim about exits that are news and not reported yet; None if there are none."""
    fresh = [
        exited
        for exited in loss.exits or bad
        if exited.at >= snapshot.created_at - _OLD_NEWS_NS
        and _process_of(snapshot, exited) not in known.reported_exits
    ]
    if not fresh:
        return None
    lost = fresh if loss.exits else []  # else each rank that exited blames a peer
    named = {exited.rank for exited in lost}
    world = {*range(snapshot.world_size), *snapshot.rank.tolist()}
    victims = world - named if named else {exited.rank for exited in bad}
    ref = held_up_by(snapshot, bad, named)
    return Claim(
        kind=Kind.RANK_LOST,
        about=fold_ranks(named),
        anchors=frozenset({anchor_of(ref)} - {None}),
        since=min((exited.at for exited in lost), default=snapshot.now),
        collective=ref,
        groups_held_up=(ref.group,) if ref is not None else (),
        suspects=_suspects_of_loss(snapshot, lost[: policy.max_suspects], loss.confidence),
        named=frozenset(named),
        victims=tuple(sorted(victims)),
        exits=frozenset(_process_of(snapshot, exited) for exited in fresh),
    )


def _process_of(snapshot: Snapshot, exited: Exit) -> tuple[int, int]:
    """Rank and process, which stay the same however the time of the exit is aligned."""
    return exited.rank, snapshot.info[exited.rank].pid


def _suspects_of_loss(
    snapshot: Snapshot, lost: Sequence[Exit], confidence: Confidence
) -> tuple[Suspect, ...]:
    suspects = [
        builder.suspect(
            snapshot,
            exited.rank,
            Reason.UNREACHABLE if exited.is_unheard else Reason.EXITED,
            confidence,
            _exit_text(snapshot, exited),
            text.clean(exited.how.note),
        )
        for exited in lost
    ]
    return builder.timed(suspects, [exited.seen for exited in lost], TOGETHER_NS)


def _exit_text(snapshot: Snapshot, exited: Exit) -> str:
    """``was killed by SIGKILL at 10:02:11 (last joined all_reduce #249 on default_pg)``."""
    words = f"{text.ended(exited.how)} at {snapshot.clock_text(exited.at)}"
    if exited.is_unheard:
        left = bool(snapshot.left[snapshot.row(exited.rank)])
        words = f"{text.agent_gone(left)}; last report at {snapshot.clock_text(exited.at)}"
    last = _last_joined(snapshot, exited.rank, exited.at)
    return f"{words} ({last})" if last else words


def _last_joined(snapshot: Snapshot, rank: int, ended_at: AlignedNs) -> str:
    """The last collective that a rank is known to have joined, in the group it joined last."""
    pairs = snapshot.pairs
    rows = np.flatnonzero((pairs.rank == rank) & (pairs.joined >= 0))
    if not len(rows):
        return ""
    groups = pairs.group_of(rows)
    last = np.lexsort((-rows, np.diff(pairs.first)[groups], pairs.moved_at[rows]))[-1]
    group, seq = int(groups[last]), int(pairs.joined[rows[last]])
    label = snapshot.groups[group].label
    way = "last joined" if _is_known_to_end(snapshot, rank, ended_at) else "last seen in"
    op = snapshot.op(group, seq)  # forgotten once all members have completed it
    what = text.collective(op, seq, label)
    return f"{way} {what if op else f'#{seq} on {text.clean(label)}'}"


def held_up_by(
    snapshot: Snapshot, bad: Sequence[Exit], named: Collection[int]
) -> CollectiveRef | None:
    """The collective in which most ranks wait for a lost rank of `named`, or waited until it
    failed."""
    lost = [exited for exited in bad if exited.rank in named]
    if not lost:
        return None
    ranks = [exited.rank for exited in lost]
    live = snapshot.rank[snapshot.in_state(RankState.LIVE)]
    known = {exited.rank for exited in lost if _is_known_to_end(snapshot, exited.rank, exited.at)}
    groups = snapshot.pairs.groups()
    found = [
        ref
        for group in np.unique(groups[np.isin(snapshot.pairs.rank, ranks)]).tolist()
        if (ref := _waits_in(snapshot, group, ranks, live, known)) is not None
    ]
    return max(found, key=lambda ref: (len(ref.waiting_ranks), ref.group_size), default=None)


def _waits_in(
    snapshot: Snapshot, group: int, ranks: Sequence[int], live: Int32s, known: set[int]
) -> CollectiveRef | None:
    """What members of a group wait in for its lost members; `known` are ranks known to the end."""
    pairs = snapshot.pairs.of(group)
    members, joined, done = pairs.rank, pairs.joined, pairs.completed
    lost = np.isin(members, ranks)
    missing = members[lost].tolist()
    inside = ~lost & pairs.inside & np.isin(members, live)
    if inside.any():
        seq = int(done[inside].min()) + 1
        waiting = members[inside & (done + 1 == seq)]
    elif known.issuperset(missing) and joined[lost].min() >= 0:
        seq = int(joined[lost].min()) + 1
        waiting = members[~lost & (joined >= seq)]
    else:
        return None
    if not len(waiting):
        return None
    info, op = snapshot.groups[group], snapshot.op(group, seq)
    return builder.collective_ref(info, seq, op, waiting.tolist(), missing)


def _is_known_to_end(snapshot: Snapshot, rank: int, ended_at: AlignedNs) -> bool:
    """Everything that the rank did until its end is known."""
    return bool(snapshot.as_of[snapshot.row(rank)] >= ended_at)


def ended_by(
    snapshot: Snapshot,
    gone: Sequence[Exit],
    ranks: Collection[int],
    named: Collection[int],
    after: AlignedNs,
) -> str:
    """How the first of `ranks` ended that certainly ran at a time; ranks that exit much later exit
    because of it.

    If several ended alike, a rank of `named` is mentioned.
    """
    later = [exited for exited in gone if exited.rank in ranks and exited.earliest > after]
    if not later:
        return ""
    until = min(exited.at for exited in later) + SEEN_LATE_NS
    begun = min(
        (exited for exited in later if exited.at <= until),
        key=lambda e: (not e.is_interrupt, e.manner is Manner.REACTED, e.at),
    )
    alike = [e for e in later if text.ended_by(e.how) == text.ended_by(begun.how)]
    first = next((exited for exited in alike if exited.rank in named), begun)
    words = f"ended by {text.ended_by(first.how)} at {snapshot.clock_text(alike[0].at)}"
    return words if first.manner is Manner.ASKED else f"rank {first.rank} {words}"
