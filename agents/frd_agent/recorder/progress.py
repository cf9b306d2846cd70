"""How far one rank has come in one group, as of the last dump, and what of that is still open.

Only entries are believed. The counters of `pg_status` cost nothing to read, but they count ops
(Gloo) or mix the numbers of sends with seqs (NCCL), and the op that Gloo completed last need not be
the latest. A watermark made of counters would claim things that never happened, and the service
believes watermarks. So counters show that something changed, show a dump that was taken while a
recorder was between its entries and its counters, and end an op whose entry was overwritten. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from frd.flight import Entry, Status
from frd.flight.progress import NO_COUNTER
from frd.model import UNKNOWN_SEQ

_VARIES: Final = -1


@dataclass(frozen=True, slots=True)
class Marks:
    """Watermarks of one (rank, group), as in `frd.model.WatermarkColumns`."""

    enqueued: int = UNKNOWN_SEQ
    started: int = UNKNOWN_SEQ
    completed: int = UNKNOWN_SEQ
    head_created_ns: int = 0


@dataclass(slots=True, eq=False)
class Progress:
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
    has_p2p: bool = False
    """NCCL writes the numbers of P2P ops into the same counters, so they say nothing."""
    counter: int = NO_COUNTER
    """What the counters of the group call the op `joined`."""
    ahead: int | None = None
    """By how much the counters' number of an op is ahead of its seq, if that is the same for all
    ops of the group; None before the first op, `_VARIES` otherwise."""

    def join(self, seq: int, counter: int, ahead: set[int]) -> None:
        """New collectives up to `seq`; `ahead` holds counter minus seq of each of them."""
        self.closed = False
        self.joined = seq
        self.counter = counter
        ahead = ahead if self.ahead is None else ahead | {self.ahead}
        one = ahead.pop() if len(ahead) == 1 else _VARIES
        self.ahead = one if one >= 0 and counter != NO_COUNTER else _VARIES

    def close(self) -> None:
        """The group is gone: the rank waits for nothing in it."""
        self.closed = True
        self.head, self.head_created_ns = UNKNOWN_SEQ, 0

    @property
    def marks(self) -> Marks:
        """As of the last dump."""
        completed = self.joined if self.head == UNKNOWN_SEQ else self.head - 1
        return Marks(self.joined, self._started(completed), completed, self.head_created_ns)

    def last_marks(self, raw: Status, at_ns: int) -> Marks | None:
        """The marks of a process that has ended, by its last counters, of `at_ns`.

        None if the counters do not say how many collectives came after the last dump, because they
        count sends as well.
        """
        unread = raw.enqueued - self.counter
        if unread == 0:
            return self.marks
        if unread < 0 or self.has_p2p or self.ahead in (None, _VARIES):
            return None
        joined = self.joined + unread
        completed = max(joined - max(raw.enqueued - raw.completed, 0), self.marks.completed)
        head_ns = 0 if completed == joined else self.head_created_ns or at_ns
        return Marks(joined, self._started(completed), completed, head_ns)

    def _started(self, completed: int) -> int:
        """A recorder without timing reports no starts at all."""
        return UNKNOWN_SEQ if self.started < 0 else max(self.started, completed)


@dataclass(slots=True)
class Open:
    """A call, send or receive that is not over; or the entry that will close a batch of sends."""

    entry: Entry
    """As last read. A coalesced collective has its end in its last entry."""
    progress: Progress
    created_ns: int
    """Of the first entry of a call; so are the next ones."""
    started_ns: int = 0
    signature: int = 0
    counter: int = NO_COUNTER
    sent: int = 0
    """Flags that the service has."""
    cut: bool = False
    """Entries of it were overwritten before they were read, so its signature is not known."""
    peer: int | None = None
    """Global rank of the other end of a send or receive, -1 for any source; None for all else."""
    is_send: bool = False
    in_ring: bool = True
    """The last dump had the entry."""
    orphaned: bool = False
    """The recorder was reset since, so record ids mean other entries now."""
    over: bool = False
    """It has ended, although its entry does not say so."""

    @property
    def is_call(self) -> bool:
        return self.peer is None and not self.entry.is_p2p

    def look(self, found: Entry | None, raw: Status | None, *, absent_is_over: bool) -> None:
        """`found`: the entry in the next dump; `raw`: the counters of the group there."""
        self.in_ring = found is not None
        if found is not None:
            self.entry = found
        elif absent_is_over:
            self.over |= self.peer is None or not self.orphaned
        elif raw is not None and not self.progress.has_p2p:
            self.over |= 0 <= self.counter <= raw.completed
