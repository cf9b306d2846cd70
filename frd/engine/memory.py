"""The memory of one attempt: series come in as columns, verdicts come out.

Feed it in the order of time and call `advance` a few times a second (when data of the past is fed
at once: after each second of it); then a verdict depends on the past alone.
"""

from __future__ import annotations

import numpy as np

from frd.engine.memory_verdict import MemoryVerdict
from frd.engine.policy import Policy
from frd.model import AlignedNs, Int32s, Int64s, MemoryEvent, SeriesInfo
from frd.views import MemoryView

MAX_BYTES = 1 << 50
"""More is no memory."""
_MAX_OF_CAPACITY = 4
"""A value this many times beyond the capacity is nonsense."""


class Memory:
    """All memory series of one attempt. Handles are ints."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._handles: dict[tuple[SeriesInfo, str], int] = {}
        self._infos: list[SeriesInfo] = []
        self._refused_series = 0
        self._used = np.empty(0, np.int64)
        self._capacity = np.empty(0, np.int64)
        self._end = np.empty(0, np.int64)

    def series(self, info: SeriesInfo, *, node: str = "", source: str = "") -> int:
        """The handle of a series; what is known of it stays, until its rank is forgotten.

        `node` says which ranks share host memory, `source` tells two processes under one rank
        apart. -1 when there are more than `policy.max_memory_series`: its samples are ignored.
        """
        handle = self._handles.get((info, source))
        if handle is None:
            if len(self._infos) >= self._policy.max_memory_series:
                self._refused_series += 1
                return -1
            handle = self._handles[info, source] = len(self._infos)
            self._infos.append(info)
            self._used = np.append(self._used, -1)
            self._capacity = np.append(self._capacity, 0)
            self._end = np.append(self._end, 0)
        return handle

    def observe(
        self,
        series: Int32s,
        capacity: Int64s,
        begin: Int64s,
        end: Int64s,
        values: Int64s,
        now: AlignedNs,
    ) -> int:
        """Samples of S series of one node at T moments; returns how many were refused.

        `series` and `capacity` are (S,), `values` is (S, T), -1 for no sample. `begin` and `end`
        are (T,), aligned and widened by what the clock leaves open: a value was read between its
        two. Refused are values that are negative or absurd, and moments that do not rise.
        """
        rising = (begin <= end) & (np.diff(begin, prepend=self._end[series].max(initial=0)) > 0)
        limit = np.where(capacity > 0, _MAX_OF_CAPACITY * capacity, MAX_BYTES)
        good = (values >= -1) & (values <= limit[:, None]) & rising & (series >= 0)[:, None]
        for row, handle in enumerate(series.tolist()):
            seen = values[row, good[row] & (values[row] >= 0)]
            if handle >= 0 and len(seen):
                self._used[handle], self._capacity[handle] = seen[-1], capacity[row]
                self._end[handle] = end[-1]
        return int((~good).sum())

    def event(self, event: MemoryEvent, at: AlignedNs, uncertainty_ns: int, now: AlignedNs) -> None:
        """An allocation failed, the kernel killed, a device is lost: at most `uncertainty_ns`
        before or after `at`."""

    def forget(self, rank: int | None = None) -> None:
        """The rank (None: every rank) is another process now. Handles stay good."""
        for (info, _), row in self._handles.items():
            if rank is None or info.rank == rank:
                self._used[row], self._capacity[row], self._end[row] = -1, 0, 0

    def advance(self, now: AlignedNs) -> list[MemoryVerdict]:
        """What became of incidents since the last call."""
        return []

    def view(self) -> MemoryView:
        """The newest values, and a few before them; nothing in it changes afterwards."""
        rows = sorted(self._handles.values(), key=lambda row: self._infos[row].rank)
        return MemoryView(
            series=[self._infos[row] for row in rows],
            used=self._used[rows],
            capacity=self._capacity[rows],
            recent=self._used[rows, None],
            every_s=2.0,
        )

    @property
    def evicted(self) -> dict[str, int]:
        """Things dropped to stay within limits, by what."""
        return {"memory_series": self._refused_series}
