"""The open entries of a recorder, from one dump to the next. `entry_table` reads them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from frd.flight.entry import Entry, Status
from frd.model import Flags, Int64s
from frd_agent.recorder.entry_table import EntryTable
from frd_agent.recorder.group_progress import GroupProgress, OpenEntry
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.rows import Row

_SHOWN = int(Flags.JOINED | Flags.STARTED | Flags.FAILED)


class OpenEntries:
    """The entries of one recorder that are not over, as the last dump showed them."""

    def __init__(self, to_raw: Callable[[Int64s], Int64s], number: int | None) -> None:
        """`number`: as `RecorderTracker.number`."""
        self._to_raw = to_raw
        self._number = number
        self.items: list[OpenEntry] = []
        """Oldest first."""
        self._completing: set[str] = set()
        """Backends of which the recorder has marked an op as completed, ever."""
        self.is_whole = True
        """All entries since the start of the recorder have been read, so sends can be counted."""
        self._at_ns = 0
        self.done_created_ns = 0
        """When the newest op that is done in the last dump was enqueued; 0 if no op is done."""

    @property
    def is_waiting(self) -> bool:
        """The rank is in a collective, a send or a receive."""
        return any(item.peer is not None or item.is_call for item in self.items)

    def rows(self) -> list[Row]:
        """A row for each collective that is not over, for a service without state."""
        return [
            [
                item.progress.group,
                item.entry.collective_seq_id,
                item.signature,
                item.sent & _SHOWN,
                item.created_ns,
                item.started_ns,
                0,
            ]
            for item in self.items
            if item.is_call and not item.cut
        ]

    def is_behind(self, progress: GroupProgress, raw: Status) -> bool:
        """The counters include ops, or ends of ops, that no entry has shown."""
        calls = (item for item in self.items if item.progress is progress and item.is_call)
        return raw.enqueued > progress.counter or any(
            call.in_ring and call.counter <= raw.completed for call in calls
        )

    def forget_ended_sends(self, in_flight: Collection[int]) -> None:
        """`in_flight`: record ids of all that is not over."""
        self.items = [
            item
            for item in self.items
            if item.is_call or item.orphaned or item.entry.record_id in in_flight
        ]

    def orphan(self) -> None:
        """The recorder was reset: no dump will show the end of what is open now."""
        for item in self.items:
            item.orphaned = True

    def forget_orphaned_sends(self, pg_ids: Collection[int]) -> None:
        """Forget the orphaned sends of groups in which an op has ended: it is unknown which op."""
        self.items = [
            item
            for item in self.items
            if item.peer is None or not item.orphaned or item.progress.pg_id not in pg_ids
        ]

    def close(self, progress: GroupProgress) -> None:
        """The group is gone."""
        progress.close()
        self.items = [item for item in self.items if item.progress is not progress]

    def look(
        self,
        find: Callable[[int], Entry | None],
        status: Mapping[int, Status],
        at_ns: int,
        *,
        absent_is_over: bool,
    ) -> None:
        """Update the open entries from the entries and counters of the next dump, of `at_ns`."""
        self._at_ns = at_ns
        for item in self.items:
            entry = None if item.orphaned else find(item.entry.record_id)
            raw = status.get(item.progress.pg_id)
            item.look(entry, raw, at_ns, absent_is_over=absent_is_over)

    def read(
        self,
        fresh: Sequence[Entry],
        progress_of: Callable[[Entry], GroupProgress | None],
        names: Naming,
        *,
        may_lack: bool,
    ) -> list[Row]:
        """Rows for changed entries and for the `fresh` entries.

        `may_lack`: entries just before the first fresh entry were lost.
        """
        self.done_created_ns = 0
        if not self.items and not fresh:
            return []
        table = EntryTable(
            self.items,
            fresh,
            progress_of,
            self._to_raw,
            self._completing,
            self._at_ns,
            number=self._number,
        )
        done = np.flatnonzero(table.state.done)
        if len(done):
            self.done_created_ns = int(table.trace.created_ns[done[-1]])
        sends = table.sends(names, is_whole=self.is_whole)
        rows, calls = table.calls(names, may_lack=may_lack)
        self.items = [item for _, item in sorted((sends | calls).items())]
        return rows
