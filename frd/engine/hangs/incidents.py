"""The life of one attempt's findings: open, refine, close. One incident, one finding, one id.

Verdicts are what one look at an attempt shows; an incident is what stays the same between looks: a
collective that is stuck, a rank that is named. This module decides which verdict may open a finding
and when one is over; which of them belong together is `frd.engine.hangs.pairing`'s business, and
what a finding looks like and when it changes its mind that of `frd.engine.hangs.incident`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from frd.engine.findings import builder
from frd.engine.findings.builder import Key
from frd.engine.hangs.diagnosis import Verdict
from frd.engine.hangs.exits import Exit, Manner, bad_exits
from frd.engine.hangs.incident import Claim
from frd.engine.hangs.lost_ranks import STOP_TAKES_S, first_lost, judged_after_s
from frd.engine.hangs.pairing import Seen, paired
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot, StallTable
from frd.model import (
    Activity,
    AlignedNs,
    AttemptKey,
    Finding,
    FindingEvent,
    Kind,
    Reason,
)

_CONFIRM_NS = 1_500_000_000
"""How long a verdict must stand that reports of different age could fake."""
_PASSING = frozenset({Reason.IN_COLLECTIVE_ALONE, Reason.DEVICE_STUCK})
"""Reasons that compare how far ranks have come."""


class Incidents:
    """The open findings of one attempt about what stands still or is gone."""

    kinds = frozenset({Kind.STALL, Kind.MISMATCH, Kind.ORDER, Kind.RANK_LOST})

    def __init__(self, key: AttemptKey, policy: Policy) -> None:
        self._key = key
        self._policy = policy
        self._open: dict[str, Claim] = {}
        self._unconfirmed: dict[Key, AlignedNs] = {}
        self._told: set[tuple[int, AlignedNs]] = set()
        """Exits that have their finding."""

    def adopt(self, policy: Policy) -> None:
        self._policy = policy

    def __len__(self) -> int:
        return len(self._open)

    def findings(self, now: AlignedNs) -> list[Finding]:
        return [claim.timed(now) for claim in self._open.values()]

    def attach(
        self,
        finding_id: str,
        *,
        rank: int | None,
        activity: Activity | None,
        note: str,
        dump: str | None,
    ) -> list[FindingEvent] | None:
        """Better evidence for a finding; None when it is not among these."""
        claim = self._open.get(finding_id)
        if claim is None:
            return None
        return claim.attach(rank=rank, activity=activity, note=note, dump=dump)

    def restore(self, finding: Finding, now: AlignedNs) -> None:
        """Go on with a finding of an earlier process of the service."""
        self._open[finding.id] = Claim.restored(finding, now)

    def expire(
        self, now: AlignedNs, after_s: float, *, of: Collection[Kind] | None = None
    ) -> list[FindingEvent]:
        """Close what has not been seen for so long that nobody can still be waiting for news."""
        over = [
            claim
            for claim in self._open.values()
            if now - claim.seen >= after_s * 1e9 and (of is None or claim.finding.kind in of)
        ]
        return [self._close(claim, now, f"nothing new for {after_s:.0f} s") for claim in over]

    def close_all(
        self, now: AlignedNs, reason: str, *, but: Collection[Kind] = ()
    ) -> list[FindingEvent]:
        over = [claim for claim in self._open.values() if claim.finding.kind not in but]
        return [self._close(claim, now, reason) for claim in over]

    def update(
        self,
        snapshot: Snapshot,
        stalled: StallTable,
        verdicts: Sequence[Verdict],
        *,
        old_news: AlignedNs,
        room: int,
    ) -> list[FindingEvent]:
        """What one look at the attempt changes.

        At most `room` findings open, and none of them about an exit before `old_news`.
        """
        gone = bad_exits(snapshot)
        events: list[FindingEvent] = []
        taken: set[str] = set()
        seen = [Seen(verdict, builder.keys_of(snapshot, verdict)) for verdict in verdicts]
        pairs = paired(seen, list(self._open.values()), gone)
        unconfirmed = self._unconfirmed
        self._unconfirmed = {}
        for one in pairs:
            verdict, keys = one.seen.verdict, one.seen.keys
            if one.same:
                first, *others = one.same
                reason = f"part of finding {first.finding.id}"
                if room > 0 and first.succeeds(snapshot, verdict, self._policy.max_suspects):
                    others.append(first)
                    first = Claim.of_verdict(self._key, snapshot, verdict, keys, self._policy)
                    self._open[first.finding.id] = first
                    events.append(first.opened())
                    reason = f"its suspects joined; what waits now is in finding {first.finding.id}"
                else:
                    events += first.refine(snapshot, verdict, keys, self._policy.max_suspects)
                taken.add(first.finding.id)
                events += [self._close(claim, snapshot.now, reason) for claim in others]
            elif (
                one.is_news
                and room > 0
                and self._may_open(snapshot.now, verdict, keys, gone, unconfirmed)
            ):
                claim = Claim.of_verdict(self._key, snapshot, verdict, keys, self._policy)
                self._open[claim.finding.id] = claim
                taken.add(claim.finding.id)
                events.append(claim.opened())
                room -= 1
        for one in pairs:
            if not one.is_news:  # what is stuck in the parts is stuck in the whole
                for claim in one.within:
                    claim.keys |= one.seen.keys
        for claim in self._open.values():
            events += claim.ended(gone, snapshot.now)
            events += claim.hold_up(snapshot, gone)
        if gone and room > 0:
            events += self._lose(snapshot, old_news)
        self._see(snapshot, stalled, taken)
        lost = {e.rank for e in gone}
        events += self._close_passed(snapshot, lost)
        for claim in self._open.values():
            claim.confirm_loss(lost)
            events += claim.escalated(snapshot.now, self._policy)
        return events

    # -- opening -----------------------------------------------------------------------------

    def _may_open(
        self,
        now: AlignedNs,
        verdict: Verdict,
        keys: set[Key],
        gone: Sequence[Exit],
        unconfirmed: dict[Key, AlignedNs],
    ) -> bool:
        """Whom it names is not an exit that is still being judged; and it has stood for a while,
        if it is of a kind that should. A mismatch outranks all that."""
        if verdict.kind is Kind.MISMATCH:
            return True
        named = {blame.rank for blame in verdict.suspects}
        judged_s = judged_after_s(self._policy)
        if any(
            e.rank in named
            and (now - e.at) / 1e9 <= (STOP_TAKES_S if e.manner is Manner.ASKED else judged_s)
            for e in gone
        ):
            return False
        reasons = {blame.reason for blame in verdict.suspects}
        if reasons and not reasons & _PASSING:
            return True
        first = min(unconfirmed.get(key, now) for key in keys)
        self._unconfirmed |= dict.fromkeys(keys, first)
        return now - first >= _CONFIRM_NS

    # -- lost ranks --------------------------------------------------------------------------

    def settle(self, snapshot: Snapshot, old_news: AlignedNs) -> list[FindingEvent]:
        """Another attempt of the job has begun: what can be told of the end of this one."""
        gone = bad_exits(snapshot)
        events = [e for claim in self._open.values() for e in claim.ended(gone, snapshot.now)]
        return events + (self._lose(snapshot, old_news, final=True) if gone else [])

    def _lose(
        self, snapshot: Snapshot, old_news: AlignedNs, *, final: bool = False
    ) -> list[FindingEvent]:
        """A rank went away that no open finding knows of. Whoever belongs to one that is open went
        because of that."""
        loss = first_lost(snapshot, self._policy, final=final)
        if loss is None:
            return []
        gone = bad_exits(snapshot)
        self._told &= {(e.rank, e.at) for e in gone}
        told = loss.exits or tuple(gone)
        lost = [e for e in told if e.at >= old_news and (e.rank, e.at) not in self._told]
        if not lost:
            return []
        losses = [c for c in self._open.values() if c.finding.kind is Kind.RANK_LOST]
        if losses:
            named = set().union(*(claim.named for claim in losses))
            self._told.update((e.rank, e.at) for e in lost if e.rank in named)  # if restored
            return []
        self._told.update((e.rank, e.at) for e in lost)
        ranks = {e.rank for e in lost}
        if any(ranks & {*c.named, *c.finding.victims} for c in self._open.values()):
            return []
        loss = replace(loss, exits=tuple(lost)) if loss.exits else loss
        claim = Claim.of_loss(self._key, snapshot, loss, self._policy)
        self._open[claim.finding.id] = claim
        return [claim.opened()]

    # -- closing -----------------------------------------------------------------------------

    def _see(self, snapshot: Snapshot, stalled: StallTable, taken: set[str]) -> None:
        rows = set(stalled.rows())
        stuck = {(snapshot.groups[group].info.group_id, seq, rank) for group, seq, rank in rows}
        for claim in self._open.values():
            if claim.finding.id in taken or claim.keys & stuck:
                claim.seen = snapshot.now

    def _close_passed(self, snapshot: Snapshot, gone: set[int]) -> list[FindingEvent]:
        over = []
        for claim in self._open.values():
            idle_ns = snapshot.now - claim.seen
            if (
                claim.finding.kind is not Kind.RANK_LOST
                and idle_ns >= self._policy.close_after_s * 1e9
                and not gone & {*claim.named, *claim.finding.victims}  # it did not fall apart
                and claim.is_reported(snapshot)
            ):
                over.append(claim)
        return [self._close(claim, snapshot.now, "the job moved on") for claim in over]

    def _close(self, claim: Claim, now: AlignedNs, reason: str) -> FindingEvent:
        del self._open[claim.finding.id]
        return claim.closed(now, reason)
