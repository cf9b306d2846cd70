"""Detects stragglers: one claim for each rank or node that keeps its peers waiting.

`frd.engine.stragglers.detection` decides which ranks are stragglers in one window of lateness. This
module claims them, and goes on claiming them while they cost half of what opens a finding. It adds
up what the peers have lost since the first window; that sum grows with every look.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from frd.engine.findings import builder, text
from frd.engine.findings.builder import Anchors, Claim, ClaimStatus, Known, Lifetime, Look
from frd.engine.matching.lateness import Window
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot
from frd.engine.stragglers.detection import CHANCE_NATS, Judgement, Late, Straggler, judge
from frd.engine.tick import Tick
from frd.forms import span_text
from frd.model import Confidence, Finding, Kind, Reason

_NO_LONGER = "no longer late"

_Ranks = tuple[int, ...]
"""The suspects of a finding, which identify it."""


@dataclass(slots=True)
class _Cost:
    """What the peers of a straggler have lost since its finding opened."""

    earlier_s: float = 0.0
    """Before the service restarted."""
    straggler: Straggler | None = None
    """From the last window that found it; None after a restart."""
    lost_ns: dict[tuple[int, int], int] = field(default_factory=dict)
    """By group and culprit."""

    @property
    def lost_s(self) -> float:
        return self.earlier_s + max(self.lost_ns.values(), default=0) / 1e9

    def add(self, window: Window, lates: Iterable[Late]) -> int:
        """Add the fresh losses of a window; returns the largest loss of one group in all of the
        window, in ns."""
        most = 0
        for late in lates:
            key = late.group, late.culprit
            in_all, fresh = window.charged(*key, late.level)
            self.lost_ns[key] = self.lost_ns[key] + fresh if key in self.lost_ns else in_all
            most = max(most, in_all)
        return most


class StragglerDetector:
    """Judges each window of lateness once."""

    def __init__(self) -> None:
        self._costs: dict[_Ranks, _Cost] = {}
        """Costs of the stragglers that the last look claimed."""

    def lifetime(self, policy: Policy) -> Lifetime:
        return Lifetime(
            kinds=frozenset({Kind.STRAGGLER}),
            anchors_of=lambda finding: _anchors(_ranks_of(finding)),
            update_every_s=policy.straggler_window_s,
            # Within this time a window may confirm a finding from before a restart.
            restored_close_after_s=policy.straggler_window_s + policy.telemetry_late_s,
            close_reason=_NO_LONGER,
        )

    def evaluate(self, tick: Tick, known: Known) -> Look | None:
        window = tick.late_window()
        if window is None:
            return None
        judgement = judge(window, tick.snapshot, tick.policy)
        if not judgement.stragglers and not known.findings:
            return None
        snapshot = tick.snapshot()
        self._costs = {
            ranks: self._costs.get(ranks) or _Cost(finding.lost_s or 0.0)
            for finding in known.findings
            for ranks in [_ranks_of(finding)]
        }
        stragglers = {
            straggler.ranks[: tick.policy.max_suspects]: straggler
            for straggler in judgement.stragglers
        }
        claims: list[Claim] = []
        over: dict[Anchors, str] = {}
        for ranks, cost in self._costs.items():
            if ranks in stragglers:
                continue
            if reason := self._over(ranks, cost, judgement, window, tick.policy):
                over[_anchors(ranks)] = reason
            elif cost.straggler is not None:
                claims.append(self._claim(ranks, cost, ClaimStatus.CONTINUING, window, snapshot))
        for ranks, straggler in stragglers.items():
            cost = self._costs.setdefault(ranks, _Cost())
            cost.straggler = straggler
            cost.add(window, straggler.lates)
            claims.append(self._claim(ranks, cost, ClaimStatus.CONFIRMED, window, snapshot))
        return Look(tick.now, claims, over)

    def _over(
        self, ranks: _Ranks, cost: _Cost, judgement: Judgement, window: Window, policy: Policy
    ) -> str:
        """The reason why a finding that this window does not show is over; empty if it goes on."""
        for straggler in judgement.stragglers:
            if set(ranks) <= set(straggler.ranks):
                return f"part of the lateness of {text.ranks(straggler.ranks)}"
        if judgement.held_up.issuperset(ranks):
            return "other ranks delayed it"
        if cost.straggler is None:
            return ""
        still_ns = cost.add(window, cost.straggler.lates)
        return _NO_LONGER if 2 * still_ns < policy.straggler_min_lost_s * 1e9 else ""

    def _claim(
        self, ranks: _Ranks, cost: _Cost, status: ClaimStatus, window: Window, snapshot: Snapshot
    ) -> Claim:
        straggler = cost.straggler
        assert straggler is not None
        may_wait = straggler.sends or straggler.is_held_up
        sure = straggler.lates[0].nats >= 2 * CHANCE_NATS and not may_wait
        confidence = Confidence.HIGH if sure else Confidence.MEDIUM
        groups = list(dict.fromkeys(late.group for late in straggler.lates))
        labels = tuple(dict.fromkeys(text.clean(snapshot.groups[g].label) for g in groups))
        pairs = snapshot.pairs
        victims = {rank for group in groups for rank in pairs.rank[pairs.rows(group)].tolist()}
        return Claim(
            kind=Kind.STRAGGLER,
            about=repr(ranks),
            anchors=_anchors(ranks),
            status=status,
            groups_held_up=labels,
            suspects=tuple(
                builder.suspect(
                    snapshot,
                    rank,
                    Reason.LATE,
                    confidence,
                    _evidence(straggler, rank, labels, window, snapshot),
                )
                for rank in ranks
            ),
            victims=tuple(sorted(victims - set(straggler.ranks))),
            lost_s=cost.lost_s,
            headline=_headline(straggler, snapshot),
            effect=_effect(straggler, cost.lost_s, snapshot),
        )


def _anchors(ranks: _Ranks) -> Anchors:
    return frozenset({ranks})


def _ranks_of(finding: Finding) -> _Ranks:
    return tuple(suspect.rank for suspect in finding.suspects)


# -- texts ---------------------------------------------------------------------------------------


def _evidence(
    straggler: Straggler, rank: int, labels: tuple[str, ...], window: Window, snapshot: Snapshot
) -> str:
    late = next((late for late in straggler.lates if late.culprit == rank), straggler.lates[0])
    label = text.clean(snapshot.groups[late.group].label)
    who = "its whole node was" if late.culprit < 0 else "was"
    words = (
        f"{who} last in {late.count:,} of {late.judged:,} collectives of {label} "
        f"in {window.seconds:.0f} s, {_mean_text(late)} after the others on average"
    )
    others = [other for other in labels if other != label]
    words += f"; and late in {', '.join(others)}" if others else ""
    words += "; in other groups it waits for other ranks" * straggler.is_held_up
    return words + ("; its waits in sends and receives are not recorded" * straggler.sends)


def _headline(straggler: Straggler, snapshot: Snapshot) -> str:
    node, who = builder.node_of(snapshot, straggler.ranks[0]), text.ranks(straggler.ranks)
    who = f"{who} ({node})" if node else who
    if straggler.culprit < 0:
        who = f"node {node or '?'} ({text.ranks(straggler.ranks)})"
    return f"{who} comes late again and again"


def _effect(straggler: Straggler, lost_s: float, snapshot: Snapshot) -> str:
    late = straggler.lates[0]
    label = text.clean(snapshot.groups[late.group].label)
    share = 100 * late.count / max(late.judged, 1)
    return (
        f"{label} has waited {lost_s:.1f} s for it, "
        f"{_mean_text(late)} in {share:.{0 if share >= 2 else 1}f} % of its collectives"
    )


def _mean_text(late: Late) -> str:
    return span_text(late.lost_ns // late.count)
