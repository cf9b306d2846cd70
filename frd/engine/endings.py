"""How an attempt ends: which ranks left, in which order, and which of them began it.

A job that dies leaves a mess of exits. One process is killed, raises or simply returns; its peers
raise because their connection broke; the launcher terminates the rest. Or nothing went wrong:
somebody pressed Ctrl-C, or the scheduler asked all ranks to stop, and they leave one by one.

So each exit has a *manner*: for a reason of its own, killed, in reaction to a peer, or because
somebody asked for it. The first cause is the first rank that left for a reason of its own (or was
killed) before anybody was asked to stop. A rank that reacted to a peer is never the cause while
anything else is known, and neither a stop of the whole job nor an end that most ranks share is a
lost rank. Times of exit are known only as well as an agent can see them, so within a window the
manner decides and not the order.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from frd.engine.moment import Moment
from frd.engine.picture import Picture
from frd.engine.policy import Policy
from frd.model import (
    UNKNOWN_SEQ,
    AlignedNs,
    Confidence,
    ExitInfo,
    ExitKind,
    RankState,
)

TOGETHER_NS: Final = 50_000_000
"""Exits closer than this have no order."""
SEEN_LATE_NS: Final = 2_000_000_000
"""How much later the exit of a process without a record may be seen, and how far apart the ranks of
one job end that end for one reason: an interpreter with torch takes a second or more to leave."""
STOP_TAKES_S: Final = 60.0
"""Ranks that were asked to stop are given this long: torchrun, srun and Kubernetes kill after 30 s,
and a rank that saves a checkpoint may take all of it."""

_RECORD = re.compile(r"\b[\w.]*(?:Error|Exception)\b")
_INTERRUPTED = re.compile(r"\b(?:KeyboardInterrupt|SystemExit|SignalException)\b")
"""Both read the text of an agent of version 0.1, which sends no `ExitInfo`."""
_OF_A_PEER = re.compile(
    r"connection|\bpeer\b|\bremote\b|\bsocket\b|broken pipe|timed? ?out|\babort", re.IGNORECASE
)
"""What exceptions say when it was somebody else who went away."""
_WORKER_STOPPED = re.compile(r"killed by signal: (?:Terminated|Interrupt)")
"""A data loader's worker got the SIGTERM or SIGINT that was meant for the whole job."""
_ASKS: Final = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGINT})


class Manner(IntEnum):
    """Why a process left; the lower, the likelier it is the first cause."""

    OWN = 0
    """It returned, called exit, raised an exception of its own, or crashed."""
    KILLED = 1
    """SIGKILL, or gone without a word."""
    ABORTED = 2
    """SIGABRT: its own fault, or its watchdog's answer to a peer's."""
    REACTED = 3
    """It raised an exception that blames a peer."""
    ASKED = 4
    """Ctrl-C, SIGTERM, SIGHUP: somebody wanted it to stop."""


@dataclass(frozen=True, slots=True)
class Exit:
    """One rank that is gone."""

    rank: int
    seen: Moment
    how: ExitInfo
    manner: Manner
    deserted: bool = False
    """Its peers joined a collective that it never came to, and it had told all that it did."""

    @property
    def at(self) -> AlignedNs:
        return self.seen.at

    @property
    def is_clean(self) -> bool:
        return self.how.kind is ExitKind.CLEAN

    @property
    def is_bad(self) -> bool:
        """Something to explain: not clean, or clean too early."""
        return not self.is_clean or self.deserted

    @property
    def has_record(self) -> bool:
        """The process itself wrote down when it ended; other exits are seen later."""
        return self.how.kind not in (ExitKind.SIGNAL, ExitKind.UNKNOWN)

    @property
    def is_interrupt(self) -> bool:
        """By Ctrl-C, which no launcher sends of its own accord."""
        return self.manner is Manner.ASKED and (
            self.how.kind is ExitKind.INTERRUPT or self.how.signal == signal.SIGINT
        )

    def ended_like(self, other: Exit) -> bool:
        if self.manner is not other.manner:
            return False
        if self.manner is not Manner.OWN:
            return True
        return _cause(self.how) == _cause(other.how)


@dataclass(frozen=True, slots=True)
class Loss:
    """A lost rank, or several when they have no order; nobody when each that left blames a peer."""

    exits: tuple[Exit, ...]
    confidence: Confidence


def judged_after_s(policy: Policy) -> float:
    """How long after an exit it is known for good whether a rank was lost."""
    return policy.loss_grace_s + SEEN_LATE_NS / 1e9


def manner_of(how: ExitInfo) -> Manner:
    if how.kind is ExitKind.EXCEPTION:
        if _WORKER_STOPPED.search(how.exception):
            return Manner.ASKED
        return Manner.REACTED if _OF_A_PEER.search(how.exception) else Manner.OWN
    if how.kind is ExitKind.INTERRUPT or (how.signal in _ASKS and how.kind is not ExitKind.CLEAN):
        return Manner.ASKED
    if how.kind is ExitKind.UNKNOWN or how.signal == signal.SIGKILL:
        return Manner.KILLED
    if how.signal == signal.SIGABRT:
        return Manner.ABORTED
    return Manner.REACTED if how.signal == signal.SIGPIPE else Manner.OWN


def how_it_ended(picture: Picture, row: int) -> ExitInfo:
    """What the agent sent; of an agent that sends no more than a text, what that says."""
    known = picture.exits.get(int(picture.rank[row]))
    if known is not None:
        return known
    detail = picture.detail[row]
    if picture.state[row] is RankState.FINISHED:
        return ExitInfo(ExitKind.CLEAN)
    if _INTERRUPTED.search(detail):
        return ExitInfo(ExitKind.INTERRUPT, exception=detail)
    if _RECORD.search(detail):
        return ExitInfo(ExitKind.EXCEPTION, exception=detail)
    return ExitInfo(ExitKind.UNKNOWN, note=detail)


def exits(picture: Picture) -> list[Exit]:
    """All ranks of the attempt that are gone, earliest first."""
    gone = (RankState.EXITED, RankState.FINISHED)
    deserters = _deserters(picture)
    found = []
    for row, rank in enumerate(picture.rank.tolist()):
        if picture.state[row] in gone:
            how = how_it_ended(picture, row)
            at = picture.moment(rank, AlignedNs(int(picture.state_since[row])))
            found.append(Exit(rank, at, how, manner_of(how), rank in deserters))
    return sorted(found, key=lambda one: (one.at, one.rank))


def bad_exits(picture: Picture) -> list[Exit]:
    """Those of `exits` that need an explanation."""
    return [one for one in exits(picture) if one.is_bad]


def _deserters(picture: Picture) -> set[int]:
    """Ranks that finished, told all that they did, and have not joined what their peers joined.
    Agents of version 0.1 do not tell how far a rank came at its end."""
    finished = [
        row
        for row, state in enumerate(picture.state)
        if state is RankState.FINISHED
        and int(picture.rank[row]) in picture.exits
        and not picture.gap[row]
        and 0 < picture.state_since[row] <= picture.as_of[row]
    ]
    if not finished:
        return set()
    ranks = picture.rank[finished]
    found: set[int] = set()
    for group in picture.groups:
        behind = group.enqueued < group.enqueued.max(initial=UNKNOWN_SEQ)
        behind &= group.enqueued > UNKNOWN_SEQ
        if group.hidden is not None:
            behind &= ~group.hidden
        if behind.any():
            found.update(np.intersect1d(group.members[behind], ranks).tolist())
    return found


def first_lost(picture: Picture, policy: Policy, *, final: bool = False) -> Loss | None:
    """Who was lost, if anybody was and it is not too early to tell. `final`: there is nothing to
    wait for, because another attempt of the job has begun."""
    gone = exits(picture)
    bad = [one for one in gone if one.is_bad]
    if not bad:
        return None
    is_over = final or len(gone) == len(picture.rank)
    waited_s = (picture.now - bad[0].at) / 1e9
    if waited_s < policy.loss_grace_s and not final:
        return None
    stops = [one for one in bad if one.manner is Manner.ASKED]
    has_reacted = any(one.manner is Manner.REACTED for one in bad)
    causes = [
        one
        for one in bad
        if one.manner <= Manner.ABORTED
        and not any(_explains(stop, one, has_reacted=has_reacted) for stop in stops)
    ]
    if causes:
        return _first_cause(picture, bad, causes, policy, final=final)
    if stops:
        return _stopped(picture, gone, stops)
    if waited_s < judged_after_s(policy) and not is_over:
        return None  # no agent has told of the peer that they blame yet
    return _blame_a_peer(picture, gone, bad, policy)


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
    picture: Picture, bad: Sequence[Exit], causes: Sequence[Exit], policy: Policy, *, final: bool
) -> Loss | None:
    window_ns = round(policy.loss_grace_s * 1e9) + SEEN_LATE_NS
    early = [one for one in causes if one.at <= causes[0].at + window_ns]
    manner = min(one.manner for one in early)
    likely = [one for one in early if one.manner is manner]
    alike = [
        one for one in likely
        if one.ended_like(likely[0]) and one.at <= likely[0].at + SEEN_LATE_NS
    ]  # fmt: skip
    if 2 * len(alike) > len(picture.rank):
        return None  # most ranks ended alike: that is the end of the job
    first = tuple(one for one in likely if not likely[0].seen.is_before(one.seen, TOGETHER_NS))
    if not (_others_run_on(picture, bad[0].at, policy) or _others_died(picture, bad, first, final)):
        return None
    return Loss(first, Confidence.MEDIUM if manner is Manner.ABORTED else Confidence.HIGH)


def _stopped(picture: Picture, gone: Sequence[Exit], stops: Sequence[Exit]) -> Loss | None:
    """Ranks that were asked to stop are lost only if most others run on, and for long."""
    if 2 * len(gone) > len(picture.rank):
        return None
    if (picture.now - stops[0].at) / 1e9 < STOP_TAKES_S:
        return None
    if not _run_on(picture, AlignedNs(stops[0].at + round(STOP_TAKES_S * 1e9))):
        return None
    first = tuple(one for one in stops if not stops[0].seen.is_before(one.seen, TOGETHER_NS))
    return Loss(first, Confidence.HIGH)


def _blame_a_peer(
    picture: Picture, gone: Sequence[Exit], bad: Sequence[Exit], policy: Policy
) -> Loss | None:
    """Each that left blames a peer. Where the job was done, as a rank that finished in time shows,
    they only lost each other while leaving."""
    if any(not one.is_bad for one in gone):
        return None
    if 2 * len(bad) > len(picture.rank):
        return Loss((), Confidence.LOW)
    if not _others_run_on(picture, bad[0].at, policy):
        return None
    first = tuple(one for one in bad if not bad[0].seen.is_before(one.seen, TOGETHER_NS))
    return Loss(first, Confidence.LOW)


def _others_run_on(picture: Picture, first_at: AlignedNs, policy: Policy) -> bool:
    """Some rank lives, and was heard of well after the first exit. An agent that is there would
    have told of an end by and by, even if nothing shows what the rank does."""
    since = AlignedNs(first_at + round(policy.loss_grace_s * 1e9))
    patience_s = judged_after_s(policy) + policy.telemetry_late_s
    trusted = picture.now - first_at >= patience_s * 1e9
    return _run_on(picture, since, trusted=trusted)


def _run_on(picture: Picture, since: AlignedNs, *, trusted: bool = False) -> bool:
    running = np.array([state is RankState.LIVE for state in picture.state], np.bool_)
    heard = picture.as_of >= since
    if trusted:
        heard = heard | picture.connected
    return bool(np.any(running & heard))


def _others_died(picture: Picture, bad: Sequence[Exit], first: Sequence[Exit], final: bool) -> bool:
    """All are gone, and others of them later or for another reason: they died of it."""
    gone = (RankState.EXITED, RankState.FINISHED)
    if not final and any(state not in gone for state in picture.state):
        return False
    ranks = {one.rank for one in first}
    others = [one for one in bad if one.rank not in ranks]
    return any(
        one.manner is not first[0].manner or first[0].seen.is_before(one.seen, TOGETHER_NS)
        for one in others
    )


def _cause(how: ExitInfo) -> tuple[object, ...]:
    """What ends that have one reason have in common; the text of an exception may carry numbers."""
    return how.kind, how.signal, how.status, how.exception.partition(":")[0], how.where
