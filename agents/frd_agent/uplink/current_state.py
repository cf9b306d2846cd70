"""The current state of every rank, and which parts have not been sent yet.

A new watermark, channel or status replaces the previous one, as do new phases, so nothing queues up
here even if the stream is slow. Space grows with ranks and groups, never with time. Indexes are
those of the dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum, auto
from itertools import islice
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np

from frd.model import (
    ChannelColumns,
    Int32s,
    NodeNs,
    NodeRawNs,
    RankPhases,
    RankStatus,
    UInt32s,
    WatermarkColumns,
)
from frd.wire.columns import CHANNEL_COLUMNS
from frd.wire.messages import Leaving, Statuses, Unreadable, Watermarks
from frd_agent.recorder.group_progress import GroupWatermarks
from frd_agent.recorder.rank_progress import RankProgress
from frd_agent.recorder.rows import LATEST_NS

_STATUSES_A_MESSAGE: Final = 256
_PHASES_A_MESSAGE: Final = 7
"""Ranks: the longest phases of one are 130 KiB."""
_ROWS_A_MESSAGE: Final = 16_384
"""Of watermarks: 640 KiB."""
_CHANNELS_A_RANK: Final = 24_000
"""870 KiB. More would need as many P2P ops in the recorder's ring."""
_SLOW_NS: Final = 1_000_000_000
_LONG_KNOWN_NS: Final = 60_000_000_000

Pair: TypeAlias = tuple[int, int]
"""Rank index, group index."""


_K = TypeVar("_K")
_V = TypeVar("_V")


class _Latest(Generic[_K, _V]):
    """The newest value by key, and the keys whose value was not sent on the stream."""

    def __init__(self) -> None:
        self.values: dict[_K, _V] = {}
        self.unsent: dict[_K, None] = {}

    def put(self, key: _K, value: _V) -> None:
        self.values[key] = value
        self.unsent[key] = None

    def change(self, key: _K, value: _V) -> None:
        """`value` counts as sent if it equals the one before; what is not compared is updated."""
        if self.values.get(key) != value:
            self.put(key, value)
        else:
            self.values[key] = value

    def take(self, keys: Iterable[_K]) -> list[_K]:
        """`keys`, which count as sent from now on."""
        taken = list(keys)
        for key in taken:
            del self.unsent[key]
        return taken

    def forget(self, key: _K) -> None:
        self.values.pop(key, None)
        self.unsent.pop(key, None)

    def rewind(self) -> None:
        self.unsent = dict.fromkeys(self.values)


class Wait(Enum):
    """Whether an op is so slow that the service should soon get its end or its age."""

    NO = auto()
    NEW = auto()
    OLD = auto()
    """It has been so for long, or is a send or receive: they may be waited in for long."""


class CurrentState:
    def __init__(self, attempt_of: Callable[[int], int]) -> None:
        """`attempt_of`: the attempt index of a rank index."""
        self._attempt_of = attempt_of
        self._watermarks: _Latest[Pair, GroupWatermarks] = _Latest()
        self._as_of: _Latest[int, NodeRawNs] = _Latest()
        self._status: _Latest[int, RankStatus] = _Latest()
        self._phases: _Latest[int, RankPhases] = _Latest()
        self._channels: _Latest[int, ChannelColumns] = _Latest()
        self._sends: dict[int, UInt32s | Int32s] = {}
        """Signatures of all sends and receives in flight, also of those that are not sent."""
        self._by_rank = self._as_of, self._status, self._phases, self._channels
        self._waiting: set[Pair] = set()
        """Pairs with something outstanding."""
        self._unreadable: _Latest[None, Unreadable] = _Latest()
        self._leaving: _Latest[None, Leaving] = _Latest()

    # -- changes -------------------------------------------------------------------------------

    def set_watermarks(self, rank: int, group: int, watermarks: GroupWatermarks) -> None:
        pair = rank, group
        self._watermarks.change(pair, watermarks)
        (self._waiting.add if watermarks.head_created_ns else self._waiting.discard)(pair)

    def set_progress(self, rank: int, progress: RankProgress) -> None:
        for group, watermarks in progress.watermarks:
            self.set_watermarks(rank, group, watermarks)
        if progress.as_of_ns:
            self.set_as_of(rank, progress.as_of_ns)

    def expect(self, rank: int, group: int) -> None:
        """The rank is in the group; its progress there is unknown."""
        if (rank, group) not in self._watermarks.values:
            self.set_watermarks(rank, group, GroupWatermarks())

    def set_as_of(self, rank: int, at_ns: NodeRawNs) -> None:
        """Time up to which the rank's watermarks are complete; never decreases."""
        if at_ns > self._as_of.values.get(rank, 0):
            self._as_of.put(rank, at_ns)

    def set_status(self, status: RankStatus) -> None:
        self._status.change(status.rank, status)

    def set_phases(self, phases: RankPhases) -> None:
        """No news: phases wait for the next round, so that a program that changes its phase often
        sends one message a round."""
        self._phases.change(phases.rank, phases)

    def set_channels(self, channels: ChannelColumns) -> None:
        self._sends[channels.rank] = channels.signature
        if len(channels.peer) > _CHANNELS_A_RANK:
            channels = _oldest(channels, _CHANNELS_A_RANK)
        known = self._channels.values.get(channels.rank)
        if known is None or not _same(known, channels):
            self._channels.put(channels.rank, channels)
        else:
            self._channels.values[channels.rank] = channels

    def set_unreadable(self, unreadable: Unreadable) -> None:
        if unreadable.texts or self._unreadable.values:
            self._unreadable.change(None, unreadable)

    def set_leaving(self, leaving: Leaving) -> None:
        self._leaving.put(None, leaving)

    def forget(self, rank: int) -> None:
        for pair in [pair for pair in self._watermarks.values if pair[0] == rank]:
            self._watermarks.forget(pair)
            self._waiting.discard(pair)
        for table in self._by_rank:
            table.forget(rank)
        self._sends.pop(rank, None)

    def used_signatures(self) -> set[int]:
        """Of sends and receives in flight."""
        return set().union(*(column.tolist() for column in self._sends.values()))

    # -- messages ------------------------------------------------------------------------------

    def rewind(self) -> None:
        """A new stream: everything is unsent."""
        if self._unreadable.values == {None: Unreadable()}:
            self._unreadable.forget(None)  # a new stream assumes so
        for table in (self._watermarks, self._unreadable, self._leaving, *self._by_rank):
            table.rewind()

    def next_channels(self) -> ChannelColumns | None:
        for rank in self._channels.take(islice(self._channels.unsent, 1)):
            return self._channels.values[rank]
        return None

    def next_watermarks(self) -> Watermarks | None:
        """Unsent watermarks of one attempt, not stamped yet; None when there are none.

        A message has all rows of a rank, or as many as it can: `seen` has the ranks of which no row
        is left, because it claims that the rows are complete.
        """
        by_rank: dict[int, list[Pair]] = {}
        for pair in self._watermarks.unsent:
            by_rank.setdefault(pair[0], []).append(pair)
        for rank in self._as_of.unsent:
            by_rank.setdefault(rank, [])
        if not by_rank:
            return None
        attempt = self._attempt_of(next(iter(by_rank)))
        pairs: list[Pair] = []
        seen: list[int] = []
        for rank, rows in by_rank.items():
            if self._attempt_of(rank) == attempt:
                pairs += rows
                if len(pairs) + len(seen) >= _ROWS_A_MESSAGE:
                    break
                if rank in self._as_of.unsent:
                    seen.append(rank)
        pairs = pairs[:_ROWS_A_MESSAGE]
        columns = self._columns(self._watermarks.take(pairs), self._as_of.take(seen))
        return Watermarks(attempt, columns, NodeNs(0), NodeRawNs(0))

    def next_phases(self) -> Statuses | None:
        ranks = self._phases.take(islice(self._phases.unsent, _PHASES_A_MESSAGE))
        return Statuses((), tuple(map(self._phases.values.__getitem__, ranks))) if ranks else None

    def next_statuses(self) -> Statuses | None:
        ranks = self._status.take(islice(self._status.unsent, _STATUSES_A_MESSAGE))
        news = self._unreadable.take(self._unreadable.unsent)
        if not ranks and not news:
            return None
        statuses = tuple(map(self._status.values.__getitem__, ranks))
        unreadable = self._unreadable.values[None] if news else None
        return Statuses(statuses, unreadable=unreadable)

    def next_leaving(self) -> Statuses | None:
        if not self._leaving.take(self._leaving.unsent):
            return None
        return Statuses((), leaving=self._leaving.values[None])

    def is_sent(self, rank: int) -> bool:
        """The rank's last status was sent on the current stream."""
        return rank not in self._status.unsent

    def wait(self, now_ns: NodeRawNs, *, surely: bool) -> Wait:
        """`surely`: only what was so slow when its rank was last seen, sends and receives included.
        A rank that makes progress is seen every few seconds, and in some op each time."""
        marks = self._watermarks.values
        heads = [(rank, marks[rank, group].head_created_ns) for rank, group in self._waiting]
        seen_ns = self._as_of.values if surely else {}
        slow = [head for rank, head in heads if seen_ns.get(rank, now_ns) - head > _SLOW_NS]
        if slow:
            return Wait.NEW if now_ns - min(slow) < _LONG_KNOWN_NS else Wait.OLD
        is_in_p2p = surely and any(map(_is_slow, self._channels.values.values()))
        return Wait.OLD if is_in_p2p else Wait.NO

    @property
    def has_news(self) -> bool:
        """True if something should not wait for the next round of watermarks."""
        tables = self._status, self._channels, self._unreadable, self._leaving
        return any(table.unsent for table in tables)

    def _columns(self, pairs: list[Pair], seen: list[int]) -> WatermarkColumns:
        watermarks = [self._watermarks.values[pair] for pair in pairs]
        return WatermarkColumns(
            rank=np.array([rank for rank, _ in pairs], np.uint32),
            group=np.array([group for _, group in pairs], np.uint32),
            enqueued=np.array([m.enqueued for m in watermarks], np.int64),
            started=np.array([m.started for m in watermarks], np.int64),
            completed=np.array([m.completed for m in watermarks], np.int64),
            head_created_ns=np.array(
                [min(m.head_created_ns, LATEST_NS) for m in watermarks], np.int64
            ),
            seen_rank=np.array(seen, np.uint32),
            as_of_ns=np.array([self._as_of.values[rank] for rank in seen], np.int64),
        )


def _is_slow(channels: ChannelColumns) -> bool:
    heads = channels.head_created_ns
    return bool(heads.size) and channels.as_of_ns - int(heads.min()) > _SLOW_NS


def _oldest(channels: ChannelColumns, count: int) -> ChannelColumns:
    keep = np.argsort(channels.head_created_ns, kind="stable")[:count]
    columns: dict[str, Any] = {c.name: getattr(channels, c.name)[keep] for c in CHANNEL_COLUMNS}
    return replace(channels, **columns)


def _same(one: ChannelColumns, other: ChannelColumns) -> bool:
    return all(
        np.array_equal(getattr(one, column.name), getattr(other, column.name))
        for column in CHANNEL_COLUMNS
    )
