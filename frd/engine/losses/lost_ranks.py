"""Which rank was lost first when processes of an attempt end, if any was.

The first cause is the first rank that exited for its own reason before any rank was asked to stop.
A rank that reacted to a peer is never the cause while there is another explanation. A rank of which
nothing is heard is one if its peers lost their connections at that time: silence alone proves
nothing, because the node may only be cut off from the service. Neither a stop
of the whole job nor an end that most ranks share is a lost rank: a lost rank is one of few. Agents
see exits late, so within a window the manner of an exit decides (`frd.engine.losses.exits`), not
the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.engine.findings import text
from frd.engine.losses.exits import SEEN_LATE_NS, TOGETHER_NS, Exit, Manner
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot
from frd.model import AlignedNs, Confidence, ExitInfo, ExitKind, RankState

_GRACE_S: Final = 1.0
"""How long the ranks of an attempt may take to vanish together before a lost rank is one."""
JUDGED_AFTER_S: Final = _GRACE_S + SEEN_LATE_NS / 1e9
"""How long after an exit it is certain whether a rank was lost."""
STOP_TAKES_S: Final = 60.0
"""Ranks that were asked to stop are given this long: torchrun, srun and Kubernetes kill after 30 s,
and a rank that saves a checkpoint may take all of it."""

_STOPS: Final = 16
"""How many of the earliest requests to stop are compared with other exits: clocks may differ."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A lost rank, or several without an order; none if each rank that exited blames a peer."""

    exits: tuple[Exit, ...]
    confidence: Confidence


def first_lost(
    snapshot: Snapshot, gone: Sequence[Exit], policy: Policy, *, final: bool = False
) -> Loss | None:
    """The lost ranks of all `exits`; None if there are none, or it is too early to judge. `final`:
    there is nothing to wait for, because another attempt of the job has begun."""
    bad = [exited for exited in gone if exited.is_bad]
    if not bad:
        return None
    is_over = final or len(gone) == len(snapshot.rank)
    waited_s = (snapshot.now - bad[0].at) / 1e9
    # Its peers may be about to finish, or a library aborted and their rows will show a mismatch.
    is_quiet = not is_over and (
        all(exited.is_clean for exited in bad)
        or min(exited.manner for exited in bad) is Manner.ABORTED
    )
    grace_s = JUDGED_AFTER_S if is_quiet else _GRACE_S
    if waited_s < grace_s and not final:
        return None
    stops, first_stops, causes = _causes(bad)
    if causes:
        return _first_cause(snapshot, gone, causes, first_stops, policy, is_over=is_over)
    was_done = _was_done(gone)
    if not was_done and (unheard := _unheard(snapshot, gone, stops, policy)):
        return Loss(tuple(unheard), Confidence.MEDIUM)
    if stops:
        return _stopped(snapshot, gone, stops)
    if was_done:
        return None  # they only lost each other while leaving
    if waited_s < JUDGED_AFTER_S and not is_over:
        return None  # the peer that they blame is not reported yet
    return _blame_a_peer(snapshot, gone, bad, policy, final=final)


def first_failed(snapshot: Snapshot, gone: Sequence[Exit], *, is_explained: bool) -> Exit | None:
    """The exit that says best why an attempt failed whose ranks are all gone; None if it did not:
    its ranks ended cleanly, were asked to stop, alone or together with their agents, or lost each
    other when the job was done. Nor if no exit is known and no finding is open (`is_explained`):
    `os._exit(0)` looks like SIGKILL."""
    bad = [exited for exited in gone if not exited.is_clean]
    stops, _, causes = _causes(bad)
    stopped = set(snapshot.rank[snapshot.left & snapshot.in_state(RankState.EXITED)].tolist())
    causes = [exited for exited in causes if exited.rank not in stopped]
    reacted = [exited for exited in bad if exited.manner is Manner.REACTED]
    if not is_explained and all(exited.manner is Manner.SILENT for exited in bad):
        return None
    if causes:
        return min(causes, key=lambda exited: exited.manner)
    if not reacted or stopped or _was_done(gone):
        return None
    return reacted[0] if all(reacted[0].seen.is_before(stop.seen) for stop in stops) else None


def _causes(bad: Sequence[Exit]) -> tuple[list[Exit], list[Exit], list[Exit]]:
    """All requests to stop, the earliest of them, and the exits for an own reason that none of them
    explains."""
    stops = [exited for exited in bad if exited.manner is Manner.ASKED]
    interrupts = [exited for exited in stops if exited.is_interrupt]
    first_stops = [*stops[:_STOPS], *interrupts[:1]]
    has_reacted = any(exited.manner is Manner.REACTED for exited in bad)
    causes = [
        exited
        for exited in bad
        if exited.manner <= Manner.ABORTED
        and not any(_explains(stop, exited, has_reacted=has_reacted) for stop in first_stops)
    ]
    return stops, first_stops, causes


def _explains(stop: Exit, other: Exit, *, has_reacted: bool) -> bool:
    """The request to stop came before `other` left, so that it left because of it.

    A launcher sends SIGTERM because some rank failed, so SIGTERM must provably be earlier; but no
    launcher does so because a rank returned. Ctrl-C is a person's, and it takes an interpreter a
    while to leave.
    """
    if stop.is_interrupt or (other.is_clean and not has_reacted):
        return stop.at - SEEN_LATE_NS <= other.at
    late_ns = 0 if other.has_record else SEEN_LATE_NS
    return stop.seen.is_before(other.seen, TOGETHER_NS + late_ns)


def _first_cause(
    snapshot: Snapshot,
    gone: Sequence[Exit],
    causes: Sequence[Exit],
    stops: Sequence[Exit],
    policy: Policy,
    *,
    is_over: bool,
) -> Loss | None:
    bad = [exited for exited in gone if exited.is_bad]
    until = causes[0].at + round(JUDGED_AFTER_S * 1e9)
    finished = [
        exited for exited in gone if not exited.is_bad and causes[0].at <= exited.at <= until
    ]
    early = [exited for exited in causes if exited.at <= until]
    common = _common_ways(snapshot, sorted((*early, *finished), key=lambda exited: exited.at))
    rare = [exited for exited in early if exited.way not in common]
    if not rare:
        return None
    manner = min(exited.manner for exited in rare)
    first = _first_of([exited for exited in rare if exited.manner is manner])
    crashed = [exited for exited in first if exited.how.kind is ExitKind.SIGNAL]
    first = crashed or first  # a program may react to a peer with its own exception
    others_died = is_over and _others_died(bad, first)
    if not others_died and not _others_run_on(snapshot, bad[0].at, policy):
        return None
    # Their clocks are known: those that are not before the first do not only seem so.
    has_order = all(first[0].seen.margin_ns(one.seen) is not None for one in (*first, *stops))
    is_sure = manner is not Manner.ABORTED and has_order
    return Loss(tuple(first), Confidence.HIGH if is_sure else Confidence.MEDIUM)


def _first_of(exits: Sequence[Exit]) -> list[Exit]:
    """The first of exits in the order of time, and those that have no order with it."""
    return [exited for exited in exits if not exits[0].seen.is_before(exited.seen, TOGETHER_NS)]


def _common_ways(snapshot: Snapshot, early: Sequence[Exit]) -> set[tuple[object, ...]]:
    """Ways in which most ranks of the job ended at about one time: that is its end, or what all of
    them did when another was lost."""
    times: dict[tuple[object, ...], list[int]] = {}
    for exited in early:
        times.setdefault(exited.way, []).append(exited.at)
    most = len(snapshot.rank) // 2
    return {
        way
        for way, at in times.items()
        if any(last - first <= SEEN_LATE_NS for first, last in zip(at, at[most:], strict=False))
    }


def _stopped(snapshot: Snapshot, gone: Sequence[Exit], stops: Sequence[Exit]) -> Loss | None:
    """Ranks that were asked to stop are lost only if most others run on, and for long."""
    if 2 * len(gone) > len(snapshot.rank):
        return None
    if not _run_on(snapshot, AlignedNs(stops[0].at + round(STOP_TAKES_S * 1e9))):
        return None
    return Loss(tuple(_first_of(stops)), Confidence.HIGH)


def _blame_a_peer(
    snapshot: Snapshot, gone: Sequence[Exit], bad: Sequence[Exit], policy: Policy, *, final: bool
) -> Loss | None:
    """Each that left blames a peer."""
    # Ranks that have been quiet since the first exit may be those that are gone.
    quiet = snapshot.in_state(RankState.LIVE) & (snapshot.as_of <= bad[0].at)
    if not final and quiet.any() and snapshot.now - bad[0].at < _patience_ns(policy):
        return None
    if any(not exited.is_bad for exited in gone) or 2 * len(bad) > len(snapshot.rank):
        return Loss((), Confidence.LOW)
    if not _others_run_on(snapshot, bad[0].at, policy):
        return None
    return Loss(tuple(_first_of(bad)), Confidence.LOW)


def _unheard(
    snapshot: Snapshot, gone: Sequence[Exit], stops: Sequence[Exit], policy: Policy
) -> list[Exit]:
    """Ranks that live as far as is known and have not been heard since their peers lost connections
    to them: their node may be gone. None of them if ranks were asked to stop, by a signal before
    that or, as their agents say, together with their agent."""
    reacted = [exited for exited in gone if exited.manner is Manner.REACTED]
    if not reacted:
        return []
    first = reacted[0]
    was_stopped = (snapshot.left & snapshot.in_state(RankState.EXITED)).any()
    if was_stopped or not all(first.seen.is_before(stop.seen) for stop in stops):
        return []
    if snapshot.now - first.at < _patience_ns(policy):
        return []
    live, late_ns = snapshot.in_state(RankState.LIVE), policy.telemetry_late_s * 1e9
    silent = live & (snapshot.as_of <= first.at + SEEN_LATE_NS)
    heard = {int(n) for n in snapshot.clocks.node[live & ~silent & snapshot.connected]}
    rows = np.flatnonzero(silent & (snapshot.as_of >= first.at - late_ns))
    ranks = text.ranks([exited.rank for exited in reacted])
    broken = f"{ranks} lost the connection to a peer at {snapshot.clock_text(first.at)}"
    return [
        Exit(
            rank=int(snapshot.rank[row]),
            seen=snapshot.moment(int(snapshot.rank[row]), AlignedNs(int(snapshot.as_of[row]))),
            how=ExitInfo(ExitKind.UNKNOWN, note=broken),
            manner=Manner.SILENT,
            earliest=AlignedNs(int(snapshot.as_of[row])),
            is_unheard=True,
        )
        for row in rows.tolist()
        if not snapshot.connected[row] or int(snapshot.clocks.node[row]) not in heard
    ]


def _patience_ns(policy: Policy) -> float:
    """An agent that lost its connection tries again within 15 s, and then reports how ranks ended;
    a connection that is lost without a sign takes as long to be noticed."""
    return 2 * policy.telemetry_late_s * 1e9


def _was_done(gone: Sequence[Exit]) -> bool:
    """The job was done: a rank has finished that had joined all that the others did."""
    finished = [exited for exited in gone if not exited.is_bad]
    return bool(finished) and all(exited.is_known_to_end for exited in finished)


def _others_run_on(snapshot: Snapshot, first_at: AlignedNs, policy: Policy) -> bool:
    """A rank lives, and reported well after the first exit. A connected agent counts after a
    while, even if nothing shows what the rank does: it would have reported an exit by then."""
    since = AlignedNs(first_at + round(_GRACE_S * 1e9))
    patience_s = JUDGED_AFTER_S + policy.telemetry_late_s
    trusted = snapshot.now - first_at >= patience_s * 1e9
    return _run_on(snapshot, since, trusted=trusted)


def _run_on(snapshot: Snapshot, since: AlignedNs, *, trusted: bool = False) -> bool:
    heard = snapshot.as_of >= since
    if trusted:
        heard = heard | snapshot.connected
    return bool(np.any(snapshot.in_state(RankState.LIVE) & heard))


def _others_died(bad: Sequence[Exit], first: Sequence[Exit]) -> bool:
    """Other ranks ended later or for another reason, not long before: they died of it."""
    ranks, cause = {exited.rank for exited in first}, first[0]
    return any(
        (one.way != cause.way or cause.seen.is_before(one.seen, TOGETHER_NS))
        and (one.at >= cause.earliest or not one.seen.is_before(cause.seen, SEEN_LATE_NS))
        for one in bad
        if one.rank not in ranks
    )
