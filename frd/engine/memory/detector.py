"""Detects trouble with memory: claims about memory that rises or ran out.

The figures of a rank are those of the moment in which its incident named it, and stay as they are.
The evidence also says what the rank was doing at that moment. A claim is repeated only when it says
something new, so that findings expire of which nothing new is known, as when agents are gone.

After a restart of the service, agents send samples and failures again that an earlier process has
judged. A rise that a restored finding reports opens no second finding. It changes the restored one
only if it says more, because the earlier process may have known more; from then on the finding is
that of this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from frd.engine.findings import builder
from frd.engine.findings.builder import Anchors, Claim, ClaimStatus, Known, Lifetime, Look
from frd.engine.findings.text import clean, collective
from frd.engine.memory.incident import RAN_OUT, MemoryIncident
from frd.engine.memory.rise import MemoryRise
from frd.engine.memory.text import FORECAST, effect, evidence, headline, is_of_host
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot
from frd.engine.tick import Tick
from frd.model import Finding, Kind, Reason, Suspect, SuspectPhase


class MemoryDetector:
    """Claims what the memory of an attempt shows; the thresholds are in that memory."""

    def __init__(self) -> None:
        self._claims: dict[int, Claim] = {}
        """What was claimed last, by number of the incident."""
        self._when_named: dict[tuple[int, int], tuple[Suspect, str]] = {}
        """A rank and what it was doing when an incident named it, by number and rank."""
        self._phases: dict[tuple[int, int], tuple[SuspectPhase | None, bool]] = {}
        """The phase in which the memory of a rank began to rise, and whether it is settled."""
        self._restored: frozenset[str] | None = None
        """Ids of findings of an earlier process of the service; None before the first look."""
        self._continued: dict[int, Anchors] = {}
        """Anchors of the restored findings that incidents of this process go on with, by number."""

    def lifetime(self, policy: Policy) -> Lifetime:
        return Lifetime(
            kinds=frozenset({Kind.MEMORY_SPIKE, Kind.OOM}),
            anchors_of=_anchors_of_restored,
        )

    def evaluate(self, tick: Tick, known: Known) -> Look | None:
        if self._restored is None:
            self._restored = frozenset(finding.id for finding in known.findings)
        restored = [finding for finding in known.findings if finding.id in self._restored]
        claims: list[Claim] = []
        over: dict[Anchors, str] = {}
        for incident in tick.memory_incidents():
            earlier = _of_same(incident, restored)
            if incident.over:
                over[self._anchors(incident)] = incident.over
                if earlier is not None and _covers(incident, earlier):
                    over[_anchors_of_restored(earlier)] = incident.over
                self._forget(incident)
                continue
            claim, before = self._claim(tick, incident), self._claims.get(incident.number)
            if claim == before:
                continue
            self._claims[incident.number] = claim
            is_flat = _foresees(before) > _foresees(claim)
            status = ClaimStatus.CONTINUING if is_flat else ClaimStatus.CONFIRMED
            if earlier is None:
                claims.append(replace(claim, anchors=self._anchors(incident), status=status))
            elif earlier.kind is Kind.MEMORY_SPIKE and incident.kind is Kind.OOM:
                over[_anchors_of_restored(earlier)] = RAN_OUT
                claims.append(claim)
            elif incident.number in self._continued or _says_more(claim, earlier, is_flat):
                anchors = _anchors_of_restored(earlier)
                anchors = self._continued.setdefault(incident.number, anchors)
                victims = tuple(sorted({*claim.victims, *earlier.victims} - claim.named))
                claims.append(replace(claim, anchors=anchors, victims=victims, status=status))
        return Look(tick.now, claims, over) if claims or over else None

    def _anchors(self, incident: MemoryIncident) -> Anchors:
        return self._continued.get(incident.number, _anchors(incident))

    def _forget(self, incident: MemoryIncident) -> None:
        self._claims.pop(incident.number, None)
        self._continued.pop(incident.number, None)
        for rank in incident.rises:
            self._when_named.pop((incident.number, rank), None)
            self._phases.pop((incident.number, rank), None)

    def _claim(self, tick: Tick, incident: MemoryIncident) -> Claim:
        suspects, nodes = [], set()
        # Others have a node, also if the memory of all ranks rose.
        for rise in () if incident.common > incident.of_others else incident.rises.values():
            key = incident.number, rise.rank
            if key not in self._when_named:
                snapshot = tick.snapshot()
                doing = _doing(snapshot, rise.rank, rise.onset[1])
                named = builder.suspect(snapshot, rise.rank, Reason.MEMORY, incident.confidence)
                self._when_named[key] = named, doing
            named, doing = self._when_named[key]
            nodes.add(named.node)
            words = evidence(incident, rise, doing, tick.utc_ahead_ns)
            suspect = replace(named, confidence=incident.confidence, evidence=words)
            phase = self._phase(tick, incident.number, rise)
            suspects.append(builder.in_phase(suspect, phase, tick.utc_ahead_ns, "began in"))
        victims = {*incident.victims, *(incident.rows if incident.common else ())}
        unknown = incident.unknown - incident.rows.keys()
        if incident.of_others:
            suspects, victims, unknown = [], incident.failed, set()
        return Claim(
            kind=incident.kind,
            about=repr(str(incident.number)),
            anchors=_anchors(incident),
            reason=None if suspects else Reason.MEMORY,
            suspects=tuple(suspects),
            named=frozenset(incident.rows if suspects else ()),
            victims=tuple(sorted(victims)),
            unknown=tuple(sorted(unknown)),
            headline=headline(incident, ", ".join(sorted(nodes - {""}))),
            effect=effect(incident, tick.utc_ahead_ns),
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


def _anchors_of_restored(finding: Finding) -> Anchors:
    return frozenset({finding.id})


def _of_same(incident: MemoryIncident, restored: Sequence[Finding]) -> Finding | None:
    """The restored finding that reports an incident: it opened after the incident had begun, and
    concerns a rank of it. One of the same kind comes first."""
    ranks = incident.failed if incident.of_others else {*incident.rows, *incident.victims}
    same = [
        finding
        for finding in restored
        if incident.limit <= finding.opened_at
        and is_of_host(finding.summary) is incident.on_host
        and (ranks & (named := _named(finding)) or ranks == named)
    ]
    return min(same, key=lambda finding: finding.kind is not incident.kind, default=None)


def _named(finding: Finding) -> frozenset[int]:
    return _suspected(finding).union(finding.victims)


def _suspected(finding: Finding) -> frozenset[int]:
    return frozenset(suspect.rank for suspect in finding.suspects)


def _covers(incident: MemoryIncident, earlier: Finding) -> bool:
    """The incident is of the kind of an earlier finding, and of all ranks that it names."""
    named = _suspected(earlier)
    names = named <= incident.rows.keys() if named else incident.common or incident.of_others
    return incident.kind is earlier.kind and names


def _foresees(claim: Claim | None) -> bool:
    return claim is not None and FORECAST in claim.effect


def _says_more(claim: Claim, earlier: Finding, is_flat: bool) -> bool:
    """The claim is surer than an earlier finding of its kind; or as sure, and it names the same
    suspects and lists other ranks, or that memory no longer rises."""
    if claim.kind is not earlier.kind:
        return False
    known, sure = builder.surest(earlier.suspects), builder.surest(claim.suspects)
    if sure != known:
        return sure == builder.CERTAIN
    lists_more = not {*claim.named, *claim.victims} <= _named(earlier)
    return _suspected(earlier) <= claim.named and (is_flat or lists_more)


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
