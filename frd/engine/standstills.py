"""Detects a job in which nothing moves although no op stalls: all ranks are in reads of one dead
mount, or in a download that does not end.

No record shows such a wait, so the finding needs three things. Nothing of the job has moved,
although it did before, for the longer of `standstill_after_s` and ten times its longest earlier
rest. No open finding says why, and no rank has an op in flight: the threshold of its group decides
then. And two looks or more at each living rank have shown that it rests, for half of that time.

A rank that waits for a request is idle: the others may wait for what it is asked next, so nothing
is claimed of a server, a rollout worker or a notebook, nor of ranks that all poll. A rank that
computes, or waits for its device or for a child process, does not rest. Nothing is claimed where a
rank is unknown; but an open finding stays until something moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from frd.engine.findings import builder, text
from frd.engine.findings.builder import Claim, ClaimStatus, Known, Lifetime, Look
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot
from frd.engine.state.unrecorded_waits import not_refuted
from frd.engine.tick import Tick
from frd.model import (
    CHILD,
    DEVICE,
    IDLE,
    NATIVE,
    POLL,
    REST,
    UNKNOWN_SEQ,
    AlignedNs,
    Confidence,
    Finding,
    Kind,
    NodeNs,
    RankState,
    Reason,
    UnrecordedWait,
    WaitSource,
)

_LASTED: Final = 0.5
"""The part of the time without movement for which each rank must be seen at rest. The other half is
for what ranks did after they moved last, and for the pause between two rounds of stacks."""
_MOST_PLACES: Final = 4
"""Places that headline and effect list."""
_ANCHORS: Final = frozenset({Kind.STANDSTILL})
_SOON: Final = 0.9
"""From this part of the time on, suspects are inspected: /proc shows what their children do."""
_FRAMES: Final = (WaitSource.STAGE, WaitSource.STACK)
_BUSY: Final = ("", DEVICE, CHILD)
_WORDS: Final = {REST: "", POLL: "polling ", NATIVE: "in a native call "}


class StandstillDetector:
    def __init__(self) -> None:
        self._looked_at = AlignedNs(0)
        self._is_soon = False
        """As of the last look, all ranks rest, and there is a finding soon."""
        self.unasked: tuple[int, ...] = ()
        """The suspects of that finding: they are to be inspected before it opens."""

    def lifetime(self, policy: Policy) -> Lifetime:
        return Lifetime(
            kinds=_ANCHORS,
            anchors_of=lambda finding: _ANCHORS,
            close_after_s=policy.close_after_s,
            close_reason="something of the job moves",
        )

    def evaluate(self, tick: Tick, known: Known) -> Look | None:
        rest, after_ns = tick.rest, tick.rest.may_last_ns(tick.policy)
        is_long = rest.lasted_ns >= after_ns * _LASTED
        if rest.seen_at == self._looked_at:
            return None
        was_soon, self._is_soon = self._is_soon, False
        self._looked_at, self.unasked = rest.seen_at, ()
        if not (is_long or known.findings):
            return None
        if known.is_explained:
            return Look(tick.now, over={_ANCHORS: "another finding says why nothing moves"})
        snapshot, claims = tick.snapshot(), []
        if is_long and (resting := _resting(snapshot, tick.policy, after_ns * _LASTED)):
            is_due = rest.lasted_ns >= after_ns and was_soon
            status = ClaimStatus.CONFIRMED if is_due else ClaimStatus.CONTINUING
            claims = [replace(_claim(snapshot, resting, tick), status=status)]
            self._is_soon = rest.lasted_ns >= after_ns * _SOON
            if self._is_soon and not (is_due or known.findings):
                self.unasked = tuple(one.rank for one in claims[0].suspects)
        is_still = any(_lasts(finding, snapshot, tick) for finding in known.findings)
        return Look(tick.now, claims, still_stuck=_ANCHORS if is_still else frozenset())


def _lasts(finding: Finding, snapshot: Snapshot, tick: Tick) -> bool:
    """Nothing has moved since the finding opened. What agents report first after a restart of the
    service looks like a move."""
    settled_at = snapshot.created_at + tick.policy.telemetry_late_s * 1e9
    if tick.rest.since > max(finding.opened_at, settled_at):
        return False
    each = snapshot.unrecorded.values()
    return not any(_is_busy(wait, finding.opened_at) for waits in each for wait in waits)


def _is_busy(wait: UnrecordedWait, after: float) -> bool:
    """One stack that shows no wait does not show that the rank works."""
    return wait.op in _BUSY and wait.source is not WaitSource.STACK and wait.as_of_ns > after


def _resting(
    snapshot: Snapshot, policy: Policy, least_ns: float
) -> Mapping[int, Sequence[UnrecordedWait]]:
    """What each living rank rests in, the longest rest first; empty if one of them may not rest, or
    if all may be idle."""
    alive = snapshot.in_state(RankState.LIVE)
    is_known = snapshot.connected & ~snapshot.is_late(snapshot.as_of, policy.telemetry_late_s)
    is_whole = len(snapshot.rank) >= snapshot.world_size
    if not is_whole or not is_known[alive].all() or snapshot.in_state(RankState.SILENT).any():
        return {}
    ranks, pairs, channels = snapshot.rank[alive], snapshot.pairs, snapshot.channels
    if not (snapshot.p2p_ranks or (pairs.joined > UNKNOWN_SEQ).any()):
        return {}  # it has not moved yet
    inside = pairs.rank[pairs.inside]
    if np.isin((*inside, *channels.rank[channels.in_flight > 0]), ranks).any():
        return {}
    found = {}
    for rank, moved_at in zip(ranks.tolist(), snapshot.moved_at[alive].tolist(), strict=True):
        seen = not_refuted(snapshot.unrecorded.get(rank, ()))
        since_moved = [
            replace(wait, since_ns=NodeNs(max(wait.since_ns, moved_at)))
            for wait in seen
            if wait.op not in _BUSY
        ]
        rests = sorted(since_moved, key=lambda wait: wait.since_ns - wait.as_of_ns)
        if not rests or rests[0].as_of_ns - rests[0].since_ns < least_ns:
            return {}
        rests = [wait for wait in rests if wait.as_of_ns >= rests[0].since_ns]
        if any(wait.op == IDLE for wait in rests):
            return {}
        # What was seen long ago may have changed; the rank is inspected again then.
        after = max(rests[0].since_ns, snapshot.now - least_ns)
        polls = any(one.op == POLL and one.source is WaitSource.INSPECTION for one in seen)
        # A look of the tap does not show that a rank which wakes again and again does nothing.
        if any(_is_busy(one, after) for one in seen if not (polls and one.source in _FRAMES)):
            return {}
        found[rank] = rests
    is_held = any(all(wait.op != POLL for wait in rests) for rests in found.values())
    return found if is_held else {}


def _claim(
    snapshot: Snapshot, resting: Mapping[int, Sequence[UnrecordedWait]], tick: Tick
) -> Claim:
    """Suspects are the ranks that wait for no other one, as far as that is known; the surest of
    them those of which /proc shows what they wait for."""
    suspects, places = [], dict[tuple[bool, str], list[int]]()
    for rank, rests in resting.items():
        by_proc = [wait for wait in rests if wait.source is WaitSource.INSPECTION]
        blocked = next((wait for wait in by_proc if wait.op == REST), None)
        line = next((wait for wait in rests if wait not in by_proc), rests[0])
        where = _place(line) + (f": {text.clean(blocked.detail)}" if blocked else "")
        places.setdefault((blocked is None, where), []).append(rank)
        if all(wait.op == REST for wait in rests):
            confidence = Confidence.MEDIUM if blocked else Confidence.LOW
            words = f"has been at rest {where}"
            one = builder.suspect(snapshot, rank, Reason.CPU_STUCK, confidence, words)
            suspects.append(replace(one, onset_at=AlignedNs(rests[0].since_ns)))
    named = frozenset(one.rank for one in suspects)
    ordered = sorted((is_unknown, ranks, at) for (is_unknown, at), ranks in places.items())
    said = [f"{text.ranks(ranks)} {at}" for _, ranks, at in ordered[:_MOST_PLACES]]
    if others := sum(len(ranks) for _, ranks, _ in ordered[_MOST_PLACES:]):
        said.append(f"{others} ranks elsewhere")
    since = snapshot.clock_text(tick.rest.since)
    return Claim(
        Kind.STANDSTILL,
        "standstill",
        _ANCHORS,
        since=tick.rest.since,
        suspects=builder.listed(suspects)[: tick.policy.max_suspects],
        named=named,
        victims=tuple(sorted(resting.keys() - named)),
        headline=said[0],
        effect="; ".join((f"nothing of the job has moved since {since}", *said[1:])),
    )


def _place(wait: UnrecordedWait) -> str:
    """``at train.py:88 in step``, ``in recv at train.py:88 in step``."""
    how = _WORDS.get(wait.op, f"in {text.clean(wait.op)} ")
    return f"{how}at {text.clean(wait.detail)}" if wait.detail else how or "at rest"
