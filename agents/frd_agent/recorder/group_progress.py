"""Progress of one rank in one group as of the last dump, and its open entries.

Watermarks come from entries only. The counters of `pg_status` cost nothing to read, but they count
ops (Gloo) or mix the numbers of sends with seqs (NCCL), and the op that Gloo completed last need
not be the latest. A watermark made of counters could be too high, and the service trusts
watermarks. So counters have three uses: they show that something changed, they show that a dump was
taken between the update of a counter and of its entry, and they start and end an op whose entry was
overwritten.

A dump of only what is in flight, the form in which the recorder of a hook (torch 2.15) is read
without the rank's interpreter, says as much (`peeked`): what it lacks is over, and the counters,
which number the ops of a group, say which op was the last. An entry in flight shows both numbers,
and where they have differed by the same amount all the time, they differ by it now.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from frd.flight.entry import Dump, Entry, Name, Status
from frd.flight.progress import NO_COUNTER
from frd.model import UNKNOWN_SEQ, UNSHOWN

_NEVER_READ: Final = Status()
_VARIES: Final = -(1 << 62)


@dataclass(frozen=True, slots=True)
class GroupWatermarks:
    """Watermarks of one (rank, group), as in `frd.model.WatermarkColumns`."""

    enqueued: int = UNKNOWN_SEQ
    started: int = UNKNOWN_SEQ
    completed: int = UNKNOWN_SEQ
    head_created_ns: int = 0


@dataclass(slots=True, eq=False)
class GroupProgress:
    """One rank in one group."""

    group: int
    """Index in the dictionary."""
    pg_id: int
    backend: str
    joined: int = UNKNOWN_SEQ
    started: int = UNKNOWN_SEQ
    head: int = UNKNOWN_SEQ
    """Seq of the oldest call that is not over; `UNKNOWN_SEQ` when all are."""
    head_created_ns: int = 0
    closed: bool = False
    """The group is gone, unless a later entry shows otherwise."""
    shows_ends: bool = True
    """False if entries are marked when their ops are issued: the last op counts as in flight."""
    has_p2p: bool = False
    """NCCL writes the numbers of P2P ops into the same counters, so they say nothing."""
    posted: Counter[Name] = field(default_factory=Counter)
    """Sends and receives by name, as far as all entries were read."""
    counter: int = NO_COUNTER
    """The number that the counters of the group give to the op `joined`."""
    ahead: int | None = None
    """By how much the counters' number of an op is ahead of its seq, if that is the same for all
    ops of the group; None before the first op, `_VARIES` otherwise."""

    def join(self, seq: int, counter: int, ahead: set[int]) -> None:
        """New collectives up to `seq`; `ahead` holds counter minus seq of each of them."""
        self.closed = False
        self.joined = seq
        self.counter = counter
        ahead = ahead if self.ahead is None else ahead | {self.ahead}
        is_constant = len(ahead) == 1 and counter != NO_COUNTER
        self.ahead = ahead.pop() if is_constant else _VARIES

    def close(self) -> None:
        """The group is gone: the rank waits for nothing in it."""
        self.closed = True
        self.head, self.head_created_ns = UNKNOWN_SEQ, 0

    @property
    def watermarks(self) -> GroupWatermarks:
        """As of the last dump."""
        completed = self.joined if self.head == UNKNOWN_SEQ else self.head - 1
        return GroupWatermarks(
            self.joined, self._started(completed), completed, self.head_created_ns
        )

    def final_watermarks(self, raw: Status, at_ns: int) -> GroupWatermarks | None:
        """The watermarks of a process that has ended, by its last counters, read at `at_ns`.

        None if the counters do not say how many collectives came after the last dump, because they
        count sends as well.
        """
        if raw.enqueued == self.counter:
            return self.watermarks
        if (joined := self.joined_by(raw.enqueued)) is None:
            return None
        completed = max(joined - max(raw.enqueued - raw.completed, 0), self.watermarks.completed)
        head_ns = 0 if completed == joined else self.head_created_ns or at_ns
        return GroupWatermarks(joined, self._started(completed), completed, head_ns)

    def joined_by(
        self, enqueued: int, shown: Iterable[tuple[int, int]] = (), *, rests: bool = True
    ) -> int | None:
        """Seq of the last collective, if `enqueued` is the counters' number of the last op; None if
        that is not known, because they count sends as well.

        `shown` are ops of the group that were read since, of a recorder that numbers them as its
        counters do: number and seq, of a send the seq of the collective before it.
        """
        counter, joined = max([(self.counter, self.joined), *shown])
        unread = enqueued - counter
        if unread == 0:
            return max(joined, self.joined)
        if unread < 0 or not rests or self.has_p2p or self.ahead in (None, _VARIES):
            return None
        return joined + unread

    def _started(self, completed: int) -> int:
        """A recorder without timing reports no starts at all."""
        if not self.shows_ends:
            return UNSHOWN
        return UNKNOWN_SEQ if self.started < 0 else max(self.started, completed)


@dataclass(frozen=True, slots=True)
class Progress:
    """What a recorder shows of all groups at one time."""

    taken_at_ns: int = 0
    status: Mapping[int, Status] = field(default_factory=dict)
    watermarks: Sequence[tuple[GroupProgress, GroupWatermarks]] = ()
    is_whole: bool = False
    """Nothing that the rank has enqueued by then is missing."""
    is_waiting: bool = False
    """The rank is in a collective, a send or a receive."""


def peeked(
    dump: Dump,
    taken_at_ns: int,
    groups: Collection[GroupProgress],
    past: Collection[int],
    read: Mapping[int, Status],
    before: Mapping[int, Status],
    created_ns: Callable[[Entry], int],
) -> Progress:
    """`dump`: the entries in flight. `groups` were read before, and all of their ops up to the
    counters `read`; `past` are pg_ids of earlier attempts. `before`: the last counters. Only of
    a rank that rests, the ops that were not read are taken for collectives as those before."""
    in_flight: dict[int, list[Entry]] = {}
    for entry in dump.entries:
        in_flight.setdefault(entry.pg_id, []).append(entry)
    known = {progress.pg_id for progress in groups} | {*past}
    used = {pg_id for pg_id, raw in dump.status.items() if raw.enqueued >= 0}
    is_whole = used | in_flight.keys() <= known
    watermarks = []
    for progress in groups:
        shown = in_flight.get(progress.pg_id, [])
        raw = dump.status.get(progress.pg_id)
        if raw is None or progress.closed:
            watermarks.append((progress, progress.watermarks))
            continue
        progress.has_p2p |= any(entry.is_p2p for entry in shown)
        # The dump is taken after its counters, and may show an op that they do not count.
        enqueued = max([raw.enqueued, *(entry.op_id for entry in shown)])
        numbers = [(entry.op_id, entry.collective_seq_id) for entry in shown]
        is_read = raw.enqueued == read.get(progress.pg_id, _NEVER_READ).enqueued == enqueued
        rests = raw.enqueued == before.get(progress.pg_id, _NEVER_READ).enqueued
        joined = progress.joined if is_read else progress.joined_by(enqueued, numbers, rests=rests)
        is_whole &= joined is not None
        calls = [entry for entry in shown if not entry.is_p2p]
        first = min(calls, key=lambda entry: entry.collective_seq_id, default=None)
        seqs = [progress.joined, *(entry.collective_seq_id for entry in calls)]
        enqueued = max(seqs) if joined is None else joined
        if first is None:
            found = GroupWatermarks(enqueued, UNKNOWN_SEQ, enqueued)
        else:
            head_ns = max(created_ns(first), 1)
            found = GroupWatermarks(enqueued, UNKNOWN_SEQ, first.collective_seq_id - 1, head_ns)
        watermarks.append((progress, found))
    return Progress(taken_at_ns, dump.status, watermarks, is_whole, bool(dump.entries))


@dataclass(slots=True)
class OpenEntry:
    """A call, send or receive that is not over; or the entry that will close a batch of sends."""

    entry: Entry
    """As last read; of a coalesced collective its last entry, which has its end."""
    progress: GroupProgress
    created_ns: int
    """Of the first entry of a call; `started_ns` and `signature` too. 0 if it is unknown."""
    since_ns: int
    """The same; if it is unknown, when the entry was first read."""
    started_ns: int = 0
    signature: int = 0
    counter: int = NO_COUNTER
    sent: int = 0
    """Flags that the service has."""
    cut: bool = False
    """Some of its entries were overwritten before they were read, so the signature is unknown."""
    peer: int | None = None
    """Global rank of the other end of a send or receive, -1 for any source; None for all else."""
    is_send: bool = False
    posted: int = -1
    """How many sends or receives with this peer came before; -1 unknown."""
    in_ring: bool = True
    """The last dump had the entry."""
    orphaned: bool = False
    """The recorder was reset since, so record ids mean other entries now."""
    over: bool = False
    """It has ended, although its entry does not say so."""

    @property
    def batch(self) -> int:
        """The same for all sends and receives of one call; 0 if it has no number."""
        return max(self.entry.p2p_seq_id, 0) & 0xFFFF_FFFF

    @property
    def is_call(self) -> bool:
        return self.peer is None and not self.entry.is_p2p

    def look(
        self, entry: Entry | None, raw: Status | None, at_ns: int, *, absent_is_over: bool
    ) -> None:
        """`entry`: the same entry in the next dump, of `at_ns`; `raw`: the counters of the group
        there."""
        self.in_ring = entry is not None
        if entry is not None:
            self.entry = entry
        elif absent_is_over:
            self.over |= self.peer is None or not self.orphaned
        elif raw is not None and not self.progress.has_p2p:
            self.over |= 0 <= self.counter <= raw.completed
            if not self.started_ns and 0 <= self.counter <= raw.started:
                self.started_ns = at_ns
                self.progress.started = max(self.progress.started, self.entry.collective_seq_id)
