"""Waits of ranks that no Flight Recorder shows, by rank and by who saw them.

Stored in node time, as all that is known of one rank, and aligned when a snapshot is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from frd.engine.state.tables import RankTable
from frd.model import (
    IDLE,
    NO_WAIT,
    POLL,
    REST,
    AlignedNs,
    NodeRawNs,
    RankState,
    Stage,
    UnrecordedWait,
    WaitSource,
)

_ANEW_NS: Final = 60_000_000_000
"""Longer than between two questions about one incident: with half of it, rounds of stacks, a minute
apart, never prove that none can be had; with twice as much, the answers to one hang count for the
next one."""


class UnrecordedWaits:
    def __init__(self) -> None:
        self._by_rank: dict[int, dict[WaitSource, UnrecordedWait]] = {}
        self._ended: list[UnrecordedWait] = []
        self.unanswered: dict[tuple[int, WaitSource], tuple[AlignedNs, AlignedNs, str]] = {}
        """See `Snapshot.unanswered`."""

    def observe(self, wait: UnrecordedWait) -> bool:
        """Replace the earlier wait of this rank and source; True if that changes anything.

        A report that is older than the known one changes nothing.
        """
        known = self._by_rank.setdefault(wait.rank, {})
        before = known.get(wait.source)
        if before is not None and wait.as_of_ns <= before.as_of_ns:
            return False
        if before is not None:
            is_over = before.op not in NO_WAIT and wait.op in NO_WAIT
            wait = replace(wait, left_ns=wait.since_ns if is_over else before.left_ns)
        known[wait.source] = wait
        self.unanswered.pop((wait.rank, wait.source), None)
        if before is not None and wait.since_ns > before.as_of_ns:
            self._end(before)
        return True

    def observe_unanswered(
        self, rank: int, source: WaitSource, asked_at: AlignedNs, why: str
    ) -> bool:
        """See `Attempt.observe_unanswered`. The longer that lasts, the less often it is news. If
        nothing was asked for a while it begins again."""
        first, last, _ = self.unanswered.get((rank, source), (asked_at, AlignedNs(0), ""))
        if asked_at - last > _ANEW_NS:
            first = asked_at
        elif asked_at - last <= min((last - first) // 2, _ANEW_NS // 4):
            return False
        self.unanswered[rank, source] = first, asked_at, why
        return True

    def _end(self, wait: UnrecordedWait) -> None:
        if wait.op not in NO_WAIT and (wait.source is not WaitSource.INSPECTION or wait.op == POLL):
            self._ended.append(wait)

    def observe_stage(self, rank: int, state: RankState, stage: Stage | None) -> None:
        """The stage of a rank in a status. A status without one ends the stage that was known."""
        if stage is not None:
            how = stage.op, stage.since_ns, stage.as_of_ns
            self.observe(UnrecordedWait(rank, WaitSource.STAGE, *how, detail=stage.where))
        elif WaitSource.STAGE in self._by_rank.get(rank, ()):
            over = self._by_rank[rank].pop(WaitSource.STAGE)
            if state is RankState.LIVE:
                self._end(over)

    def forget(self, rank: int) -> None:
        """Another process has the rank."""
        self._by_rank.pop(rank, None)
        for source in WaitSource:
            self.unanswered.pop((rank, source), None)

    def line(self, rank: int) -> tuple[str, int]:
        """The line in which the tap last saw the rank, and when in node time; -1 if not at all."""
        wait = self._by_rank.get(rank, {}).get(WaitSource.STAGE)
        return ("", -1) if wait is None else (wait.detail, wait.as_of_ns)

    @property
    def any_waits(self) -> bool:
        waits = (wait for known in self._by_rank.values() for wait in known.values())
        return any(wait.op not in NO_WAIT for wait in waits)

    def take_ended(self, ranks: RankTable, now: AlignedNs) -> dict[str, list[tuple[int, int]]]:
        """From when to when ranks were seen in calls that they have come out of since the last
        time, by name. A call that ended with its process does not count."""
        ended: dict[str, list[tuple[int, int]]] = {}
        for wait in _aligned(self._ended, ranks, now):
            ended.setdefault(wait.op, []).append((wait.since_ns, wait.as_of_ns))
        self._ended.clear()
        return ended

    def clear(self) -> None:
        self._by_rank.clear()
        self.unanswered.clear()

    def move_times(self, rank: int, by_ns: int) -> None:
        """The node time of a rank is by so much later from now on."""
        for source, wait in self._by_rank.get(rank, {}).items():
            self._by_rank[rank][source] = replace(
                wait,
                since_ns=NodeRawNs(wait.since_ns + by_ns),
                as_of_ns=NodeRawNs(wait.as_of_ns + by_ns),
                left_ns=NodeRawNs(wait.left_ns and wait.left_ns + by_ns),
            )

    def snapshot(
        self, ranks: RankTable, now: AlignedNs
    ) -> Mapping[int, tuple[UnrecordedWait, ...]]:
        """The waits that were seen last, in aligned time; without an op where one is over."""
        waits = [wait for known in self._by_rank.values() for wait in known.values()]
        found: dict[int, tuple[UnrecordedWait, ...]] = {}
        for wait in _aligned(waits, ranks, now):
            found[wait.rank] = (*found.get(wait.rank, ()), wait)
        return found


def _aligned(
    waits: Sequence[UnrecordedWait], ranks: RankTable, now: AlignedNs
) -> Iterator[UnrecordedWait]:
    """The same in aligned time."""
    of = np.array([wait.rank for wait in waits], np.int64)
    each = [(wait.since_ns, wait.as_of_ns, wait.left_ns) for wait in waits]
    times = np.array(each, np.int64).reshape(-1, 3).T
    columns = [ranks.to_aligned(of, column, now).tolist() for column in times]
    for wait, since, as_of, left in zip(waits, *columns, strict=True):
        yield replace(wait, since_ns=since, as_of_ns=as_of, left_ns=left)


def not_refuted(known: Sequence[UnrecordedWait]) -> list[UnrecordedWait]:
    """The sightings of a rank but for those by frames that it is idle, if /proc has shown since
    then that no request ends its wait: an event loop may wait for a reply as well."""
    by_proc = [w for w in known if w.source is WaitSource.INSPECTION and w.op == REST]
    blocked_at = max((wait.as_of_ns for wait in by_proc), default=-1)
    return [wait for wait in known if wait.op != IDLE or wait.since_ns > blocked_at]
