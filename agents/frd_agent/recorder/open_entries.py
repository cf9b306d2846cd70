"""The open entries of a recorder, and the rows that the next dump adds to what was sent.

Open entries and new ones are read together, by `frd.flight.progress`; the rows are the flags that
the service does not have yet. What is left of a coalesced collective whose first parts were lost is
not compared with its peers: it gets no JOINED row. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from frd.flight import Dump, Entry, Name, Status, judges
from frd.flight import progress as columnar
from frd.flight.columns import Dictionaries, columns_of
from frd.flight.progress import NO_CALL, Calls, NameFacts
from frd.flight.trace import RankTrace
from frd.model import UNKNOWN_SEQ, Flags, Int32s, Int64s
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.progress import Open, Progress
from frd_agent.recorder.rows import MAX_SEQ, Row

_JOINED, _STARTED = int(Flags.JOINED), int(Flags.STARTED)
_COMPLETED, _FAILED = int(Flags.COMPLETED), int(Flags.FAILED)
_ANY_SOURCE: Final = -1


class OpenEntries:
    """What one recorder showed and what is not over."""

    def __init__(self) -> None:
        self.items: list[Open] = []
        """Oldest first."""
        self.done_created_ns = 0
        """When the last op was enqueued that the last dump showed done; 0 if it showed none."""

    @property
    def is_waiting(self) -> bool:
        return any(one.peer is not None or one.is_call for one in self.items)

    def rows(self) -> list[Row]:
        """Of each open call."""
        return [
            [
                one.progress.group,
                one.entry.collective_seq_id,
                one.signature,
                one.sent & (_JOINED | _STARTED | _FAILED),
                one.created_ns,
                one.started_ns,
                0,
            ]
            for one in self.items
            if one.is_call and not one.cut
        ]

    def is_behind(self, progress: Progress, raw: Status) -> bool:
        """The counters know of ops, or of ends, that no entry has shown."""
        mine = (one for one in self.items if one.progress is progress and one.is_call)
        return raw.enqueued > progress.counter or any(
            one.in_ring and one.counter <= raw.completed for one in mine
        )

    def orphan(self) -> None:
        """The recorder was reset: no dump will show the end of what is open now."""
        for one in self.items:
            one.orphaned = True

    def forsake(self, pg_ids: Collection[int]) -> None:
        """Forget the orphaned sends of groups: some op of each has ended, it is unknown which."""
        self.items = [
            one
            for one in self.items
            if one.peer is None or not one.orphaned or one.progress.pg_id not in pg_ids
        ]

    def close(self, progress: Progress) -> None:
        """The group is gone."""
        progress.close()
        self.items = [one for one in self.items if one.progress is not progress]

    def look(
        self,
        find: Callable[[int], Entry | None],
        status: Mapping[int, Status],
        *,
        absent_is_over: bool,
    ) -> None:
        """Take the open entries, and the counters, from the next dump."""
        for one in self.items:
            found = None if one.orphaned else find(one.entry.record_id)
            one.look(found, status.get(one.progress.pg_id), absent_is_over=absent_is_over)

    def read(
        self,
        fresh: Sequence[Entry],
        progress_of: Callable[[Entry], Progress | None],
        names: Naming,
        *,
        may_lack: bool,
    ) -> list[Row]:
        """The rows of what changed, and of the `fresh` entries.

        `may_lack`: entries right before the first fresh one were lost.
        """
        self.done_created_ns = 0
        if not self.items and not fresh:
            return []
        read = _Reading(self.items, fresh, progress_of)
        done = np.flatnonzero(read.state.done)
        if len(done):
            self.done_created_ns = int(read.table.created_ns[done[-1]])
        sends = read.sends(names)
        rows, calls = read.calls(names, may_lack=may_lack)
        self.items = [one for _, one in sorted((sends | calls).items())]
        return rows


class _Reading:
    """The open entries, then the fresh ones, as columns."""

    def __init__(
        self,
        known: Sequence[Open],
        fresh: Sequence[Entry],
        progress_of: Callable[[Entry], Progress | None],
    ) -> None:
        self.known = known
        self.entries = [*(one.entry for one in known), *fresh]
        into = Dictionaries()
        columns = columns_of(Dump("", "", entries=tuple(self.entries)), into)
        self.table = RankTrace(
            rank=0, source="", version="", info=None, clock_offset_ns=None, **columns.rows()
        )
        self.signatures, self.names = into.signatures.items, into.names.items
        self.facts = NameFacts.of(self.names)
        self.progresses: list[Progress] = list(dict.fromkeys(one.progress for one in known))
        """By pair."""
        self.pair = self._pairs(progress_of)
        """-1 for entries of past groups."""
        self.state = columnar.states(self.table, slice(None), self.facts)
        self.state.done[: len(known)] |= np.array([one.over for one in known], np.bool_)
        self.in_order = np.array([judges(one.backend) for one in self.progresses], np.bool_)

    def _pairs(self, progress_of: Callable[[Entry], Progress | None]) -> Int32s:
        number: dict[Progress | None, int] = {one: at for at, one in enumerate(self.progresses)}
        of = [number[one.progress] for one in self.known]
        columns = (self.table.pg_id, self.table.group, self.table.name)
        numbers: dict[tuple[int, ...], int] = {}
        for key in zip(*(column[len(of) :].tolist() for column in columns), strict=True):
            if key not in numbers:
                progress = progress_of(self.entries[len(of)])
                if progress is not None and progress not in number:
                    number[progress] = len(self.progresses)
                    self.progresses.append(progress)
                numbers[key] = number.get(progress, -1)
            of.append(numbers[key])
        return np.array(of, np.int32)

    def sends(self, names: Naming) -> dict[int, Open]:
        """Sends and receives in flight, and open ends of batches, by row."""
        at = np.flatnonzero((self.table.is_p2p != 0) & (self.pair >= 0))
        if not len(at):
            return {}
        for number in np.unique(self.pair[at]).tolist():
            self.progresses[number].has_p2p = True
        done, name = self.state.done[at], self.table.name[at]
        flies = columnar.p2p_in_flight(self.table, at, self.pair[at], done, self.facts)
        kept = {}
        for row in at[~self.facts.is_p2p[name] & ~done].tolist():
            one = self.known[row] if row < len(self.known) else self._new(row)
            if one.in_ring:
                kept[row] = one
        for row in at[flies].tolist():
            if row < len(self.known):
                kept[row] = self.known[row]
                continue
            one, name = self._new(row), self.names[self.table.name[row]]
            one.is_send = name.op.endswith("send")
            one.peer = _peer(name, names.members(one.progress.group))
            if one.peer is not None:
                kept[row] = one
        return kept

    def _new(self, row: int) -> Open:
        entry = self.entries[row]
        return Open(entry, self.progresses[self.pair[row]], entry.time_created_ns)

    # -- collectives ---------------------------------------------------------------------------

    def calls(self, names: Naming, *, may_lack: bool) -> tuple[list[Row], dict[int, Open]]:
        """Rows of what changed, and the calls that are not over, by row."""
        calls = self._calls(names, may_lack=may_lack)
        if not len(calls):
            return [], {}
        done, none = calls.done, np.zeros(len(calls), np.int64)
        given_up = columnar.given_up(self.table, calls.last_row, self.facts) & ~done
        gone = ~self._with_known("in_ring", none == 0, calls)
        lost = given_up | (gone & (calls.last_row < len(self.known)))
        marks = columnar.watermarks(calls, self.in_order, lost)
        over = calls.seq <= marks.completed[calls.pair]
        ended = over & (done | (self.in_order[calls.pair] & ~lost))
        started_ns = self._started_ns(calls)
        flags = (
            _JOINED * ~calls.cut
            + _STARTED * ((started_ns > 0) & ~done)
            + _FAILED * given_up
            + _COMPLETED * ended
        )
        news = flags & ~self._with_known("sent", none, calls)
        group = np.array([one.group for one in self.progresses])[calls.pair]
        completed_ns = np.where(ended, calls.completed_ns, 0)
        columns = (group, calls.seq, calls.signature, news)
        times = (calls.created_ns, started_ns, completed_ns)
        shown = np.flatnonzero(news)
        shown = shown[np.argsort(calls.first_row[shown], kind="stable")]
        counter = self._update_progress(calls, marks)
        kept = {}
        for at in np.flatnonzero(~over).tolist():
            one = self._open(calls, at, counter)
            one.started_ns = int(started_ns[at])
            one.sent |= int(flags[at])
            kept[int(calls.first_row[at])] = one
        return np.stack((*columns, *times), axis=1)[shown].tolist(), kept

    def _calls(self, names: Naming, *, may_lack: bool) -> Calls:
        """With the dictionary's signatures, and what is known of those that were open before."""
        table, k = self.table, len(self.known)
        rows = np.flatnonzero((table.is_p2p == 0) & (self.pair >= 0) & (table.seq < MAX_SEQ))
        rows = self._rising(rows[np.argsort(self.pair[rows], kind="stable")])
        state, cut = self.state.take(rows), (rows == k) & may_lack
        entries = columnar.calls_of(table, rows, self.pair[rows], state, cut)
        calls = columnar.joined(entries, self.signatures)
        new = calls.first_row >= k
        used, index = np.unique(calls.signature[new], return_inverse=True)
        numbers = np.array([names.signature(self.signatures[at]) for at in used.tolist()], np.int32)
        signature = np.zeros(len(calls), np.int32)
        signature[new] = numbers[index]
        return replace(
            calls,
            signature=self._with_known("signature", signature, calls),
            created_ns=self._with_known("created_ns", calls.created_ns, calls),
            cut=self._with_known("cut", calls.cut, calls),
        )

    def _with_known(self, name: str, column: npt.NDArray[Any], calls: Calls) -> npt.NDArray[Any]:
        """`column` with what is known of the calls that were open before."""
        if not self.known:
            return column
        again = np.flatnonzero(calls.first_row < len(self.known))
        column = column.copy()
        column[again] = [getattr(self.known[at], name) for at in calls.first_row[again].tolist()]
        return column

    def _started_ns(self, calls: Calls) -> Int64s:
        """0 for calls that are not known to have started."""
        first, last = (self.table.started_ns[row] for row in (calls.first_row, calls.last_row))
        now_ns = np.where(calls.started, np.where(first > 0, first, last), 0)
        before_ns = self._with_known("started_ns", np.zeros_like(now_ns), calls)
        return np.where(before_ns > 0, before_ns, now_ns)

    def _open(self, calls: Calls, at: int, counter: Int64s) -> Open:
        row, entry = int(calls.first_row[at]), self.entries[calls.last_row[at]]
        if row < len(self.known):
            self.known[row].entry = entry
            return self.known[row]
        return Open(
            entry,
            self.progresses[calls.pair[at]],
            int(calls.created_ns[at]),
            signature=int(calls.signature[at]),
            counter=int(counter[at]),
            cut=bool(calls.cut[at]),
        )

    def _rising(self, rows: Int64s) -> Int64s:
        """Without fresh entries whose seq does not rise, unless they are parts of an open call."""
        k, seq, pair = len(self.known), self.table.seq[rows], self.pair[rows]
        joined = np.array([one.joined for one in self.progresses], np.int64)[pair]
        rises = (rows < k) | (seq > joined)
        rises[1:] &= (rows[1:] < k) | (pair[1:] != pair[:-1]) | (seq[1:] > seq[:-1])
        if rises.all():
            return rows
        keep = np.ones(len(rows), np.bool_)
        for number in np.unique(pair[~rises]).tolist():
            begin, end = np.searchsorted(pair, (number, number + 1)).tolist()
            fresh = begin + int(np.searchsorted(rows[begin:end], k))
            floor = joined[begin]
            before = np.maximum.accumulate(np.concatenate(([floor], seq[fresh:end])))[:-1]
            is_open = (before > floor) | (fresh > begin and seq[fresh - 1] == floor)
            keep[fresh:end] = seq[fresh:end] >= before + ~is_open
        return rows[keep]

    def _update_progress(self, calls: Calls, marks: columnar.Watermarks) -> Int64s:
        """Returns what the counters of its group call each call."""
        pair, op_id = calls.pair, self.table.op_id[calls.first_row]
        backends = [one.backend for one in self.progresses]
        counter = columnar.counter_of(backends, pair, calls.seq, op_id)
        ahead, seqs, created_ns = (counter - calls.seq).tolist(), calls.seq, calls.created_ns
        size = np.bincount(pair, minlength=len(backends))
        known = np.bincount(pair[calls.first_row < len(self.known)], minlength=len(backends))
        ends = np.cumsum(size)
        columns = (size, known, ends, marks.started, marks.head)
        for progress, (count, old, end, started, head) in zip(
            self.progresses, np.stack(columns, axis=1).tolist(), strict=True
        ):
            if count > old:
                progress.join(
                    int(seqs[end - 1]), int(counter[end - 1]), {*ahead[end - count + old : end]}
                )
            if count:
                progress.started = max(progress.started, started)
                is_idle = head == NO_CALL
                progress.head = UNKNOWN_SEQ if is_idle else int(seqs[head])
                progress.head_created_ns = 0 if is_idle else max(int(created_ns[head]), 1)
        return counter


def _peer(name: Name, members: Sequence[int]) -> int | None:
    """Global rank of the other end; None where the recorder or the group does not name it."""
    is_send = name.op.endswith("send")
    local = name.dst if is_send else name.src
    if local is None:
        return _ANY_SOURCE if not is_send and name.dst is not None else None
    return members[local] if local < len(members) else None
