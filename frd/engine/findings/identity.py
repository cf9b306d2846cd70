"""Which open finding each claim of one look is about: a pure function.

A claim and a finding match if they share anchors or, for kinds that keep their cause, name the same
rank. Pairing is stable from look to look:

1. A claim continues the finding that matches best: a common rank counts more than anchors, many
   common anchors count more than few. No two claims continue the same finding.
2. A finding that is left over merges into the claim that it matches; but one whose cause is known
   for good stays as it is.
3. A claim that is left over, although a finding matches it, is a part of an incident that was seen
   as a whole: late telemetry, or an agent that went away, hides what connects the parts. Such a
   claim is news only if its cause is at least as sure as the cause of the whole, and surer if the
   whole names the same ranks. That nothing is heard of a rank is no such cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from frd.engine.findings.builder import CERTAIN, surest
from frd.engine.findings.claim import Claim, Lifetime
from frd.engine.findings.open_finding import OpenFinding
from frd.model import Kind, Reason


@dataclass(slots=True)
class Pairing:
    claim: Claim
    same: list[OpenFinding] = field(default_factory=list)
    """Findings that the claim continues, or merges into one: first those that name a rank of it,
    the oldest of them first."""
    parts_of: list[OpenFinding] = field(default_factory=list)
    """Findings that match the claim but that another claim continues."""

    @property
    def is_news(self) -> bool:
        """The claim names ranks at least as surely as the findings of which it is a part, more
        surely if these name the same ranks, or says that no rank is the cause."""
        if not self.parts_of or self.claim.reason is not None:
            return True
        known = max(surest(a.suspects) + (self.claim.named <= a.named) for a in self.parts_of)
        is_silence = {one.reason for one in self.claim.suspects} == {Reason.UNREACHABLE}
        if is_silence and surest(self.claim.suspects) < CERTAIN and known >= 0:
            return False
        return bool(self.claim.suspects) and surest(self.claim.suspects) >= known


def paired(
    claims: Sequence[Claim], findings: Sequence[OpenFinding], life: Lifetime
) -> list[Pairing]:
    """Every claim with its findings, in the order of the claims."""
    pairs = [Pairing(claim) for claim in claims]
    links = sorted(
        (link for at, claim in enumerate(claims) for link in _links(at, claim, findings, life)),
        key=lambda link: (link.unlikeness, *_age(link.finding), link.at),
    )
    taken: set[str] = set()
    for link in links:
        pair = pairs[link.at]
        if not pair.same and link.finding.finding.id not in taken:
            taken.add(link.finding.finding.id)
            pair.same.append(link.finding)
    for link in links:
        pair = pairs[link.at]
        if not pair.same:
            pair.parts_of.append(link.finding)
        elif (merged := link.finding.finding).id not in taken and merged.kind not in life.final:
            taken.add(link.finding.finding.id)
            pair.same.append(link.finding)
    for pair in pairs:
        names = {one.finding.id for one in pair.same if _names(pair.claim, one, life)}
        pair.same.sort(key=lambda one: (one.finding.id not in names, *_age(one)))
    return pairs


def _names(claim: Claim, tracked: OpenFinding, life: Lifetime) -> bool:
    """They name a common rank."""
    return life.keeps_cause and not claim.named.isdisjoint(tracked.named)


@dataclass(frozen=True, slots=True)
class _Link:
    at: int
    """Index of the claim."""
    finding: OpenFinding
    unlikeness: tuple[bool, int]


def _links(
    at: int, claim: Claim, findings: Sequence[OpenFinding], life: Lifetime
) -> Iterator[_Link]:
    if claim.kind is Kind.MISMATCH:  # a loss makes no rank pass something else than the others
        findings = [tracked for tracked in findings if tracked.finding.kind not in life.final]
    found = False
    for tracked in findings:
        names = _names(claim, tracked, life)
        shared = len(claim.anchors & tracked.anchors)
        if names or shared:
            found = True
            yield _Link(at, tracked, (not names, -shared))
    if not found:
        for tracked in findings:
            if tracked.finding.kind in life.final and _follows(claim, tracked):
                yield _Link(at, tracked, (True, 0))


def _follows(claim: Claim, loss: OpenFinding) -> bool:
    """The claim began after a loss, or names only ranks that have exited too."""
    return claim.since >= loss.since or claim.is_of_exited


def _age(tracked: OpenFinding) -> tuple[int, str]:
    return tracked.finding.opened_at, tracked.finding.id
