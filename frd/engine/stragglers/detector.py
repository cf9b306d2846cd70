"""Findings about stragglers: one of each rank or node that keeps its peers waiting.

Who is a straggler is `frd.engine.stragglers.detection`'s business. Here is how one is told, and for
how long: a finding that is open stays so while its ranks still cost half of what opens one, and it
adds up what was lost to them from its first window on. That sum grows with every look, which is no
news; an event tells of it once a window.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from frd.engine.attempt import Attempt
from frd.engine.findings import builder
from frd.engine.findings import text as summary
from frd.engine.findings.board import Board
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot
from frd.engine.stragglers.detection import CHANCE_NATS, Judgement, Late, Straggler, judge
from frd.engine.stragglers.lateness import Window
from frd.forms import span_text
from frd.model import (
    AlignedNs,
    AttemptKey,
    Confidence,
    Finding,
    FindingEvent,
    FindingState,
    Kind,
    Reason,
    Suspect,
)

_KINDS: Final = frozenset({Kind.STRAGGLER})


@dataclass(slots=True)
class _Open:
    """What an open finding has cost so far."""

    told_at: AlignedNs
    earlier_s: float = 0.0
    """Before this process of the service."""
    straggler: Straggler | None = None
    """As seen last; None after a restart."""
    lost_ns: dict[tuple[int, int], int] = field(default_factory=dict)
    """By group and culprit."""

    @property
    def lost_s(self) -> float:
        return self.earlier_s + max(self.lost_ns.values(), default=0) / 1e9

    def add(self, window: Window, lates: Iterable[Late]) -> int:
        """Count what is fresh in a window; returns the most that one group lost in all of it."""
        most = 0
        for late in lates:
            key = late.group, late.culprit
            in_all, fresh = window.charged(*key, late.level)
            self.lost_ns[key] = self.lost_ns[key] + fresh if key in self.lost_ns else in_all
            most = max(most, in_all)
        return most


class StragglerWatcher:
    """Judges each window of an attempt's lateness once."""

    def __init__(self, key: AttemptKey, policy: Policy) -> None:
        self._key = key
        self._policy = policy
        self.board = Board(_KINDS, _subject)
        self._open: dict[tuple[int, ...], _Open] = {}

    def adopt(self, policy: Policy) -> None:
        self._policy = policy

    def look(self, attempt: Attempt, now: AlignedNs, *, room: int) -> list[FindingEvent]:
        lateness = attempt.lateness
        if not lateness.is_ripe(now):
            return []
        window = lateness.window(now)
        judgement = judge(window, attempt.roll(), self._policy)
        if not judgement.stragglers and not len(self.board):
            return []
        snapshot = attempt.snapshot(now)
        events = self._drop(judgement, window, snapshot)
        for straggler in judgement.stragglers:
            subject = straggler.ranks[: self._policy.max_suspects]
            if subject in self.board or room > 0:
                room -= subject not in self.board
                events += self._put(subject, straggler, window, snapshot)
        return events

    def _put(
        self, subject: tuple[int, ...], straggler: Straggler, window: Window, snapshot: Snapshot
    ) -> list[FindingEvent]:
        known = self._known(subject, snapshot.now)
        known.straggler = straggler
        known.add(window, straggler.lates)
        return self._tell(known, straggler, window, snapshot)

    def _tell(
        self, known: _Open, straggler: Straggler, window: Window, snapshot: Snapshot
    ) -> list[FindingEvent]:
        now = snapshot.now
        due = now - known.told_at >= self._policy.straggler_window_s * 1e9
        if due:
            known.told_at = now
        claim = _finding(self._key, straggler, known.lost_s, window, snapshot, self._policy)
        return self.board.put(claim, now, quiet=not due)

    def _known(self, subject: tuple[int, ...], now: AlignedNs) -> _Open:
        if subject not in self._open or subject not in self.board:  # others close findings, too
            before = self.board.get(subject)  # from before a restart
            earlier_s = before.lost_s if before is not None else None
            self._open[subject] = _Open(now, earlier_s or 0.0)
        return self._open[subject]

    def _drop(self, judgement: Judgement, window: Window, snapshot: Snapshot) -> list[FindingEvent]:
        """Go on with, or close, what is open and was not found in this window."""
        events: list[FindingEvent] = []
        found = [straggler.ranks for straggler in judgement.stragglers]
        most = self._policy.max_suspects
        for subject in self.board:
            assert isinstance(subject, tuple)
            if subject in [ranks[:most] for ranks in found]:
                continue
            reason = self._over(subject, found, judgement, window, snapshot)
            if reason:
                self._open.pop(subject, None)
                events += self.board.close(subject, snapshot.now, reason)
        return events

    def _over(
        self,
        subject: tuple[int, ...],
        found: Iterable[tuple[int, ...]],
        judgement: Judgement,
        window: Window,
        snapshot: Snapshot,
    ) -> str:
        """Why a finding that was not found again is to be closed; empty when it is not."""
        for ranks in found:
            if set(subject) <= set(ranks):
                return f"part of the lateness of {summary.ranks(ranks)}"
        if judgement.held_up.issuperset(subject):
            return "other ranks delayed it"
        known = self._known(subject, snapshot.now)
        if known.straggler is None:  # not seen since a restart: a window may show it
            patience_s = self._policy.straggler_window_s + self._policy.telemetry_late_s
            waited_s = (snapshot.now - known.told_at) / 1e9
            return "" if waited_s < patience_s else "no longer late"
        still_ns = known.add(window, known.straggler.lates)
        if 2 * still_ns < self._policy.straggler_min_lost_s * 1e9:
            return "no longer late"
        self._tell(known, known.straggler, window, snapshot)
        return ""


def _subject(finding: Finding) -> tuple[int, ...]:
    return tuple(suspect.rank for suspect in finding.suspects)


# -- texts ---------------------------------------------------------------------------------------


def _finding(
    key: AttemptKey,
    straggler: Straggler,
    lost_s: float,
    window: Window,
    snapshot: Snapshot,
    policy: Policy,
) -> Finding:
    may_wait = straggler.sends or straggler.is_held_up
    sure = straggler.lates[0].nats >= 2 * CHANCE_NATS and not may_wait
    confidence = Confidence.HIGH if sure else Confidence.MEDIUM
    groups = {late.group: snapshot.groups[late.group] for late in straggler.lates}
    labels = tuple(dict.fromkeys(summary.clean(g.info.label) for g in groups.values()))
    victims = {rank for group in groups.values() for rank in group.members.tolist()}
    suspects = tuple(
        Suspect(
            rank,
            builder.node_of(snapshot, rank),
            Reason.LATE,
            confidence,
            _evidence(straggler, rank, labels, window, snapshot),
        )
        for rank in straggler.ranks[: policy.max_suspects]
    )
    return Finding(
        id="",
        kind=Kind.STRAGGLER,
        state=FindingState.OPEN,
        job=key.job,
        attempt=key.attempt,
        opened_at=snapshot.now,
        groups_held_up=labels,
        suspects=suspects,
        victims=tuple(sorted(victims - set(straggler.ranks))),
        lost_s=lost_s,
        summary=_summary(straggler, lost_s, snapshot),
    )


def _evidence(
    straggler: Straggler, rank: int, labels: tuple[str, ...], window: Window, snapshot: Snapshot
) -> str:
    late = next((one for one in straggler.lates if one.culprit == rank), straggler.lates[0])
    label = summary.clean(snapshot.groups[late.group].info.label)
    who = "its whole node was" if late.culprit < 0 else "was"
    words = (
        f"{who} last in {late.count:,} of {late.judged:,} collectives of {label} "
        f"in {window.seconds:.0f} s, {_mean_text(late)} after the others on average"
    )
    others = [other for other in labels if other != label]
    words += f"; and late in {', '.join(others)}" if others else ""
    words += "; in other groups it waits for other ranks" * straggler.is_held_up
    return words + ("; its waits in sends and receives are not recorded" * straggler.sends)


def _summary(straggler: Straggler, lost_s: float, snapshot: Snapshot) -> str:
    late, ranks = straggler.lates[0], straggler.ranks
    label = summary.clean(snapshot.groups[late.group].info.label)
    who = summary.ranks(ranks)
    if straggler.culprit < 0:
        who = f"node {builder.node_of(snapshot, ranks[0]) or '?'} ({who})"
    share = 100 * late.count / max(late.judged, 1)
    return (
        f"{who} comes late again and again: {label} has waited {lost_s:.1f} s for it, "
        f"{_mean_text(late)} in {share:.{0 if share >= 2 else 1}f} % of its collectives"
    )


def _mean_text(late: Late) -> str:
    return span_text(late.lost_ns // late.count)
