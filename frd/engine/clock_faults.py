"""Detects faulty clocks: nodes whose clock is unknown, and pairs of nodes that contradict.

A node whose clock stays unknown while its agent is connected is claimed after a while. Before that
it has only just connected, or its clock is about to be found again after a step. Two nodes
contradict each other if one had completed a collective before the other joined it, by more than
both clocks may be off. Which of the two is wrong does not follow from that, so both are named. In
the second in which a clock steps that may happen once; a claim needs collectives some seconds
apart.

No rank is a suspect: a clock that is wrong delays no rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.engine.findings import builder, text
from frd.engine.findings.builder import Claim, Known, Lifetime, Look
from frd.engine.matching.lateness import ClockHint
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot
from frd.engine.tick import Tick
from frd.forms import span_text
from frd.model import AlignedNs, Kind

_STEP_NS: Final = 2_000_000_000
"""Contradictions closer than this may result from one step of a clock, which is known at the next
exchange with the node, a second or so later. With half of it, an exchange that comes a little late
makes a finding of a step; twice as much only delays the finding. Looks are as far apart."""
_WHAT_TO_DO: Final = "check the time synchronization (chrony, PTP) there"

_Ranks = tuple[int, ...]
"""All ranks of the nodes concerned, which identify a finding, after a restart too."""


@dataclass(slots=True)
class _Conflict:
    first: ClockHint
    newest: ClockHint
    seen: AlignedNs

    @property
    def is_certain(self) -> bool:
        return abs(self.newest.at - self.first.at) >= _STEP_NS


class ClockDetector:
    def __init__(self) -> None:
        self._looked_at = AlignedNs(0)
        self._unknown: dict[_Ranks, AlignedNs] = {}
        """Nodes whose clock is unknown, and since when."""
        self._conflicts: dict[_Ranks, _Conflict] = {}

    def lifetime(self, policy: Policy) -> Lifetime:
        return Lifetime(
            kinds=frozenset({Kind.CLOCK_UNSYNCHRONIZED}),
            anchors_of=lambda finding: frozenset({finding.unknown}),
            close_after_s=0.0,
            restored_close_after_s=2 * policy.clock_unsynchronized_after_s,
            close_reason="the clocks agree again",
        )

    def evaluate(self, tick: Tick, known: Known) -> Look | None:
        now = tick.now
        if now - self._looked_at < _STEP_NS:
            return None
        self._looked_at = now
        self._unknown = {ranks: self._unknown.get(ranks, now) for ranks in tick.unsynchronized()}
        self._collect_contradictions(tick)
        return Look(now, [*self._unknown_clocks(tick), *self._contradictions(tick)])

    def _collect_contradictions(self, tick: Tick) -> None:
        """All contradictions between the same two nodes are one conflict. A conflict that shows no
        more contradictions is forgotten."""
        after_ns = tick.policy.clock_unsynchronized_after_s * 1e9
        for hint in tick.contradictions():
            ranks = _sharing_clocks(tick.snapshot(), (hint.early_rank, hint.late_rank))
            known = self._conflicts.setdefault(ranks, _Conflict(hint, hint, tick.now))
            known.newest, known.seen = hint, tick.now
        self._conflicts = {
            ranks: conflict
            for ranks, conflict in self._conflicts.items()
            if tick.now - conflict.seen < after_ns
        }

    def _unknown_clocks(self, tick: Tick) -> Iterator[Claim]:
        for ranks, since in self._unknown.items():
            if tick.now - since >= tick.policy.clock_unsynchronized_after_s * 1e9:
                node = _node(tick.snapshot(), ranks[0])
                yield _claim(
                    ranks,
                    f"the clock of {node} ({text.ranks(ranks)}) is not synchronized",
                    "times of its ranks are not compared with those of other nodes: `frd status` "
                    f"says why; {_WHAT_TO_DO}",
                )

    def _contradictions(self, tick: Tick) -> Iterator[Claim]:
        for ranks, conflict in self._conflicts.items():
            if conflict.is_certain:
                hint = conflict.first
                early, late = hint.early_rank, hint.late_rank
                snapshot = tick.snapshot()
                yield _claim(
                    ranks,
                    f"the clocks of {_node(snapshot, early)} and {_node(snapshot, late)} "
                    "contradict each other",
                    f"rank {early} completed a collective {span_text(-hint.slack_ns)} before "
                    f"rank {late} joined it; one of the two is wrong: {_WHAT_TO_DO}",
                )


def _claim(ranks: _Ranks, headline: str, effect: str) -> Claim:
    kind = Kind.CLOCK_UNSYNCHRONIZED
    anchors = frozenset({ranks})
    return Claim(kind, repr(ranks), anchors, unknown=ranks, headline=headline, effect=effect)


def _sharing_clocks(snapshot: Snapshot, ranks: tuple[int, int]) -> _Ranks:
    """All ranks that share a clock with one of these."""
    node = snapshot.clocks.node
    return tuple(snapshot.rank[np.isin(node, node[np.isin(snapshot.rank, ranks)])].tolist())


def _node(snapshot: Snapshot, rank: int) -> str:
    return builder.node_of(snapshot, rank) or f"rank {rank}"
