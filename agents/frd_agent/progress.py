"""How far one rank has come in one group: what it joined, what of that is still open.

Two kinds of numbers meet here. The ring's entries carry seqs, which peers can be compared by, but
reading them costs the rank. The counters of `pg_status` cost nothing and count seqs (NCCL) or all
ops (Gloo, whose sends and receives leave no entry): `Counter` says when one can be turned into the
other. Pure arithmetic; who polls what, and when, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from frd.flight import Entry, Status
from frd.model import UNKNOWN_SEQ

_STEADY: Final = 200
"""Collectives in a row that make a group translatable again after something irregular in it."""
_COUNTS_SEQS: Final = frozenset({"nccl"})
_COUNTS_OPS: Final = frozenset({"gloo"})


@dataclass(slots=True)
class Item:
    """A collective that the rank joined and that is not known to be over."""

    record_id: int
    """Of its last entry: a coalesced collective has several, and the last one tells its end."""
    signature: int
    created_ns: int
    row: int = -1
    """Its JOINED row, while that can still be amended."""
    started_ns: int = 0
    started: bool = False
    completed_ns: int = 0
    done: bool = False
    failed: bool = False
    overwritten: bool = False
    """The ring has forgotten it, so nothing more will be heard of it itself."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Watermarks of one (rank, group), as in `frd.model.WatermarkColumns`."""

    enqueued: int = UNKNOWN_SEQ
    started: int = UNKNOWN_SEQ
    completed: int = UNKNOWN_SEQ
    head_created_ns: int = 0


class Counter:
    """Translates the raw counters of one process group to seqs, while that is sound."""

    __slots__ = ("_counts_ops", "_counts_seqs", "_lead", "_steady")

    def __init__(self, backend: str) -> None:
        self._counts_seqs = backend in _COUNTS_SEQS
        self._counts_ops = backend in _COUNTS_OPS
        self._lead: int | None = None
        """Ops that the group's own numbering is ahead of its seqs."""
        self._steady = _STEADY

    def collective(self, op_id: int, seq: int) -> None:
        lead = op_id - seq
        if lead == self._lead:
            self._steady += 1
            return
        if self._lead is not None and not self._counts_seqs:
            self._steady = 0
        self._lead = lead

    def p2p(self) -> None:
        """NCCL writes the numbers of P2P ops into the same counters; nothing tells them apart."""
        self._steady = 0

    @property
    def offset(self) -> int | None:
        """What to take from a raw counter to get a seq; None when that would be a guess."""
        if self._lead is None or self._steady < _STEADY:
            return None
        if self._counts_seqs:
            return 0
        if self._counts_ops or self._lead == 0:
            return self._lead
        return None


class Progress:
    """One rank in one group."""

    __slots__ = (
        "_guess",
        "closed",
        "counter",
        "group",
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
        self.counter = Counter(backend)
        self.joined = UNKNOWN_SEQ
        self.started = UNKNOWN_SEQ
        self.open: dict[int, Item] = {}
        """By seq, ascending."""
        self.closed = False
        """The group is gone, unless an entry says otherwise."""
        self.parts: tuple[Entry, ...] = ()
        """The entries of `joined`, while more of the same (coalesced) collective may follow."""
        self._guess = (UNKNOWN_SEQ, 0)

    def join(self, seq: int, item: Item, entry: Entry) -> None:
        """The rank's next collective in this group."""
        self.closed = False
        self.joined = seq
        self.open[seq] = item
        self.parts = (entry,)
        if item.started:
            self.started = max(self.started, seq)
        self.counter.collective(entry.op_id, seq)

    def seal(self) -> None:
        """The rows of this dump go out now; nothing amends them any more."""
        self.parts = ()
        for item in self.open.values():
            item.row = -1

    def has_completed(self, seq: int, status: Mapping[int, Status]) -> bool:
        """The raw counters say so."""
        offset, raw = self.counter.offset, status.get(self.pg_id)
        return offset is not None and raw is not None and raw.completed - offset >= seq

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

    def translated(self, raw: Status, at_ns: int) -> Marks | None:
        """As of `at_ns`, when the raw counters were `raw`; None when that would be a guess.

        A raw `completed` is the collective that completed last. Gloo's worker threads may finish a
        later one first; the next dump of the ring corrects what that makes of the watermark.
        """
        offset = self.counter.offset
        if offset is None:
            return None
        known = self.marks
        enqueued = max(known.enqueued, raw.enqueued - offset)
        completed = min(max(known.completed, raw.completed - offset), enqueued)
        started = self.started
        if raw.started >= 0:
            started = min(max(started, raw.started - offset), enqueued)
        if completed == enqueued:
            return Marks(enqueued, max(started, completed) if started >= 0 else started, completed)
        return Marks(
            enqueued,
            max(started, completed) if started >= 0 else started,
            completed,
            self._head_created(completed + 1, at_ns),
        )

    def _started(self, completed: int) -> int:
        """A recorder without timing tells no starts at all."""
        return UNKNOWN_SEQ if self.started < 0 else max(self.started, completed)

    def _head_created(self, head: int, at_ns: int) -> int:
        """When `head` was enqueued; the first sight of it where no entry has told."""
        if (item := self.open.get(head)) is not None:
            return max(item.created_ns, 1)
        if self._guess[0] != head:
            self._guess = head, at_ns
        return self._guess[1]
