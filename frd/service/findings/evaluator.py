"""Advances the engine, stores its findings, and then publishes them.

The only writer of the published state. An answer that arrives in between (a stack, a dump's id)
goes into the engine, and triggers an evaluation. A store that fails, or a disk that does not
respond, must not suppress an alert: the finding is published without being stored, the failure is
counted, and the next evaluation tries again. A fault in one job does not affect other jobs, but the
evaluation then counts as stale.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from frd.engine.evidence.answers import Answer
from frd.engine.evidence.questions import Question
from frd.engine.matching.learned_pauses import JobPauses
from frd.engine.views import StatusView
from frd.errors import ServiceUnavailable
from frd.model import AlignedNs, Change, Finding, FindingEvent, FindingState, Kind
from frd.service.findings.keepers import Keeper
from frd.service.findings.people import Mark, People, Silences
from frd.service.ingest.shared import Shared
from frd.service.journal.payloads import Dismissal, encode_pauses, encode_payload
from frd.service.journal.writer import Log
from frd.service.periodic import Faults
from frd.service.state import ServiceState
from frd.store.records import RecordKind

_HANGS: Final = (Kind.STALL, Kind.ORDER, Kind.MISMATCH)
TICK_S: Final = 0.25
CALM_TICK_S: Final = 1.0
"""While nothing has come, and nothing is wrong or waits. A replica may own 64 cells, most of them
without a job."""
PUBLISH_EVERY_S: Final = 1.0
"""Interval without changes; changes are published immediately."""
IDLE_PUBLISH_EVERY_S: Final = 5.0
SAVE_WITHIN_S: Final = 3.0
"""How long an alert waits for the disk."""
CHANGE_WITHIN_S: Final = 10.0
"""How long what a person says of a finding may take: an evaluation, and the disk."""
_NOTHING: Final = ServiceState(StatusView(AlignedNs(0), (), ()))

_T = TypeVar("_T")

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Evaluator:
    """`project` turns a status view into the published state; `publish` gets changes of findings.
    `settle` is called before each evaluation with its time, as in a replay. While `is_calm`,
    evaluations are rare unless `news` is called; while `is_idle`, publication of what has not
    changed is rarer."""

    shared: Shared
    keeper: Keeper
    journal: Log
    now: Callable[[], AlignedNs]
    project: Callable[[StatusView], ServiceState]
    publish: Callable[[Sequence[FindingEvent]], None]
    settle: Callable[[AlignedNs], None] = lambda now: None
    is_idle: Callable[[], bool] = lambda: False
    is_calm: Callable[[], bool] = lambda: False
    state: ServiceState = _NOTHING
    opened: Counter[tuple[str, Kind]] = field(default_factory=Counter)
    corrected: int = 0
    """Changes of open findings that name a rank no more."""
    store_errors: int = 0
    prepare: Callable[[Sequence[FindingEvent]], None] = lambda events: None
    """Gets the same changes as `publish`, before they are stored."""
    ask: Callable[[Sequence[Question]], None] = lambda questions: None
    """Gets what ranks are to be asked, once the findings are published."""
    asking: frozenset[str] = frozenset()
    """Of the findings that are published; see `Outcome`."""
    _owed: list[Question] = field(default_factory=list)
    """Questions that are not asked yet."""
    _dismissals: list[tuple[Dismissal, asyncio.Future[Finding | None]]] = field(
        default_factory=list
    )
    """Dismissals that are not applied yet, each with the future that its caller awaits."""
    people: People = field(default_factory=lambda: People(Silences()))
    _marked: list[tuple[Finding, asyncio.Future[Finding]]] = field(default_factory=list)
    """Findings of which people have said something that is not published yet; the same."""
    _unsaved: dict[str, FindingEvent] = field(default_factory=dict)
    """The last change of each finding that is not stored yet, by id."""
    _unsaved_pauses: dict[str, JobPauses] = field(default_factory=dict)
    """Learned pauses that are not stored yet, by job."""
    _saving: asyncio.Task[None] | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    """Evaluate within `TICK_S`."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Evaluate now."""
    _stopping: bool = False
    _faults: Faults = field(default_factory=Faults)

    @property
    def unsaved(self) -> frozenset[str]:
        """Ids of findings of which the last change is not stored."""
        return frozenset(self._unsaved)

    def kept_back(self) -> list[Finding]:
        """Findings that are published but not stored. Any thread may call this."""
        published = {finding.id for finding in self.state.status_view.findings}
        unsaved = [event.finding for event in list(self._unsaved.values())]
        return [finding for finding in unsaved if finding.id in published]

    def answer(self, answer: Answer) -> None:
        """A rank has answered; the journal holds what a replay decides by."""
        now = self.now()
        if (kept := self.shared.engine.answer(answer, now)) is not None:
            self.journal.record(RecordKind.ANSWERED, now, payload=encode_payload(kept))
            if answer.finding:
                self._evaluate_now()

    async def dismiss(self, dismissal: Dismissal) -> Finding | None:
        """Close a finding by hand; returns the closed finding once it is published, None when no
        such finding is open.

        Raises:
            ServiceUnavailable: no evaluation closed it in time.
        """
        closed: asyncio.Future[Finding | None] = asyncio.get_running_loop().create_future()
        self._dismissals.append((dismissal, closed))
        return await self._evaluated(closed, f"{dismissal.finding}: not closed")

    async def mark(self, finding: Finding, mark: Mark) -> Finding:
        """Say something of a finding, open or closed; returns it once it is published and stored.

        Raises:
            Refused: others have said otherwise.
            ServiceUnavailable: it was not published in time, or is not stored yet.
        """
        self.people.change(finding, mark)
        marked: asyncio.Future[Finding] = asyncio.get_running_loop().create_future()
        self._marked.append((finding, marked))
        return await self._evaluated(marked, f"{finding.id}: not known to be changed")

    async def _evaluated(self, done: asyncio.Future[_T], what: str) -> _T:
        self._evaluate_now()
        try:
            async with asyncio.timeout(CHANGE_WITHIN_S):
                return await done
        except TimeoutError:
            why = "the service is too busy: see its log, and try again"
            raise ServiceUnavailable(f"finding: {what}: {why}") from None

    def take_up(self, findings: Sequence[Finding], pauses: Sequence[JobPauses]) -> None:
        """Go on with the open findings and the learned pauses of an earlier process."""
        now = self.now()
        self.shared.engine.restore(findings, now)
        self.people.take_up(findings)
        self.shared.engine.learned.recall(pauses)
        if self.shared.engine.learned.all():
            self._record_pauses(now)

    async def run(self) -> None:
        """Evaluate until `stop`. A fault of the engine is logged, shows as staleness, and does
        not end the service: streams, dumps and earlier findings still work."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + TICK_S
        is_last = False
        while not is_last:
            if self.is_calm():
                await _within(due_s - TICK_S + CALM_TICK_S, self._news)
            await _within(due_s, self._wake)
            due_s = loop.time() + TICK_S
            self._wake.clear()
            self._news.clear()
            is_last = self._stopping
            with self._faults.logged("evaluation, whose findings are stale now"):
                await self.evaluate()
        if self._saving is not None:
            await asyncio.wait({self._saving}, timeout=SAVE_WITHIN_S)

    def news(self) -> None:
        """Something has come that may change a finding: evaluate within `TICK_S`."""
        self._news.set()

    def _evaluate_now(self) -> None:
        self._news.set()
        self._wake.set()

    def stop(self) -> None:
        """Have `run` evaluate once more, store the result, and return."""
        self._stopping = True
        self._evaluate_now()

    async def evaluate(self) -> None:
        if self.keeper.is_over:
            return
        now = self.now()
        dismissals, self._dismissals = self._dismissals, []
        marked: Sequence[tuple[Finding, asyncio.Future[Finding]]] = ()
        dismissed = [(done, self._dismiss(dismissal, now)) for dismissal, done in dismissals]
        events = [event for _, closing in dismissed for event in closing]
        self.settle(now)
        self.shared.flush()
        outcome = self.shared.engine.advance(now)
        events += outcome.events
        self._owed += outcome.questions
        if not self.is_idle():
            self.journal.tick(now)
        if learned := self.shared.engine.learned.take_news():
            self._unsaved_pauses |= {one.job: one for one in learned}
            self._record_pauses(now)
        faults = self.shared.engine.faults  # the view may add some
        if (fault := self.shared.watermarks.take_fault()) is not None:
            faults.append(fault)
        every_s = IDLE_PUBLISH_EVERY_S if self.is_idle() else PUBLISH_EVERY_S
        settled = self._settled()
        changes = events or learned or self._marked or settled
        if not changes and now - self.state.status_view.at < every_s * 1e9:
            state = self.state
        else:
            await asyncio.sleep(0)  # with 98,304 ranks either half takes a tenth of a second
            people, utc = self.people, AlignedNs(now + self.shared.engine.utc_ahead_ns)
            status_view = people.view(self.shared.engine.status_view(now), utc)
            events = [FindingEvent(one.change, people.said(one.finding, utc)) for one in events]
            events += people.news(status_view, events)
            marked = self._take_marked(status_view, utc)
            over = _over(self.state.status_view, status_view)
            ended = [FindingEvent(Change.UPDATED, people.said(one, utc)) for one in over]
            self.prepare(events)
            await self._save([*settled, *events, *_of_closed(marked), *ended])
            if self.keeper.is_over:
                return
            self._count(events)
            state = self.project(status_view)
            people.published(status_view)
        self.state = replace(state, evaluated_at=self.state.evaluated_at if faults else now)
        self.asking = outcome.asking
        self.publish(events)
        owed, self._owed = self._owed, []
        self.ask(owed)
        closed = {event.finding.id: event.finding for event in events}
        for done, closing in dismissed:
            if not done.done():
                done.set_result(closed[closing[0].finding.id] if closing else None)
        self._answer_marked(marked)
        if faults:
            raise faults[0]

    def _dismiss(self, dismissal: Dismissal, now: AlignedNs) -> list[FindingEvent]:
        closing = self.shared.engine.dismiss(dismissal.finding, now, dismissal.close_reason)
        if closing:
            payload = encode_payload(dismissal)
            self.journal.record(RecordKind.DISMISSED, now, payload=payload)
        return closing

    def _take_marked(
        self, view: StatusView, utc: AlignedNs
    ) -> list[tuple[Finding, asyncio.Future[Finding]]]:
        """As they are now, with what has been said. The engine may have forgotten closed ones."""
        marked, self._marked = self._marked, []
        known = {finding.id: finding for finding in (*view.findings, *view.going_on)}
        said = self.people.said
        return [(known.get(one.id) or said(one, utc), done) for one, done in marked]

    def _answer_marked(self, marked: Iterable[tuple[Finding, asyncio.Future[Finding]]]) -> None:
        for finding, waiting in marked:
            if waiting.done():
                continue
            if finding.id in self._unsaved:
                why = "not stored yet, which is tried again: see the log of the service"
                waiting.set_exception(ServiceUnavailable(f"finding: {finding.id}: {why}"))
            else:
                waiting.set_result(finding)

    def _record_pauses(self, now: AlignedNs) -> None:
        pauses = encode_pauses(self.shared.engine.learned.all())
        self.journal.record(RecordKind.LEARNED, now, payload=pauses)

    async def _save(self, events: Sequence[FindingEvent]) -> None:
        for event in events:
            earlier = self._unsaved.get(event.finding.id)
            # A finding whose opening is not stored yet must be stored as an opening.
            opening = earlier is not None and earlier.change is Change.OPENED
            change = Change.OPENED if opening else event.change
            self._unsaved[event.finding.id] = FindingEvent(change, event.finding)
        if self._saving is not None and not self._saving.done():
            return  # the disk still does not respond: alerts do not wait for it again
        if self._unsaved or self._unsaved_pauses:
            saving = self._store_all(dict(self._unsaved), dict(self._unsaved_pauses))
            self._saving = asyncio.create_task(saving)
            await asyncio.wait({self._saving}, timeout=SAVE_WITHIN_S)
            if not self._saving.done():
                self._log_store_error(f"{self.keeper.name}: no answer within {SAVE_WITHIN_S:g} s")

    def _settled(self) -> list[FindingEvent]:
        """To store that messages were sent; a version that is not stored yet will say so."""
        settled = [one for one in self.keeper.settled() if one.id not in self._unsaved]
        return [FindingEvent(Change.UPDATED, one) for one in settled]

    async def _store_all(
        self, unsaved: Mapping[str, FindingEvent], pauses: Mapping[str, JobPauses]
    ) -> None:
        try:
            await self.keeper.save(list(unsaved.values()), list(pauses.values()))
        except Exception as error:  # any error: it must not hold a finding back
            self._log_store_error(str(error) or repr(error))
            return
        # Others may have come meanwhile.
        self._unsaved = {id_: e for id_, e in self._unsaved.items() if unsaved.get(id_) is not e}
        learned = self._unsaved_pauses.items()
        self._unsaved_pauses = {job: one for job, one in learned if pauses.get(job) is not one}

    def _log_store_error(self, why: str) -> None:
        if not self.store_errors:
            log.error("%s", why)
        self.store_errors += 1

    def _count(self, events: Sequence[FindingEvent]) -> None:
        before = {one.id: one for one in self.state.open_findings()} if events else {}
        for event in events:
            finding = event.finding
            if event.change is Change.UPDATED and (known := before.get(finding.id)) is not None:
                cleared = {suspect.rank for suspect in known.suspects}.intersection(finding.victims)
                self.corrected += finding.kind in _HANGS and bool(cleared)
            before[finding.id] = finding
            if event.change is Change.OPENED:
                self.opened[finding.job, finding.kind] += 1
                log.warning("finding %s opened: %s", finding.id, finding.summary)
            elif event.change is Change.CLOSED:
                log.info("finding %s closed: %s", finding.id, finding.close_reason)


async def _within(until_s: float, event: asyncio.Event) -> None:
    """Wait for `event`, until this time of the loop at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until_s):
            await event.wait()


def _of_closed(marked: Iterable[tuple[Finding, object]]) -> list[FindingEvent]:
    """Those that were closed before people said something: they are only stored."""
    closed = [finding for finding, _ in marked if finding.state is FindingState.CLOSED]
    return [FindingEvent(Change.UPDATED, finding) for finding in closed]


def _over(before: StatusView, now: StatusView) -> list[Finding]:
    """Findings that were closed by hand and whose trouble is over: no notice is sent."""
    going_on = {finding.id for finding in now.going_on}
    over = [finding for finding in before.going_on if finding.id not in going_on]
    return [replace(finding, goes_on=False) for finding in over]
