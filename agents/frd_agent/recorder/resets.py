"""What a reset recorder hides: ops that were enqueued, and gone before anybody read them.

A recorder may be reset at any time (torchft does so at every quorum), and no dump says so; only the
counters of its groups go on as they were. An op that was enqueued just before is in no dump, though
the rank may be in it; one that was read before has no entry any more that would tell its end. What
counters tell of both is kept here, by process-local group id (`pg_id`). Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from frd.flight import Status

_NOTHING_KNOWN: Final = Status()
_HANGS_NS: Final = 30_000_000_000
"""Who is in an op that hangs does not enqueue and complete others for so long."""


class Resets:
    """Of one recorder."""

    def __init__(self) -> None:
        self._unread_since: dict[int, Status] = {}
        """The counters up to which all was read before a reset, until an entry comes."""
        self._orphaned_at: dict[int, Status] = {}
        """The same of groups with sends or receives in flight that no entry tells the end of."""
        self._rests_since: dict[int, int] = {}
        """When the counters were first seen as they are."""

    def see(self, status: Mapping[int, Status], before: Mapping[int, Status], at_ns: int) -> None:
        """The counters of a dump, and of the one before."""
        for pg_id, raw in status.items():
            if raw != before.get(pg_id):
                self._rests_since[pg_id] = at_ns

    def begin(
        self, status: Mapping[int, Status], known: Mapping[int, Status], orphaned: Iterable[int]
    ) -> None:
        """A reset has been seen, with these counters. All was read up to those of `known`; groups
        of `orphaned` have sends or receives in flight."""
        for pg_id in status:
            self._unread_since.setdefault(pg_id, known.get(pg_id, _NOTHING_KNOWN))
        for pg_id in orphaned:
            self._orphaned_at.setdefault(pg_id, known.get(pg_id, _NOTHING_KNOWN))

    def read(self, pg_ids: Iterable[int]) -> None:
        """Entries of these groups have been."""
        for pg_id in pg_ids:
            self._unread_since.pop(pg_id, None)

    def take_ended(self, status: Mapping[int, Status]) -> list[int]:
        """Groups with orphans of which something has ended; nothing tells what, so that the rank
        may be in another one still."""
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
        """Groups that have not moved for long before the rank enqueued an op that is done. torchft
        gives up a group before it resets the recorder, which leaves its counters uneven."""
        if not (self._unread_since or self._orphaned_at):
            return set()
        until = done_created_ns - _HANGS_NS
        given_up = {pg_id for pg_id, since in self._rests_since.items() if since < until}
        for pg_id in given_up:
            self._unread_since.pop(pg_id, None)
            self._orphaned_at.pop(pg_id, None)
        return given_up

    def hide(
        self, status: Mapping[int, Status], before: Mapping[int, Status], closed: Collection[int]
    ) -> bool:
        """The rank may be in something that was never read; once the counters of a group are even
        and move no more it is not. Groups of `closed` are gone."""
        return any(
            raw.enqueued != self._unread_since[pg_id].enqueued
            and (raw.enqueued != raw.completed or raw != before.get(pg_id))
            for pg_id, raw in status.items()
            if pg_id in self._unread_since and pg_id not in closed
        )

    def clear(self) -> None:
        self._unread_since.clear()
        self._orphaned_at.clear()
