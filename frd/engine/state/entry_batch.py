"""Batches of transitions: the rows of several ranks, split into runs of one pair each.

Within a run the seqs must rise. This one check makes everything after it a plain column operation
(no accumulator is hit twice by one rank) and a replay recognizable by a single number, the highest
seq seen before. Messages are checked and applied many at a time, for a call costs more than the
rows of most of them; if one of them is wrong, nothing is changed, and the caller applies them one
by one, so that an error has one author.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from frd.errors import WireError
from frd.model import AlignedNs, Bools, Flags, Int32s, Int64s, UInt8s

Places: TypeAlias = npt.NDArray[np.intp] | slice
"""Rows of a batch; the slice of everything is free of cost."""

_UINT16: Final = 1 << 16
_NOTHING: Final = np.empty(0, np.intp)
_JOINED, _STARTED, _COMPLETED = int(Flags.JOINED), int(Flags.STARTED), int(Flags.COMPLETED)
_LEFT = int(Flags.COMPLETED | Flags.FAILED)
"""A failed op was left, not completed: its peers may wait in it for ever."""


def contradicting(rows: EntryRows, joined: Int64s, completed: Int64s) -> Bools:
    """The rows without which the others can be applied: those of no member of their group, and
    those whose seq is not above the ones before. `joined` and `completed` are by pair: what the
    rank has reported."""
    bad = rows.pair < 0
    reported: dict[tuple[int, int], int] = {}
    columns = rows.pair.tolist(), rows.seq.tolist(), rows.flags.tolist()
    for row, (pair, seq, flags) in enumerate(zip(*columns, strict=True)):
        marks = [(_JOINED, joined)] if flags & _JOINED else []
        marks += [(_COMPLETED, completed)] if flags & _LEFT == _COMPLETED else []
        bad[row] |= any(seq <= reported.get((pair, mark), seen[pair]) for mark, seen in marks)
        if not bad[row]:
            reported |= {(pair, mark): seq for mark, _ in marks}
    return bad


def is_empty(places: Places) -> bool:
    return not isinstance(places, slice) and not len(places)


@dataclass(frozen=True, slots=True)
class EntryRows:
    """Transitions of one rank, in recording order: `frd.model.EntryColumns` with the engine's
    handles; times are node times, 0 when unknown."""

    rank: int
    """Global."""
    pair: Int32s
    """-1 when the rank is no member of the group."""
    seq: Int64s
    signature: Int32s
    flags: UInt8s
    created_ns: Int64s
    started_ns: Int64s
    completed_ns: Int64s

    def __len__(self) -> int:
        return len(self.seq)

    def only(self, some: Bools) -> EntryRows:
        return replace(self, **{c.name: getattr(self, c.name)[some] for c in fields(self)[1:]})


@dataclass(frozen=True, slots=True)
class PairRuns:
    """Rows by pair: the rows of run i are ``start[i]`` and on, ``count[i]`` of them.

    `pair`, `start`, `count`, `first` and `last` (seqs) have one element a run.
    """

    places: Places
    seq: Int64s
    pair: Int32s
    start: Int64s
    count: Int64s
    first: Int64s
    last: Int64s

    def __len__(self) -> int:
        """Rows."""
        return len(self.seq)

    def column(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A column of the batch in the order of the runs."""
        return values[self.places]

    def spread(self, values: Int64s) -> Int64s:
        """One value a run, repeated for each of its rows (a single one is left to broadcast)."""
        return values if len(values) == 1 else np.repeat(values, self.count)


@dataclass(frozen=True, slots=True)
class EntryMessage:
    """What one rank has reported."""

    rows: EntryRows
    session: int
    """Number of the agent session; see `SessionClocks.set`."""
    now: AlignedNs
    """When the message came."""
    is_replay: bool = False
    """Rows that were applied before are dropped; otherwise there must be none."""


class EntryBatch:
    """The rows of several messages of different ranks, one after the other, by what they report.

    Raises:
        WireError: when a row is of no member of its group (pair -1).
    """

    def __init__(self, messages: Sequence[EntryMessage]) -> None:
        self._messages = messages
        self._columns: dict[str, npt.NDArray[Any]] = {}
        self.lengths = [len(m.rows) for m in messages]
        self.now = max(m.now for m in messages)
        self._pair, self._seq = self.column("pair"), self.column("seq")
        self._order = _by_pair(self._pair)
        self._all: Places = slice(None) if self._order is None else self._order
        self._whole: PairRuns | None = None
        flags = self.column("flags")
        first = int(flags[0])
        if (flags == first).all():
            self.joins = self._all if first & _JOINED else _NOTHING
            self.completes = self._all if first & _LEFT == _COMPLETED else _NOTHING
            self.starts: Places = slice(None) if first & _STARTED else _NOTHING
        else:
            self.joins = self._where(flags & _JOINED != 0)
            self.completes = self._where(flags & _LEFT == _COMPLETED)
            self.starts = (flags & _STARTED).nonzero()[0]

    def _where(self, carries: npt.NDArray[np.bool_]) -> Places:
        if self._order is None:
            return carries.nonzero()[0]
        return self._order[carries[self._order]]

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column of `EntryRows`; it must not be changed."""
        if (known := self._columns.get(name)) is None:
            known = joined_arrays([getattr(m.rows, name) for m in self._messages])
            self._columns[name] = known
        return known

    def by_row(self, values: Sequence[int]) -> Int64s:
        """One value a message, for each of its rows."""
        return np.repeat(np.array(values, np.int64), self.lengths)

    @cached_property
    def ranks(self) -> Int64s:
        """By row."""
        return self.by_row([m.rows.rank for m in self._messages])

    @property
    def sessions(self) -> Int64s:
        """By row."""
        return self.by_row([m.session for m in self._messages])

    @cached_property
    def times(self) -> Int64s:
        """When the message of each row came."""
        return self.by_row([m.now for m in self._messages])

    def joined(self) -> PairRuns | None:
        """The runs of rows that join an op, new or not; None without such rows."""
        return None if is_empty(self.joins) else self._split(self.joins)

    def news(self, places: Places, seen: Int64s) -> PairRuns | None:
        """The runs of rows whose seqs are above those in `seen` (by pair); None if there are none.

        Raises:
            WireError: when the seqs of a pair do not rise, or repeat what was seen and are no
                replay.
        """
        if is_empty(places):
            return None
        runs = self._split(places)
        applied = seen[runs.pair]
        behind = runs.first <= applied
        if not behind.any():
            return runs
        is_wrong = behind & ~self._replays[self._rows(places)[runs.start]]
        if is_wrong.any():
            at = int(is_wrong.argmax())
            raise WireError(
                "entries.seq",
                "backwards",
                f"{runs.first[at]}: the rank has already reported {applied[at]} of this group",
            )
        fresh = runs.seq > runs.spread(applied)
        if not fresh.any():
            return None
        return _runs(self._pair, self._seq, self._rows(places)[fresh])

    @cached_property
    def _replays(self) -> Bools:
        """By row."""
        return self.by_row([m.is_replay for m in self._messages]).astype(np.bool_)

    def _rows(self, places: Places) -> npt.NDArray[np.intp]:
        return np.arange(len(self._seq)) if isinstance(places, slice) else places

    def _split(self, places: Places) -> PairRuns:
        """The usual batch joins and completes in every row: split it once."""
        if places is not self._all:
            return _runs(self._pair, self._seq, places)
        if self._whole is None:
            self._whole = _runs(self._pair, self._seq, places)
        return self._whole

    def repeated(self, *news: PairRuns | None) -> list[int]:
        """How many rows of each message join or complete an op, but are not in `news`."""
        if not any(m.is_replay for m in self._messages):
            return [0] * len(self._messages)
        repeated = np.zeros(len(self._seq), np.bool_)
        repeated[self.joins] = True
        repeated[self.completes] = True
        for runs in news:
            if runs is not None:
                repeated[runs.places] = False
        counts: list[int] = np.add.reduceat(
            repeated, np.cumsum([0, *self.lengths[:-1]]), dtype=np.int64
        ).tolist()
        return counts


def _by_pair(pair: Int32s) -> npt.NDArray[np.intp] | None:
    """The stable order that puts the rows of each pair together; None when all are of one."""
    low, high = int(pair.min()), int(pair.max())
    if low < 0:
        raise WireError(
            "entries.group", "disagree", f"row {pair.argmin()}: the rank is not in the group"
        )
    if low == high:
        return None
    # Sixteen bits sort in linear time; the pairs of a rank lie further apart in large jobs only.
    key = (pair - low).astype(np.uint16) if high - low < _UINT16 else pair
    return np.argsort(key, kind="stable")


def _runs(pair: Int32s, seq: Int64s, places: Places) -> PairRuns:
    pair, seq = pair[places], seq[places]
    is_edge = np.ones(len(seq) + 1, np.bool_)
    np.not_equal(pair[1:], pair[:-1], out=is_edge[1:-1])
    rising = (seq[1:] > seq[:-1]) | is_edge[1:-1]
    if not rising.all():
        at = int(rising.argmin()) + 1
        raise WireError(
            "entries.seq", "backwards", f"{seq[at]} after {seq[at - 1]}: seqs of a group must rise"
        )
    edges = is_edge.nonzero()[0]
    start, end = edges[:-1], edges[1:]
    return PairRuns(
        places=places,
        seq=seq,
        pair=pair[start],
        start=start,
        count=end - start,
        first=seq[start],
        last=seq[end - 1],
    )


def joined_arrays(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else _NOTHING
