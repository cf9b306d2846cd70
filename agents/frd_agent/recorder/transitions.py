"""What is new in a dump of a recorder: rows for the service, each change sent once, in order.

The agent reads a recorder again and again, each time whole. `RecorderTracker` remembers which
record it read last and which earlier records were still open, so its work grows with what is new,
not with the size of the recorder. `entry_table` compares entries; this module decides what a dump
proves. Pure: dumps and times in, rows out.

Entries that were overwritten between two dumps are lost and counted, never invented. Records that
start again from 0 are a reset recorder (torchft resets it at every quorum), not a loss. A group
whose name comes back under another process-local id is another group, and its seqs start again: a
later generation of the group, or, if the process set up all its groups again, a group of a later
attempt.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, TypeAlias

import numpy as np

from frd.flight.decode import Known
from frd.flight.entry import Dump, Entry, Status, parse_profiling_name
from frd.flight.progress import counts_ops, counts_seqs
from frd.model import HIDDEN, Int64s
from frd_agent import tap
from frd_agent.recorder.group_progress import GroupProgress, Progress, peeked
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.open_entries import OpenEntries
from frd_agent.recorder.resets import Resets
from frd_agent.recorder.rows import Row

_COALESCES_NS: Final = 20_000_000
"""A younger entry may be the first of a coalesced collective: it is read from the next dump."""
_MANY_GROUPS: Final = 1_024
_MANY_OPEN: Final = 64

GroupKey: TypeAlias = tuple[int, str, str]
"""pg_id, name and backend of a group: a name may have a group for every backend."""


@dataclass(frozen=True, slots=True)
class Diff:
    rows: list[Row]
    lost: int
    """Entries that were overwritten before they were read."""


class RecorderTracker:
    """One recorder of one rank process."""

    def __init__(
        self, number: int | None = None, to_raw: Callable[[Int64s], Int64s] = np.asarray
    ) -> None:
        """`to_raw` converts the recorder's stamps into times like `taken_at_ns`."""
        self.number = number
        """The tap's number for the recorder; None if the tap has no counters of it."""
        self._to_raw = to_raw
        self.taken_at_ns = 0
        """All that the rank recorded before this time has been read; 0 before the first dump."""
        self.whole_until_ns = 0
        """The same, as far as looks at what is in flight have shown it since."""
        self.status: Mapping[int, Status] = {}
        """The raw counters of the last dump."""
        self.held = False
        """The last dump had entries that were too young to be read; the next dump has them."""
        self.torn = False
        """The counters of the last dump are ahead of its entries, for the first time. The next dump
        shows whether the rank had counted an op and not yet written its entry."""
        self.is_blind = False
        """The rank may be in an op whose entry was removed before it was read, for example because
        the recorder was reset during a hang. The op is over once enqueued and completed counters
        are equal and stop changing."""
        self.seen_until_ns = 0
        """`taken_at_ns` of the last dump after which `is_blind` was false."""
        self.capacity = 0
        """The most entries that a dump ever had."""
        self.open = OpenEntries(to_raw, number)
        self._is_hooked = number is not None and number >= tap.HOOKED
        self._ends_in_send = False
        """The newest op is a send or receive, perhaps of a batch, which has no entry of a hook."""
        self._peeked: Progress | None = None
        """Since the last dump."""
        self._read_status: Mapping[int, Status] = {}
        """Counters up to which all ops have been read."""
        self._resets = Resets()
        self._last_id = -1
        self._last_created_ns = 0
        self._groups: dict[GroupKey, GroupProgress] = {}
        self._past: set[GroupKey] = set()
        """Groups of earlier attempts, whose entries the recorder still shows."""
        self._present: dict[tuple[str, str], tuple[int, GroupProgress]] = {}
        """By group name and backend: the latest generation and its progress."""

    @property
    def groups(self) -> Iterable[GroupProgress]:
        return self._groups.values()

    @property
    def latest(self) -> Progress:
        """As of the last dump, or of the last look at what is in flight."""
        if (found := self._peeked) is None:
            marks = [(progress, progress.watermarks) for progress in self.groups]
            found = Progress(
                self.taken_at_ns, self.status, marks, self.is_whole, self.open.is_waiting
            )
        if not self._is_hooked or found.is_waiting:
            return found
        has_moved = any(
            raw.enqueued != self._read_status.get(pg_id, Status()).enqueued
            for pg_id, raw in found.status.items()
        )
        if not (self._ends_in_send or has_moved):
            return found
        hidden = [
            (one, replace(of, started=HIDDEN) if one.has_p2p and not one.closed else of)
            for one, of in found.watermarks
        ]
        return replace(found, watermarks=hidden)

    @property
    def counters(self) -> Mapping[int, Status]:
        """The raw counters of `latest`."""
        return self.status if self._peeked is None else self._peeked.status

    @property
    def known(self) -> Known | None:
        """What the next dump need not show again; None before the first one, and if decoding all of
        it would be quicker."""
        if self._last_id < 0 or len(self.open.items) > _MANY_OPEN:
            return None
        still_open = [item.entry.record_id for item in self.open.items]
        return Known(self._last_id, self._last_created_ns, still_open)

    @property
    def is_whole(self) -> bool:
        """The last dump showed all that the recorder knew, and all of it has been read."""
        return not (self.held or self.torn)

    def new_groups(self, dump: Dump, taken_at_ns: int) -> dict[str, bool]:
        """Names of groups that `apply` has not seen; True for a name that an earlier group had.

        A caller that does not know the members yet can wait a moment and apply a later dump.
        """
        fresh, reset = self._unread(dump.entries, taken_at_ns - _COALESCES_NS)
        keys = _keys(fresh)
        return {
            key[1]: key[1:] in self._present
            for key in keys - self._past - self._passed(keys)
            if reset or key not in self._groups
        }

    def begin_attempt(self) -> None:
        """The process has set up all its groups again: the next entries are of another attempt."""
        self._past.update(self._groups)
        self._peeked, self._read_status, self._ends_in_send = None, {}, False
        self.whole_until_ns = 0
        self._groups.clear()
        self._present.clear()
        self._resets.clear()
        self.open.items.clear()

    def close(self, gone: Callable[[str], bool]) -> None:
        """Close the groups that the rank has destroyed: it waits for nothing in them."""
        for (_, name, _), progress in self._groups.items():
            if not progress.closed and gone(name):
                self.open.close(progress)

    def peek(self, dump: Dump, taken_at_ns: int) -> None:
        """A dump of only what is in flight, of a recorder that counts ops: it gives no rows."""
        past, before = {pg_id for pg_id, _, _ in self._past}, self.counters
        groups = self._groups.values()
        self._peeked = peeked(
            dump, taken_at_ns, groups, past, self._read_status, before, self._created_ns
        )
        if self._peeked.is_whole:
            self.whole_until_ns = taken_at_ns
        self.open.forget_ended_sends({entry.record_id for entry in dump.entries})

    def apply(self, dump: Dump, taken_at_ns: int, names: Naming, *, is_final: bool = False) -> Diff:
        """`taken_at_ns`: the node's raw time just before the rank was asked for this dump.

        Of a final dump all entries are read: no later one may come. It was taken after its newest
        entry, whatever `taken_at_ns` says.
        """
        entries = dump.entries
        if is_final and entries:
            created = self._to_raw(np.array([entry.time_created_ns for entry in entries]))
            taken_at_ns = max(taken_at_ns, int(created.max()))
        self.taken_at_ns, self._peeked = taken_at_ns, None
        before, self.status = self.status, dump.status
        self._resets.observe(self.status, before, taken_at_ns)
        # No bound of a final dump: each conversion has its own reading of the clocks.
        settled_ns = sys.maxsize if is_final else taken_at_ns - _COALESCES_NS
        fresh, reset = self._unread(entries, settled_ns)
        if reset or not entries:
            # No later entry shows the end of an op that is open now; only the counters show it.
            sends = {item.progress.pg_id for item in self.open.items if item.peer is not None}
            self._resets.begin(self.status, before if self.is_whole else {}, sends)
            self.open.orphan()
        if reset:
            self._last_id, self.capacity = -1, 0
        self._prune()
        partial = bool(entries) and not dump.holes and self._is_partial(dump)
        self.capacity = max(self.capacity, len(entries) + dump.skipped)
        lost = self._lost(fresh, reset=reset) if not partial else 0
        follows = not fresh or fresh[-1].record_id - self._last_id == len(fresh)
        self.open.is_whole &= follows and not reset
        whole = partial or not fresh or fresh[0].record_id in (0, self._last_id + 1)
        self.open.look(
            lambda record_id: _find(entries, record_id),
            self.status,
            taken_at_ns,
            absent_is_over=partial and not dump.warnings,
        )
        self._past |= self._passed(_keys(fresh))
        replaced: list[GroupProgress] = []
        rows = self.open.read(
            fresh,
            lambda entry: self._progress_of(entry, names, replaced),
            names,
            may_lack=not whole,
        )
        for former in replaced:
            self.open.close(former)
        for entry in fresh[-1:]:
            self._ends_in_send = entry.is_p2p
            self._last_id, self._last_created_ns = entry.record_id, entry.time_created_ns
        self._resets.mark_read({entry.pg_id for entry in fresh})
        self._end_orphans()
        self.held = bool(entries) and self._last_id < entries[-1].record_id
        if self.held:
            unread = bisect_right(entries, self._last_id, key=_record_id_of)
            self.taken_at_ns = min(taken_at_ns, self._created_ns(entries[unread]) - 1)
        self.torn = self._is_torn(before)
        if self.is_whole:
            self._read_status = self.status
        closed = {progress.pg_id for progress in self.groups if progress.closed}
        self.is_blind = self._resets.may_hide_op(self.status, before, closed)
        if not self.is_blind:
            self.seen_until_ns = self.taken_at_ns
        self.whole_until_ns = self.taken_at_ns
        return Diff(rows, lost)

    # -- what a dump shows ---------------------------------------------------------------------

    def _unread(self, entries: Sequence[Entry], settled_ns: int) -> tuple[Sequence[Entry], bool]:
        """Entries of until `settled_ns`, and whether the recorder was reset."""
        if not entries:
            return (), False
        reset = self._is_reset(entries)
        first = 0 if reset else bisect_right(entries, self._last_id, key=_record_id_of)
        end = len(entries)
        while (
            end > first
            and not self._is_hooked
            and self._created_ns(entries[end - 1]) > settled_ns
            and not entries[end - 1].profiling_name.startswith("gloo:")
        ):
            end -= 1
        return entries[first:end], reset

    def _created_ns(self, entry: Entry) -> int:
        return int(self._to_raw(np.array([entry.time_created_ns]))[0])

    def _is_reset(self, entries: Sequence[Entry]) -> bool:
        """Record ids went backwards, or the record that was read last is another one now."""
        if self._last_id < 0:
            return False
        last = _find(entries, self._last_id)
        return entries[-1].record_id < self._last_id or (
            last is not None and last.time_created_ns != self._last_created_ns
        )

    def _is_partial(self, dump: Dump) -> bool:
        """The recorder showed only its active entries: an entry that is missing is over."""
        first, last = dump.entries[0].record_id, dump.entries[-1].record_id
        shown = len(dump.entries) + dump.skipped
        return last - first + 1 > shown or shown < min(self.capacity, last + 1)

    def _lost(self, fresh: Sequence[Entry], *, reset: bool) -> int:
        """The number of unread entries; after a reset, of collectives, by the gap in seqs."""
        if not reset:
            if not fresh or self._last_id < 0:
                return 0
            return max(fresh[-1].record_id - self._last_id - len(fresh), 0)
        first: dict[GroupKey, int] = {}
        for entry in fresh:
            if not entry.is_p2p:
                first.setdefault(_key(entry), entry.collective_seq_id)
        return sum(
            max(seq - progress.joined - 1, 0)
            for key, seq in first.items()
            if (progress := self._groups.get(key)) is not None
            and progress.joined >= 0
            and counts_seqs(progress.backend)
        )

    def _is_torn(self, before: Mapping[int, Status]) -> bool:
        """A dump's counters are ahead of its entries, for the first time.

        Gloo counts an op before it writes the entry, and counts the end before it marks the entry;
        a dump may fall in between. If the next dump has the same counters, the reason was another:
        a send was counted, or a later op ended first.
        """
        moved = {pg_id for pg_id, raw in self.status.items() if raw != before.get(pg_id)}
        read = {progress.pg_id for progress in self.groups}
        past = {pg_id for pg_id, _, _ in self._past}
        return not moved <= read | past or any(
            progress.pg_id in moved
            and (counts_ops(progress.backend) or (self._is_hooked and not progress.has_p2p))
            and not progress.closed
            and self.open.is_behind(progress, self.status[progress.pg_id])
            for progress in self.groups
        )

    def _end_orphans(self) -> None:
        """Sends and receives from before a reset that may be over."""
        over = set(self._resets.take_ended(self.status))
        if self.open.done_created_ns:
            over |= self._resets.take_given_up(self.open.done_created_ns)
        if over:
            self.open.forget_orphaned_sends(over)

    # -- groups --------------------------------------------------------------------------------

    def _progress_of(
        self, entry: Entry, names: Naming, replaced: list[GroupProgress]
    ) -> GroupProgress | None:
        """The progress of an entry's group; None for a group of an earlier attempt. The group that
        had its name before is added to `replaced`."""
        key = _key(entry)
        progress = self._groups.get(key)
        if progress is None and key not in self._past:
            generation, former = self._present.get(key[1:], (-1, None))
            replaced += () if former is None else (former,)
            group = names.group(entry.group_name, entry.group_desc, key[2], generation + 1)
            progress = self._groups[key] = GroupProgress(group, entry.pg_id, key[2])
            self._present[key[1:]] = (generation + 1, progress)
        return progress

    def _passed(self, keys: set[GroupKey]) -> set[GroupKey]:
        """Groups of a first dump that a later group of the same name has replaced."""
        if self._groups:
            return set()
        last: dict[tuple[str, str], int] = {}
        for pg_id, name, backend in keys:
            last[name, backend] = max(pg_id, last.get((name, backend), pg_id))
        return {key for key in keys if key[0] < last[key[1:]]}

    def _prune(self) -> None:
        """Forget groups that are gone, once there are many."""
        if len(self._groups) > _MANY_GROUPS:
            gone = {key for key, progress in self._groups.items() if progress.closed}
            self._past |= gone
            self._groups = {k: progress for k, progress in self._groups.items() if k not in gone}


_key_parts = attrgetter("pg_id", "process_group", "profiling_name")


def _key(entry: Entry) -> GroupKey:
    backend = parse_profiling_name(entry.profiling_name).backend
    return entry.pg_id, entry.group_name, backend


def _keys(entries: Iterable[Entry]) -> set[GroupKey]:
    return {
        (pg_id, group[0], parse_profiling_name(name).backend)
        for pg_id, group, name in set(map(_key_parts, entries))
    }


def _record_id_of(entry: Entry) -> int:
    return entry.record_id


def _find(entries: Sequence[Entry], record_id: int) -> Entry | None:
    index = bisect_left(entries, record_id, key=_record_id_of)
    if index < len(entries) and entries[index].record_id == record_id:
        return entries[index]
    return None
