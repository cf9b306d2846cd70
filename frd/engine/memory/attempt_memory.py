"""The memory of one attempt: takes series as columns, returns what rises too far.

Feed it in the order of time and call `advance` a few times a second (with recorded data: after each
second of it). For a short record, a shorter `policy.memory_warmup_s` than that of a live job may be
right.

`frd.engine.memory.walk.series` decides what is usual of a series and when it rises,
`frd.engine.memory.decisions` which rank rose first.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from itertools import count
from typing import Final

import numpy as np

from frd.engine.clocks.alignment import Alignment
from frd.engine.memory.coverage import Coverage
from frd.engine.memory.decisions import Decisions
from frd.engine.memory.incident import MemoryIncident
from frd.engine.memory.incidents import Incidents
from frd.engine.memory.leaks import Leaks
from frd.engine.memory.report import report
from frd.engine.memory.rise import Failure
from frd.engine.memory.walk.inbox import ALIGNED, Batch, Inbox
from frd.engine.memory.walk.levels import SECOND
from frd.engine.memory.walk.rank_rise import RankRise
from frd.engine.memory.walk.recent import BIN_NS
from frd.engine.memory.walk.series import (
    HOST_KINDS,
    KINDS,
    OWN_KINDS,
    SETTLED_NS,
    SHARED_KINDS,
    Series,
)
from frd.engine.policy import Policy
from frd.engine.views import MemoryView, Rise
from frd.model import (
    AlignedNs,
    Int64s,
    MemoryColumns,
    MemoryEvent,
    MemoryEventKind,
    SeriesInfo,
    SeriesKind,
)

MAX_SERIES: Final = 131_072
"""Of one attempt. They take 300 MB."""
MOST_SHOWN: Final = 16
"""Rises in a view."""
_AHEAD_NS: Final = 10 * SECOND
"""A sample further in the future comes from a clock that was set. If it were accepted, all samples
until then would count as old. With half of it, samples of a node whose clock is known badly, to a
few seconds, are refused; with twice as much, one wrong sample blinds its series as much longer."""


class Memory:
    """All memory series of one attempt. Handles are ints and stay valid."""

    def __init__(self, policy: Policy) -> None:
        self._handles: dict[tuple[SeriesInfo, str], int] = {}
        self._pools: dict[tuple[str, str, int], int] = {}
        self._rows_of_pool: dict[int, list[int]] = {}
        """Of one device, or of one node's host memory."""
        self._turned_away = 0
        self._series = Series(policy)
        self._inbox = Inbox(self._series)
        numbers = count(1)
        self._decisions = Decisions()
        self._leaks = Leaks(self._series, numbers)
        self._incidents = Incidents(self._series, self._decisions, self._leaks, numbers)
        self._horizon = 0
        self.kept_ns = SETTLED_NS
        """How long rises are reported that are over."""
        self._order: Int64s = np.zeros(0, np.int64)
        """Rows sorted by rank; with `_ordered`, what a view needs of each series."""
        self._ordered: tuple[SeriesInfo, ...] = ()

    def adopt(self, policy: Policy) -> None:
        """Judge by another policy from now on; see `Engine.adopt`."""
        self._series.policy = policy

    def series(
        self, info: SeriesInfo, *, node: str = "", source: str = "", has_room: bool = True
    ) -> int:
        """The handle of a series; what is known of it stays until its rank is forgotten.

        `node` says which ranks share host memory, `source` distinguishes two processes of one rank.
        -1 without room, or beyond `MAX_SERIES`: the samples are ignored.
        """
        handle = self._handles.get((info, source))
        if handle is None:
            if not has_room or self._series.count >= MAX_SERIES:
                self._turned_away += 1
                return -1
            handle = self._handles[info, source] = self._series.count
            self._declare(handle, info, node)
        return handle

    @property
    def series_count(self) -> int:
        """Series that were ever made."""
        return self._series.count

    def _declare(self, row: int, info: SeriesInfo, node: str) -> None:
        series = self._series
        series.reserve(row + 1)
        series.infos.append(info)
        on_host = info.kind in HOST_KINDS
        place = node if on_host else info.device
        pool = ("host" if on_host else "device", place, -1 if place else info.rank)
        series.rank[row], series.kind[row] = info.rank, KINDS.index(info.kind)
        series.pool[row] = self._pools.setdefault(pool, len(self._pools))
        series.on_host[row], series.shared[row] = on_host, info.kind in SHARED_KINDS
        rows_nearby = series.near.setdefault((info.rank, int(series.pool[row])), [])
        rows_nearby.append(row)
        kinds = {KINDS[series.kind[other]]: other for other in rows_nearby}
        container = kinds.get(SeriesKind.CGROUP_USED if on_host else SeriesKind.DEVICE_USED)
        series.container[rows_nearby] = rows_nearby if container is None else container
        series.own[rows_nearby] = next((kinds[kind] for kind in OWN_KINDS if kind in kinds), -1)
        of_pool = self._rows_of_pool.setdefault(int(series.pool[row]), [])
        of_pool.append(row)
        if series.rank[of_pool[0]] != info.rank or series.crowded[of_pool[0]]:
            series.crowded[of_pool] = True
        # Tensors come and go within what the allocator holds; if that is known, it counts.
        tensors = series.kind[rows_nearby] == KINDS.index(SeriesKind.TORCH_ALLOCATED)
        series.watched[rows_nearby] = ~tensors | (len(kinds) == 1)

    def observe(
        self,
        columns: MemoryColumns,
        now: AlignedNs,
        *,
        clock: Alignment = ALIGNED,
        slack_ns: int = 0,
        refused: Callable[[int], object] = int,
    ) -> None:
        """Samples of S series of one node at T moments.

        `columns` has the engine's handles, and times of `clock`, which aligns them with an
        uncertainty of `slack_ns`. It only keeps them: `advance` evaluates those of all nodes
        together, and refuses values that are negative or absurd, and moments that do not rise or
        are of the future. `refused` gets their number.
        """
        if columns.values.size:
            self._inbox.put(Batch(columns, clock, slack_ns, now + _AHEAD_NS, refused))

    def observe_table(self, columns: MemoryColumns) -> int:
        """The same for series of many nodes, each with its own moments: `begin_ns` and `end_ns` are
        (S, T) too, of no more than two seconds. Times go on where no sample is, and do not fall."""
        known = np.flatnonzero(columns.series >= 0)
        if not len(known):
            return 0
        return self._inbox.put_table(
            MemoryColumns(
                columns.series[known].astype(np.int64),
                columns.capacity[known],
                columns.begin_ns[known],
                columns.end_ns[known],
                columns.values[known],
            )
        )

    def event(self, event: MemoryEvent, at: AlignedNs, uncertainty_ns: int, now: AlignedNs) -> None:
        """An allocation failed, the kernel killed, a device is lost: at most `uncertainty_ns`
        before or after `at`. An event without a device is about host memory."""
        if event.kind is not MemoryEventKind.DEVICE_LOST:
            self._incidents.add_failure(Failure(event, at, uncertainty_ns, now))

    def forget(self, rank: int | None = None) -> None:
        """The rank (None: every rank) is another process now. Handles stay valid."""
        self._inbox.flush()
        n = self._series.count
        all_rows = np.arange(n)
        row = all_rows if rank is None else all_rows[self._series.rank[:n] == rank]
        if len(row):
            self._series.forget(row)
            self._inbox.forget(row)

    def advance(self, now: AlignedNs) -> list[MemoryIncident]:
        """The incidents that there are, and those that are over since the last call."""
        self._inbox.flush()
        self._decide(now)
        return self._incidents.update(now) + self._leaks.update()

    def _decide(self, now: int) -> None:
        """Which of the ranks whose memory rises was first."""
        new = self._series.take_rises()
        if new or self._decisions.is_busy:
            coverage = Coverage(self._series)
            before, self._horizon = self._horizon, coverage.horizon(now)
            if new or self._horizon != before:
                self._decisions.advance(self._horizon, new, coverage)
                self._decisions.forget(self._horizon - self.kept_ns)

    def rises(
        self, uncertain: Set[int] = frozenset(), *, is_over: bool = False
    ) -> list[tuple[Rise, RankRise]]:
        """All rises by onset, alarming or not, each with that of its first rank.

        Args:
            uncertain: ranks whose memory is not known, or not when.
            is_over: no more samples will come.
        """
        coverage = Coverage(self._series, is_over=is_over)
        if is_over and coverage.ranks:
            self._horizon = int(coverage.newest.max())
            self._decisions.advance(self._horizon, self._series.take_rises(), coverage)
        if not self._decisions.is_busy:
            return []
        decided = self._decisions.decided
        open_ones = self._decisions.undecided(self._horizon, coverage, is_over=is_over)
        found = [*decided, *open_ones]
        shown = report(found, coverage.ranks, self._horizon, uncertain)
        return sorted(shown, key=lambda one: one[0].onset)

    def view(self) -> MemoryView:
        """The newest values, and a few before them; nothing in it changes afterwards."""
        series, rows = self._series, self._series.count
        if rows != len(self._order):
            self._order = np.argsort(series.rank[:rows], kind="stable")
            self._ordered = tuple(series.infos[row] for row in self._order.tolist())
        recent = series.recent.values(self._order)
        first, last = series.recent.span(self._order)
        return MemoryView(
            series=self._ordered,
            used=series.value[self._order],
            capacity=series.capacity[self._order],
            recent=recent,
            every_s=BIN_NS / SECOND,
            first_at=first,
            last_at=last,
            rises=[rise for rise, _ in self.rises()[-MOST_SHOWN:]],
        )

    @property
    def evicted(self) -> dict[str, int]:
        """What was dropped to stay within limits, by kind."""
        return {"memory_series": self._turned_away}
