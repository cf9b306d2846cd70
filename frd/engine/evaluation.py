"""One attempt under observation: when to look at it, with what, and what was found.

What stands still is one matter (`Incidents`), and whatever else can be wrong with an attempt has a
*watcher* of its own: something that is shown the attempt at every tick and says what became of its
findings. A look costs one cheap question when all is well; a picture is cut, and causes are sought,
only while something is stuck, lost, mismatched or open. Looks at a big job are spaced by its size,
so that a hanging job of 16,384 ranks does not take the processor from those who report on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from frd.engine.attempt import Attempt
from frd.engine.clock_faults import ClockWatcher
from frd.engine.findings import builder
from frd.engine.findings.board import Board
from frd.engine.hangs.diagnosis import find
from frd.engine.hangs.incidents import Incidents
from frd.engine.hangs.lost_ranks import judged_after_s
from frd.engine.memory.detector import MemoryWatcher
from frd.engine.policy import Policy
from frd.engine.state.snapshot import MismatchFact, StallTable
from frd.engine.stragglers.detector import StragglerWatcher
from frd.model import (
    Activity,
    AlignedNs,
    AttemptKey,
    Change,
    Finding,
    FindingEvent,
    FindingState,
    Kind,
)
from frd.views import AttemptView

_LOOK_AGAIN_NS = 1_000_000_000
"""How often to look although nobody reported: telemetry gets late, claims get confirmed."""
_PAUSE_NS_PER_RANK = 125_000
"""The least time between two looks, by ranks."""
_GIVES_WAY_NS = 60_000_000_000
_OLD_NEWS_NS = 30_000_000_000
"""A rank that went away this long before the service heard of the attempt was told of before."""
_FATAL = (Kind.RANK_LOST, Kind.OOM)
"""What an attempt may have ended of is open for a while after its end, so that it is seen."""
_LOSS_OUTLASTS_NS = 30_000_000_000
"""A lost rank of an attempt that has ended: two scrapes of a Prometheus with usual settings."""
_UNHEARD_S = 60.0
"""A lost rank of an attempt of which no agent has told since the service started."""


class Watcher(Protocol):
    """Looks for one sort of trouble in an attempt."""

    @property
    def board(self) -> Board:
        """Its open findings; nobody else opens one, others may close them all."""

    def look(self, attempt: Attempt, now: AlignedNs, *, room: int) -> list[FindingEvent]:
        """What became of its findings, at most `room` more of them; called at every tick."""

    def adopt(self, policy: Policy) -> None:
        """Look by another policy from now on."""


class Case:
    """An attempt, its findings, and what looking at it needs to remember."""

    def __init__(self, key: AttemptKey, policy: Policy) -> None:
        self._incidents = Incidents(key, policy)
        self._watchers: list[Watcher] = [
            MemoryWatcher(key),
            StragglerWatcher(key, policy),
            ClockWatcher(key, policy),
        ]
        self._boards: list[Incidents | Board] = [self._incidents]
        self._boards += [watcher.board for watcher in self._watchers]
        self.attempt: Attempt | None = None
        """None while only findings of an earlier process of the service tell of it."""
        self.superseded_at: AlignedNs | None = None
        """Another attempt of the job runs instead; this one is not looked at any more."""
        self.ended_at: AlignedNs | None = None
        """All of its ranks are gone, or those who could tell of them have been for long."""
        self.deserted_at: AlignedNs | None = None
        """Since when no agent speaks for any of its ranks."""
        self._policy = policy
        self._looked_at = AlignedNs(0)
        self._looked_revision = -1
        self._dismissed: set[str] = set()
        """Ids of findings that somebody closed by hand. Their boards go on with them, so that the
        same incident opens no other finding, but nobody hears of them again."""
        self._facts: dict[tuple[int, int], AlignedNs] = {}
        """(group, seq) of the mismatches that are known, and since when."""

    def adopt(self, policy: Policy) -> None:
        """See `Engine.adopt`."""
        self._policy = policy
        self._incidents.adopt(policy)
        for watcher in self._watchers:
            watcher.adopt(policy)
        if self.attempt is not None:
            self.attempt.adopt(policy)

    @property
    def over_at(self) -> AlignedNs | None:
        """Since when nothing is expected of the attempt any more."""
        over = [at for at in (self.ended_at, self.superseded_at) if at is not None]
        return min(over, default=None)

    def is_deserted(self, now: AlignedNs) -> bool:
        """No agent has spoken for it for a minute: it may give way to another."""
        return self.deserted_at is not None and now - self.deserted_at >= _GIVES_WAY_NS

    def resume(self) -> None:
        """Its job runs in this attempt, whatever was thought before."""
        self.superseded_at = self.ended_at = self.deserted_at = None

    def view(self, now: AlignedNs) -> list[AttemptView]:
        """What people see of the attempt, if anything but old findings is known of it."""
        if self.attempt is None:
            return []
        view = self.attempt.view(now)
        ended = view.ended or self.ended_at is not None
        return [replace(view, ended=ended, superseded=self.superseded_at is not None)]

    # -- findings ----------------------------------------------------------------------------

    def __len__(self) -> int:
        """Open findings."""
        return sum(map(len, self._boards))

    def findings(self, now: AlignedNs) -> list[Finding]:
        found = [finding for board in self._boards for finding in board.findings(now)]
        return [finding for finding in found if finding.id not in self._dismissed]

    def dismiss(self, finding_id: str, now: AlignedNs, reason: str) -> FindingEvent | None:
        """Close a finding because somebody says so; None when it is not open here."""
        found = next((f for f in self.findings(now) if f.id == finding_id), None)
        if found is None:
            return None
        self._dismissed.add(finding_id)
        closed = replace(found, state=FindingState.CLOSED, closed_at=now, close_reason=reason)
        return FindingEvent(Change.CLOSED, builder.finished(closed))

    def close_all(
        self, now: AlignedNs, reason: str, *, but: Collection[Kind] = ()
    ) -> list[FindingEvent]:
        closed = [e for board in self._boards for e in board.close_all(now, reason, but=but)]
        return self._audible(closed)

    def expire(self, now: AlignedNs) -> list[FindingEvent]:
        """Close what has not been seen for long."""
        after_s = self._policy.lost_close_after_s
        closed = [event for board in self._boards for event in board.expire(now, after_s)]
        if self.attempt is None:
            closed += self._incidents.expire(now, min(after_s, _UNHEARD_S), of=(Kind.RANK_LOST,))
        return self._audible(closed)

    def _audible(self, events: Iterable[FindingEvent]) -> list[FindingEvent]:
        """All events but those of dismissed findings, which are forgotten once they are over."""
        audible = []
        for event in events:
            if event.finding.id not in self._dismissed:
                audible.append(event)
            elif event.change is Change.CLOSED:
                self._dismissed.discard(event.finding.id)
        return audible

    def restore(self, finding: Finding, now: AlignedNs) -> None:
        """Go on with a finding of an earlier process of the service."""
        mine = [board for board in self._boards if finding.kind in board.kinds]
        (mine or [self._incidents])[0].restore(finding, now)

    def attach(
        self,
        finding_id: str,
        *,
        rank: int | None,
        activity: Activity | None,
        note: str,
        dump: str | None,
    ) -> list[FindingEvent] | None:
        """Better evidence for a finding; None when it is not open here, or was dismissed."""
        if finding_id in self._dismissed:
            return None
        for board in self._boards:
            events = board.attach(finding_id, rank=rank, activity=activity, note=note, dump=dump)
            if events is not None:
                return events
        return None

    # -- looking -----------------------------------------------------------------------------

    def look(self, now: AlignedNs, *, room: int) -> Iterator[FindingEvent]:
        """What becomes of the attempt's findings; at most `room` more of them open.

        Events come as they happen: when a watcher fails, those of the others are known already.
        """
        for event in self._look(now, room):
            yield from self._audible([event])

    def _look(self, now: AlignedNs, room: int) -> Iterator[FindingEvent]:
        attempt = self.attempt
        if attempt is None or self.superseded_at is not None:
            return
        if self._is_abandoned(attempt, now):
            self.ended_at = self.ended_at or now
            waited_s = self._policy.deserted_after_s
            yield from self.close_all(now, f"no agent has reported on it for {waited_s:.0f} s")
            return
        if not attempt.ended():
            self.ended_at = None
        elif self.ended_at is None:
            self.ended_at = now
        elif now - self.ended_at > (judged_after_s(self._policy) + 0.5) * 1e9:
            is_long_over = now - self.ended_at > _LOSS_OUTLASTS_NS
            still_told = (Kind.OOM,) if is_long_over else _FATAL
            yield from self.close_all(now, "the attempt ended", but=still_told)
            return
        before, left = len(self), room
        if events := self._look_for_stalls(attempt, now, room):
            yield from events
            left = room - (len(self) - before)
        for watcher in self._watchers:
            if events := watcher.look(attempt, now, room=left):
                yield from events
                left = room - (len(self) - before)

    def supersede(self, now: AlignedNs, reason: str) -> list[FindingEvent]:
        """Another attempt of the job runs instead: tell what ended this one, and close it all."""
        events: list[FindingEvent] = []
        judged_ns = judged_after_s(self._policy) * 1e9
        is_fresh = self.ended_at is None or now - self.ended_at <= judged_ns
        if self.attempt is not None and is_fresh:
            old_news = AlignedNs(self.attempt.created_at - _OLD_NEWS_NS)
            events += self._incidents.settle(self.attempt.snapshot(now), old_news)
        self.superseded_at = now
        return self._audible(events) + self.close_all(now, reason)

    def _look_for_stalls(self, attempt: Attempt, now: AlignedNs, room: int) -> list[FindingEvent]:
        stalled = attempt.stalls(now)
        is_over = attempt.lost or attempt.has_deserters
        if not (len(stalled) or attempt.disagrees or is_over or len(self._incidents)):
            return []
        since_ns = now - self._looked_at
        if since_ns < attempt.world_size * _PAUSE_NS_PER_RANK or (
            attempt.revision == self._looked_revision and since_ns < _LOOK_AGAIN_NS
        ):
            return []
        self._looked_at, self._looked_revision = now, attempt.revision
        snapshot = attempt.snapshot(now)
        snapshot = replace(snapshot, mismatches=self._ripe(snapshot.mismatches, stalled, now))
        verdicts = find(
            snapshot,
            stalled,
            threshold_s=attempt.threshold_s,
            late_s=self._policy.telemetry_late_s,
        )
        old_news = AlignedNs(attempt.created_at - _OLD_NEWS_NS)
        return self._incidents.update(snapshot, stalled, verdicts, old_news=old_news, room=room)

    def _is_abandoned(self, attempt: Attempt, now: AlignedNs) -> bool:
        if attempt.has_agents:
            self.deserted_at = None
            return False
        self.deserted_at = self.deserted_at or now
        return now - self.deserted_at >= self._policy.deserted_after_s * 1e9

    def _ripe(
        self, facts: Sequence[MismatchFact], stalled: StallTable, now: AlignedNs
    ) -> list[MismatchFact]:
        """Mismatches that can be told: all members are there, or it has been waited for them."""
        self._facts = {
            (fact.group, fact.seq): self._facts.get((fact.group, fact.seq), now) for fact in facts
        }
        stuck = set(zip(stalled.group.tolist(), stalled.seq.tolist(), strict=True))
        grace_ns = self._policy.mismatch_grace_s * 1e9
        return [
            fact
            for fact in facts
            if fact.complete
            or (fact.group, fact.seq) in stuck
            or now - self._facts[fact.group, fact.seq] >= grace_ns
        ]
