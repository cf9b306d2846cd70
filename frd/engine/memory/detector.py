"""Detects trouble with memory: claims about memory that rises or ran out.

The figures of a rank are those of the moment in which its incident named it, and stay as they are.
The evidence also says what the rank was doing at that moment. A claim is repeated only when it says
something new, so that findings expire of which nothing new is known, as when agents are gone.
"""

from __future__ import annotations

import numpy as np

from frd.engine.findings import builder
from frd.engine.findings.claim import Anchors, Claim, Known, Lifetime, Look
from frd.engine.findings.text import clean, collective
from frd.engine.memory.incident import MemoryIncident
from frd.engine.memory.rise import MemoryRise
from frd.engine.memory.text import evidence, summary
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot
from frd.engine.tick import Tick
from frd.model import Kind, Reason, Suspect, SuspectPhase


class MemoryDetector:
    """Claims what the memory of an attempt shows; the thresholds are in that memory."""

    def __init__(self) -> None:
        self._claims: dict[int, Claim] = {}
        """What was claimed last, by number of the incident."""
        self._when_named: dict[tuple[int, int], tuple[str, str]] = {}
        """Node of a rank and what it was doing when an incident named it, by number and rank."""
        self._phases: dict[tuple[int, int], tuple[SuspectPhase | None, bool]] = {}
        """The phase in which the memory of a rank began to rise, and whether it is settled."""

    def lifetime(self, policy: Policy) -> Lifetime:
        return Lifetime(
            kinds=frozenset({Kind.MEMORY_SPIKE, Kind.OOM}),
            # No incident of this process continues a finding from before a restart.
            anchors_of=lambda finding: frozenset({finding.id}),
        )

    def evaluate(self, tick: Tick, known: Known) -> Look | None:
        claims: list[Claim] = []
        over: dict[Anchors, str] = {}
        for incident in tick.memory_incidents():
            if incident.over:
                over[_anchors(incident)] = incident.over
                self._forget(incident)
            elif (claim := self._claim(tick, incident)) != self._claims.get(incident.number):
                self._claims[incident.number] = claim
                claims.append(claim)
        return Look(tick.now, claims, over) if claims or over else None

    def _forget(self, incident: MemoryIncident) -> None:
        self._claims.pop(incident.number, None)
        for rank in incident.rises:
            self._when_named.pop((incident.number, rank), None)
            self._phases.pop((incident.number, rank), None)

    def _claim(self, tick: Tick, incident: MemoryIncident) -> Claim:
        suspects = []
        for rise in () if incident.common else incident.rises.values():
            key = incident.number, rise.rank
            if key not in self._when_named:
                snapshot = tick.snapshot()
                doing = _doing(snapshot, rise.rank, rise.onset[1])
                self._when_named[key] = builder.node_of(snapshot, rise.rank), doing
            node, doing = self._when_named[key]
            words = evidence(incident, rise, doing)
            suspect = Suspect(rise.rank, node, Reason.MEMORY, incident.confidence, words)
            phase = self._phase(tick, incident.number, rise)
            suspects.append(builder.in_phase(suspect, phase, "began in"))
        victims = {*incident.victims, *(incident.rows if incident.common else ())}
        return Claim(
            kind=incident.kind,
            about=repr(str(incident.number)),
            anchors=_anchors(incident),
            reason=Reason.MEMORY if incident.common else None,
            suspects=tuple(suspects),
            victims=tuple(sorted(victims)),
            unknown=tuple(sorted(incident.unknown - incident.rows.keys())),
            summary=summary(incident),
        )

    def _phase(self, tick: Tick, number: int, rise: MemoryRise) -> SuspectPhase | None:
        key, phases = (number, rise.rank), tick.phases
        phase, settled = self._phases.get(key, (None, False))
        if not settled:  # an inner phase may be reported later
            phase = phases.during(rise.rank, *rise.onset) or phase
            self._phases[key] = phase, phases.is_settled(rise.rank, rise.onset[1])
        return phase


def _anchors(incident: MemoryIncident) -> Anchors:
    return frozenset({str(incident.number)})


def _doing(snapshot: Snapshot, rank: int, onset: int) -> str:
    """The collective that a rank was in when its memory began to rise, or has joined last."""
    inside: tuple[int, str] | None = None
    joined: tuple[int, str] | None = None
    pairs = snapshot.pairs
    rows = np.flatnonzero(pairs.rank == rank)
    for row, group in zip(rows.tolist(), pairs.group_of(rows).tolist(), strict=True):
        enqueued, completed = int(pairs.joined[row]), int(pairs.completed[row])
        since, label = int(pairs.head_since[row]), clean(snapshot.groups[group].label)
        if enqueued > completed and 0 < since <= onset:
            seq = completed + 1
            if inside is None or since < inside[0]:
                inside = (since, collective(snapshot.op(group, seq), seq, label))
        elif enqueued >= 0 and (joined is None or enqueued > joined[0]):
            joined = (enqueued, collective(snapshot.op(group, enqueued), enqueued, label))
    if inside is not None:
        return f"in {inside[1]} when it began"
    return f"last joined {joined[1]}" if joined is not None else ""
