"""Findings about clocks: nodes whose times compare with nobody's, and pairs that cannot be true.

A node whose clock stays unknown while its agent is connected is told of after a while; until then
it has only just come, or is about to find its clock again after a step. Two nodes contradict each
other when one had completed a collective before the other came to it, by more than both clocks
may be off. Which of them is wrong cannot be known from that, so both are named. Times in the very
second of a clock's step may look like that once; it takes collectives some seconds apart.

Nobody is a suspect: a clock that is wrong holds nobody up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from frd.engine.attempt import Attempt
from frd.engine.findings import text as summary
from frd.engine.findings.board import Board
from frd.engine.matching.clock_hints import ClockHint
from frd.engine.policy import Policy
from frd.forms import span_text
from frd.model import (
    AlignedNs,
    AttemptKey,
    Finding,
    FindingEvent,
    FindingState,
    Kind,
)

_KINDS: Final = frozenset({Kind.CLOCK_UNSYNCHRONIZED})
_LOOK_EVERY_NS: Final = 1_000_000_000
_APART_NS: Final = 2_000_000_000
"""Two contradictions closer than this may come of one step."""
_WHAT_TO_DO: Final = "check the time synchronization (chrony, PTP) there"

_Ranks = tuple[int, ...]
"""Of the nodes concerned: what identifies a finding, over restarts too."""


@dataclass(slots=True)
class _Conflict:
    first: ClockHint
    newest: ClockHint
    seen: AlignedNs

    @property
    def is_certain(self) -> bool:
        return abs(self.newest.at - self.first.at) >= _APART_NS


class ClockWatcher:
    def __init__(self, key: AttemptKey, policy: Policy) -> None:
        self._key = key
        self.adopt(policy)
        self.board = Board(_KINDS, _subject)
        self._looked_at = AlignedNs(0)
        self._unknown: dict[_Ranks, AlignedNs] = {}
        """Nodes whose clock is unknown, and since when."""
        self._conflicts: dict[_Ranks, _Conflict] = {}
        self._seen: set[_Ranks] = set()
        """What findings of this process of the service are about."""
        self._started_at = AlignedNs(0)

    def adopt(self, policy: Policy) -> None:
        self._after_ns = round(policy.clock_unsynchronized_after_s * 1e9)

    def look(self, attempt: Attempt, now: AlignedNs, *, room: int) -> list[FindingEvent]:
        if now - self._looked_at < _LOOK_EVERY_NS:
            return []
        self._looked_at, self._started_at = now, self._started_at or now
        unknown = set(attempt.unsynchronized().values())
        self._unknown = {ranks: self._unknown.get(ranks, now) for ranks in unknown}
        self._meet(attempt, now)
        claims = [*self._lasting(attempt, now), *self._certain(attempt, now)]
        events: list[FindingEvent] = []
        for claim in claims:
            if _subject(claim) in self.board or room > 0:
                room -= _subject(claim) not in self.board
                events += self.board.put(claim, now)
        return events + self._close_healed({_subject(claim) for claim in claims}, now)

    def _meet(self, attempt: Attempt, now: AlignedNs) -> None:
        """Contradictions, those of the same two nodes together; what heals is forgotten."""
        for hint in attempt.take_contradictions():
            ranks = sum(map(attempt.ranks_of_clock, (hint.early_rank, hint.late_rank)), ())
            key = tuple(sorted(ranks))
            known = self._conflicts.setdefault(key, _Conflict(hint, hint, now))
            known.newest, known.seen = hint, now
        for key, conflict in list(self._conflicts.items()):
            if now - conflict.seen >= self._after_ns:
                del self._conflicts[key]

    def _lasting(self, attempt: Attempt, now: AlignedNs) -> Iterable[Finding]:
        for ranks, since in self._unknown.items():
            if now - since >= self._after_ns:
                node = _node(attempt, ranks[0])
                yield self._finding(
                    ranks,
                    now,
                    f"the clock of {node} ({summary.ranks(ranks)}) is not synchronized, so times "
                    "of its ranks are not compared with those of other nodes: `frd status` says "
                    f"why; {_WHAT_TO_DO}",
                )

    def _certain(self, attempt: Attempt, now: AlignedNs) -> Iterable[Finding]:
        for ranks, conflict in self._conflicts.items():
            if conflict.is_certain:
                hint = conflict.first
                early, late = hint.early_rank, hint.late_rank
                yield self._finding(
                    ranks,
                    now,
                    f"the clocks of {_node(attempt, early)} and {_node(attempt, late)} contradict "
                    f"each other: rank {early} completed a collective {span_text(-hint.slack_ns)} "
                    f"before rank {late} joined it; one of the two is wrong: "
                    f"{_WHAT_TO_DO}",
                )

    def _close_healed(self, claimed: set[_Ranks], now: AlignedNs) -> list[FindingEvent]:
        """At once; but findings from before a restart have their time to be seen again."""
        self._seen |= claimed
        events: list[FindingEvent] = []
        for subject in self.board:
            waited_ns = now - self._started_at
            seen = subject in self._seen or waited_ns >= 2 * self._after_ns
            if seen and subject not in claimed:
                events += self.board.close(subject, now, "the clocks agree again")
        return events

    def _finding(self, ranks: _Ranks, now: AlignedNs, words: str) -> Finding:
        return Finding(
            id="",
            kind=Kind.CLOCK_UNSYNCHRONIZED,
            state=FindingState.OPEN,
            job=self._key.job,
            attempt=self._key.attempt,
            opened_at=now,
            unknown=ranks,
            summary=words,
        )


def _subject(finding: Finding) -> _Ranks:
    return finding.unknown


def _node(attempt: Attempt, rank: int) -> str:
    return summary.clean(attempt.node_of(rank)) or f"rank {rank}"
