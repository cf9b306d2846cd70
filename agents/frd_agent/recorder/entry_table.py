"""Open and new entries of a recorder as columns: the rows that they add to what was sent.

The rows hold the flags that the service does not have yet. A coalesced collective whose first parts
were lost gets no JOINED row, because its signature cannot be compared with its peers'. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from frd.flight import progress as columnar
from frd.flight.entry import Dump, Entry, Name
from frd.flight.progress import NO_CALL, Calls, Marks, NameFacts
from frd.flight.trace import COMPLETED, Dictionaries, RankTrace, columns_of
from frd.model import MAX_SEQ, UNKNOWN_SEQ, Flags, Int32s, Int64s
from frd_agent import tap
from frd_agent.recorder.group_progress import GroupProgress, OpenEntry
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.rows import Row

_JOINED, _STARTED = int(Flags.JOINED), int(Flags.STARTED)
_COMPLETED, _FAILED = int(Flags.COMPLETED), int(Flags.FAILED)
_ANY_SOURCE: Final = -1


class EntryTable:
    """The open entries, followed by the fresh entries, as columns."""

    def __init__(
        self,
        known: Sequence[OpenEntry],
        fresh: Sequence[Entry],
        progress_of: Callable[[Entry], GroupProgress | None],
        to_raw: Callable[[Int64s], Int64s],
        completing: set[str],
        at_ns: int,
        *,
        number: int | None,
    ) -> None:
        """`to_raw` converts stamps of the recorder, which was read at `at_ns`. Backends of which an
        op has completed are added to `completing`: their ops end with that, and those of others
        when they are retired. NCCL's own recorder marks completion before it has shown any. That of
        a hook marks start and end when a thread of torch looks, up to seconds later: no start."""
        self.known = known
        self.entries = [*(item.entry for item in known), *fresh]
        into = Dictionaries()
        columns = columns_of(Dump("", entries=tuple(self.entries)), into).rows()
        self._is_hooked = number is not None and number >= tap.HOOKED
        for name in ("created_ns", "started_ns", "completed_ns"):
            columns[name] = to_raw(columns[name])
        if self._is_hooked:
            columns["started_ns"] = np.zeros_like(columns["started_ns"])
        self.trace = RankTrace(
            rank=0, source="", version="", info=None, clock_offset_ns=None, **columns
        )
        self._at_ns = at_ns
        self.signatures, self.names = into.signatures.items, into.names.items
        marked = self.trace.name[(number == tap.NCCL) | (self.trace.state == COMPLETED)]
        completing.update(self.names[name].backend for name in np.unique(marked).tolist())
        others = {name.backend for name in self.names} - completing
        self.facts = NameFacts.of(self.names, Marks(frozenset(completing), frozenset(others)))
        self.progresses: list[GroupProgress] = list(dict.fromkeys(item.progress for item in known))
        """By pair, a rank in a group."""
        self.pair = self._pairs(progress_of)
        """The pair of each entry; -1 for groups of earlier attempts."""
        self.state = columnar.states(self.trace, slice(None), self.facts)
        self.state.done[: len(known)] |= np.array([item.over for item in known], np.bool_)
        self.in_order = np.array(
            [progress.backend in completing for progress in self.progresses], np.bool_
        )

    def _pairs(self, progress_of: Callable[[Entry], GroupProgress | None]) -> Int32s:
        number: dict[GroupProgress | None, int] = {
            progress: index for index, progress in enumerate(self.progresses)
        }
        pairs = [number[item.progress] for item in self.known]
        columns = (self.trace.pg_id, self.trace.group, self.trace.name)
        pair_of_key: dict[tuple[int, ...], int] = {}
        for key in zip(*(column[len(pairs) :].tolist() for column in columns), strict=True):
            if key not in pair_of_key:
                progress = progress_of(self.entries[len(pairs)])
                if progress is not None and progress not in number:
                    number[progress] = len(self.progresses)
                    self.progresses.append(progress)
                pair_of_key[key] = number.get(progress, -1)
            pairs.append(pair_of_key[key])
        return np.array(pairs, np.int32)

    def sends(self, names: Naming, *, is_whole: bool) -> dict[int, OpenEntry]:
        """Sends and receives in flight and open ends of batches, by row.

        `is_whole`: all entries since the start of the recorder have been read.
        """
        rows = np.flatnonzero((self.trace.is_p2p != 0) & (self.pair >= 0))
        if not len(rows):
            return {}
        for number in np.unique(self.pair[rows]).tolist():
            self.progresses[number].has_p2p = True
        done, name = self.state.done[rows], self.trace.name[rows]
        in_flight = columnar.p2p_in_flight(self.trace, rows, self.pair[rows], done, self.facts)
        posted = self._count(rows) if is_whole else np.full(len(rows), -1)
        kept = {}
        for row in rows[~self.facts.is_p2p[name] & ~done].tolist():
            item = self.known[row] if row < len(self.known) else self._new(row)
            if item.in_ring:
                kept[row] = item
        at = zip(rows[in_flight].tolist(), posted[in_flight].tolist(), strict=True)
        for row, before in at:
            item = self.known[row] if row < len(self.known) else self._send(row, before, names)
            if item.peer is not None:
                kept[row] = item
        return kept

    def _count(self, rows: Int64s) -> Int64s:
        """For each of the P2P `rows` that is new, how many of its channel came before."""
        posted, is_new = np.full(len(rows), -1), rows >= len(self.known)
        new = rows[is_new]
        channel = self.pair[new].astype(np.int64) * len(self.names) + self.trace.name[new]
        keys, index, counts = np.unique(channel, return_inverse=True, return_counts=True)
        before = []
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            pair, name = divmod(key, len(self.names))
            total = self.progresses[pair].posted
            before.append(total[self.names[name]])
            total[self.names[name]] += count
        posted[is_new] = np.array(before, np.int64)[index] + columnar.posted_before(channel)
        return posted

    def _send(self, row: int, posted: int, names: Naming) -> OpenEntry:
        item, name = self._new(row), self.names[self.trace.name[row]]
        item.is_send = name.op.endswith("send")
        item.peer = _peer(name, names.members(item.progress.group))
        if item.peer is not None:
            item.signature = names.signature(self.signatures[self.trace.signature[row]])
            item.posted = posted
        return item

    def _new(self, row: int) -> OpenEntry:
        progress, created_ns = self.progresses[self.pair[row]], int(self.trace.created_ns[row])
        return OpenEntry(self.entries[row], progress, created_ns, created_ns or self._at_ns)

    # -- collectives ---------------------------------------------------------------------------

    def calls(self, names: Naming, *, may_lack: bool) -> tuple[list[Row], dict[int, OpenEntry]]:
        """Rows for what changed, and the calls that are not over, by row."""
        calls = self._calls(names, may_lack=may_lack)
        if not len(calls):
            return [], {}
        if self._is_hooked:
            calls = self._reopened(calls)
        done, none = calls.done, np.zeros(len(calls), np.int64)
        given_up = columnar.given_up(self.trace, calls.last_row, self.facts) & ~done
        gone = ~self._with_known("in_ring", none == 0, calls)
        lost = given_up | (gone & (calls.last_row < len(self.known)))
        watermarks = columnar.watermarks(calls, self.in_order, lost)
        over = calls.seq <= watermarks.completed[calls.pair]
        ended = over & (done | (self.in_order[calls.pair] & ~lost))
        started_ns = self._started_ns(calls)
        flags = (
            _JOINED * ~calls.cut
            + _STARTED * ((started_ns > 0) & ~done)
            + _FAILED * given_up
            + _COMPLETED * ended
        )
        unsent = flags & ~self._with_known("sent", none, calls)
        group = np.array([progress.group for progress in self.progresses])[calls.pair]
        completed_ns = np.where(ended, calls.completed_ns, 0)
        columns = (group, calls.seq, calls.signature, unsent)
        # Equal times say that the end was before, and nothing of the start.
        began_ns = np.where(started_ns > 0, started_ns, completed_ns * self._is_hooked)
        times = (calls.created_ns, began_ns, completed_ns)
        changed = np.flatnonzero(unsent)
        changed = changed[np.argsort(calls.first_row[changed], kind="stable")]
        counter = self._update_progress(calls, watermarks)
        kept = {}
        for at in np.flatnonzero(~over).tolist():
            item = self._open(calls, at, counter)
            item.started_ns = int(started_ns[at])
            item.sent |= int(flags[at])
            kept[int(calls.first_row[at])] = item
        return np.stack((*columns, *times), axis=1)[changed].tolist(), kept

    def _reopened(self, calls: Calls) -> Calls:
        """Without the end of the last call of each pair that was marked when it was issued: it may
        be in flight, as long as the rank has not filled the ring with later ones."""
        retired, state = self.trace.retired[calls.last_row], self.trace.state[calls.last_row]
        issued = (retired != 0) & (state != COMPLETED)
        for number in np.unique(calls.pair[issued]).tolist():
            self.progresses[number].shows_ends = False
        last = np.append(calls.pair[1:] != calls.pair[:-1], True)
        last &= self._with_known("in_ring", np.ones(len(calls), np.bool_), calls)
        return replace(calls, done=calls.done & ~(issued & last))

    def _calls(self, names: Naming, *, may_lack: bool) -> Calls:
        """The calls, with the dictionary's signatures. Calls that were open keep their values."""
        trace, k = self.trace, len(self.known)
        rows = np.flatnonzero((trace.is_p2p == 0) & (self.pair >= 0) & (trace.seq < MAX_SEQ))
        rows = self._rising(rows[np.argsort(self.pair[rows], kind="stable")])
        state, cut = self.state.take(rows), (rows == k) & may_lack
        entries = columnar.calls_of(trace, rows, self.pair[rows], state, cut)
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
        """`column`, with field `name` of the open entry for each call that was open before."""
        if not self.known:
            return column
        old = np.flatnonzero(calls.first_row < len(self.known))
        column = column.copy()
        column[old] = [getattr(self.known[row], name) for row in calls.first_row[old].tolist()]
        return column

    def _started_ns(self, calls: Calls) -> Int64s:
        """0 for calls that are not known to have started."""
        first, last = (self.trace.started_ns[row] for row in (calls.first_row, calls.last_row))
        now_ns = np.where(calls.started, np.where(first > 0, first, last), 0)
        before_ns = self._with_known("started_ns", np.zeros_like(now_ns), calls)
        return np.where(before_ns > 0, before_ns, now_ns)

    def _open(self, calls: Calls, at: int, counter: Int64s) -> OpenEntry:
        row, entry = int(calls.first_row[at]), self.entries[calls.last_row[at]]
        if row < len(self.known):
            self.known[row].entry = entry
            return self.known[row]
        return OpenEntry(
            entry,
            self.progresses[calls.pair[at]],
            int(calls.created_ns[at]),
            int(calls.created_ns[at]) or self._at_ns,
            signature=int(calls.signature[at]),
            counter=int(counter[at]),
            cut=bool(calls.cut[at]),
        )

    def _rising(self, rows: Int64s) -> Int64s:
        """`rows` without fresh entries whose seq does not rise; parts of an open call stay."""
        k, seq, pair = len(self.known), self.trace.seq[rows], self.pair[rows]
        joined = np.array([progress.joined for progress in self.progresses], np.int64)[pair]
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

    def _update_progress(self, calls: Calls, watermarks: columnar.Watermarks) -> Int64s:
        """Returns the number that the counters of its group give to each call."""
        pair, op_id = calls.pair, self.trace.op_id[calls.first_row]
        backends = [progress.backend for progress in self.progresses]
        counter = columnar.counter_of(backends, pair, calls.seq, op_id)
        counter = op_id if self._is_hooked else counter
        ahead, seqs = (counter - calls.seq).tolist(), calls.seq
        since_ns = np.where(calls.created_ns > 0, calls.created_ns, self._at_ns)
        since_ns = self._with_known("since_ns", since_ns, calls)
        size = np.bincount(pair, minlength=len(backends))
        known = np.bincount(pair[calls.first_row < len(self.known)], minlength=len(backends))
        ends = np.cumsum(size)
        columns = (size, known, ends, watermarks.started, watermarks.head)
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
                progress.head_created_ns = 0 if is_idle else max(int(since_ns[head]), 1)
        return counter


def _peer(name: Name, members: Sequence[int]) -> int | None:
    """Global rank of the other end; None if the recorder or the group does not name it."""
    is_send = name.op.endswith("send")
    local = name.dst if is_send else name.src
    if local is None:
        return _ANY_SOURCE if not is_send and name.dst is not None else None
    return members[local] if local < len(members) else None
