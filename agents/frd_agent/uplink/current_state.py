"""What is true now of every rank, and which of it the service has not been told.

Watermarks, channels and statuses replace one another: only the newest matters, so nothing queues
up here however slow the stream is. Space grows with ranks and groups, never with time. Indexes are
those of the dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import numpy as np

from frd.model import ChannelColumns, NodeNs, RankStatus, WatermarkColumns
from frd.wire import Statuses, Watermarks
from frd_agent.recorder.progress import Marks
from frd_agent.recorder.rows import LATEST_NS
from frd_agent.recorder.standing import Standing

_STATUSES_A_MESSAGE: Final = 256
_SLOW_NS: Final = 1_000_000_000
_LONG_KNOWN_NS: Final = 60_000_000_000

Pair: TypeAlias = tuple[int, int]
"""Rank index, group index."""


class Board:
    def __init__(self, attempt_of: Callable[[int], int]) -> None:
        """`attempt_of`: the attempt index of a rank index."""
        self._attempt_of = attempt_of
        self._marks: dict[Pair, Marks] = {}
        self._as_of: dict[int, NodeNs] = {}
        self._status: dict[int, RankStatus] = {}
        self._channels: dict[int, ChannelColumns] = {}
        self._waiting: set[Pair] = set()
        """Pairs with something outstanding."""
        self._untold_marks: dict[Pair, None] = {}
        self._untold_as_of: dict[int, None] = {}
        self._untold_status: dict[int, None] = {}
        self._untold_channels: dict[int, None] = {}

    # -- what is true --------------------------------------------------------------------------

    def set_marks(self, rank: int, group: int, marks: Marks) -> None:
        pair = rank, group
        if self._marks.get(pair) != marks:
            self._marks[pair] = marks
            self._untold_marks[pair] = None
            (self._waiting.add if marks.head_created_ns else self._waiting.discard)(pair)

    def set_standing(self, rank: int, standing: Standing) -> None:
        for group, marks in standing.marks:
            self.set_marks(rank, group, marks)
        if standing.as_of_ns:
            self.set_as_of(rank, standing.as_of_ns)

    def expect(self, rank: int, group: int) -> None:
        """The rank is in the group; nothing is known of what it did there."""
        if (rank, group) not in self._marks:
            self.set_marks(rank, group, Marks())

    def set_as_of(self, rank: int, at_ns: NodeNs) -> None:
        """Up to when the rank's marks are the whole truth; goes back only with the clock."""
        if at_ns > self._as_of.get(rank, 0):
            self._as_of[rank] = at_ns
            self._untold_as_of[rank] = None

    def set_back(self, by_ns: int) -> None:
        """The wall clock has been: what was just true is not of the future now."""
        self._as_of = {rank: NodeNs(max(at_ns - by_ns, 1)) for rank, at_ns in self._as_of.items()}

    def set_status(self, status: RankStatus) -> None:
        if self._status.get(status.rank) != status:
            self._status[status.rank] = status
            self._untold_status[status.rank] = None

    def set_channels(self, channels: ChannelColumns) -> None:
        known = self._channels.get(channels.rank)
        if known is None or not _same(known, channels):
            self._channels[channels.rank] = channels
            self._untold_channels[channels.rank] = None

    def forget(self, rank: int) -> None:
        self._as_of.pop(rank, None)
        self._status.pop(rank, None)
        self._channels.pop(rank, None)
        for pair in [pair for pair in self._marks if pair[0] == rank]:
            del self._marks[pair]
            self._untold_marks.pop(pair, None)
            self._waiting.discard(pair)
        for untold in (self._untold_as_of, self._untold_status, self._untold_channels):
            untold.pop(rank, None)

    # -- what is to be told --------------------------------------------------------------------

    def rewind(self) -> None:
        """A new stream has been told nothing."""
        self._untold_marks = dict.fromkeys(self._marks)
        self._untold_as_of = dict.fromkeys(self._as_of)
        self._untold_status = dict.fromkeys(self._status)
        self._untold_channels = dict.fromkeys(self._channels)

    def next_channels(self) -> ChannelColumns | None:
        while self._untold_channels:
            rank = next(iter(self._untold_channels))
            del self._untold_channels[rank]
            return self._channels[rank]
        return None

    def next_watermarks(self, sent_at_ns: NodeNs) -> Watermarks | None:
        """All that is untold of one attempt; None when nothing is."""
        first = next(iter(self._untold_marks), None)
        rank = next(iter(self._untold_as_of), None) if first is None else first[0]
        if rank is None:
            return None
        attempt = self._attempt_of(rank)
        pairs = [pair for pair in self._untold_marks if self._attempt_of(pair[0]) == attempt]
        seen = [rank for rank in self._untold_as_of if self._attempt_of(rank) == attempt]
        for pair in pairs:
            del self._untold_marks[pair]
        for rank in seen:
            del self._untold_as_of[rank]
        return Watermarks(attempt, self._columns(pairs, seen), sent_at_ns)

    def next_statuses(self) -> Statuses | None:
        if not self._untold_status:
            return None
        ranks = list(self._untold_status)[:_STATUSES_A_MESSAGE]
        for rank in ranks:
            del self._untold_status[rank]
        return Statuses(tuple(self._status[rank] for rank in ranks))

    def is_told(self, rank: int) -> bool:
        """The stream has been given the rank's last status."""
        return rank not in self._untold_status

    def someone_waits(self, now_ns: int) -> bool:
        """A collective is slow enough that its end or its age is news, and not long known."""
        oldest = min((self._marks[pair].head_created_ns for pair in self._waiting), default=now_ns)
        return _SLOW_NS < now_ns - oldest < _LONG_KNOWN_NS

    @property
    def has_news(self) -> bool:
        """Something that should not wait for the next round of watermarks."""
        return bool(self._untold_status or self._untold_channels)

    def _columns(self, pairs: Iterable[Pair], seen: list[int]) -> WatermarkColumns:
        pairs = list(pairs)
        marks = [self._marks[pair] for pair in pairs]
        return WatermarkColumns(
            rank=np.array([rank for rank, _ in pairs], np.uint32),
            group=np.array([group for _, group in pairs], np.uint32),
            enqueued=np.array([m.enqueued for m in marks], np.int64),
            started=np.array([m.started for m in marks], np.int64),
            completed=np.array([m.completed for m in marks], np.int64),
            head_created_ns=np.array([min(m.head_created_ns, LATEST_NS) for m in marks], np.int64),
            seen_rank=np.array(seen, np.uint32),
            as_of_ns=np.array([self._as_of[rank] for rank in seen], np.int64),
        )


def _same(one: ChannelColumns, other: ChannelColumns) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("group", "peer", "is_send", "in_flight", "head_created_ns")
    )
