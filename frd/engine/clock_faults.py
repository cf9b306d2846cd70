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

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from frd.engine.attempt import Attempt
from frd.engine.findings import text
from frd.engine.findings.claim import Claim, Known, Lifetime, Look
from frd.engine.matching.clock_hints import ClockHint
from frd.engine.policy import Policy
from frd.engine.state.session_clocks import SessionClocks
from frd.forms import span_text
from frd.model import AlignedNs, Kind

_LOOK_EVERY_NS: Final = 1_000_000_000
_APART_NS: Final = 2_000_000_000
"""Two contradictions closer than this may result from one step."""
_WHAT_TO_DO: Final = "check the time synchronization (chrony, PTP) there"

_Ranks = tuple[int, ...]
"""All ranks of the nodes concerned, which identify a finding, after a restart too."""
_NodeOf = Callable[[int], str]
"""From a rank to the name of its host, empty if unknown."""


@dataclass(slots=True)
class _Conflict:
    first: ClockHint
    newest: ClockHint
    seen: AlignedNs

    @property
    def is_certain(self) -> bool:
        return abs(self.newest.at - self.first.at) >= _APART_NS


class ClockDetector:
    def __init__(self, policy: Policy) -> None:
        self.adopt(policy)
        self._looked_at = AlignedNs(0)
        self._unknown: dict[_Ranks, AlignedNs] = {}
        """Nodes whose clock is unknown, and since when."""
        self._conflicts: dict[_Ranks, _Conflict] = {}

    def adopt(self, policy: Policy) -> None:
        self._after_ns = round(policy.clock_unsynchronized_after_s * 1e9)
        self.lifetime = Lifetime(
            kinds=frozenset({Kind.CLOCK_UNSYNCHRONIZED}),
            anchors_of=lambda finding: frozenset({finding.unknown}),
            close_after_s=0.0,
            restored_close_after_s=2 * policy.clock_unsynchronized_after_s,
            close_reason="the clocks agree again",
        )

    def evaluate(self, attempt: Attempt, now: AlignedNs, known: Known) -> Look | None:
        if now - self._looked_at < _LOOK_EVERY_NS:
            return None
        self._looked_at = now
        unknown = attempt.clocks.unsynchronized()
        self._unknown = {ranks: self._unknown.get(ranks, now) for ranks in unknown}
        self._collect_contradictions(attempt.take_contradictions(), attempt.clocks, now)
        node_of = attempt.presence.node_of
        return Look(now, [*self._unknown_clocks(node_of, now), *self._contradictions(node_of)])

    def _collect_contradictions(
        self, hints: Iterable[ClockHint], clocks: SessionClocks, now: AlignedNs
    ) -> None:
        """All contradictions between the same two nodes are one conflict. A conflict that shows no
        more contradictions is forgotten."""
        for hint in hints:
            ranks = (
                *clocks.ranks_sharing_clock(hint.early_rank),
                *clocks.ranks_sharing_clock(hint.late_rank),
            )
            known = self._conflicts.setdefault(tuple(sorted(ranks)), _Conflict(hint, hint, now))
            known.newest, known.seen = hint, now
        for key, conflict in list(self._conflicts.items()):
            if now - conflict.seen >= self._after_ns:
                del self._conflicts[key]

    def _unknown_clocks(self, node_of: _NodeOf, now: AlignedNs) -> Iterator[Claim]:
        for ranks, since in self._unknown.items():
            if now - since >= self._after_ns:
                node = _node(node_of, ranks[0])
                yield _claim(
                    ranks,
                    f"the clock of {node} ({text.ranks(ranks)}) is not synchronized, so times "
                    "of its ranks are not compared with those of other nodes: `frd status` says "
                    f"why; {_WHAT_TO_DO}",
                )

    def _contradictions(self, node_of: _NodeOf) -> Iterator[Claim]:
        for ranks, conflict in self._conflicts.items():
            if conflict.is_certain:
                hint = conflict.first
                early, late = hint.early_rank, hint.late_rank
                yield _claim(
                    ranks,
                    f"the clocks of {_node(node_of, early)} and {_node(node_of, late)} contradict "
                    f"each other: rank {early} completed a collective {span_text(-hint.slack_ns)} "
                    f"before rank {late} joined it; one of the two is wrong: "
                    f"{_WHAT_TO_DO}",
                )


def _claim(ranks: _Ranks, summary: str) -> Claim:
    kind = Kind.CLOCK_UNSYNCHRONIZED
    return Claim(kind, repr(ranks), frozenset({ranks}), unknown=ranks, summary=summary)


def _node(node_of: _NodeOf, rank: int) -> str:
    return text.clean(node_of(rank)) or f"rank {rank}"
