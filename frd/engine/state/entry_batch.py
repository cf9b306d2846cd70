"""A batch of transitions in order: rows of one rank, split into runs of one pair each.

Within a run the seqs must rise. This one check makes everything after it a plain column operation
(no accumulator is hit twice by one rank) and a replay recognizable by a single number, the highest
seq seen before. Batches are checked one by one, so that an error has one author, and applied many
at a time (`Rows`), for a call costs more than the rows of most messages.
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

    @classmethod
    def joined(cls, parts: Sequence[tuple[int, PairRuns]]) -> PairRuns:
        """The runs of several messages whose rows follow each other; each with the row at which
        its message begins."""
        places = [
            np.arange(len(r.seq)) if isinstance(r.places, slice) else r.places for _, r in parts
        ]
        rows = np.cumsum([0, *(len(r.seq) for _, r in parts[:-1])]).tolist()
        return cls(
            places=np.concatenate([at + of for at, (of, _) in zip(places, parts, strict=True)]),
            seq=np.concatenate([r.seq for _, r in parts]),
            pair=np.concatenate([r.pair for _, r in parts]),
            start=np.concatenate([r.start + at for at, (_, r) in zip(rows, parts, strict=True)]),
            count=np.concatenate([r.count for _, r in parts]),
            first=np.concatenate([r.first for _, r in parts]),
            last=np.concatenate([r.last for _, r in parts]),
        )

    def __len__(self) -> int:
        """Rows."""
        return len(self.seq)

    def column(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A column of the batch in the order of the runs."""
        return values[self.places]

    def spread(self, values: Int64s) -> Int64s:
        """One value a run, repeated for each of its rows (a single one is left to broadcast)."""
        return values if len(values) == 1 else np.repeat(values, self.count)


class EntryBatch:
    """The rows of one message, by what they report.

    Raises:
        WireError: when a row is of no member of its group (pair -1).
    """

    def __init__(self, rows: EntryRows) -> None:
        self._pair, self._seq, flags = rows.pair, rows.seq, rows.flags
        self._order = _by_pair(rows.pair)
        self._all: Places = slice(None) if self._order is None else self._order
        self._whole: PairRuns | None = None
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

    def joined(self) -> PairRuns | None:
        """The runs of rows that join an op, new or not; None without such rows."""
        return None if is_empty(self.joins) else self._split(self.joins)

    def news(self, places: Places, seen: Int64s, *, replay: bool) -> PairRuns | None:
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
        if not replay:
            at = int(behind.argmax())
            raise WireError(
                "entries.seq",
                "backwards",
                f"{runs.first[at]}: the rank has already reported {applied[at]} of this group",
            )
        fresh = runs.seq > runs.spread(applied)
        if not fresh.any():
            return None
        return _runs(self._pair, self._seq, np.arange(len(self._seq))[places][fresh])

    def _split(self, places: Places) -> PairRuns:
        """The usual batch joins and completes in every row: split it once."""
        if places is not self._all:
            return _runs(self._pair, self._seq, places)
        if self._whole is None:
            self._whole = _runs(self._pair, self._seq, places)
        return self._whole

    def repeated(self, *news: PairRuns | None) -> int:
        """How many rows join or complete an op, but are not in `news`."""
        repeated = np.zeros(len(self._seq), np.bool_)
        repeated[self.joins] = True
        repeated[self.completes] = True
        for runs in news:
            if runs is not None:
                repeated[runs.places] = False
        return int(repeated.sum())


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


@dataclass(frozen=True, slots=True)
class CheckedEntries:
    """A message that can be applied: its rows, and the runs of what is new in them."""

    rows: EntryRows
    session: int
    """Number of the agent session."""
    now: AlignedNs
    """When the message came."""
    reported: PairRuns | None
    """All runs that join, of a replay; None otherwise."""
    joined: PairRuns | None
    completed: PairRuns | None
    starts: Places
    duplicates: int
    """Rows that report nothing new."""


class Rows:
    """The rows of several checked messages of different ranks, one after the other."""

    def __init__(self, messages: Sequence[CheckedEntries]) -> None:
        self._messages = messages
        self._columns: dict[str, npt.NDArray[Any]] = {}
        self.lengths = [len(m.rows) for m in messages]
        self._first = np.cumsum([0, *self.lengths[:-1]]).tolist()
        self.now = max(m.now for m in messages)
        self.joined = self._runs([m.joined for m in messages])
        same = all(m.completed is m.joined for m in messages)
        self.completed = self.joined if same else self._runs([m.completed for m in messages])

    def _runs(self, of: Sequence[PairRuns | None]) -> PairRuns | None:
        parts = [
            (first, runs) for first, runs in zip(self._first, of, strict=True) if runs is not None
        ]
        return PairRuns.joined(parts) if parts else None

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

    @property
    def starts(self) -> npt.NDArray[np.intp]:
        """The rows that report a start."""
        return joined_arrays(
            [
                np.arange(first, first + length)[m.starts]
                for first, length, m in zip(self._first, self.lengths, self._messages, strict=True)
                if not is_empty(m.starts)
            ]
        )


def joined_arrays(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else _NOTHING
