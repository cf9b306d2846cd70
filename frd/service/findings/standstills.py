"""Asks ranks for their stacks while nothing of their job moves: waits that no recorder shows.

Three occasions, in this order:

- A stack showed a wait for the first time: the same ranks are asked once more, because two stacks
  prove a wait (`stack_waits`). With a finding, a moment later; without one, after the threshold.
- A finding about a hang is open: the ranks that wait are asked again every minute, because such a
  wait ends without a trace.
- No finding is open, and no watermark of any rank has risen for the stall threshold, though ranks
  are alive: up to `MAX_RANKS` of them are asked, at most once a minute. Where no rank waits, the
  next time is twice as late: a job may compute for long, and sends and receives of Gloo move no
  watermark.

Of a job that makes progress no rank is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from frd.engine.attempt import Attempt
from frd.engine.engine import Engine
from frd.engine.hangs.calls import threshold_of_call_ns
from frd.engine.state.snapshot import AT_REST
from frd.errors import FrdError
from frd.model import AlignedNs, AttemptKey, Finding, FindingState, Kind, RankState
from frd.service.findings.dumper import Dumper
from frd.service.findings.stack_waits import Confirm, StackWaits
from frd.service.state import ServiceState

MAX_RANKS: Final = 64
"""Ranks that are asked at a time."""
EVERY_S: Final = 60.0
LEAST_OFTEN_S: Final = 960.0
LOOK_EVERY_S: Final = 0.5
TIMEOUT_S: Final = 10.0
_LEAST_REST_S: Final = 1.0
_EXPLAINED: Final = frozenset(
    {Kind.STALL, Kind.ORDER, Kind.MISMATCH, Kind.RANK_LOST, Kind.OOM, Kind.TELEMETRY_GAP}
)
"""Kinds of finding that explain why nothing moves."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Watched:
    """One attempt."""

    still_since: AlignedNs
    """When a watermark last rose, or the first group was seen."""
    due_at: AlignedNs
    """When its ranks may be asked again."""
    pause_s: float = EVERY_S
    is_explained: bool = False
    """A finding says why nothing moves."""
    asked: int = 0
    """How often ranks were asked because nothing moved."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Standstills:
    def __init__(
        self,
        engine: Engine,
        dumper: Dumper,
        waits: StackWaits,
        *,
        now: Callable[[], AlignedNs],
        state: Callable[[], ServiceState],
    ) -> None:
        self._engine = engine
        self._dumper = dumper
        self._waits = waits
        self._now = now
        self._state = state
        self._watched: dict[AttemptKey, _Watched] = {}

    def look(self) -> None:
        """Ask where there is an occasion; does not block."""
        now, view = self._now(), self._state().status_view
        running = {one.key for one in view.attempts if not (one.ended or one.superseded)}
        for key in self._watched.keys() - running:
            self._cancel(self._watched.pop(key))
        self._waits.keep(running)
        explained: dict[AttemptKey, list[Finding]] = {}
        for finding in view.findings:
            if finding.state is FindingState.OPEN and finding.kind in _EXPLAINED:
                explained.setdefault(AttemptKey(finding.job, finding.attempt), []).append(finding)
        for key in running:
            attempt = self._engine.known(key)
            if attempt is not None and attempt.tables.groups.count:
                self._look_at(key, attempt, now, explained.get(key, ()))

    async def close(self) -> None:
        for watched in self._watched.values():
            self._cancel(watched)
            await asyncio.gather(*watched.tasks, return_exceptions=True)

    def at_rest_after_ns(self, key: AttemptKey) -> Confirm:
        """How long a wait must last to prove that its rank is at rest, which is enough for a rank
        of an open finding."""
        attempt = self._engine.known(key)
        groups = attempt.tables.groups if attempt is not None else None
        rest_ns = groups.threshold_ns[: groups.count].min() if groups and groups.count else 0
        after_ns = int(max(rest_ns * AT_REST, _LEAST_REST_S * 1e9))
        return lambda op: after_ns

    def _stalled_after_ns(self, attempt: Attempt, now: AlignedNs) -> Confirm:
        """How long a wait must last to be a hang itself."""
        groups, learned_ns = attempt.tables.groups, attempt.call_thresholds_ns(now)
        threshold_ns = int(groups.threshold_ns[: groups.count].max())
        return lambda op: threshold_of_call_ns(op, self._engine.policy, threshold_ns, learned_ns)

    def _look_at(
        self, key: AttemptKey, attempt: Attempt, now: AlignedNs, explained: Sequence[Finding]
    ) -> None:
        is_explained = bool(explained)
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(now, now)
        if again := self._waits.to_confirm(key, now):
            self._ask(key, watched, again[:MAX_RANKS], None)
            return
        if (moved_at := attempt.tables.moved_at(now)) > watched.still_since:
            watched.still_since, watched.pause_s = AlignedNs(moved_at), EVERY_S
        if is_explained and not watched.is_explained:  # the responder asks its ranks now
            watched.due_at = AlignedNs(now + round(EVERY_S * 1e9))
        watched.is_explained = is_explained
        if now < watched.due_at or watched.tasks:
            return
        if is_explained:
            waiting = sorted({*self._waits.waiting(key), *_in_calls(explained)})[:MAX_RANKS]
            self._start_round(key, watched, waiting, now, self.at_rest_after_ns(key))
            return
        groups = attempt.tables.groups
        if now - watched.still_since >= groups.threshold_ns[: groups.count].max():
            if watched.asked and not self._waits.waiting(key):
                watched.pause_s = min(2 * watched.pause_s, LEAST_OFTEN_S)
            some = self._some_of(attempt, watched)
            self._start_round(key, watched, some, now, self._stalled_after_ns(attempt, now))
            watched.asked += 1

    def _start_round(
        self,
        key: AttemptKey,
        watched: _Watched,
        ranks: Sequence[int],
        now: AlignedNs,
        confirm_after_ns: Confirm,
    ) -> None:
        watched.due_at = AlignedNs(now + round(watched.pause_s * 1e9))
        if ranks:
            self._ask(key, watched, ranks, confirm_after_ns)

    def _some_of(self, attempt: Attempt, watched: _Watched) -> list[int]:
        """Living ranks, others each time if there are too many, spread over the job."""
        statuses = attempt.tables.ranks.statuses
        ranks = [
            rank
            for rank in attempt.tables.ranks.sorted().tolist()
            if rank not in statuses or statuses[rank].state is RankState.LIVE
        ]
        step = -(-len(ranks) // MAX_RANKS) or 1
        return ranks[watched.asked % step :: step]

    def _ask(
        self,
        key: AttemptKey,
        watched: _Watched,
        ranks: Sequence[int],
        confirm_after_ns: Confirm | None,
    ) -> None:
        task = asyncio.create_task(self._read(key, ranks, confirm_after_ns))
        watched.tasks.add(task)
        task.add_done_callback(watched.tasks.discard)

    async def _read(
        self, key: AttemptKey, ranks: Sequence[int], confirm_after_ns: Confirm | None
    ) -> None:
        asked_at = self._now()

        def on_stack(rank: int, text: str) -> None:
            self._waits.take(
                *(key, rank, text),
                asked_at=asked_at,
                answered_at=self._now(),
                confirm_after_ns=confirm_after_ns,
            )

        try:
            await self._dumper.stacks(
                *(key, ranks), timeout_s=TIMEOUT_S, children_of=(), on_stack=on_stack
            )
        except FrdError as error:
            log.debug("job %s: no stacks: %s", key.job, error)

    def _cancel(self, watched: _Watched) -> None:
        for task in watched.tasks:
            task.cancel()


def _in_calls(findings: Iterable[Finding]) -> Iterator[int]:
    """The ranks that findings about calls without a record are about: an earlier process of the
    service may have seen them there."""
    for finding in findings:
        if (ref := finding.collective) is not None and not ref.group_id:
            yield from ref.waiting_ranks
            yield from (suspect.rank for suspect in finding.suspects)
