"""Asks what suspects are blocked in, once a second for as long as their finding is open.

Only live suspects that are in no op are asked about, and no other: an agent reads much of a
process that it inspects. A report becomes the suspect's `waits_for`; a finding is updated only if
the rank waits for something else than before.

The engine learns of two kinds of wait: a process of another rank holds what the rank waits for, so
that the rank is a victim of that one; or the rank is in a native call that may wait for another
rank, so that it is no first cause while another suspect is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from frd.engine.engine import Engine
from frd.engine.findings import text
from frd.engine.findings.attachments import Evidence
from frd.errors import FrdError, WireError
from frd.model import (
    NATIVE,
    AlignedNs,
    AttemptKey,
    Certainty,
    Change,
    Finding,
    FindingEvent,
    FindingState,
    Holder,
    Kind,
    NodeRawNs,
    Reason,
    UnrecordedWait,
    WaitKind,
    WaitsFor,
    WaitSource,
)
from frd.service.findings.unrecorded import Unrecorded
from frd.service.requests.inquiries import Inquiries
from frd.service.requests.turns import Turns
from frd.wire.messages import Part
from frd.wire.waits import WaitReport, decode_report

T = TypeVar("T", WaitsFor, Holder)
REASON: Final = "wait_report"
"""Of reports that were refused, in metrics."""
EVERY_S: Final = 1.0
MAX_SUSPECTS: Final = 64
"""Of one finding that are asked about."""
MAX_AT_ONCE: Final = 4
"""Findings of one job whose agents are asked at the same time."""
_MAX_WAITING: Final = 256
_TIMEOUT_S: Final = 1.0
_MUTE_S: Final = 10.0
"""How long an agent is not asked again that did not answer: those before 0.2 never do."""
_REWORD_S: Final = 10.0
"""How often a finding is updated if a rank waits for the same kind of thing in other words."""
_REASONS: Final = frozenset({Reason.CPU_STUCK, Reason.UNREACHABLE})
_HELD: Final = frozenset({WaitKind.LOCK_FILE, WaitKind.LOCK_SHARED, WaitKind.PIPE_WORKER})
"""Kinds of wait that one process ends, the holder."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Shown:
    """The words that a finding has for a rank, and since when. Other words take their place
    immediately if the rank now waits for another kind of thing, else after a while: a rank that
    reads one file after another is no news every second. What was seen stays until something else
    is seen."""

    waits_for: WaitsFor
    since_s: float

    def gives_way_to(self, other: WaitsFor, now_s: float) -> bool:
        one = self.waits_for
        if one.certainty is Certainty.SEEN and other.certainty is not Certainty.SEEN:
            return False
        is_other = other.kind is not WaitKind.UNKNOWN and (
            (one.kind, one.holder) != (other.kind, other.holder)
        )
        return one != other and (is_other or now_s - self.since_s >= _REWORD_S)


class Inspector:
    """Run `run` as a task."""

    def __init__(
        self,
        inquiries: Inquiries,
        engine: Engine,
        unrecorded: Unrecorded,
        *,
        native_line: Callable[[AttemptKey, int], str],
        attach: Callable[[str, Evidence], None],
        findings: Callable[[], Iterable[Finding]],
        now: Callable[[], AlignedNs],
    ) -> None:
        """`findings` are all findings that may be open; `native_line` is that of `StackWaits`."""
        self._inquiries = inquiries
        self._engine = engine
        self._unrecorded = unrecorded
        self._native_line = native_line
        self._attach = attach
        self._findings = findings
        self._now = now
        self._shown: dict[tuple[str, int], _Shown] = {}
        """By finding and rank."""
        self._turns = Turns(MAX_AT_ONCE, _MAX_WAITING)
        self._asking: set[str] = set()
        """Findings that were asked about and are not answered."""
        self._waiting: set[tuple[AttemptKey, int]] = set()
        """Ranks of which the engine knows that they wait for another rank, or may do so."""
        self._mute_until_s: dict[tuple[AttemptKey, int], float] = {}
        self._wake = asyncio.Event()
        self._is_warned = False
        self.refused = 0
        """Reports that could not be read."""

    def see(self, events: Iterable[FindingEvent]) -> None:
        """A finding that has just opened is asked about immediately."""
        if any(event.change is Change.OPENED for event in events):
            self._wake.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                await self.look()
            except Exception:  # an alert must not depend on this
                log.exception("suspects could not be inspected")
            left_s = EVERY_S - (loop.time() - began_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(left_s, 0.0)):
                    await self._wake.wait()
            self._wake.clear()

    async def look(self) -> None:
        """Ask about the suspects of all open findings, once."""
        asked = [(one, self._suspects(one)) for one in self._findings() if _is_inspected(one)]
        self._forget(asked)
        now_s = asyncio.get_running_loop().time()
        for finding, ranks in asked:
            for one in finding.suspects:  # an earlier process of the service may have asked
                if one.waits_for is not None:
                    shown = _Shown(one.waits_for, now_s)
                    self._shown.setdefault((finding.id, one.rank), shown)
            key = AttemptKey(finding.job, finding.attempt)
            ready = [rank for rank in ranks if self._mute_until_s.get((key, rank), 0.0) <= now_s]
            if ready and finding.id not in self._asking:
                asking = partial(self._ask, finding.id, key, ready[:MAX_SUSPECTS])
                if self._turns.start(finding.job, asking):
                    self._asking.add(finding.id)
        await self._turns.wait(EVERY_S)

    def _suspects(self, finding: Finding) -> list[int]:
        """Those that may be inspected; ranks that turned out to wait for one of them, too."""
        key = AttemptKey(finding.job, finding.attempt)
        ranks = [one.rank for one in finding.suspects if one.reason in _REASONS]
        waiting = [rank for rank in finding.victims if ranks and (key, rank) in self._waiting]
        return [*ranks, *waiting]

    def _forget(self, asked: Sequence[tuple[Finding, Sequence[int]]]) -> None:
        ids = {finding.id for finding, _ in asked}
        of = {(AttemptKey(f.job, f.attempt), rank) for f, ranks in asked for rank in ranks}
        self._shown = {key: shown for key, shown in self._shown.items() if key[0] in ids}
        self._mute_until_s = {key: at for key, at in self._mute_until_s.items() if key in of}
        self._waiting &= of

    async def _ask(self, finding_id: str, key: AttemptKey, ranks: Sequence[int]) -> None:
        muted_until_s = asyncio.get_running_loop().time() + _MUTE_S
        asking = self._inquiries.ask(
            key, ranks, dump=False, stacks=False, waits=True, timeout_s=_TIMEOUT_S
        )
        try:
            async with aclosing(asking) as asked:
                async for answers in asked:
                    for answer in answers:
                        if answer.error:
                            self._mute_until_s[key, answer.rank] = muted_until_s
                        elif answer.part is Part.WAITS:
                            self._take(finding_id, key, answer.rank, answer.data)
        except FrdError:  # no agent is connected: the finding says so
            return
        finally:
            self._asking.discard(finding_id)

    def _take(self, finding_id: str, key: AttemptKey, rank: int, data: bytes) -> None:
        try:
            report = decode_report(data)
        except WireError as error:
            self.refused += 1
            if not self._is_warned:
                log.warning("rank %d of job %s: %s: is left out", rank, key.job, error)
            self._is_warned = True
            return
        self._report_wait(key, rank, report)
        if report.as_of_ns <= 0:
            return  # not looked at yet
        words, now_s = cleaned(report.waits_for), asyncio.get_running_loop().time()
        shown = self._shown.get((finding_id, rank))
        if shown is None and not words.says:
            return
        if shown is None or shown.gives_way_to(words, now_s):
            self._shown[finding_id, rank] = shown = _Shown(words, now_s)
        elif replace(words, rest="") != replace(shown.waits_for, rest=""):
            return  # what is shown was last seen before this
        since, seen = (self._aligned(key, rank, at) for at in (report.since_ns, report.as_of_ns))
        timed = replace(shown.waits_for, since_at=since, seen_at=seen)
        self._attach(finding_id, Evidence(rank, waits_for=timed))

    def _aligned(self, key: AttemptKey, rank: int, since_ns: NodeRawNs) -> AlignedNs | None:
        attempt = self._engine.known(key)
        if attempt is None or rank not in attempt.tables.ranks.infos or since_ns <= 0:
            return None
        since = np.array(since_ns, np.int64)
        return AlignedNs(int(attempt.tables.ranks.to_aligned(rank, since, self._now())))

    def _report_wait(self, key: AttemptKey, rank: int, report: WaitReport) -> None:
        """The rank waits for another rank, may do so, or no longer does."""
        if report.as_of_ns <= 0:
            return
        wait = self._wait_of(key, rank, report)
        if wait is not None:
            self._waiting.add((key, rank))
        elif (key, rank) in self._waiting:
            self._waiting.discard((key, rank))
            times = report.as_of_ns, report.as_of_ns
            wait = UnrecordedWait(rank, WaitSource.INSPECTION, "", *times)
        if wait is not None:
            self._unrecorded.observe(key, wait)

    def _wait_of(self, key: AttemptKey, rank: int, report: WaitReport) -> UnrecordedWait | None:
        if holder := _other_holder(rank, report):
            op, peers = "lock", () if holder.rank is None else (holder.rank,)
            detail = text.clean(f"{report.waits_for.what} held by pid {holder.pid}")
        elif report.may_be_for_peer and (line := self._native_line(key, rank)):
            op, peers, detail = NATIVE, (), line
        else:
            return None
        times = report.since_ns, report.as_of_ns
        return UnrecordedWait(rank, WaitSource.INSPECTION, op, *times, peers, detail)


def _is_inspected(of: Finding) -> bool:
    return of.state is FindingState.OPEN and not (of.ended_by or of.kind is Kind.RANK_LOST)


def _other_holder(rank: int, report: WaitReport) -> Holder | None:
    """The process of another rank that provably holds what this one waits for."""
    found, holder = report.waits_for, report.waits_for.holder
    if found.kind not in _HELD or found.certainty is not Certainty.SEEN or holder is None:
        return None
    return None if holder.rank in (None, rank) else holder


def cleaned(of: T) -> T:
    """Printable and of bounded length, whatever names the job uses."""
    words: dict[str, Any] = {}
    for part in fields(of):
        value = getattr(of, part.name)
        if type(value) is str:  # not an enumeration
            words[part.name] = text.clean(value)
        elif isinstance(value, Holder):
            words[part.name] = cleaned(value)
    return replace(of, **words)
