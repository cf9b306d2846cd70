"""Findings about memory: what the incidents of `frd.engine.memory` look like to people.

The figures are those of the moment in which a rank was named and do not change by themselves. What
the rank was doing then is asked of the attempt once, and told along.
"""

from __future__ import annotations

from typing import Final

from frd.engine.attempt import Attempt
from frd.engine.findings import builder
from frd.engine.findings.board import Board
from frd.engine.findings.text import clean, collective
from frd.engine.memory.text import evidence, summary
from frd.engine.memory.verdict import MemoryVerdict
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot
from frd.model import (
    AlignedNs,
    AttemptKey,
    Change,
    Finding,
    FindingEvent,
    FindingState,
    Kind,
    Reason,
    Suspect,
)

_KINDS: Final = frozenset({Kind.MEMORY_SPIKE, Kind.OOM})


class MemoryWatcher:
    """Advances the memory of an attempt and tells what comes of it."""

    def __init__(self, key: AttemptKey) -> None:
        self._key = key
        self.board = Board(_KINDS, _subject)
        self._doing: dict[tuple[int, int], str] = {}
        """What a rank was doing when an incident named it, by number of the incident and rank."""

    def adopt(self, policy: Policy) -> None:
        """Nothing is decided here: it is the attempt's memory that has a policy."""

    def look(self, attempt: Attempt, now: AlignedNs, *, room: int) -> list[FindingEvent]:
        """Called at every tick; at most `room` findings open."""
        events: list[FindingEvent] = []
        for verdict in attempt.memory.advance(now):
            number = str(verdict.number)
            if verdict.change is Change.CLOSED:
                closed = self.board.close(number, now, verdict.close_reason)
                room += len(closed)  # it may be the spike of the memory that has run out
                events += closed
                self._doing = {k: v for k, v in self._doing.items() if k[0] != verdict.number}
            elif number in self.board or room > 0:
                room -= number not in self.board
                events += self.board.put(self._finding(attempt, verdict, now), now)
        return events

    def _finding(self, attempt: Attempt, verdict: MemoryVerdict, now: AlignedNs) -> Finding:
        snapshot = attempt.snapshot(now)
        suspects = []
        for rise in () if verdict.common else verdict.first:
            known = (verdict.number, rise.rank)
            if known not in self._doing:
                self._doing[known] = _doing(snapshot, rise.rank, rise.onset[1])
            words = evidence(verdict, rise, self._doing[known])
            node = builder.node_of(snapshot, rise.rank)
            suspects.append(Suspect(rise.rank, node, Reason.MEMORY, verdict.confidence, words))
        victims = verdict.ranks if verdict.common else ()
        return Finding(
            id=str(verdict.number),
            kind=verdict.kind,
            state=FindingState.OPEN,
            job=self._key.job,
            attempt=self._key.attempt,
            opened_at=now,
            reason=Reason.MEMORY if verdict.common else None,
            suspects=tuple(suspects),
            victims=tuple(sorted({*victims, *verdict.victims})),
            unknown=verdict.unknown,
            summary=summary(verdict),
        )


def _subject(finding: Finding) -> str:
    """The number of the incident; of a finding from before a restart its id, which no number is."""
    return finding.id


def _doing(snapshot: Snapshot, rank: int, onset: AlignedNs) -> str:
    """The collective that a rank was in when its memory began to rise, or has joined last."""
    inside: tuple[int, str] | None = None
    joined: tuple[int, str] | None = None
    for group in snapshot.groups:
        at = int(group.members.searchsorted(rank))
        if at == len(group.members) or group.members[at] != rank:
            continue
        enqueued, completed = int(group.enqueued[at]), int(group.completed[at])
        since, label = int(group.head_since[at]), clean(group.info.label)
        if enqueued > completed and 0 < since <= onset:
            seq = completed + 1
            if inside is None or since < inside[0]:
                inside = (since, collective(group.ops(seq), seq, label))
        elif enqueued >= 0 and (joined is None or enqueued > joined[0]):
            joined = (enqueued, collective(group.ops(enqueued), enqueued, label))
    if inside is not None:
        return f"in {inside[1]} when it began"
    return f"last joined {joined[1]}" if joined is not None else ""
