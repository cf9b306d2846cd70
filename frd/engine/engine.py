"""The engine: attempts, their incidents, and the only way to change either.

Observations go straight to the attempt they concern; `advance` looks at every attempt and is the
only place where findings come out. A look costs one cheap question when all is well; a picture is
cut, and causes are sought, only while something is stuck, lost, mismatched or open. Time enters as
an argument everywhere, so that a journal replays to the same findings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from frd.engine.attempt import Applied, Attempt
from frd.engine.cause import find
from frd.engine.claim import Claim
from frd.engine.incident import Incidents
from frd.engine.picture import MismatchFact, StallTable
from frd.engine.policy import Policy
from frd.errors import WireError
from frd.model import (
    AlignedNs,
    AttemptKey,
    Change,
    Finding,
    FindingEvent,
    FindingState,
    Int32s,
    Int64s,
    Kind,
    RankStatus,
    Snapshot,
    UInt8s,
    UInt32s,
)

_LOOK_AGAIN_NS = 1_000_000_000
"""How often to look although nobody reported: telemetry gets late, claims get confirmed."""
_PAUSE_NS_PER_RANK = 125_000
"""The least time between two looks, by ranks: a look costs about as long as its ranks are many."""


@dataclass(slots=True)
class _Case:
    """One attempt under observation."""

    incidents: Incidents
    attempt: Attempt | None = None
    """None while only findings of an earlier process of the service tell of it."""
    superseded_at: AlignedNs | None = None
    """A newer attempt of the job came; this one is not looked at any more."""
    ended_at: AlignedNs | None = None
    looked_at: AlignedNs = field(default=AlignedNs(0))
    looked_revision: int = -1
    facts: dict[tuple[int, int], AlignedNs] = field(default_factory=dict)
    """(group, seq) of the mismatches that are known, and since when."""


class Engine:
    """See the package's contract: observe, advance, attach, restore, snapshot."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._cases: dict[AttemptKey, _Case] = {}
        self._closed: dict[str, Finding] = {}
        """Remembered, oldest first."""
        self._pending: list[FindingEvent] = []
        """Happened between two calls of `advance`."""
        self._evicted = {"attempts": 0, "findings": 0}

    # -- attempts ----------------------------------------------------------------------------

    def attempt(self, key: AttemptKey, world_size: int, now: AlignedNs) -> Attempt:
        """Get or create. A newer attempt of a job closes what is open of its earlier ones.

        Raises:
            WireError: when there are too many attempts that are still alive.
        """
        case = self._case(key)
        if case.attempt is None:
            try:
                self._make_room()
            except WireError:
                if not len(case.incidents):
                    del self._cases[key]
                raise
            case.attempt = Attempt(key, world_size, self.policy, now)
            self._supersede(key, now)
        elif not case.attempt.world_size:
            case.attempt.world_size = world_size
        return case.attempt

    def _case(self, key: AttemptKey) -> _Case:
        return self._cases.setdefault(key, _Case(Incidents(key, self.policy)))

    def _supersede(self, key: AttemptKey, now: AlignedNs) -> None:
        of_job = [k for k, c in self._cases.items() if k.job == key.job and c.attempt is not None]
        newest = max(of_job)
        for old, case in self._cases.items():
            if old.job == key.job and old < newest and case.superseded_at is None:
                case.superseded_at = now
                reason = f"attempt {newest.attempt} of the job started"
                self._pending += case.incidents.close_all(now, reason)

    def _make_room(self) -> None:
        """Forget what is over, oldest first, when there are too many attempts."""
        alive = [key for key, case in self._cases.items() if case.attempt is not None]
        over = [
            key
            for key in alive
            if self._cases[key].superseded_at is not None or self._cases[key].ended_at is not None
        ]
        if len(alive) < self.policy.max_attempts:
            return
        if not over:
            raise WireError(
                "attempts", "limit", f"{len(alive)} are alive already: raise policy.max_attempts"
            )
        self._drop(over[0])
        self._evicted["attempts"] += 1

    def _drop(self, key: AttemptKey) -> None:
        """Forget an attempt; findings that are open stay, as after a restart."""
        case = self._cases[key]
        if len(case.incidents):
            case.attempt = None
        else:
            del self._cases[key]

    # -- observations ------------------------------------------------------------------------

    def observe_entries(
        self,
        attempt: Attempt,
        rank: int,
        pair: Int32s,
        seq: Int64s,
        signature: Int32s,
        flags: UInt8s,
        created_ns: Int64s,
        started_ns: Int64s,
        completed_ns: Int64s,
        *,
        replay: bool,
        now: AlignedNs,
    ) -> Applied:
        """Transitions of one rank; see `Attempt.observe_entries`."""
        return attempt.observe_entries(
            rank,
            pair,
            seq,
            signature,
            flags,
            created_ns,
            started_ns,
            completed_ns,
            replay=replay,
            now=now,
        )

    def observe_watermarks(
        self,
        attempt: Attempt,
        pair: Int32s,
        enqueued: Int64s,
        started: Int64s,
        completed: Int64s,
        head_created_ns: Int64s,
        seen_rank: Int32s,
        as_of_ns: Int64s,
        now: AlignedNs,
    ) -> None:
        """Where ranks stand; see `Attempt.observe_watermarks`."""
        attempt.observe_watermarks(
            pair, enqueued, started, completed, head_created_ns, seen_rank, as_of_ns, now
        )

    def observe_channels(
        self,
        attempt: Attempt,
        rank: int,
        group: Int32s,
        peer: Int32s,
        is_send: UInt8s,
        in_flight: UInt32s,
        head_created_ns: Int64s,
        now: AlignedNs,
    ) -> None:
        """P2P ops of one rank; see `Attempt.observe_channels`."""
        attempt.observe_channels(rank, group, peer, is_send, in_flight, head_created_ns, now)

    def observe_status(
        self, attempt: Attempt, rank: int, status: RankStatus, at: AlignedNs, now: AlignedNs
    ) -> None:
        """An agent's evidence about a rank; see `Attempt.observe_status`."""
        attempt.observe_status(rank, status, at, now)

    def connection(
        self, attempt: Attempt, ranks: Sequence[int], connected: bool, now: AlignedNs
    ) -> None:
        """The stream of these ranks' agent came or went."""
        attempt.connection(ranks, connected, now)

    # -- findings ----------------------------------------------------------------------------

    def advance(self, now: AlignedNs) -> list[FindingEvent]:
        """All that became of findings since the last call; call it a few times a second."""
        events, self._pending = self._pending, []
        for case in self._cases.values():
            events += case.incidents.expire(now)
            if case.attempt is not None and case.superseded_at is None:
                events += self._look(case, case.attempt, now)
        self._remember(events)
        self._forget(now)
        return events

    def _look(self, case: _Case, attempt: Attempt, now: AlignedNs) -> list[FindingEvent]:
        ended = attempt.ended(now)
        if not ended:
            case.ended_at = None
        elif case.ended_at is None:
            case.ended_at = now
        stalled = attempt.stalls(now)
        facts = attempt.mismatch_facts(now)
        events: list[FindingEvent] = []
        quiet = not (len(stalled) or facts or attempt.lost or len(case.incidents))
        since_look_ns = now - case.looked_at
        same = attempt.revision == case.looked_revision and since_look_ns < _LOOK_AGAIN_NS
        if not quiet and not same and since_look_ns >= attempt.world_size * _PAUSE_NS_PER_RANK:
            case.looked_at, case.looked_revision = now, attempt.revision
            picture = replace(
                attempt.picture(now), mismatches=self._ripe(case, facts, stalled, now)
            )
            verdicts = find(
                picture,
                stalled,
                threshold_s=attempt.threshold_s,
                late_s=self.policy.telemetry_late_s,
            )
            events = case.incidents.update(picture, stalled, verdicts, room=self._room())
        if case.ended_at is not None and now - case.ended_at > 1.5 * self.policy.loss_grace_s * 1e9:
            events += case.incidents.close_all(now, "the attempt ended", but=Kind.RANK_LOST)
        return events

    def _ripe(
        self, case: _Case, facts: Sequence[MismatchFact], stalled: StallTable, now: AlignedNs
    ) -> list[MismatchFact]:
        """Mismatches that can be told: all members are there, or it has been waited for them."""
        case.facts = {
            (fact.group, fact.seq): case.facts.get((fact.group, fact.seq), now) for fact in facts
        }
        stuck = set(zip(stalled.group.tolist(), stalled.seq.tolist(), strict=True))
        grace_ns = self.policy.mismatch_grace_s * 1e9
        return [
            fact
            for fact in facts
            if fact.complete
            or (fact.group, fact.seq) in stuck
            or now - case.facts[fact.group, fact.seq] >= grace_ns
        ]

    def _room(self) -> int:
        return self.policy.max_findings - sum(len(c.incidents) for c in self._cases.values())

    def _remember(self, events: Sequence[FindingEvent]) -> None:
        for event in events:
            if event.change is Change.CLOSED:
                self._closed[event.finding.id] = event.finding
        while self._closed and len(self._closed) > self._room():
            del self._closed[next(iter(self._closed))]
            self._evicted["findings"] += 1

    def _forget(self, now: AlignedNs) -> None:
        retention_ns = self.policy.attempt_retention_s * 1e9
        for key, case in list(self._cases.items()):
            over = [at for at in (case.ended_at, case.superseded_at) if at is not None]
            if case.attempt is None and not len(case.incidents):
                del self._cases[key]
            elif over and now - min(over) >= retention_ns:
                self._drop(key)

    def attach(
        self,
        finding_id: str,
        *,
        rank: int | None = None,
        stack: tuple[str, ...] = (),
        note: str = "",
        dump: str | None = None,
    ) -> list[FindingEvent]:
        """Better evidence for a finding that is open or remembered; its id stays.

        `stack` is innermost user frame first. An unknown id is no error: findings are forgotten.
        """
        for case in self._cases.values():
            if (claim := case.incidents.find(finding_id)) is not None:
                return claim.attach(rank=rank, stack=stack, note=note, dump=dump)
        if (finding := self._closed.get(finding_id)) is None:
            return []
        claim = Claim.restored(finding, finding.closed_at or finding.opened_at)
        events = claim.attach(rank=rank, stack=stack, note=note, dump=dump)
        self._closed[finding_id] = claim.finding
        return events

    def restore(self, findings: Sequence[Finding], now: AlignedNs) -> None:
        """Go on with the open findings of an earlier process of the service."""
        for finding in findings:
            if finding.state is FindingState.OPEN:
                self._case(AttemptKey(finding.job, finding.attempt)).incidents.restore(finding, now)

    def snapshot(self, now: AlignedNs) -> Snapshot:
        """An immutable picture of all that is known, for metrics and HTTP."""
        attempts = [c.attempt for c in self._cases.values() if c.attempt is not None]
        evicted = dict(self._evicted)
        for attempt in attempts:
            for what, count in attempt.evicted.items():
                evicted[what] = evicted.get(what, 0) + count
        still_open = [f for c in self._cases.values() for f in c.incidents.findings(now)]
        return Snapshot(
            at=now,
            attempts=[attempt.view(now) for attempt in attempts],
            findings=[*still_open, *self._closed.values()],
            evicted=evicted,
        )
