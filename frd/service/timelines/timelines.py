"""Timelines of all findings: those of open ones as they are now, those of closed ones as kept.

The engine remembers the last ops of an attempt only, and a job that goes on, or ends, replaces
them. So the timeline of a finding is stored when it opens, again while late reports come in or its
curves go on, and for a last time when it closes. Nothing waits for this, and a store that fails
costs a picture.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from frd.engine.views import AttemptView, StatusView
from frd.errors import StoreError
from frd.model import AlignedNs, AttemptKey, Change, Finding, FindingEvent, Kind
from frd.service.state import ServiceState
from frd.service.timelines.drawing import OF_MEMORY, drawn, lanes_of, placed
from frd.service.timelines.timeline import Timeline, closed, merged
from frd.store.timelines import TimelineStore

LOOK_EVERY_S: Final = 2.0
_SETTLED_AFTER_S: Final = 30.0
"""By then, the rows about the time of the opening have come."""
_AGAIN_AFTER_S: Final = 5.0
_MOST_A_LOOK: Final = 8
_AFTER_OPENING_NS: Final = 2_000_000_000
_GROWING: Final = OF_MEMORY | {Kind.STRAGGLER}
"""Their curves go on as long as they are open."""

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Timelines:
    """`state` is the published state of the service."""

    store: TimelineStore
    state: Callable[[], ServiceState]
    clock: Callable[[], AlignedNs]
    _kept_at: dict[str, AlignedNs] = field(default_factory=dict)
    """When the timeline of each open finding was last stored."""
    _closing: dict[str, Finding] = field(default_factory=dict)
    store_errors: int = 0

    def see(self, events: Iterable[FindingEvent]) -> None:
        """The next look takes up what has opened or closed."""
        for event in events:
            if event.change is Change.CLOSED:
                self._closing[event.finding.id] = event.finding

    async def look(self) -> None:
        """Store the timelines that are due. What is cut off here is due at the next look."""
        now, still_open = self.clock(), self.state().open_findings()
        closing = list(self._closing.values())[:_MOST_A_LOOK]
        utc = self.state().utc(now)
        due = [finding for finding in still_open if self._is_due(finding, now, utc)]
        due.sort(key=lambda finding: self._kept_at.get(finding.id, 0))
        for finding in (*closing, *due[:_MOST_A_LOOK]):
            await asyncio.to_thread(self._keep, finding)
            self._kept_at[finding.id] = now
            self._closing.pop(finding.id, None)
        ids = {finding.id for finding in still_open}
        self._kept_at = {id_: at for id_, at in self._kept_at.items() if id_ in ids}

    def _is_due(self, finding: Finding, now: AlignedNs, utc: AlignedNs) -> bool:
        kept_at = self._kept_at.get(finding.id)
        if kept_at is None:
            return True
        changes = finding.kind in _GROWING or utc - finding.opened_at < _SETTLED_AFTER_S * 1e9
        return changes and now - kept_at >= _AGAIN_AFTER_S * 1e9

    def _keep(self, finding: Finding) -> None:
        """The event loop must not hold a publication, whose arrays it would free."""
        state = self.state()
        view = _view(state, finding)
        try:
            timeline = self.of(finding, view, state.status_view, None, goes_on=False)
            is_final = finding.closed_at is not None
            self.store.save(finding.id, finding.opened_at, timeline.encode(), is_final=is_final)
        except StoreError as error:
            if not self.store_errors:
                log.error("%s", error)
            self.store_errors += 1

    def now(self, finding: Finding, ranks: Collection[int] | None) -> Timeline:
        """As `of`, from what is published."""
        state = self.state()
        # Later, the job does other things.
        lives = finding.closed_at is None or finding.id in self._closing
        view = _view(state, finding) if lives else None
        return self.of(finding, view, state.status_view, ranks)

    def of(
        self,
        finding: Finding,
        view: AttemptView | None,
        seen: StatusView,
        ranks: Collection[int] | None,
        *,
        goes_on: bool = True,
    ) -> Timeline:
        """The timeline of a finding, with lanes for `ranks` (None: for those that matter most).
        Reads the disk. `view`, a part of `seen`, is of its attempt; None if that does other things
        by now. A straggler is late all the time: if it `goes_on`, what it does now is worth as much
        as what it did.

        Raises:
            StoreError: the store cannot be read.
        """
        ahead_ns, at = seen.utc_ahead_ns, int(seen.at)
        found = self._kept(finding.id) or Timeline(at=at).later(ahead_ns)
        if finding.id in self._kept_at:  # by this process, which has the same aligned time
            found = found.later(ahead_ns - found.utc_ahead_ns)
        if view is not None:
            is_endless = goes_on and finding.kind is Kind.STRAGGLER
            until = None if is_endless else AlignedNs(_end(finding) - ahead_ns)
            found = merged(found, drawn(finding, view, at, ranks, until=until).later(ahead_ns))
        found = msgspec.structs.replace(found, lanes=placed(finding, found.lanes))
        if ranks is not None:
            found = found.of(ranks)
        return found if finding.closed_at is None else closed(found, finding.closed_at)

    def lanes(self, finding: Finding, most: int) -> list[int] | None:
        """The ranks of an open finding that matter most; None if its attempt is not known. Reads
        the disk."""
        view = _view(self.state(), finding)
        if view is None or finding.closed_at is not None:
            return None
        kept = self._kept(finding.id)
        stored = {lane.rank for lane in kept.lanes} if kept is not None else set()
        ranks = sorted(stored.union(view.rank_columns.rank.tolist()))
        return lanes_of(finding, ranks, most)

    def keeps(self, finding_id: str) -> bool:
        """Whether the last timeline of this closed finding is stored. Reads the disk."""
        return self.store.is_final(finding_id)

    def _kept(self, finding_id: str) -> Timeline | None:
        body = self.store.get(finding_id)
        if body is None:
            return None
        try:
            return Timeline.decode(body)
        except (ValueError, RecursionError) as error:
            log.warning("timelines: %s: %s: %s: it is replaced", self.store.path, finding_id, error)
            self.store_errors += 1
            return None


def _end(finding: Finding) -> AlignedNs:
    """Ops that all ranks enqueued later are of another time. This bounds what is stored, too."""
    return AlignedNs(finding.opened_at + _AFTER_OPENING_NS)


def _view(state: ServiceState, finding: Finding) -> AttemptView | None:
    key = AttemptKey(finding.job, finding.attempt)
    return next((view for view in state.status_view.attempts if view.key == key), None)
