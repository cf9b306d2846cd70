"""Which rank was lost first, when processes of an attempt disappear.

A job that dies leaves a mess of exits: one process is killed or raises, its peers raise because
their connection broke, and the launcher terminates the rest. Times of exit are known only as well
as an agent can see them, so what a process left behind speaks before the order of times within
the grace period: an exception of its own, then no word at all (killed), then an exception that
blames a peer. And when all vanish together without a word, nobody was lost: the job was ended.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.engine.moment import Moment
from frd.engine.picture import Picture
from frd.engine.policy import Policy
from frd.model import AlignedNs, RankState

TOGETHER_NS: Final = 50_000_000
"""Exits closer than this have no order."""
_SEEN_LATE_NS = 2_000_000_000
"""How much later than an exception the exit of a killed process may be seen and told."""

_RECORD = re.compile(r"\b[\w.]*(?:Error|Exception)\b")
"""An exception that ended a process, as agents quote it from the tap's exit record."""
_INTERRUPTED = re.compile(r"\b(?:KeyboardInterrupt|SystemExit|SignalException)\b")
"""Somebody asked the process to stop; says nothing about a fault."""
_OF_A_PEER = re.compile(
    r"connection|\bpeer\b|\bremote\b|\bsocket\b|broken pipe|timed? ?out|\babort", re.IGNORECASE
)
"""What exceptions say when it was somebody else who went away."""


def judged_after_s(policy: Policy) -> float:
    """How long after an exit it is known for good whether a rank was lost."""
    return policy.loss_grace_s + _SEEN_LATE_NS / 1e9


@dataclass(frozen=True, slots=True)
class Exit:
    rank: int
    seen: Moment
    detail: str

    @property
    def at(self) -> AlignedNs:
        return self.seen.at

    @property
    def culpability(self) -> int:
        """0 is the likeliest first cause among exits at about the same time."""
        if not self.left_record:
            return 1
        return 2 if _OF_A_PEER.search(self.detail) else 0

    @property
    def left_record(self) -> bool:
        return bool(_RECORD.search(self.detail)) and not _INTERRUPTED.search(self.detail)


def exits(picture: Picture) -> list[Exit]:
    """All unclean exits of the attempt, earliest first."""
    found = [
        Exit(
            rank,
            picture.moment(rank, AlignedNs(int(picture.state_since[row]))),
            picture.detail[row],
        )
        for row, rank in enumerate(picture.rank.tolist())
        if picture.state[row] is RankState.EXITED
    ]
    return sorted(found, key=lambda one: (one.at, one.rank))


def first_lost(picture: Picture, policy: Policy) -> list[Exit]:
    """The exits that began it, several only when they have no order; empty when no rank was lost
    or it is too early to tell."""
    found = exits(picture)
    grace_ns = round(policy.loss_grace_s * 1e9)
    if not found or picture.now - found[0].at < grace_ns:
        return []
    early = [one for one in found if one.at <= found[0].at + grace_ns + _SEEN_LATE_NS]
    least = min(one.culpability for one in early)
    if least == 2 and picture.now - found[0].at < judged_after_s(policy) * 1e9:
        return []  # all blame a peer, and no agent has told of that one yet
    likely = [one for one in early if one.culpability == least]
    first = [one for one in likely if not likely[0].seen.is_before(one.seen, TOGETHER_NS)]
    return first if _hurts_others(picture, found, first, policy) else []


def _hurts_others(picture: Picture, found: list[Exit], first: list[Exit], policy: Policy) -> bool:
    """Somebody ran on after it, or died of it; ranks that end together just ended. An agent that is
    there would have told of an end by and by, even if nothing shows what the rank does."""
    running = np.array([state is RankState.LIVE for state in picture.state], np.bool_)
    seen_since = picture.as_of >= found[0].at + round(policy.loss_grace_s * 1e9)
    patience_s = judged_after_s(policy) + policy.telemetry_late_s
    if picture.now - found[0].at >= patience_s * 1e9:
        seen_since |= picture.connected
    if bool(np.any(running & seen_since)):
        return True
    gone = (RankState.EXITED, RankState.FINISHED)
    if any(state not in gone for state in picture.state):
        return False
    ranks = {one.rank for one in first}
    others = [one for one in found if one.rank not in ranks]
    if not others:
        return False
    apart = first[0].seen.is_before(others[0].seen, TOGETHER_NS)
    return apart or any(one.left_record for one in found)
