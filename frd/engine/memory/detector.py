"""Detects trouble with memory: claims about memory that rises or ran out.

The figures of a rank are those of the moment in which its incident named it, and stay as they are.
The evidence also says what the rank was doing at that moment.
"""

from __future__ import annotations

from frd.engine.findings import builder
from frd.engine.findings.claim import Anchors, Claim, Known, Lifetime, Look
from frd.engine.findings.text import clean, collective
from frd.engine.memory.incident_report import IncidentReport
from frd.engine.memory.text import evidence, summary
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot
from frd.engine.tick import Tick
from frd.model import AlignedNs, Change, Kind, Reason, Suspect


class MemoryDetector:
    """Claims what the memory of an attempt reports; the thresholds are in that memory."""

    def __init__(self) -> None:
        self._doing: dict[tuple[int, int], str] = {}
        """What a rank was doing when an incident named it, by number of the incident and rank."""
        self.lifetime = Lifetime(
            kinds=frozenset({Kind.MEMORY_SPIKE, Kind.OOM}),
            # No incident of this process continues a finding from before a restart.
            anchors_of=lambda finding: frozenset({finding.id}),
        )

    def adopt(self, policy: Policy) -> None:
        """Nothing here depends on the policy."""

    def evaluate(self, tick: Tick, known: Known) -> Look | None:
        reports = tick.memory_reports()
        if not reports:
            return None
        closed = [report for report in reports if report.change is Change.CLOSED]
        lasting = [report for report in reports if report.change is not Change.CLOSED]
        claims = [self._claim(tick.snapshot(), report) for report in lasting]
        over = {_anchors(report): report.close_reason for report in closed}
        ended = {report.number for report in closed}
        self._doing = {key: words for key, words in self._doing.items() if key[0] not in ended}
        return Look(tick.now, claims, over)

    def _claim(self, snapshot: Snapshot, report: IncidentReport) -> Claim:
        suspects = []
        for rise in () if report.common else report.first:
            known = (report.number, rise.rank)
            if known not in self._doing:
                self._doing[known] = _doing(snapshot, rise.rank, rise.onset[1])
            words = evidence(report, rise, self._doing[known])
            node = builder.node_of(snapshot, rise.rank)
            suspects.append(Suspect(rise.rank, node, Reason.MEMORY, report.confidence, words))
        victims = report.ranks if report.common else ()
        return Claim(
            kind=report.kind,
            about=repr(str(report.number)),
            anchors=_anchors(report),
            reason=Reason.MEMORY if report.common else None,
            suspects=tuple(suspects),
            victims=tuple(sorted({*victims, *report.victims})),
            unknown=report.unknown,
            summary=summary(report),
        )


def _anchors(report: IncidentReport) -> Anchors:
    return frozenset({str(report.number)})


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
