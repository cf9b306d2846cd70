"""Progress of a rank: its recorders as last read, and the time up to which that is complete.

The absence of an op proves something only up to that time: the time at which the tap published its
counters, if none of them has changed since the dump; otherwise the time of the dump. Counters that
changed only say that there is something to read (`progress` says why). Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from frd.flight.entry import Status
from frd.model import NodeRawNs
from frd_agent.ranks.tap_files import TapCounters
from frd_agent.recorder.group_progress import GroupWatermarks, Progress
from frd_agent.recorder.transitions import RecorderTracker


@dataclass(frozen=True, slots=True)
class RankProgress:
    watermarks: list[tuple[int, GroupWatermarks]]
    """By group index."""
    as_of_ns: NodeRawNs
    """Time up to which the watermarks are complete; 0 if nothing was read."""
    exact: bool
    """`as_of_ns` is as new as the counters."""


def live_progress(
    trackers: Collection[RecorderTracker], raw: TapCounters | None, published_at_ns: NodeRawNs
) -> RankProgress:
    """`raw`: the tap's counters, None if it publishes none that can be read."""
    watermarks: list[tuple[int, GroupWatermarks]] = []
    views = [(tracker, tracker.latest) for tracker in trackers]
    seems_idle = not any(view.is_waiting for _, view in views)
    as_of: int | None = None
    exact = raw is not None and bool(trackers)
    for tracker, view in views:
        watermarks += [(of.group, of.watermarks if of.closed else m) for of, m in view.watermarks]
        until: int = tracker.whole_until_ns
        if not view.taken_at_ns and raw is not None and not _counters_of(tracker.number, raw):
            until = published_at_ns  # nothing was recorded there
        elif seems_idle and tracker.is_blind:
            exact, until = False, tracker.seen_until_ns
        elif raw is None or tracker.number is None or not 0 < view.taken_at_ns <= until:
            exact = False
        elif published_at_ns > view.taken_at_ns:
            if _has_rested(tracker, view, _counters_of(tracker.number, raw)):
                until = published_at_ns
            else:
                exact = False
        as_of = until if as_of is None else min(as_of, until)
    return RankProgress(watermarks, NodeRawNs(as_of or 0), exact)


def final_progress(
    trackers: Collection[RecorderTracker], raw: TapCounters | None, published_at_ns: NodeRawNs
) -> RankProgress | None:
    """Progress of a process that has ended, if its tap wrote the counters at exit; None if the
    counters do not show how far the process came."""
    watermarks: list[tuple[int, GroupWatermarks]] = []
    if raw is None or not trackers:
        return None
    for tracker in trackers:
        counters = _counters_of(tracker.number, raw)
        if not counters and not tracker.taken_at_ns:
            continue  # nothing was recorded there
        if tracker.number is None or not tracker.taken_at_ns or not tracker.is_whole:
            return None
        read = {progress.pg_id: progress for progress in tracker.groups}
        if any(status.enqueued > 0 and pg_id not in read for pg_id, status in counters.items()):
            return None  # a group that no dump has shown
        for pg_id, progress in read.items():
            last = counters.get(pg_id)
            known = progress.final_watermarks(last, published_at_ns) if last is not None else None
            if known is None:
                return None
            watermarks.append((progress.group, known))
    return RankProgress(watermarks, published_at_ns, exact=True)


def raw_counters(trackers: Iterable[RecorderTracker]) -> TapCounters:
    """The counters of the last dump, keyed like the tap's: recorder number and `pg_id`."""
    return {
        (tracker.number, pg_id): status
        for tracker in trackers
        if tracker.number is not None
        for pg_id, status in tracker.counters.items()
    }


def _counters_of(number: int | None, raw: TapCounters) -> dict[int, Status]:
    return {pg_id: status for (recorder, pg_id), status in raw.items() if recorder == number}


def _has_rested(tracker: RecorderTracker, view: Progress, counters: Mapping[int, Status]) -> bool:
    """Whether nothing was enqueued or completed since the dump."""
    closed = {progress.pg_id for progress in tracker.groups if progress.closed}
    alive = {progress.pg_id for progress in tracker.groups if not progress.closed}
    # A group without counters (torchcomms) may have unread entries.
    return (
        view.is_whole
        and alive <= counters.keys()
        and all(
            status == view.status.get(pg_id)
            for pg_id, status in counters.items()
            if pg_id not in closed
        )
    )
