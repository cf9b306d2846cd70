"""One attempt under observation: whether it still runs, what detectors claim, what follows.

Every detector looks at the attempt in turn and makes claims; the tracker turns them into findings.
The evaluation decides when an attempt is over, and which findings outlast it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

from frd.engine.attempt import Attempt
from frd.engine.clock_faults import ClockDetector
from frd.engine.evidence.answers import Answer, Answers, evidence_of
from frd.engine.evidence.questions import Question, Questions, confirmed_after, in_vain
from frd.engine.findings import builder, text
from frd.engine.findings.attachments import Evidence
from frd.engine.findings.builder import EXPLAINING, NEVER, Claim, Known, Lifetime, Look
from frd.engine.findings.tracker import Tracker
from frd.engine.hangs.detector import HangDetector, look_at
from frd.engine.losses.exits import exits
from frd.engine.losses.lost_ranks import JUDGED_AFTER_S, first_failed
from frd.engine.memory.detector import MemoryDetector
from frd.engine.policy import Policy
from frd.engine.standstills import StandstillDetector
from frd.engine.stragglers.detector import StragglerDetector
from frd.engine.tick import Tick
from frd.engine.views import AttemptView
from frd.model import AlignedNs, AttemptKey, Failure, FindingEvent, Kind

_OF_MEMORY: Final = (Kind.MEMORY_SPIKE, Kind.OOM)
_FATAL: Final = (Kind.RANK_LOST, Kind.OOM)
"""Why an attempt may have ended: such findings stay open for a while after its end."""
_CAUSES: Final = (*_FATAL, Kind.STALL, Kind.MISMATCH, Kind.ORDER)
"""Findings that say why a job died if they are open at its end."""
_LOSS_OUTLASTS_S: Final = 30.0
"""How long a lost rank stays open after the end of its attempt: two usual scrapes of Prometheus, so
that one sees it. In half of it a scrape that fails misses the finding; in twice as much the next
attempt often runs already, and the finding seems to be about that."""
_LEAST_PAIRS: Final = 256
"""A look at an attempt without pairs takes 0.1 ms."""
_UNHEARD_S: Final = 60.0
"""An attempt on which no agent has reported for so long may be over: the engine may forget it to
make room, and after a restart of the service a lost rank of it closes. Agents try to connect again
at least every 15 s; in half of it, some have not been let in after a restart of a large service.
With twice as much, a finding about a job that is gone stays as much longer."""


class Detector(Protocol):
    """Looks for one sort of trouble. A new detector is one file, and one line in `Evaluation`."""

    def lifetime(self, policy: Policy) -> Lifetime:
        """How its findings open, change and close."""

    def evaluate(self, tick: Tick, known: Known) -> Look | None:
        """What is wrong now; None if it is too early to look again."""


class Evaluation:
    """An attempt with its detectors and its findings."""

    def __init__(self, key: AttemptKey, policy: Policy) -> None:
        self._policy = policy
        self._hangs = HangDetector()
        self._standstills = StandstillDetector()
        self._detectors: list[Detector] = [
            self._hangs,
            MemoryDetector(),
            StragglerDetector(),
            ClockDetector(),
            self._standstills,
        ]
        self._lifetimes = [detector.lifetime(policy) for detector in self._detectors]
        self.answers = Answers()
        self.tracker = Tracker(key, self._lifetimes, self._known_of)
        self._questions = Questions(key)
        self._tick: Tick | None = None
        """Of a look after which no rank was asked yet."""
        self.looked_at = AlignedNs(0)
        """When the detectors were asked last."""
        self.attempt: Attempt | None = None
        """None while only findings of an earlier process of the service are known."""
        self.superseded_at: AlignedNs | None = None
        """When another attempt of the job replaced it; detectors skip it from then on."""
        self.ended_at: AlignedNs | None = None
        """When all of its ranks were gone, or no agent had reported on it for long."""
        self.end: tuple[int, Failure | None] | None = None
        """When its last rank ended, UTC, and how it failed, if it did; None until that is judged,
        a few seconds after the end."""
        self.deserted_at: AlignedNs | None = None
        """Since when no agent reports on any of its ranks."""
        self._attended_since = AlignedNs(0)
        """What is reported again after a break of the service had no time to come before."""
        self.lost_at: AlignedNs | None = None
        """When it was given up, because all of its agents had gone on purpose."""

    def adopt(self, policy: Policy) -> None:
        """See `Engine.adopt`."""
        self._policy = policy
        self._lifetimes = [detector.lifetime(policy) for detector in self._detectors]
        self.tracker.adopt(self._lifetimes)
        if self.attempt is not None:
            self.attempt.adopt(policy)

    @property
    def over_at(self) -> AlignedNs | None:
        """When the attempt ended, was superseded or lost; None while it runs."""
        each = (self.ended_at, self.superseded_at, self.lost_at)
        over = [at for at in each if at is not None]
        return min(over, default=None)

    def is_deserted(self, now: AlignedNs) -> bool:
        """No agent has reported on it for a minute: the engine may forget it to make room."""
        return self.deserted_at is not None and now - self.deserted_at >= _UNHEARD_S * 1e9

    @property
    def pairs(self) -> int:
        """What a look costs, in pairs that wait."""
        if self.attempt is None or self.superseded_at is not None:
            return 0
        return _LEAST_PAIRS + self.attempt.tables.pairs.count

    def resume(self) -> None:
        """The job runs in this attempt: undo that it ended, was superseded or deserted."""
        self.superseded_at = self.ended_at = self.deserted_at = self.lost_at = self.end = None

    def view(self, now: AlignedNs) -> list[AttemptView]:
        """What people see of the attempt; empty while only old findings are known of it."""
        if self.attempt is None:
            return []
        view = self.attempt.view(now)
        lost = self.lost_at is not None
        ended = view.ended or lost or self.ended_at is not None
        superseded = self.superseded_at is not None
        not_opened = self.tracker.not_opened
        return [replace(view, ended=ended, lost=lost, superseded=superseded, not_opened=not_opened)]

    def expire(self, now: AlignedNs) -> list[FindingEvent]:
        """Close findings that no look has shown for long."""
        after_s, since = self._policy.lost_close_after_s, self._attended_since
        closed = self.tracker.expire(now, after_s, since)
        if self.attempt is None:
            after_s = min(after_s, _UNHEARD_S)
            closed += self.tracker.expire(now, after_s, since, of=(Kind.RANK_LOST,))
        return closed

    def attended(self, since: AlignedNs, utc_ahead_ns: int, *, can_ask: bool) -> None:
        """Since when the engine has been evaluated without a break, where UTC is, and whether
        ranks can be asked."""
        self._attended_since = since
        if self.attempt is not None:
            self.attempt.can_ask = can_ask
            self.attempt.attended_since, self.attempt.utc_ahead_ns = since, utc_ahead_ns

    def look(self, now: AlignedNs, *, room: int) -> Iterator[FindingEvent]:
        """Ask all detectors and update the findings; at most `room` more findings open.

        Yields each event as it happens, so that the failure of one detector loses no event of
        the detectors before it.
        """
        attempt = self.attempt
        if attempt is None or self.superseded_at is not None:
            return
        silent_s, is_left = self._silent_s(attempt, now), False
        if silent_s is None or attempt.tables.all_gone():
            self.lost_at = None
            self.tracker.heard(now)
        elif is_left := attempt.tables.is_left:
            if silent_s >= self._policy.lost_after_s:
                self.lost_at = self.lost_at or now
                yield from self.tracker.rest(now, "nothing is heard any more")
                return
        elif silent_s >= self._policy.deserted_after_s:
            self.ended_at = self.ended_at or now
            reason = f"no agent has reported on it for {self._policy.deserted_after_s:.0f} s"
            yield from self.tracker.rest(now, reason)
            return
        if not attempt.tables.all_gone():
            self.ended_at = self.end = None
        elif self.ended_at is None:
            self.ended_at = now
        elif now - self.ended_at > JUDGED_AFTER_S * 1e9:
            self.end = self.end or self._judged(attempt, now)
            is_long_over = now - self.ended_at > _LOSS_OUTLASTS_S * 1e9
            outlasting = (Kind.OOM,) if is_long_over else _FATAL
            yield from self.tracker.close_all(now, "the attempt ended", but=outlasting)
            return
        self._tick = tick = attempt.tick(now, lambda: self.answers.placed)
        most = len(self.tracker) + room
        for detector, lifetime in zip(self._detectors, self._lifetimes, strict=True):
            # Nothing becomes critical of what no agent will report on.
            life = replace(lifetime, critical_after_s=NEVER) if is_left else lifetime
            look = detector.evaluate(tick, self.tracker.known(life.kinds))
            if look is not None:
                look = replace(look, claims=[_in_phases(claim, tick) for claim in look.claims])
                yield from self.tracker.update(life, look, room=most - len(self.tracker))

    # -- evidence that no recorder has -----------------------------------------------------------

    def ask(self, now: AlignedNs, events: Sequence[FindingEvent]) -> list[Question]:
        """What ranks are to be asked now; `events` are what has just changed."""
        if self.attempt is None:
            return []
        (tick, self._tick), findings = (self._tick, None), self.tracker.shown()
        is_over, closed = self.over_at is not None, self.tracker.dismissed()
        is_dismissed = any(one.kind in EXPLAINING for one in closed)
        self._questions.resting = self._standstills.unasked
        return self._questions.due(
            *(now, self.attempt, self.answers, tick, findings, events),
            is_over=is_over,
            is_dismissed=is_dismissed,
        )

    @property
    def asking(self) -> tuple[str, ...]:
        """See `Outcome`."""
        return self._questions.asking if self.attempt is not None else ()

    def answer(self, answer: Answer, now: AlignedNs) -> tuple[Evidence | None, Answer | None]:
        """What its finding says because of an answer, and what a replay has to be given."""
        self._questions.answered(answer)
        attempt, answers, wait = self.attempt, self.answers, None
        if attempt is None or answer.rank not in attempt.tables.ranks.infos:
            return None, None
        if not answers.is_of_present_process(answer):
            return None, None
        answer, evidence = answers.with_earlier(answer), evidence_of(answer)
        if (report := answer.blocked) is not None:
            if (wait := answers.of_inspection(answer, report)) is not None:
                attempt.observe_unrecorded(wait)
            finding = self.tracker.shown().get(answer.finding)
            evidence = answers.shown(
                answer, report, finding, lambda rank, at: attempt.to_aligned(rank, at, now)
            )
        elif (stack := answer.stack) is not None and (call := stack.place) is not None:
            after_ns = confirmed_after(answer.occasion, attempt, self._policy, now)
            wait = answers.of_stack(answer, stack, call, after_ns)
            attempt.observe_sighting(wait)
        is_kept = evidence is not None or wait is not None
        if (vain := in_vain(answer)) is not None:
            source, why = vain
            is_kept |= attempt.observe_unanswered(answer.rank, source, answer.asked_at, why)
        return evidence, answer if is_kept else None

    def _known_of(self, claim: Claim, finding: str) -> Iterable[Evidence]:
        assert self.attempt is not None
        return self.answers.known_of(claim, finding, self.attempt.line_since)

    def supersede(self, now: AlignedNs, reason: str) -> list[FindingEvent]:
        """Another attempt of the job replaces this one: report what ended it, close findings."""
        events: list[FindingEvent] = []
        judged_ns = JUDGED_AFTER_S * 1e9
        is_fresh = self.ended_at is None or now - self.ended_at <= judged_ns
        # Without these nothing is reported, and the look may take seconds.
        says = self.attempt is not None and (len(self.tracker) or self.attempt.tables.has_exits())
        if self.attempt is not None and is_fresh and says:
            life = self._hangs.lifetime(self._policy)
            known = self.tracker.known(life.kinds)
            look = look_at(self.attempt.snapshot(now), None, (), self._policy, known)
            events += self.tracker.settle(life, look)
        self.superseded_at = now
        return events + self.tracker.close_all(now, reason)

    def outcome(self, now: AlignedNs) -> tuple[int, Failure | None]:
        """See `end`. While it runs, it had not failed when a rank was last reported alive."""
        if self.attempt is None or self.superseded_at is not None:
            return 0, None
        return self.end or (self.attempt.tables.lived_at(now) + self.attempt.utc_ahead_ns, None)

    def _judged(self, attempt: Attempt, now: AlignedNs) -> tuple[int, Failure | None]:
        """See `end`."""
        snapshot = attempt.snapshot(now)
        gone = exits(snapshot)
        at = AlignedNs(min(gone[-1].at, now) + attempt.utc_ahead_ns)
        lasting = (*self.tracker.findings(now), *self.tracker.dismissed())
        causes = [one for one in lasting if one.kind in _CAUSES]
        if (first := first_failed(snapshot, gone, is_explained=bool(causes))) is None:
            return at, None
        alike = sum(one.way == first.way for one in gone) - 1
        others = f"; {alike} other rank{'s' * (alike > 1)} ended alike" if alike else ""
        said, finding = f"rank {first.rank} {text.ended(first.how)}{others}", ""
        if cause := min(causes, key=lambda one: one.opened_at, default=None):
            said, finding = cause.summary, cause.id
            named = [suspect.rank for suspect in cause.suspects]
            first = next((one for rank in named for one in gone if one.rank == rank), first)
        of = attempt.key.attempt, attempt.world_size or len(gone)
        return at, Failure(*of, at, first.rank, said, first.how, finding)

    def _silent_s(self, attempt: Attempt, now: AlignedNs) -> float | None:
        """For how long no agent has reported on any of its ranks; None if one does."""
        if attempt.tables.has_agents:
            self.deserted_at = None
            return None
        self.deserted_at = self.deserted_at or now
        return (now - max(self.deserted_at, self._attended_since)) / 1e9


def _in_phases(claim: Claim, tick: Tick) -> Claim:
    """The claim with the phase in which each suspect is. Memory has its own: of its onset."""
    if claim.kind in _OF_MEMORY:
        return claim
    each = ((one, tick.phases.current(one.rank)) for one in claim.suspects)
    suspects = tuple(builder.in_phase(one, phase, tick.utc_ahead_ns) for one, phase in each)
    return replace(claim, suspects=suspects)
