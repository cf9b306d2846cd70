"""What is new in a dump of a ring: rows for the service, each change told exactly once, in order.

A recorder is a ring that is read again and again, each time whole. `Ring` remembers which record
it has read last and which of the earlier ones were still open, so its work grows with what is new,
not with the size of the ring. It is pure: dumps and the time of asking in, rows out.

Entries that were overwritten between two dumps are lost and counted, never invented; what is left
of a coalesced collective that has lost its first parts is not held against its peers. Records that
start again from 0 are a reset recorder (torchft does so at every quorum), not a loss. A group whose
name comes back under another process-local id is another group, whose seqs start anew: a later
generation of it, or, where the whole process set up its groups again, a group of a later attempt.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from frd.flight import Dump, Entry, Name, Status, parse_profiling_name
from frd_agent.recorder.channels import NO_RECORD, Channels
from frd_agent.recorder.progress import Item, Progress, counts_seqs, number_of
from frd_agent.recorder.resets import Resets
from frd_agent.recorder.rows import (
    FAILED,
    JOINED,
    MAX_SEQ,
    STARTED,
    Find,
    GroupKey,
    Row,
    finder,
    group_key,
    is_done,
    record_id_of,
    row_of,
    settle,
    update,
)

_COALESCES_NS: Final = 20_000_000
"""Younger entries may be the first of several of one coalesced collective: read next time."""
_LATER_NS: Final = 5_000_000_000
"""No dump takes so long; so much later is an entry of a clock that has been set back since."""
_MANY_GROUPS: Final = 1_024

Call: TypeAlias = tuple[GroupKey, int]
"""A collective, by group and seq."""


class Names(Protocol):
    """Who gives indexes to groups and signatures."""

    def group(self, name: str, desc: str, backend: str, generation: int) -> int: ...

    def members(self, group: int) -> Sequence[int]:
        """Global ranks by group-local rank; empty when unknown."""

    def signature(self, parts: tuple[Entry, ...]) -> int:
        """Of all entries of one collective: several when it is a coalesced one."""


@dataclass(frozen=True, slots=True)
class Diff:
    rows: list[Row]
    lost: int
    """Entries that were overwritten before they were read."""
    reset: bool


class Ring:
    """One recorder of one rank process."""

    def __init__(self) -> None:
        self.taken_at_ns = 0
        """All that the rank recorded before this time has been read; 0 before the first dump."""
        self.status: Mapping[int, Status] = {}
        """The raw counters of the last dump."""
        self.held = False
        """The last dump showed entries too young to be read; they come with the next one."""
        self.torn = False
        """The last dump's counters say more than its entries, for the first time: the next dump
        tells whether it fell between the two."""
        self.is_blind = False
        """The rank may be in what was enqueued and gone before it was read, as when the recorder is
        reset while a job hangs; when that is over, the counters are even and move no more."""
        self.seen_until_ns = 0
        """As `taken_at_ns`, of the last dump after which it was not blind."""
        self.capacity = 0
        """The most entries that a dump ever had."""
        self.channels = Channels()
        self._resets = Resets()
        self._last_id = -1
        self._last_created_ns = 0
        self._groups: dict[GroupKey, Progress] = {}
        self._past: set[GroupKey] = set()
        """Groups of earlier attempts, whose entries the ring still shows."""
        self._present: dict[tuple[str, str], tuple[int, Progress]] = {}
        """By group name and backend: its generation, and the last one."""

    @property
    def groups(self) -> Iterable[Progress]:
        return self._groups.values()

    @property
    def is_whole(self) -> bool:
        """The last dump showed all that the recorder knew, and all of it has been read."""
        return not (self.held or self.torn)

    @property
    def is_waiting(self) -> bool:
        """The rank is in something."""
        return not self.channels.is_empty or any(progress.open for progress in self.groups)

    def new_groups(self, dump: Dump, taken_at_ns: int) -> dict[str, bool]:
        """Names of groups that `apply` would meet for the first time; True: for another time.

        A caller that does not know them yet can wait a moment and take the dump later.
        """
        fresh, reset = self._unread(dump.entries, taken_at_ns)
        past = self._past | self._passed(fresh)
        return {
            key[1]: key[1:] in self._present
            for key in {group_key(entry) for entry in fresh} - past
            if reset or key not in self._groups
        }

    def begin_attempt(self) -> None:
        """The process has set up all its groups again; what comes is of another attempt."""
        self._past.update(self._groups)
        self._groups.clear()
        self._present.clear()
        self._resets.clear()
        self.channels.close()

    def apply(self, dump: Dump, taken_at_ns: int, names: Names) -> Diff:
        """`taken_at_ns`: the node's time just before the rank was asked for this dump."""
        rows: list[Row] = []
        lost, reset = 0, False
        self.taken_at_ns = taken_at_ns
        before, self.status = self.status, dump.status
        self._resets.see(self.status, before, taken_at_ns)
        known = before if self.is_whole else {}
        if not (entries := dump.entries):
            self._orphan(known)
            self._revisit(lambda record_id: None, False, rows)
            self._end_orphans(())
            self.torn = self._is_torn(before)
            self._look_for_missed(before)
            return Diff(rows, lost, reset)
        fresh, reset = self._unread(entries, taken_at_ns)
        if reset:
            self._forget(known)
        self._prune()
        partial = self._is_partial(entries)
        self.capacity = max(self.capacity, len(entries))
        find, absent_is_over = finder(entries), partial and not dump.warnings
        self._revisit(find, absent_is_over, rows)
        if fresh:
            if self._last_id >= 0 and not partial:
                lost = max(fresh[0].record_id - self._last_id - 1, 0)
            whole = partial or fresh[0].record_id in (0, self._last_id + 1)
            if reset and not partial:
                lost = self._missed(fresh)
            self._read(fresh, names, rows, None if whole else _series(fresh))
        self._end_orphans(entries)
        self._end_channels(entries, find, absent_is_over)
        self.held = self._last_id < entries[-1].record_id
        if self.held:
            left = bisect_right(entries, self._last_id, key=record_id_of)
            self.taken_at_ns = min(taken_at_ns, entries[left].time_created_ns - 1)
        self.torn = self._is_torn(before)
        self._look_for_missed(before)
        return Diff(rows, lost, reset)

    def close(self, gone: Callable[[str], bool]) -> None:
        """Groups that the rank has destroyed: nothing in them is waited for any more."""
        for (_, name, _), progress in self._groups.items():
            if not progress.closed and gone(name):
                progress.close()
                self.channels.close(progress.group)

    def _prune(self) -> None:
        """Groups that are gone take their numbers along, once there are many."""
        if len(self._groups) > _MANY_GROUPS:
            gone = {key for key, progress in self._groups.items() if progress.closed}
            self._past |= gone
            self._groups = {k: progress for k, progress in self._groups.items() if k not in gone}

    def in_flight(self) -> list[Row]:
        """What was joined and is not over: one row each, for a service that knows nothing yet."""
        return [
            [
                progress.group,
                seq,
                item.signature,
                JOINED | (STARTED if item.started else 0) | (FAILED if item.failed else 0),
                item.created_ns,
                item.started_ns,
                0,
            ]
            for progress in self._groups.values()
            for seq, item in progress.open.items()
            if not item.cut
        ]

    # -- what a dump shows ---------------------------------------------------------------------

    def _unread(self, entries: Sequence[Entry], taken_at_ns: int) -> tuple[Sequence[Entry], bool]:
        if not entries:
            return (), False
        reset = self._is_reset(entries)
        first = 0 if reset else bisect_right(entries, self._last_id, key=record_id_of)
        end = len(entries)
        while (
            end > first
            and -_COALESCES_NS < entries[end - 1].time_created_ns - taken_at_ns < _LATER_NS
            and not entries[end - 1].profiling_name.startswith("gloo:")
        ):
            end -= 1
        return entries[first:end], reset

    def _is_reset(self, entries: Sequence[Entry]) -> bool:
        """Record ids went backwards, or the record that was read last is another one now."""
        if self._last_id < 0:
            return False
        if entries[-1].record_id < self._last_id:
            return True
        at = bisect_right(entries, self._last_id, key=record_id_of) - 1
        return (
            at >= 0
            and entries[at].record_id == self._last_id
            and entries[at].time_created_ns != self._last_created_ns
        )

    def _is_torn(self, before: Mapping[int, Status]) -> bool:
        """Counters that were the same in two dumps have waited for their entries long enough."""
        moved = {pg_id for pg_id, raw in self.status.items() if raw != before.get(pg_id)}
        read = {progress.pg_id for progress in self._groups.values()}
        past = {pg_id for pg_id, _, _ in self._past}
        return not moved <= read | past or any(
            progress.pg_id in moved and progress.disagrees(self.status[progress.pg_id])
            for progress in self._groups.values()
        )

    def _look_for_missed(self, before: Mapping[int, Status]) -> None:
        closed = {progress.pg_id for progress in self._groups.values() if progress.closed}
        self.is_blind = self._resets.hide(self.status, before, closed)
        if not self.is_blind:
            self.seen_until_ns = self.taken_at_ns

    def _is_partial(self, entries: Sequence[Entry]) -> bool:
        """The recorder showed its active entries only: one that is not there is over."""
        first, last = entries[0].record_id, entries[-1].record_id
        return last - first + 1 > len(entries) or len(entries) < min(self.capacity, last + 1)

    def _missed(self, fresh: Sequence[Entry]) -> int:
        """Collectives that the reset has taken, by the seqs of those that came after."""
        first: dict[GroupKey, int] = {}
        for entry in fresh:
            if not entry.is_p2p:
                first.setdefault(group_key(entry), entry.collective_seq_id)
        return sum(
            max(seq - progress.joined - 1, 0)
            for key, seq in first.items()
            if (progress := self._groups.get(key)) is not None
            and progress.joined >= 0
            and counts_seqs(progress.backend)
        )

    def _forget(self, known: Mapping[int, Status]) -> None:
        """A reset ends no op: what was open is as open as it was, and the counters tell its end."""
        self._last_id = -1
        self.capacity = 0
        self._orphan(known)

    def _orphan(self, known: Mapping[int, Status]) -> None:
        """No entry that comes will be of an op that is open now; all was read up to `known`."""
        self.channels.orphan()
        waiting = self.channels.groups
        orphaned = [one.pg_id for one in self._groups.values() if one.group in waiting]
        self._resets.begin(self.status, known, orphaned)
        for progress in self._groups.values():
            for item in progress.open.values():
                item.record_id = NO_RECORD

    # -- entries seen before -------------------------------------------------------------------

    def _revisit(self, find: Find, absent_is_over: bool, rows: list[Row]) -> None:
        """Open collectives that have started, failed or completed since."""
        for progress in self._groups.values():
            for seq, item in progress.open.items():
                if (entry := find(item.record_id)) is not None:
                    if flags := update(item, entry):
                        rows.append(row_of(progress, seq, item, flags))
                    if item.started:
                        progress.started = max(progress.started, seq)
                elif absent_is_over:
                    item.done = True
                else:
                    item.overwritten = True
                    item.done = progress.has_completed(item, self.status)
            settle(progress, rows)

    def _end_orphans(self, entries: Sequence[Entry]) -> None:
        """Sends and receives from before a reset that may be over."""
        over = set(self._resets.take_ended(self.status))
        done = next((entry for entry in reversed(entries) if is_done(entry)), None)
        if done is not None:
            over |= self._resets.take_given_up(done.time_created_ns)
        for progress in self._groups.values():
            if progress.pg_id in over:
                self.channels.forsake(progress.group)

    def _end_channels(self, entries: Sequence[Entry], find: Find, absent_is_over: bool) -> None:
        if not (waiting := self.channels.waiting()):
            return
        over = set()
        for record_id in waiting:
            entry = find(record_id)
            if absent_is_over if entry is None else is_done(entry):
                over.add(record_id)
        batches = {
            (entry.pg_id, entry.p2p_seq_id)
            for entry in entries
            if entry.is_p2p and entry.profiling_name.endswith(":coalesced") and is_done(entry)
        }
        self.channels.end(over, batches)

    # -- entries seen for the first time -------------------------------------------------------

    def _read(
        self, fresh: Sequence[Entry], names: Names, rows: list[Row], cut: Call | None
    ) -> None:
        """`cut`: the collective that may lack its first parts."""
        touched: dict[int, Progress] = {}
        self._past |= self._passed(fresh)
        for entry in fresh:
            name = parse_profiling_name(entry.profiling_name)
            self._resets.read(entry.pg_id)
            if (progress := self._progress(entry, name, names)) is None:
                continue
            seq = entry.collective_seq_id
            if entry.is_p2p or name.is_p2p_kind:
                progress.has_p2p = True
                if name.is_p2p_kind:
                    self.channels.read(entry, name, progress.group, names.members(progress.group))
            elif progress.joined < seq < MAX_SEQ:
                signature = names.signature((entry,))
                number = number_of(progress.backend, entry)
                item = Item(
                    entry.record_id, signature, entry.time_created_ns, number, row=len(rows)
                )
                item.cut = cut == (group_key(entry), seq)
                joined = 0 if item.cut else JOINED
                rows.append(row_of(progress, seq, item, joined | update(item, entry)))
                progress.join(seq, item, entry)
                touched[id(progress)] = progress
            elif seq == progress.joined and (open_item := progress.open.get(seq)) is not None:
                self._read_part(entry, progress, open_item, names, rows)
        for progress in touched.values():
            settle(progress, rows)
            progress.seal()
        rows[:] = [row for row in rows if row[3]]  # nothing more is known yet of what was cut
        self._last_id = fresh[-1].record_id
        self._last_created_ns = fresh[-1].time_created_ns

    def _read_part(
        self, entry: Entry, progress: Progress, item: Item, names: Names, rows: list[Row]
    ) -> None:
        """One more entry of a coalesced collective; its end is the end of them all."""
        item.record_id = entry.record_id
        item.done = False
        flags = update(item, entry)
        if item.row >= 0:
            progress.parts += (entry,)
            rows[item.row][2] = item.signature = names.signature(progress.parts)
            rows[item.row][3] |= flags
        elif flags:
            rows.append(row_of(progress, entry.collective_seq_id, item, flags))

    def _passed(self, fresh: Sequence[Entry]) -> set[GroupKey]:
        """At first sight of a ring, of several groups of one name only the last is of now."""
        if self._groups:
            return set()
        last: dict[tuple[str, str], int] = {}
        keys = {group_key(entry) for entry in fresh}
        for pg_id, name, backend in keys:
            last[name, backend] = max(pg_id, last.get((name, backend), pg_id))
        return {key for key in keys if key[0] < last[key[1:]]}

    def _progress(self, entry: Entry, name: Name, names: Names) -> Progress | None:
        key = (entry.pg_id, entry.group_name, name.backend)
        progress = self._groups.get(key)
        if progress is None and key not in self._past:
            generation, former = self._present.get(key[1:], (-1, None))
            if former is not None:
                former.close()
                self.channels.close(former.group)
            group = names.group(entry.group_name, entry.group_desc, name.backend, generation + 1)
            progress = Progress(group, entry.pg_id, name.backend)
            self._groups[key] = progress
            self._present[key[1:]] = (generation + 1, progress)
        return progress


def _series(fresh: Sequence[Entry]) -> Call | None:
    """The first collective, where it is one of several parts or the end of such a series."""
    call = group_key(fresh[0]), fresh[0].collective_seq_id
    parts = 0
    for entry in fresh:
        if (group_key(entry), entry.collective_seq_id) != call:
            break
        parts += 1
    ends_series = fresh[0].profiling_name.endswith(("coalesced", "_oop"))
    return call if parts > 1 or ends_series else None
