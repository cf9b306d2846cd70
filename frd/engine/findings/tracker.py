"""The life of one attempt's findings: open, confirm, update, close, attach, restore, expire.

Detectors make claims about one moment (`frd.engine.findings.builder`). The tracker alone knows
which findings are open, and which exits are reported. One incident is one finding with one id. How
findings of a kind live is a `Lifetime`; these are the rules in force:

stall, order, mismatch
    Same incident: the claim names the same ranks, or shares what is stuck; findings merge.
    Opens: immediately if reports of different age cannot fake the reason, else after 1.5 s; not
        while an exit of a named rank is being judged.
    Changes: to more or surer suspects that have lasted 1.5 s; to fewer, when some of them have
        waited as long for others in something that no recorder shows.
    Closes: unseen for `close_after_s`, unless a rank of it exited; merged; or succeeded by a
        finding about what waits now. After a restart it also needs a report of every rank that
        waited.
    Critical: after `critical_after_s`.

rank_lost
    Same incident: as above; what begins later, but a mismatch, is its consequence.
    Opens: when an exit is judged, unless an open finding explains it; each exit once.
    Changes: only which ranks wait.
    Closes: with its attempt, or as a part of a mismatch to which its ranks belong; 60 s after
        a restart if no agent reports on the attempt.
    Critical: as above; after a restart, once the exit is seen again.

straggler
    Same incident: the set of ranks.
    Opens: when a window shows it.
    Changes: with each window; an event at most once per window length.
    Closes: when it costs less than half of what opens a finding, when others delay it, or when it
        is part of another finding; after a restart, when no window has shown it.
    Critical: never.

memory_spike, oom
    Same incident: the number under which the detector groups rises. After a restart: a rise that
        began before the finding opened, of a rank that the finding lists.
    Opens: when there are samples of all ranks for the time in which it began, or after 0.5 s.
    Changes: when more ranks rise or run out, or late samples arrive.
    Closes: when no rank that it names rises any more; an oom also needs `memory_settle_s` without
        a failed allocation; a memory_spike whose memory ran out is succeeded by an oom.
    Critical: an oom from the start, a memory_spike never.

clock_unsynchronized
    Same incident: the ranks of the nodes.
    Opens: when the detector claims it.
    Closes: at the first look without it; after a restart, after twice
        `clock_unsynchronized_after_s`.
    Critical: never.

standstill
    Same incident: the attempt.
    Opens: when the detector claims it.
    Closes: when a watermark rises, a rank is seen at work, or another finding says why nothing
        moves.
    Critical: never.

Findings of every kind expire when no look has shown them for `lost_close_after_s`. A finding that
was closed by hand stays known until its trouble is over, so that the same trouble opens no other
finding. If nothing is heard of a job any more, its findings rest: they are closed, and open again
under their ids if its agents come back and report that they hold.

A claim and a finding match if they share anchors or, for kinds that keep their cause, name the same
rank. Pairing (`paired`) is stable from look to look:

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

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from frd.engine.findings.attachments import Evidence
from frd.engine.findings.builder import (
    CERTAIN,
    EXPLAINING,
    Anchors,
    Claim,
    ClaimStatus,
    Known,
    Lifetime,
    Look,
    surest,
)
from frd.engine.findings.open_finding import OpenFinding
from frd.model import AlignedNs, AttemptKey, Change, Finding, FindingEvent, Kind, Reason


class Tracker:
    """The findings of one attempt. `lifetimes` are those of its detectors, with disjoint kinds."""

    def __init__(
        self,
        key: AttemptKey,
        lifetimes: Iterable[Lifetime],
        known_of: Callable[[Claim, str], Iterable[Evidence]] = lambda claim, finding: (),
    ) -> None:
        """`known_of`: what ranks have answered before a claim opens the finding of that id."""
        self.key = key
        self._known_of = known_of
        self._open: dict[str, OpenFinding] = {}
        self._unconfirmed: dict[frozenset[Kind], dict[Hashable, AlignedNs]] = {}
        """By detector: anchors of claims that are not confirmed, and since when they are seen."""
        self._reported_exits: set[tuple[int, int]] = set()
        self._dropped: dict[frozenset[Kind], set[Anchors]] = {}
        """By detector: anchors of the claims of its last look that had no room for a finding."""
        self._newly_dropped = 0
        self.adopt(lifetimes)

    def adopt(self, lifetimes: Iterable[Lifetime]) -> None:
        """Decide by other lifetimes from now on."""
        each = list(lifetimes)
        self._lifetimes = {kind: life for life in each for kind in life.kinds}
        self._order = {kind: at for at, life in enumerate(each) for kind in life.kinds}

    def __len__(self) -> int:
        """Open findings, dismissed ones included."""
        return len(self._open)

    @property
    def not_opened(self) -> int:
        """Incidents that have no finding, because there is no room for one."""
        return sum(map(len, self._dropped.values()))

    def take_dropped(self) -> int:
        """How many such incidents there were that the last call did not count."""
        dropped, self._newly_dropped = self._newly_dropped, 0
        return dropped

    def findings(self, now: AlignedNs) -> list[Finding]:
        """The open findings that people see, by detector, then in the order of opening."""
        return [tracked.as_of(now) for tracked in self._of(tuple(Kind)) if not tracked.is_hidden]

    def shown(self) -> dict[str, Finding]:
        """The same by id, as they were last reported."""
        return {id_: one.finding for id_, one in self._open.items() if not one.is_hidden}

    def dismissed(self) -> list[Finding]:
        """Findings that were closed by hand and whose trouble lasts, as far as that is known: it is
        not of a job of which nothing is heard."""
        known = [(one.dismissed, not one.is_resting) for one in self._open.values()]
        return [replace(finding, goes_on=goes_on) for finding, goes_on in known if finding]

    def known(self, kinds: Collection[Kind]) -> Known:
        """What a detector may know of its earlier claims."""
        findings = [tracked.finding for tracked in self._of(kinds)]
        is_explained = any(one.finding.kind in EXPLAINING for one in self._open.values())
        return Known(findings, self._reported_exits, is_explained)

    def _of(self, kinds: Collection[Kind]) -> list[OpenFinding]:
        candidates = [tracked for tracked in self._open.values() if tracked.finding.kind in kinds]
        return sorted(candidates, key=lambda tracked: self._order[tracked.finding.kind])

    # -- one look ----------------------------------------------------------------------------

    def update(self, life: Lifetime, look: Look, *, room: int) -> list[FindingEvent]:
        """What a look of one detector changes. At most `room` more findings are open afterwards."""
        for tracked in self._of(life.kinds):
            tracked.updated_at = tracked.updated_at or look.at
        most, dropped = len(self) + room, set[Anchors]()
        events = self._close_over(life, look)
        events += self._take(life, look, most, dropped)
        events += self._close_explained(life, look)
        for tracked in self._of(life.kinds):
            events += tracked.look_around(look, life)
        if len(self) < most:
            events += self._report_exits(life, look)
        else:
            reported = self._reported_exits
            dropped |= {c.anchors for c in look.claims if not reported.issuperset(c.exits)}
        self._newly_dropped += len(dropped - self._dropped.get(life.kinds, set()))
        self._dropped[life.kinds] = dropped
        for tracked in self._of(life.kinds):
            if tracked.anchors & look.still_stuck:
                tracked.seen = look.at
        passed = [tracked for tracked in self._of(life.kinds) if tracked.is_over(look, life)]
        events += self._close(passed, look.at, life.close_reason)
        for tracked in self._of(life.kinds):
            events += tracked.escalate(look, life)
            events += tracked.reopen(look, life)
        return events

    def settle(self, life: Lifetime, look: Look) -> list[FindingEvent]:
        """The last look at an attempt: how its ranks ended, and which of them was lost."""
        events = [
            event for tracked in self._of(life.kinds) for event in tracked.note_end(look, life)
        ]
        return events + self._report_exits(life, look)

    def _close_over(self, life: Lifetime, look: Look) -> list[FindingEvent]:
        events = []
        for anchors, reason in look.over.items():
            over = [tracked for tracked in self._of(life.kinds) if tracked.anchors == anchors]
            events += self._close(over, look.at, reason)
        return events

    def _take(
        self, life: Lifetime, look: Look, most: int, dropped: set[Anchors]
    ) -> list[FindingEvent]:
        """Claims continue the findings that they are about, or open new ones. Anchors of those for
        which there is no room are put into `dropped`."""
        events: list[FindingEvent] = []
        incidents = [claim for claim in look.claims if not claim.exits]
        pairs = paired(incidents, self._of(life.kinds), life)
        seen_before = self._unconfirmed.pop(life.kinds, {})
        for pair in pairs:
            has_room = len(self) < most
            if pair.same:
                events += self._continue(pair, life, look, has_room=has_room)
            elif pair.is_news and self._is_ripe(pair.claim, life, look, seen_before):
                if has_room:
                    events += self._open_new(pair.claim, life, look)
                else:
                    dropped.add(pair.claim.anchors)
        for pair in pairs:
            if not pair.is_news:  # what is stuck in the parts is stuck in the whole
                for tracked in pair.parts_of:
                    tracked.anchors |= pair.claim.anchors
        return events

    def _is_ripe(
        self, claim: Claim, life: Lifetime, look: Look, seen_before: Mapping[Hashable, AlignedNs]
    ) -> bool:
        """A claim may open a finding now. One that is only possible has to last first."""
        if claim.status is not ClaimStatus.UNCONFIRMED:
            return claim.status is ClaimStatus.CONFIRMED
        first = min(seen_before.get(anchor, look.at) for anchor in claim.anchors)
        unconfirmed = self._unconfirmed.setdefault(life.kinds, {})
        unconfirmed |= dict.fromkeys(claim.anchors, first)
        return look.at - first >= life.confirm_s * 1e9

    def _continue(
        self, pair: Pairing, life: Lifetime, look: Look, *, has_room: bool
    ) -> list[FindingEvent]:
        first, *others = pair.same
        if has_room and life.keeps_cause and first.is_succeeded_by(pair.claim, look.at, life):
            events = self._open_new(pair.claim, life, look)
            reason = f"its suspects joined; what waits now is in finding {events[0].finding.id}"
            others.append(first)
        else:
            events = first.update(pair.claim, look, life)
            reason = f"part of finding {first.finding.id}"
        return events + self._close(others, look.at, reason)

    def _open_new(self, claim: Claim, life: Lifetime, look: Look) -> list[FindingEvent]:
        tracked = OpenFinding.of(self.key, claim, look.at, life)
        tracked.begin_with(self._known_of(claim, tracked.finding.id), look.at)
        self._open[tracked.finding.id] = tracked
        return [FindingEvent(Change.OPENED, tracked.finding)]

    def _close_explained(self, life: Lifetime, look: Look) -> list[FindingEvent]:
        """Close a finding about ranks that left because of a mismatch, as their peers' reports show
        later: each exit has one finding, whichever report comes first."""
        events: list[FindingEvent] = []
        for mismatch in self._of(life.kinds & {Kind.MISMATCH}):
            explained = {*mismatch.named, *mismatch.finding.victims}
            losses = self._of(life.final)
            ranks = [(one, one.named or {*one.finding.victims}) for one in losses]
            over = [one for one, of in ranks if of and of <= explained]
            events += self._close(over, look.at, f"part of finding {mismatch.finding.id}")
        return events

    def _report_exits(self, life: Lifetime, look: Look) -> list[FindingEvent]:
        """Open a finding about exits, unless an open finding explains them: a rank that belongs to
        one exited because of it."""
        events: list[FindingEvent] = []
        for claim in [claim for claim in look.claims if claim.exits]:
            reported, candidates = self._reported_exits, self._of(life.kinds)
            reported -= {exit_ for exit_ in reported if exit_[0] not in look.exited}
            losses = [tracked for tracked in candidates if tracked.finding.kind is claim.kind]
            if losses:
                named = set().union(*(tracked.named for tracked in losses))
                reported |= {exit_ for exit_ in claim.exits if exit_[0] in named}  # if restored
                continue
            reported |= claim.exits
            ranks = {rank for rank, _ in claim.exits}
            if not any(
                ranks & {*tracked.named, *tracked.finding.victims} for tracked in candidates
            ):
                events += self._open_new(claim, life, look)
        return events

    # -- from outside ------------------------------------------------------------------------

    def restore(self, finding: Finding, now: AlignedNs) -> None:
        """Go on with a finding of an earlier process of the service; see `OpenFinding.restored`."""
        life = self._lifetimes[finding.kind]
        self._open[finding.id] = OpenFinding.restored(finding, now, life)

    def attach(self, finding_id: str, evidence: Evidence) -> list[FindingEvent] | None:
        """Better evidence for a finding; None if it is not open for users."""
        tracked = self._open.get(finding_id)
        return None if tracked is None or tracked.is_hidden else tracked.attach(evidence)

    def dismiss(self, finding_id: str, now: AlignedNs, reason: str) -> FindingEvent | None:
        """Close a finding by hand; None if it is not open."""
        tracked = self._open.get(finding_id)
        if tracked is None or tracked.is_hidden:
            return None
        tracked.dismissed = replace(tracked.closed(now, reason, as_of=now), goes_on=True)
        return FindingEvent(Change.CLOSED, tracked.dismissed)

    def close_all(
        self, now: AlignedNs, reason: str, *, but: Collection[Kind] = ()
    ) -> list[FindingEvent]:
        over = [tracked for tracked in self._of(tuple(Kind)) if tracked.finding.kind not in but]
        return self._close(over, now, reason)

    def rest(self, now: AlignedNs, reason: str) -> list[FindingEvent]:
        """Nothing is heard of the job any more: close all findings, until `heard`."""
        events = []
        for tracked in self._of(tuple(Kind)):
            if not tracked.is_hidden:
                finding = tracked.closed(now, reason, as_of=tracked.seen)
                events.append(FindingEvent(Change.CLOSED, finding))
            tracked.rest()
        return events

    def heard(self, now: AlignedNs) -> None:
        """The job is heard again."""
        for tracked in self._open.values():
            tracked.heard(now)

    def forget_resting(self) -> None:
        self._open = {id_: one for id_, one in self._open.items() if not one.is_resting}

    def expire(
        self,
        now: AlignedNs,
        after_s: float,
        since: AlignedNs,
        *,
        of: Collection[Kind] = tuple(Kind),
    ) -> list[FindingEvent]:
        """Close what no look has shown for this long; there was none before `since`."""
        over = [
            tracked
            for tracked in self._of(of)
            if now - max(tracked.seen, since) >= after_s * 1e9 and not tracked.is_resting
        ]
        return self._close(over, now, f"nothing new for {after_s:.0f} s")

    def _close(
        self, findings: Iterable[OpenFinding], now: AlignedNs, reason: str
    ) -> list[FindingEvent]:
        events = []
        for tracked in findings:
            del self._open[tracked.finding.id]
            if not tracked.is_hidden:
                finding = tracked.closed(now, reason, as_of=tracked.seen)
                events.append(FindingEvent(Change.CLOSED, finding))
        return events


# -- which finding each claim is about ----------------------------------------------------------


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
