"""Sends findings to the configured webhooks without delaying the evaluation.

Each target has its own thread and queue, so a receiver that is slow or down delays no other target;
`see` only puts messages into queues. A queue is bounded and drops its oldest message. A message is
repeated until the receiver accepts it, refuses it, or an hour has passed; the pauses grow to a
minute. The threads are not those of asyncio's pool, because the findings database writes there and
must not wait for a slow receiver.

Each message is delivered at least once: until it is settled (accepted, refused or dropped), it is
owed. The findings database keeps what is owed, and the next process goes on with it. Nothing here
waits for that database. In a cluster, the value of a finding says what is owed about it, and the
owner of its cell sends that: a process that loses the cell sends nothing more. A message comes
twice only if its sender could not store that it was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Final, cast

from frd.config import NotifyEvent, NotifyTarget
from frd.model import AlignedNs, Change, Finding, FindingEvent, FindingState
from frd.service.findings.delivery import Outcome, Result, check_files, post
from frd.service.findings.messages import Notice, body
from frd.service.findings.notices import HOLD_S, after, assumed, at_end
from frd.store.findings import Notified, Owed

MAX_QUEUED: Final = 256
"""Messages that wait for one target."""
GIVE_UP_AFTER_S: Final = 3600.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_SURE_EVERY_S: Final = 0.5
_REST_WITHIN_S: Final = 1.0
_STOP_WITHIN_S: Final = 3.0
"""For what is in the queues when the service ends."""
_OPEN: Final = FindingState.OPEN

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Ready:
    """Messages about a finding that are owed, and not in the queues yet."""

    finding: Finding
    since: AlignedNs
    before: Notified
    """What was known before them."""
    messages: list[tuple[_Sender, Owed]]
    is_published: bool = False


@dataclass(slots=True, eq=False)
class Notifier:
    """All targets. `url` says where people open the service, once it listens.

    With `has_pages`, messages link to the page of the finding. `now` is UTC.

    Raises:
        ConfigError: from the constructor and from `adopt`, when a file cannot be used.
    """

    targets: InitVar[Sequence[NotifyTarget]]
    url: Callable[[], str]
    has_pages: bool = True
    first_pause_s: float = _FIRST_PAUSE_S
    now: Callable[[], AlignedNs] = lambda: AlignedNs(time.time_ns())
    _results: Counter[tuple[str, Result]] = field(default_factory=Counter)
    """By name of the target."""
    is_asking: Callable[[Finding], bool] = lambda finding: False
    """A rank that was asked about this finding has not answered: a message waits for it, at
    most for `HOLD_S`, and then has the newest version of the finding."""
    is_sure: Callable[[], bool] = lambda: True
    """Otherwise another process may have the jobs, and may send the same: messages wait."""
    is_unstored: Callable[[Finding], bool] = lambda finding: False
    """The next owner would not know of this change, and would send the same: messages wait."""
    _known: dict[str, Notified] = field(default_factory=dict)
    """By id of the open finding."""
    _recalled: dict[str, Notified] = field(default_factory=dict)
    """The same of an earlier process."""
    _resting: set[str] = field(default_factory=set)
    """Ids of findings whose cell is handed over."""
    _is_closed: bool = False
    _ready: dict[str, _Ready] = field(default_factory=dict)
    """By id of the finding."""
    _owed: dict[tuple[str, str], Owed] = field(default_factory=dict)
    """By target and key. All threads use it, in single steps."""
    _senders: list[_Sender] = field(init=False)

    def __post_init__(self, targets: Sequence[NotifyTarget]) -> None:
        for target in targets:
            check_files(target)
        self._senders = [self._sender(target) for target in targets]

    def take_up(self, known: Sequence[Finding]) -> None:
        """`known` were open when the service started, or took their cell over: their opening is no
        news, unless an earlier process has recorded that no message was made of it."""
        names = {target.name for target in self._targets}
        for finding in known:
            recalled = self._recalled.pop(finding.id, None)
            notified = recalled or assumed(finding, self._targets, self.now())
            owed = [(name, cast(NotifyEvent, e)) for name, e in notified.owed if name in names]
            if finding.state is _OPEN:
                self._known[finding.id] = notified._replace(owed=())
            if owed:
                self._add(finding, notified, owed, self.now())
                self._send(finding.id)

    def notified_of(self, finding_id: str) -> Notified:
        """With what is owed now."""
        known = self._known.get(finding_id, Notified(finding_id))
        owed = [message for message in list(self._owed.values()) if message.finding == finding_id]
        return known._replace(owed=tuple((one.target, one.key.rpartition("-")[2]) for one in owed))

    async def rest(self, findings: Collection[str]) -> None:
        """Begin no request about these any more, and wait a moment for those under way: what is
        owed then is the next owner's."""
        self._resting.update(findings)
        deadline = time.monotonic() + _REST_WITHIN_S
        while any(one.sending in findings for one in self._senders):
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(_REST_WITHIN_S / 20)

    def forget(self, findings: Collection[str]) -> None:
        """These are no longer this process's, and neither are the messages about them."""
        self._resting.difference_update(findings)
        for id_ in findings:
            self._known.pop(id_, None)
            self._ready.pop(id_, None)
        for message in list(self._owed.values()):
            if message.finding in findings:
                self.settle(message)

    def resume(self, owed: Iterable[Owed]) -> None:
        """Go on with what an earlier process owed."""
        senders = {sender.target.name: sender for sender in self._senders}
        for message in owed:
            if (sender := senders.get(message.target)) is not None:
                self._owed[message.target, message.key] = message
                sender.put(message)
            else:
                self._results[message.target, Result.DROPPED] += 1

    def recall(self, notified: Iterable[Notified]) -> None:
        """What an earlier process has made messages of; `take_up` follows."""
        self._recalled |= {one.finding: one for one in notified}

    def prepare(self, events: Iterable[FindingEvent]) -> None:
        """Make the messages for changes, which are owed from now on; `see` sends them."""
        for event in events:
            finding, known = event.finding, self._known.get(event.finding.id)
            if event.change is Change.CLOSED:
                if known is not None:
                    del self._known[finding.id]
                    self._add(finding, known, at_end(known, self._targets), self.now())
            elif event.change is Change.OPENED:
                self._follow(finding, Notified(finding.id))
            elif known is not None:  # otherwise it is closed, or of another process
                self._follow(finding, known)

    def owed(self) -> list[Owed]:
        """What the next process must send. Any thread may call it."""
        return list(self._owed.values())

    def notified(self) -> list[Notified]:
        """Any thread may call it."""
        return list(self._known.values())

    def see(self, events: Iterable[FindingEvent]) -> None:
        """These changes are published: queue their messages, as far as they wait for no answer.
        Does not block."""
        for event in events:
            if (ready := self._ready.get(event.finding.id)) is not None:
                ready.is_published = True
        self.look()

    def look(self) -> None:
        """Queue the messages that have waited long enough."""
        if not self.is_sure():
            return
        for id_, ready in list(self._ready.items()):
            if ready.is_published and not self._waits(ready):
                self._send(id_)

    def adopt(self, targets: Sequence[NotifyTarget]) -> None:
        """Continue with these targets. A target that has not changed keeps its queue; the messages
        of changed and removed targets are dropped."""
        for target in targets:
            check_files(target)
        kept = {sender.target: sender for sender in self._senders if sender.target in targets}
        for sender in self._senders:
            if sender.target not in kept:
                sender.stop()
        self._senders = [kept.get(target) or self._sender(target) for target in targets]
        names = {target.name for target in kept}
        for id_, one in self._known.items():
            left = tuple(name for name in one.targets if name in names)
            self._known[id_] = one._replace(targets=left)

    def counted(self) -> Mapping[tuple[str, str], int]:
        """Requests by target and result, zeros included."""
        zeros = {
            (sender.target.name, result.value): 0 for sender in self._senders for result in Result
        }
        results = list(self._results.items())  # other threads add to it
        return zeros | {(name, result.value): count for (name, result), count in results}

    def close(self) -> None:
        """Give queued messages a few seconds, then end. For a worker thread."""
        for id_, ready in list(self._ready.items()):
            is_stored = not self.is_unstored(ready.finding)
            if ready.is_published and is_stored and self.is_sure():
                self._send(id_)  # otherwise the next process goes on
        for sender in self._senders:
            sender.stop(when_empty=True)
        deadline = time.monotonic() + _STOP_WITHIN_S
        for sender in self._senders:
            sender.thread.join(max(0.0, deadline - time.monotonic()))
        self._is_closed = True
        for sender in self._senders:
            sender.stop()

    @property
    def _targets(self) -> list[NotifyTarget]:
        return [sender.target for sender in self._senders]

    def _follow(self, finding: Finding, known: Notified) -> None:
        """Replace what is not sent yet by messages about this version."""
        now = since = self.now()
        if (ready := self._ready.get(finding.id)) is not None and ready.finding.state is _OPEN:
            known, since = ready.before, ready.since
            self._withdraw(finding.id)
        self._known[finding.id], messages = after(known, finding, self._targets, now)
        self._add(finding, known, messages, since)

    def _add(
        self,
        finding: Finding,
        before: Notified,
        messages: Sequence[tuple[str, NotifyEvent]],
        since: AlignedNs,
    ) -> None:
        """Behind what is ready already."""
        url, senders = self.url(), {sender.target.name: sender for sender in self._senders}
        earlier = self._ready.get(finding.id)
        made = earlier.messages if earlier is not None else []
        for name, event in messages:
            notice, sender = Notice(event, finding), senders[name]
            content = body(notice, sender.target, url, has_pages=self.has_pages)
            owed = Owed(name, f"{finding.id}-{event}", time.time_ns(), content)
            self._owed[name, owed.key] = owed
            made.append((sender, owed))
        if made:
            self._ready[finding.id] = _Ready(finding, since, before, made)

    def _waits(self, ready: _Ready) -> bool:
        if self.is_unstored(ready.finding):
            return True
        is_early = 0 <= self.now() - ready.since < HOLD_S * 1e9
        return is_early and ready.finding.state is _OPEN and self.is_asking(ready.finding)

    def _send(self, finding_id: str) -> None:
        for sender, message in self._ready.pop(finding_id).messages:
            sender.put(message)

    def _withdraw(self, finding_id: str) -> None:
        if (ready := self._ready.pop(finding_id, None)) is not None:
            for _, message in ready.messages:
                self.settle(message)

    def _sender(self, target: NotifyTarget) -> _Sender:
        return _Sender(self, target, self._results, self.first_pause_s)

    def is_owed(self, message: Owed) -> bool:
        """This process has to send it. Any thread may call it, as the next ones."""
        return self._owed.get((message.target, message.key)) is message

    def may_send(self, message: Owed) -> bool:
        """No other process sends it."""
        return self.is_sure() and message.finding not in self._resting

    def settle(self, message: Owed) -> None:
        """It is accepted, refused, dropped, or another process sends it."""
        if not self._is_closed and self.is_owed(message):  # else the next process goes on with it
            self._owed.pop((message.target, message.key), None)


@dataclass(slots=True, eq=False)
class _Sender:
    """One target: its queue, and the thread that empties it."""

    notifier: Notifier
    target: NotifyTarget
    results: Counter[tuple[str, Result]]
    first_pause_s: float
    sending: str = ""
    """The finding about which a request may be under way."""
    _queue: queue.SimpleQueue[tuple[Owed, float] | None] = field(default_factory=queue.SimpleQueue)
    """Each with the time of the monotonic clock at which to give up; None ends the thread."""
    _stopping: threading.Event = field(default_factory=threading.Event)
    _counting: threading.Lock = field(default_factory=threading.Lock)
    _is_failing: bool = False
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        # A daemon thread: a receiver that does not answer must not delay the end of the process.
        self.thread = threading.Thread(
            target=self._run, name=f"notify-{self.target.name}", daemon=True
        )
        self.thread.start()

    def put(self, message: Owed) -> None:
        if self._stopping.is_set():
            self._drop(message)  # its target was changed or removed
            return
        while self._queue.qsize() >= MAX_QUEUED:
            with contextlib.suppress(queue.Empty):
                if (oldest := self._queue.get_nowait()) is not None:
                    self._drop(oldest[0])
        age_s = max(time.time_ns() - message.since_ns, 0) / 1e9
        self._queue.put((message, time.monotonic() + GIVE_UP_AFTER_S - age_s))

    def stop(self, *, when_empty: bool = False) -> None:
        if not when_empty:
            self._stopping.set()
        self._queue.put(None)

    def _run(self) -> None:
        while (waiting := self._queue.get()) is not None:
            self._deliver(*waiting)

    def _deliver(self, message: Owed, until_s: float) -> None:
        """Repeat until the receiver accepts or refuses the message, it is too old, or another
        process has to send it."""
        pause_s = self.first_pause_s
        while self.notifier.is_owed(message):
            if self._stopping.is_set() or time.monotonic() > until_s:
                return self._drop(message)
            self.sending = message.finding
            outcome = post(self.target, message) if self.notifier.may_send(message) else None
            if outcome is not None:
                self._count(outcome.result)
                self._log(outcome)
                if outcome.result is not Result.FAILED:
                    self.notifier.settle(message)
            self.sending = ""
            if outcome is None:
                self._stopping.wait(_SURE_EVERY_S)
            elif outcome.result is Result.FAILED:
                self._stopping.wait(max(pause_s, outcome.wait_s))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return None

    def _drop(self, message: Owed) -> None:
        self._count(Result.DROPPED)
        self.notifier.settle(message)

    def _log(self, outcome: Outcome) -> None:
        """Log when a target stops accepting messages and when it accepts them again."""
        name, was_failing = self.target.name, self._is_failing
        if outcome.result is Result.REFUSED:
            log.warning("notify %s: message refused: %s", name, outcome.why)
            return
        self._is_failing = outcome.result is Result.FAILED
        if self._is_failing and not was_failing:
            log.warning("notify %s: not delivered: %s: trying again", name, outcome.why)
        elif was_failing and not self._is_failing:
            log.info("notify %s: takes messages again", name)

    def _count(self, result: Result) -> None:
        with self._counting:  # `put` counts on another thread
            self.results[self.target.name, result] += 1
