"""The declarations of one stream, and their checks; and batches of memory samples, which need them.

Attempts, ranks, groups, signatures and series are declared. Declarations are rare and small, so
they are checked one by one. The attempt of each rank, group and series is kept as an array, for the
vectorized checks of batches.

Of memory samples and events, the structure is checked here, the values are not. A batch that
contradicts itself or what was declared ends its stream, like any other. An impossible value
(negative, too large, out of order) does not: samples come from drivers and from files of the
kernel, and one broken series must not stop the rest of its node. Such samples are refused one by
one in the engine, which knows their history.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from frd.errors import WireError
from frd.model import MAX_WORLD_SIZE, GroupInfo, MemoryColumns, MemoryEvent
from frd.v1 import stream_pb2 as pb
from frd.wire.columns import (
    SAMPLE_TIMES,
    SAMPLE_VALUES,
    SERIES_COLUMNS,
    check_below,
    count_ranks,
    read_columns,
    unpack_ranks,
)
from frd.wire.fields import check_text, read
from frd.wire.messages import (
    AttemptDecl,
    Declare,
    GroupDecl,
    MemoryEvents,
    RankDecl,
    SeriesDecl,
    SignatureDecl,
)

MAX_ATTEMPTS: Final = 4096
MAX_RANKS: Final = 1 << 16
MAX_GROUPS: Final = 1 << 18
MAX_SIGNATURES: Final = 1 << 16
MAX_SERIES: Final = 1 << 16
_LARGE: Final = 64
"""Groups of so many ranks are kept for the other streams that will declare them."""


class Declared:
    """Ranks, groups or series: the attempt of each by index, in a column that grows."""

    def __init__(self) -> None:
        self.count = 0
        self._attempts = np.zeros(64, np.int32)
        self._only_attempt = -1
        """The attempt of all; -1 when there are several."""

    def append(self, attempt: int) -> None:
        if self.count == len(self._attempts):
            self._attempts = np.concatenate((self._attempts, np.zeros_like(self._attempts)))
        self._attempts[self.count] = attempt
        self._only_attempt = attempt if self.count == 0 or attempt == self._only_attempt else -1
        self.count += 1

    def attempt_of(self, field: str, index: int) -> int:
        """The attempt index of one, which must be declared."""
        _check_known(field, index, self.count)
        return int(self._attempts[index])

    def check(self, field: str, indexes: npt.NDArray[Any], attempt: int) -> None:
        """All `indexes` were declared for `attempt`."""
        check_below(field, indexes, self.count)
        if self._only_attempt != attempt and (self._attempts[indexes] != attempt).any():
            raise WireError(
                field,
                "disagree",
                f"some are of another attempt than {attempt}: send a batch for each attempt",
            )


class Declarations:
    """What one stream has declared."""

    def __init__(self) -> None:
        self._worlds: list[int] = []
        self.ranks = Declared()
        self.groups = Declared()
        self.series = Declared()
        self.signature_count = 0

    def check_attempt(self, field: str, index: int) -> None:
        _check_known(field, index, len(self._worlds))

    def check_world(self, field: str, rank: int, attempt: int) -> None:
        """A global rank is within the attempt's world, if its size is known."""
        _check_in_world(field, rank, self._worlds[attempt] or MAX_WORLD_SIZE)

    def declare(self, m: pb.Declare) -> Declare:
        """Apply one message; an error ends the stream, so half of it may have been applied."""
        return Declare(
            attempts=tuple([self._attempt(item) for item in m.attempts]),
            ranks=tuple([self._rank(item) for item in m.ranks]),
            groups=tuple([self._group(item) for item in m.groups]),
            signatures=tuple([self._signature(item) for item in m.signatures]),
            series=tuple([self._series_decl(item) for item in m.series]),
        )

    def _attempt(self, m: pb.Attempt) -> AttemptDecl:
        _check_next("declare.attempts.index", m.index, len(self._worlds), MAX_ATTEMPTS)
        declared = read(AttemptDecl, m, "declare.attempts")
        self._worlds.append(m.world_size)
        return declared

    def _rank(self, m: pb.Rank) -> RankDecl:
        _check_next("declare.ranks.index", m.index, self.ranks.count, MAX_RANKS)
        self.check_attempt("declare.ranks.attempt_index", m.attempt_index)
        self.check_world("declare.ranks.rank", m.rank, m.attempt_index)
        declared = read(RankDecl, m, "declare.ranks")
        _check_in_world("declare.ranks.rank", m.rank, m.world_size or MAX_WORLD_SIZE)
        self.ranks.append(m.attempt_index)
        return declared

    def _group(self, m: pb.Group) -> GroupDecl:
        _check_next("declare.groups.index", m.index, self.groups.count, MAX_GROUPS)
        self.check_attempt("declare.groups.attempt_index", m.attempt_index)
        name = check_text("declare.groups.name", m.name)
        info = _group_info(name, check_text("declare.groups.desc", m.desc), m.ranks)
        if info.ranks:
            self.check_world("declare.groups.ranks", info.ranks[-1], m.attempt_index)
        self.groups.append(m.attempt_index)
        return GroupDecl(m.index, m.attempt_index, info)

    def _signature(self, m: pb.Signature) -> SignatureDecl:
        _check_next("declare.signatures.index", m.index, self.signature_count, MAX_SIGNATURES)
        declared = read(SignatureDecl, m, "declare.signatures")
        self.signature_count += 1
        return declared

    def _series_decl(self, m: pb.Series) -> SeriesDecl:
        _check_next("declare.series.index", m.index, self.series.count, MAX_SERIES)
        attempt = self.ranks.attempt_of("declare.series.rank_index", m.rank_index)
        declared = read(SeriesDecl, m, "declare.series")
        self.series.append(attempt)
        return declared


def _group_info(name: str, desc: str, runs: bytes) -> GroupInfo:
    """Every agent declares the large groups: one object, checked once, serves all streams. There
    are so many small groups that they would displace the large ones, so each have their own cache.
    """
    if count_ranks(runs) >= _LARGE:
        return _large_group(name, desc, runs)
    return _small_group(name, desc, runs)


@lru_cache(maxsize=4096)
def _small_group(name: str, desc: str, runs: bytes) -> GroupInfo:
    return GroupInfo(name, desc, unpack_ranks("declare.groups.ranks", runs, MAX_WORLD_SIZE))


@lru_cache(maxsize=128)
def _large_group(name: str, desc: str, runs: bytes) -> GroupInfo:
    return GroupInfo(name, desc, _members(runs))


@lru_cache(maxsize=128)
def _members(runs: bytes) -> tuple[int, ...]:
    """Large groups with the same ranks share one tuple, whatever their names."""
    return unpack_ranks("declare.groups.ranks", runs, MAX_WORLD_SIZE)


def _check_known(field: str, index: int, count: int) -> None:
    if index >= count:
        raise WireError(
            field, "unknown_index", f"index {index} where {count} are declared: declare it first"
        )


def _check_next(field: str, index: int, count: int, limit: int) -> None:
    if index < count:
        raise WireError(field, "redefined", f"index {index} is taken: use {count}")
    if index > count:
        raise WireError(field, "unknown_index", f"index {index} leaves a hole: use {count}")
    if count >= limit:
        raise WireError(field, "limit", f"more than {limit} on one stream: open a new stream")


def _check_in_world(field: str, rank: int, world_size: int) -> None:
    if rank >= world_size:
        raise WireError(field, "range", f"rank {rank} is beyond the world size {world_size}")


class MemoryReader:
    """Decodes the memory messages of one stream, whose declarations are `known`."""

    def __init__(self, known: Declarations) -> None:
        self._known = known
        # Batch after batch has the same series: they are checked once.
        self._last_series_sent = b""
        self._series: npt.NDArray[Any]

    def batch(self, m: pb.MemoryBatch) -> MemoryColumns:
        """`series` is the same array object as in the last batch if the series are the same."""
        if not m.series:
            raise WireError("memory.series", "missing", "empty: send a batch that has series")
        by_series, times = read_columns(m, SERIES_COLUMNS), read_columns(m, SAMPLE_TIMES)
        if m.series != self._last_series_sent:
            self._check_series(by_series["series"])
            self._last_series_sent, self._series = m.series, by_series["series"]
        by_series["series"] = self._series
        shape = len(self._series), len(times["begin_ns"])
        values = read_columns(m, SAMPLE_VALUES, shape[0] * shape[1])["values"]
        return MemoryColumns(**by_series, **times, values=values.reshape(shape))

    def _check_series(self, series: npt.NDArray[Any]) -> None:
        attempt = self._known.series.attempt_of("memory.series", int(series[0]))
        self._known.series.check("memory.series", series, attempt)
        if len(np.unique(series)) != len(series):
            raise WireError("memory.series", "disagree", "one series twice: send each once")

    def events(self, m: pb.MemoryEventBatch) -> MemoryEvents:
        for event in m.events:
            self._known.ranks.attempt_of("memory_events.rank_index", event.rank_index)
        return MemoryEvents(tuple([read(MemoryEvent, one, "memory_events") for one in m.events]))
