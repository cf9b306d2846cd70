"""What a reset of the recorder hides: ops that were enqueued and removed before they were read.

A recorder may be reset at any time (torchft resets it at every quorum), and no dump says so; only
the counters of its groups continue. An op that was enqueued just before the reset is in no dump,
although the rank may be in it. An op that was read before has no entry left that could show its
end. `Resets` keeps what the counters say of both, by process-local group id (`pg_id`). Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from frd.flight.entry import Status

_NOTHING_KNOWN: Final = Status()
_HANGS_NS: Final = 30_000_000_000
"""A rank that hangs in an op does not enqueue and complete other ops for so long."""


class Resets:
    """The counters of one recorder since it was reset."""

    def __init__(self) -> None:
        self._unread_since: dict[int, Status] = {}
        """The last counters before a reset whose ops were all read; until an entry comes."""
        self._orphaned_at: dict[int, Status] = {}
        """The same, of groups with sends or receives in flight whose entries are gone."""
        self._rests_since: dict[int, int] = {}
        """When the counters were first seen as they are."""

    def observe(
        self, status: Mapping[int, Status], before: Mapping[int, Status], at_ns: int
    ) -> None:
        """The counters of a dump, and of the one before."""
        for pg_id, raw in status.items():
            if raw != before.get(pg_id):
                self._rests_since[pg_id] = at_ns

    def begin(
        self, status: Mapping[int, Status], known: Mapping[int, Status], orphaned: Iterable[int]
    ) -> None:
        """A reset was seen, with the counters of `status`.

        `known`: counters up to which all entries were read. `orphaned`: groups with sends or
        receives in flight.
        """
        for pg_id in status:
            self._unread_since.setdefault(pg_id, known.get(pg_id, _NOTHING_KNOWN))
        for pg_id in orphaned:
            self._orphaned_at.setdefault(pg_id, known.get(pg_id, _NOTHING_KNOWN))

    def mark_read(self, pg_ids: Iterable[int]) -> None:
        """Entries of these groups have been read since."""
        for pg_id in pg_ids:
            self._unread_since.pop(pg_id, None)

    def take_ended(self, status: Mapping[int, Status]) -> list[int]:
        """Groups with orphaned sends in which an op has ended. Which one is unknown, so the rank
        may still be in another one."""
        ended = [
            pg_id
            for pg_id, known in self._orphaned_at.items()
            if pg_id in status and status[pg_id].completed != known.completed
        ]
        for pg_id in ended:
            del self._orphaned_at[pg_id]
            self._unread_since[pg_id] = _NOTHING_KNOWN
        return ended

    def take_given_up(self, done_created_ns: int) -> set[int]:
        """Groups that had not moved for long when the rank enqueued an op that is done. torchft
        gives up a group before it resets the recorder, which leaves the group's counters uneven."""
        if not (self._unread_since or self._orphaned_at):
            return set()
        until = done_created_ns - _HANGS_NS
        given_up = {pg_id for pg_id, since in self._rests_since.items() if since < until}
        for pg_id in given_up:
            self._unread_since.pop(pg_id, None)
            self._orphaned_at.pop(pg_id, None)
        return given_up

    def may_hide_op(
        self, status: Mapping[int, Status], before: Mapping[int, Status], closed: Collection[int]
    ) -> bool:
        """The rank may be in an op that was never read. It is not once the counters of the group
        are even and rest. Groups of `closed` are gone."""
        return any(
            raw.enqueued != self._unread_since[pg_id].enqueued
            and (raw.enqueued != raw.completed or raw != before.get(pg_id))
            for pg_id, raw in status.items()
            if pg_id in self._unread_since and pg_id not in closed
        )

    def clear(self) -> None:
        self._unread_since.clear()
        self._orphaned_at.clear()
