"""The engine: attempts, their incidents, and the only way to change either.

Observations go straight to the attempt they concern; `advance` looks at every attempt and is the
only place where findings come out. Time enters as an argument everywhere, so that a journal
replays to the same findings. Findings come in and go out with UTC times.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from frd.engine.attempt import Attempt
from frd.engine.evaluation import Evaluation
from frd.engine.evidence.answers import Answer, Answers, evidence_of
from frd.engine.evidence.questions import Occasion, Question
from frd.engine.findings.attachments import Evidence
from frd.engine.findings.open_finding import OpenFinding
from frd.engine.losses.exits import SEEN_LATE_NS
from frd.engine.matching.lateness import ClockHint
from frd.engine.matching.learned_pauses import LearnedPauses
from frd.engine.policy import Policy
from frd.engine.room import OF_ATTEMPT, Room
from frd.engine.views import AttemptView, StatusView
from frd.errors import WireError
from frd.forms import later
from frd.model import AlignedNs, AttemptKey, Change, Finding, FindingEvent, RankInfo

_PAIRS_PER_ADVANCE: Final = 1 << 19
"""After the attempts of so many pairs (ranks in groups), the others wait for the next call. Judging
a pair of a job that hangs takes 0.4 us, so this is about the time between two calls."""
_ATTEMPTS_OF_JOB: Final = 8
"""Of one job, earlier attempts are forgotten beyond these: a job that restarts without end must not
take the place of others."""
_URGENCY: Final = {occasion: at for at, occasion in enumerate(Occasion)}
_MOST_SHORT: Final = 16
"""Jobs for which, between two calls, the engine looks for an attempt that it may forget."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one call of `Engine.advance`."""

    events: list[FindingEvent] = field(default_factory=list)
    """All changes of findings since the last call."""
    questions: list[Question] = field(default_factory=list)
    """What ranks are to be asked, the most urgent first. Each is returned once."""
    asking: frozenset[str] = frozenset()
    """Ids of open findings that the answer of a rank that was asked may still improve."""


class Engine:
    """All attempts: observe rows, advance time, take answers, restore and adopt findings,
    snapshot."""

    def __init__(self, policy: Policy, utc_ahead_ns: int = 0, *, can_ask: bool = False) -> None:
        """`can_ask`: the questions of `advance` are asked, and what is answered comes to
        `answer`."""
        self.policy = policy
        self.can_ask = can_ask
        self.utc_ahead_ns = self._reported_ahead_ns = utc_ahead_ns
        self._evaluations: dict[AttemptKey, Evaluation] = {}
        self._of_job: defaultdict[str, dict[AttemptKey, Evaluation]] = defaultdict(dict)
        """The same by job."""
        self.room = Room(policy.max_objects)
        self._count = 0
        """Attempts, without those of which only findings are left."""
        self.dropped = 0
        """Attempts that were forgotten."""
        self.learned = LearnedPauses()
        """What attempts begin with, and how jobs failed."""
        self._closed: dict[str, Finding] = {}
        """Findings that are remembered, oldest first, by id."""
        self._advanced_at = self._attended_since = AlignedNs(0)
        self._pending: list[FindingEvent] = []
        """Events between two calls of `advance`."""
        self._attached: list[FindingEvent] = []
        """The same of findings that got better evidence, open or closed."""
        self.faults: list[Exception] = []
        """Errors of this program, not of its input, since the last call of `advance`: why an
        attempt could not be evaluated or shown."""
        self._evicted = Counter(
            {"attempts": 0, "earlier_attempts": 0, "findings": 0, "findings_not_opened": 0}
        )
        """How much limits dropped, by what it was. Includes attempts that are forgotten, so that
        the sums never fall."""

    # -- attempts ----------------------------------------------------------------------------

    def attempt(self, key: AttemptKey, world_size: int, now: AlignedNs) -> Attempt:
        """Get or create. A newer attempt of a job closes what is open of its earlier ones.

        Raises:
            WireError: when there are too many attempts that are still alive.
        """
        known = self._evaluations.get(key)
        if known is not None and known.attempt is not None:
            known.attempt.world_size = known.attempt.world_size or world_size
            return known.attempt
        self._make_room(key.job, now)
        pauses = self.learned.of(key.job, now)
        attempt = Attempt(key, world_size, self.policy, now, pauses, self.room)
        evaluation = self._evaluation(key)
        evaluation.attempt, evaluation.looked_at = attempt, now
        evaluation.answers = Answers(began_at=now)
        self._count += 1
        self._supersede(key, now)
        return attempt

    def known(self, key: AttemptKey) -> Attempt | None:
        """An attempt that was declared and is not forgotten."""
        evaluation = self._evaluations.get(key)
        return evaluation.attempt if evaluation is not None else None

    def rank(self, attempt: Attempt, info: RankInfo, now: AlignedNs) -> int:
        """The handle of a rank; see `Attempt.rank`.

        If the attempt is over and has not seen this process, the job runs again under that name.

        Raises:
            WireError: also when the attempt was forgotten since it was declared.
        """
        evaluation = self._evaluations.get(attempt.key)
        if evaluation is None or evaluation.attempt is not attempt:
            raise WireError(
                "declare.ranks.attempt_index",
                "unknown_index",
                f"job {attempt.key.job!r} was forgotten meanwhile: declare it on a new stream",
            )
        if evaluation.over_at is not None and not attempt.has_seen(info):
            self._supersede(attempt.key, now)
            if evaluation.over_at is None and (
                attempt.tables.all_gone() or not attempt.tables.has_agents
            ):
                self.start_over(attempt, info.world_size, now)
        is_replaced = attempt.replaces(info)
        rank = attempt.rank(info)
        if is_replaced:
            evaluation.answers.forget(rank, now)
        return rank

    def start_over(self, attempt: Attempt, world_size: int, now: AlignedNs) -> None:
        """Another run of the job has the attempt from now on: forget the last run."""
        attempt.start_over(world_size)
        self._supersede(attempt.key, now)
        evaluation = self._evaluation(attempt.key)
        evaluation.answers = Answers(began_at=now)
        self._pending += evaluation.tracker.close_all(now, "the job started again")

    def _evaluation(self, key: AttemptKey) -> Evaluation:
        known = self._evaluations.get(key)
        if known is None:
            known = self._evaluations[key] = Evaluation(key, self.policy)
            self._of_job[key.job][key] = known
        return known

    def _remove(self, key: AttemptKey) -> None:
        del self._evaluations[key], self._of_job[key.job][key]
        if not self._of_job[key.job]:
            del self._of_job[key.job]

    def _supersede(self, key: AttemptKey, now: AlignedNs) -> None:
        """Attempt `key` has just begun: supersede all attempts of its job but the newest that runs.

        Attempts that are over do not count, because a person who starts a job by hand numbers its
        attempts from 0 again. Nor do attempts of which only findings are left: their agents may be
        about to connect.
        """
        of_job = self._of_job[key.job]
        running = [
            other
            for other, evaluation in of_job.items()
            if evaluation.attempt is not None and evaluation.over_at is None
        ]
        newest = max([key, *running])
        of_job[newest].resume()
        for other, evaluation in of_job.items():
            is_history = other < newest or (evaluation.attempt is not None and other != newest)
            if is_history and evaluation.superseded_at is None:
                reason = f"attempt {newest.attempt} of the job started"
                self._pending += evaluation.supersede(now, reason)

    def _make_room(self, job: str, now: AlignedNs) -> None:
        """If there are too many attempts, of the job or of all, forget one that is over or has no
        agent.

        Raises:
            WireError: none can be forgotten.
        """
        of_job, most = self._of_job.get(job, {}), self.policy.max_attempts
        known = [one.attempt.objects for one in of_job.values() if one.attempt is not None]
        # The next one will be as large as those before, whose history is worth less.
        while len(known) >= _ATTEMPTS_OF_JOB or not self.room.fits(job, max(known, default=0)):
            if not known or not self._forget_one([of_job], now, "earlier_attempts"):
                break
            known.pop()
        while not self.room.fits(job, OF_ATTEMPT) or 0 < most <= self._count:
            is_known = job in self.room.short or len(self.room.short) >= _MOST_SHORT
            if is_known or not self._forget_one(self._not_smaller(job), now):
                self.room.short.add(job)
                why = f"{self._count} run already: raise policy.max_attempts or policy.max_objects"
                raise WireError("attempts", "limit", why)

    def _not_smaller(self, job: str) -> list[Mapping[AttemptKey, Evaluation]]:
        """The attempts of the jobs that hold as much as this one or more, the most first."""
        held = self.room.held
        jobs = [one for one in self._of_job if held[one] >= held[job]]
        return [self._of_job[one] for one in sorted(jobs, key=lambda one: -held[one])]

    def _forget_one(
        self,
        jobs: Iterable[Mapping[AttemptKey, Evaluation]],
        now: AlignedNs,
        counted: str = "attempts",
    ) -> bool:
        """Of the first of these jobs that has an attempt which is over, or else has no agent."""
        each = [(key, one) for of_job in jobs for key, one in of_job.items() if one.attempt]
        surplus = [key for key, one in each if one.over_at is not None]
        surplus += [key for key, one in each if one.is_deserted(now)]
        for key in surplus[:1]:
            self._drop(key)
            self._evicted[counted] += 1
        return bool(surplus)

    def _drop(self, key: AttemptKey) -> None:
        """Forget an attempt; findings that are open stay, as after a restart."""
        evaluation = self._evaluations[key]
        evaluation.tracker.forget_resting()
        if evaluation.attempt is not None:
            self._evicted.update(evaluation.attempt.evicted)
            self.room.give_back(key.job, evaluation.attempt.objects)
            self._count -= 1
            self.dropped += 1
        if len(evaluation.tracker):
            evaluation.attempt = None
        else:
            self._remove(key)

    def waiting(self, least_ns: int) -> set[str]:
        """Jobs with a rank that had waited for so long when it was seen last."""
        return {
            key.job
            for key, evaluation in self._evaluations.items()
            if (attempt := evaluation.attempt) is not None
            and evaluation.over_at is None
            and attempt.tables.some_rank_waits(least_ns)
        }

    def take_clock_hints(self) -> Iterator[tuple[Attempt, ClockHint]]:
        """Clock hints that collectives gave since the last call, by attempt."""
        for evaluation in self._evaluations.values():
            if evaluation.attempt is not None:
                for hint in evaluation.attempt.take_clock_hints():
                    yield evaluation.attempt, hint

    # -- findings ----------------------------------------------------------------------------

    def advance(self, now: AlignedNs) -> Outcome:
        """Evaluate all attempts; call it a few times a second.

        A failure with one attempt does not stop the evaluation of the others; see `faults`.
        """
        events, self._pending = self._pending, []
        attached, self._attached = self._attached, []
        self.faults = []
        questions: list[Question] = []
        for key, of in _by_attempt(events).items():
            if (known := self._evaluations.get(key)) is not None:
                questions += self._asked(known, of, now)
        for job in self.room.take_short():
            self._forget_one(self._not_smaller(job), now)
        # Reports that were sent in time may wait: without the break they would not be late now.
        if now - self._advanced_at > self.policy.telemetry_late_s / 2 * 1e9:
            self._attended_since = now
        self._advanced_at = now
        left = _PAIRS_PER_ADVANCE
        room = {job: self._room(of_job.values()) for job, of_job in self._of_job.items()}
        for evaluation in sorted(self._evaluations.values(), key=lambda one: one.looked_at):
            evaluation.attended(self._attended_since, self.utc_ahead_ns, can_ask=self.can_ask)
            events += evaluation.expire(now)
            if left <= 0:
                continue
            left -= evaluation.pairs
            evaluation.looked_at, job = now, evaluation.tracker.key.job
            of = []
            try:
                of.extend(evaluation.look(now, room=room[job]))
            except Exception as error:
                self.faults.append(error)
            questions += self._asked(evaluation, of, now)
            events += of
            room[job] = self._room(self._of_job[job].values())
            self._evicted["findings_not_opened"] += evaluation.tracker.take_dropped()
        self._learn(now)
        self._remember(events)
        self._forget(now)
        questions.sort(key=lambda one: _URGENCY[one.occasion])
        asking = frozenset(id_ for one in self._evaluations.values() for id_ in one.asking)
        return Outcome(self._utc_events([*attached, *events]), questions, asking)

    def answer(self, answer: Answer, now: AlignedNs) -> Answer | None:
        """What a rank has answered, in any order; events of findings come with the next `advance`.

        Returns what a replay has to be given in its place; None if it says nothing. So it is if the
        attempt or the rank is forgotten, or if another process has the rank.
        """
        evaluation, evidence, kept = self._evaluations.get(answer.attempt), None, None
        if evaluation is not None:
            evidence, kept = evaluation.answer(answer, now)
        if answer.dump or answer.opinion:  # of the finding, whatever run has the attempt
            evidence, kept = evidence_of(answer), answer
        if evidence is not None:
            self._attached += self.attach(answer.finding, evidence)
        return kept

    def _asked(
        self, evaluation: Evaluation, events: Sequence[FindingEvent], now: AlignedNs
    ) -> list[Question]:
        try:
            return evaluation.ask(now, events)
        except Exception as error:
            self.faults.append(error)
            return []

    def _learn(self, now: AlignedNs) -> None:
        for key, evaluation in self._evaluations.items():
            attempt = evaluation.attempt
            if attempt is not None and (waits := attempt.take_waits(now)) is not None:
                self.learned.learn(key.job, waits, now)
            if (known := self.learned.failure(key.job)) or evaluation.end:
                at, failure = evaluation.outcome(now)
                is_same = bool(evaluation.end and known and key.attempt == known.attempt)
                later_ns = SEEN_LATE_NS if is_same else 1  # agents report the same end again
                if known is None or at - known.at >= later_ns:
                    self.learned.fail(key.job, failure, now)

    def _room(self, of_job: Iterable[Evaluation]) -> int:
        """How many more findings of a job may open."""
        return self.policy.max_findings_per_job - sum(len(one.tracker) for one in of_job)

    def _remember(self, events: Sequence[FindingEvent]) -> None:
        for event in events:
            if event.change is Change.CLOSED:
                self._closed[event.finding.id] = event.finding
            else:
                self._closed.pop(event.finding.id, None)  # it rested
        while len(self._closed) > self.policy.max_findings:
            jobs = Counter(finding.job for finding in self._closed.values())
            (job, _), *_ = jobs.most_common(1)  # jobs share the room
            del self._closed[next(id_ for id_, one in self._closed.items() if one.job == job)]
            self._evicted["findings"] += 1

    def _forget(self, now: AlignedNs) -> None:
        retention_ns = self.policy.attempt_retention_s * 1e9
        for key, evaluation in list(self._evaluations.items()):
            if evaluation.attempt is None and not len(evaluation.tracker):
                self._remove(key)
            elif evaluation.over_at is not None:
                lost_ns = self.policy.deserted_after_s * 1e9 if evaluation.lost_at else 0
                if now - evaluation.over_at >= max(retention_ns, lost_ns):
                    self._drop(key)

    def attach(self, finding_id: str, evidence: Evidence) -> list[FindingEvent]:
        """Add evidence to a finding that is open or remembered; its id stays.

        An unknown id is no error: findings are forgotten.
        """
        for evaluation in self._evaluations.values():
            events = evaluation.tracker.attach(finding_id, evidence)
            if events is not None:
                return events
        if (finding := self._closed.get(finding_id)) is None:
            return []
        remembered = OpenFinding.remembered(finding)
        events = remembered.attach(evidence)
        self._closed[finding_id] = remembered.finding
        return events

    def dismiss(self, finding_id: str, now: AlignedNs, reason: str) -> list[FindingEvent]:
        """Close an open finding by hand; nothing happens if it is not open.

        The same incident opens no other finding while it lasts.
        """
        for evaluation in self._evaluations.values():
            if (event := evaluation.tracker.dismiss(finding_id, now, reason)) is not None:
                self._remember([event])
                for news in (self._attached, self._pending):  # the closed version has it
                    news[:] = [one for one in news if one.finding.id != finding_id]
                return self._utc_events([event])
        return []

    @property
    def dismissed(self) -> frozenset[str]:
        """Ids of findings that were closed by hand, and whose trouble lasts."""
        return frozenset(self._dismissed())

    def _dismissed(self) -> dict[str, Finding]:
        """By id."""
        return {
            finding.id: finding
            for evaluation in self._evaluations.values()
            for finding in evaluation.tracker.dismissed()
        }

    def restore(self, findings: Sequence[Finding], now: AlignedNs) -> None:
        """Go on with the findings of an earlier process of the service. Those that are closed were
        dismissed there: they are not shown, but the same incident opens no other finding."""
        for finding in findings:
            key = AttemptKey(finding.job, finding.attempt)
            self._evaluation(key).tracker.restore(self._utc(finding, -1), now)

    def adopt(self, policy: Policy, utc_ahead_ns: int = 0) -> None:
        """Decide by another policy from now on, attempts that run included, and show UTC that is so
        far ahead of aligned time.

        What is open stays until the new policy closes it. Windows whose length changes (of
        lateness, of leaks) start empty; limits that shrink remove nothing that exists.
        """
        changed, self.policy, self.utc_ahead_ns = policy != self.policy, policy, utc_ahead_ns
        self.room.most = policy.max_objects
        for evaluation in self._evaluations.values() if changed else ():
            evaluation.adopt(policy)
        # Those of which nothing else is news are stored with the UTC of their last report.
        if abs(utc_ahead_ns - self._reported_ahead_ns) > policy.telemetry_late_s * 1e9:
            self._reported_ahead_ns = utc_ahead_ns
            still_open = self._still_open(self._advanced_at)
            self._pending += [FindingEvent(Change.UPDATED, finding) for finding in still_open]

    def _still_open(self, now: AlignedNs) -> list[Finding]:
        return [
            finding
            for evaluation in self._evaluations.values()
            for finding in evaluation.tracker.findings(now)
        ]

    def _utc(self, finding: Finding, sign: int = 1) -> Finding:
        """From aligned time; with -1, to it."""
        return later(finding, sign * self.utc_ahead_ns) if self.utc_ahead_ns else finding

    def _utc_events(self, events: Iterable[FindingEvent]) -> list[FindingEvent]:
        return [FindingEvent(event.change, self._utc(event.finding)) for event in events]

    def _views(self, now: AlignedNs) -> Iterator[AttemptView]:
        latest = now + self.utc_ahead_ns - round(self.policy.failed_after_s * 1e9)
        failed = self.learned.failures(latest - round(self.policy.failed_for_s * 1e9), latest)
        for evaluation in self._evaluations.values():
            try:
                for view in evaluation.view(now):
                    failure = failed.pop(view.key, None)
                    yield replace(view, failure=failure if view.ended else None)
            except Exception as error:
                self.faults.append(error)
        for key, failure in failed.items():
            yield AttemptView.forgotten(key, failure)

    def status_view(self, now: AlignedNs) -> StatusView:
        """An immutable view of everything, for metrics and HTTP."""
        evicted = Counter(self._evicted)
        evicted["pauses"] = self.learned.evicted
        for evaluation in self._evaluations.values():
            if evaluation.attempt is not None:
                evicted.update(evaluation.attempt.evicted)
        going_on = {id_: one for id_, one in self._dismissed().items() if one.goes_on}
        closed = [replace(one, goes_on=one.id in going_on) for one in self._closed.values()]
        return StatusView(
            at=now,
            attempts=list(self._views(now)),
            findings=[*map(self._utc, (*self._still_open(now), *closed))],
            evicted=dict(evicted),
            utc_ahead_ns=self.utc_ahead_ns,
            going_on=[self._utc(self._closed.get(id_, one)) for id_, one in going_on.items()],
        )


def _by_attempt(events: Iterable[FindingEvent]) -> dict[AttemptKey, list[FindingEvent]]:
    found: defaultdict[AttemptKey, list[FindingEvent]] = defaultdict(list)
    for event in events:
        found[AttemptKey(event.finding.job, event.finding.attempt)].append(event)
    return found
