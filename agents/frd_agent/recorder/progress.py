"""How far one rank has come in one group: what it joined, what of that is still open.

Only entries are believed. The counters of `pg_status` cost nothing to read, but they count ops
(Gloo) or mix the numbers of sends with seqs (NCCL), and what completed last in Gloo need not be the
latest op; a watermark made of them would claim what never happened, and the service believes
watermarks. So they serve to notice that something has changed, to tell a dump that was taken while
a recorder was between its entries and its counters, and, for an op whose entry the ring has
overwritten, to tell its end. Pure arithmetic; who polls what, and when, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from frd.flight import Entry, Status
from frd.model import UNKNOWN_SEQ

_COUNTS_SEQS: Final = frozenset({"nccl"})
_COUNTS_OPS: Final = frozenset({"gloo"})
_NO_NUMBER: Final = -1
_VARIES: Final = -1


@dataclass(slots=True)
class Item:
    """A collective that the rank joined and that is not known to be over."""

    record_id: int
    """Of its last entry: a coalesced collective has several, and the last one tells its end."""
    signature: int
    created_ns: int
    number: int
    """What the group's counters call it; -1 where nobody knows."""
    row: int = -1
    """Its JOINED row, while that can still be amended."""
    started_ns: int = 0
    started: bool = False
    completed_ns: int = 0
    done: bool = False
    failed: bool = False
    overwritten: bool = False
    """The ring has forgotten it, so nothing more will be heard of it itself."""
    cut: bool = False
    """The ring had forgotten its first parts before they were read: what was joined is unknown."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Watermarks of one (rank, group), as in `frd.model.WatermarkColumns`."""

    enqueued: int = UNKNOWN_SEQ
    started: int = UNKNOWN_SEQ
    completed: int = UNKNOWN_SEQ
    head_created_ns: int = 0


def counts_seqs(backend: str) -> bool:
    """Seqs of a group follow each other without gaps."""
    return backend in _COUNTS_SEQS or backend in _COUNTS_OPS


def number_of(backend: str, entry: Entry) -> int:
    """What `pg_status` calls the op of `entry`; -1 where nobody knows."""
    if backend in _COUNTS_SEQS:
        return entry.collective_seq_id
    if backend in _COUNTS_OPS or entry.op_id == entry.collective_seq_id:
        return entry.op_id
    return _NO_NUMBER


class Progress:
    """One rank in one group."""

    __slots__ = (
        "_ahead",
        "_last_number",
        "backend",
        "closed",
        "group",
        "has_p2p",
        "joined",
        "open",
        "parts",
        "pg_id",
        "started",
    )

    def __init__(self, group: int, pg_id: int, backend: str) -> None:
        self.group = group
        """Index in the dictionary."""
        self.pg_id = pg_id
        self.backend = backend
        self.joined = UNKNOWN_SEQ
        self.started = UNKNOWN_SEQ
        self.open: dict[int, Item] = {}
        """By seq, ascending."""
        self.closed = False
        """The group is gone, unless an entry says otherwise."""
        self.parts: tuple[Entry, ...] = ()
        """The entries of `joined`, while more of the same (coalesced) collective may follow."""
        self.has_p2p = False
        """NCCL writes the numbers of P2P ops into the same counters; nothing tells them apart."""
        self._last_number = _NO_NUMBER
        self._ahead: int | None = None
        """By how much the counters' number of an op is ahead of its seq: the same for each op of a
        group that does nothing but collectives; None before the first, `_VARIES` otherwise."""

    def join(self, seq: int, item: Item, entry: Entry) -> None:
        """The rank's next collective in this group."""
        self.closed = False
        self.joined = seq
        self.open[seq] = item
        self.parts = (entry,)
        if item.started:
            self.started = max(self.started, seq)
        self._last_number = item.number
        ahead = item.number - seq if item.number >= 0 else _VARIES
        self._ahead = ahead if self._ahead in (None, ahead) else _VARIES

    def seal(self) -> None:
        """The rows of this dump go out now; nothing amends them any more."""
        self.parts = ()
        for item in self.open.values():
            item.row = -1

    def has_completed(self, item: Item, status: Mapping[int, Status]) -> bool:
        """The raw counters say so: all there is to go by once the ring has forgotten `item`."""
        raw = status.get(self.pg_id)
        return raw is not None and not self.has_p2p and 0 <= item.number <= raw.completed

    def disagrees(self, raw: Status) -> bool:
        """A dump's counters are ahead of its entries.

        Gloo counts an op, and later writes its entry; counts its end, and later marks the entry. A
        dump may fall in between. Or a send was counted, or a later op ended first: nothing tells.
        """
        if self.backend not in _COUNTS_OPS or self.closed:
            return False
        return raw.enqueued > self._last_number or any(
            item.number <= raw.completed for item in self.open.values() if not item.overwritten
        )

    def settle(self) -> list[tuple[int, Item]]:
        """The collectives that may now be reported completed, in order; they leave `open`.

        One that failed, or that the ring forgot, holds its successors back only until one of them
        is over: a group works in order, so this one is over too, or was given up.
        """
        settled = []
        last_done = max((seq for seq, item in self.open.items() if item.done), default=-1)
        for seq, item in list(self.open.items()):
            if item.done:
                settled.append((seq, item))
            elif not (item.failed or item.overwritten) or seq > last_done:
                break
            del self.open[seq]
        return settled

    def close(self) -> None:
        """The group is gone: nobody in it waits any more."""
        self.closed = True
        self.open.clear()

    @property
    def marks(self) -> Marks:
        """As of the last dump of the ring."""
        head = next(iter(self.open), None)
        if head is None:
            return Marks(self.joined, self._started(self.joined), self.joined)
        return Marks(
            self.joined, self._started(head - 1), head - 1, max(self.open[head].created_ns, 1)
        )

    def last_marks(self, raw: Status, at_ns: int) -> Marks | None:
        """The marks of a process that has ended, whose ring nobody can read any more, by its last
        counters of `at_ns`; None where they do not tell how many collectives came after the last
        dump, because sends are counted with them."""
        unread = raw.enqueued - self._last_number
        if unread == 0:
            return self.marks
        if unread < 0 or self.has_p2p or self._ahead in (None, _VARIES):
            return None
        joined = self.joined + unread
        completed = max(joined - max(raw.enqueued - raw.completed, 0), self.marks.completed)
        head_ns = 0 if completed == joined else self.marks.head_created_ns or at_ns
        return Marks(joined, self._started(completed), completed, head_ns)

    def _started(self, completed: int) -> int:
        """A recorder without timing tells no starts at all."""
        return UNKNOWN_SEQ if self.started < 0 else max(self.started, completed)
