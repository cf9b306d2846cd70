"""Which of the open findings each verdict of one look is about.

A verdict continues the finding that is most like it: first of all one that names the same ranks,
then one that shares most of what is stuck. No two verdicts continue the same finding, and what is
paired at one look is paired alike at the next. Findings that are left over and like a verdict have
become one with it. A verdict that is left over, although a finding is like it, is a part of what
was seen as a whole: telemetry that came late, or an agent that went away, hides what holds the
parts together. It is news only when it says more than the whole does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from frd.engine.findings import builder
from frd.engine.findings.builder import Key
from frd.engine.hangs.diagnosis import Verdict
from frd.engine.hangs.exits import Exit
from frd.engine.hangs.incident import Claim
from frd.model import Kind


@dataclass(frozen=True, slots=True)
class Seen:
    verdict: Verdict
    keys: set[Key]
    """What identifies it over time, see `frd.engine.findings.builder.keys_of`."""


@dataclass(slots=True)
class Paired:
    seen: Seen
    same: list[Claim] = field(default_factory=list)
    """Findings that it continues or makes one, oldest first."""
    within: list[Claim] = field(default_factory=list)
    """Findings that are like it, but that another verdict continues."""

    @property
    def is_news(self) -> bool:
        """It names somebody, or says that it is nobody, as surely as those do which it is like."""
        verdict = self.seen.verdict
        if not self.within or verdict.reason is not None:
            return True
        known = max(builder.surest(claim.bare) for claim in self.within)
        return bool(verdict.suspects) and builder.surest(verdict.suspects) >= known


def paired(seen: Sequence[Seen], claims: Sequence[Claim], gone: Sequence[Exit]) -> list[Paired]:
    """Every verdict with the findings that it is about, in the order of the verdicts."""
    pairs = [Paired(one) for one in seen]
    links = sorted(
        (link for at, one in enumerate(seen) for link in _links(at, one, claims, gone)),
        key=lambda link: (link.likeness, link.age),
    )
    taken: set[str] = set()
    for link in links:
        pair = pairs[link.at]
        if not pair.same and link.claim.finding.id not in taken:
            taken.add(link.claim.finding.id)
            pair.same.append(link.claim)
    for link in links:
        pair = pairs[link.at]
        if not pair.same:
            pair.within.append(link.claim)
        elif link.claim.finding.id not in taken:
            taken.add(link.claim.finding.id)
            pair.same.append(link.claim)
    for pair in pairs:
        pair.same.sort(key=_age)
    return pairs


@dataclass(frozen=True, slots=True)
class _Link:
    at: int
    """Index of the verdict."""
    claim: Claim
    likeness: tuple[bool, int]
    """Less is more."""

    @property
    def age(self) -> tuple[int, str, int]:
        return (*_age(self.claim), self.at)


def _links(at: int, seen: Seen, claims: Sequence[Claim], gone: Sequence[Exit]) -> Iterator[_Link]:
    named = {blame.rank for blame in seen.verdict.suspects}
    found = False
    for claim in claims:
        names, shared = bool(claim.named & named), len(claim.keys & seen.keys)
        if names or shared:
            found = True
            yield _Link(at, claim, (not names, -shared))
    if not found:
        yield from (
            _Link(at, claim, (True, 0)) for claim in claims if _follows(seen.verdict, claim, gone)
        )


def _age(claim: Claim) -> tuple[int, str]:
    return claim.finding.opened_at, claim.finding.id


def _follows(verdict: Verdict, claim: Claim, gone: Sequence[Exit]) -> bool:
    """A stall that began after a rank was lost, or names only ranks that went away too."""
    if claim.finding.kind is not Kind.RANK_LOST:
        return False
    exited = {one.rank for one in gone}
    named = [blame.rank for blame in verdict.suspects]
    return verdict.since >= claim.since or (bool(named) and exited.issuperset(named))
