"""Which revisions of each rank process were applied, so that nothing is counted twice.

An agent process (a *session*) numbers a rank's transitions from 1 and sends what is not
acknowledged again after a reconnect; rows up to `applied` are dropped. When another agent process
takes a rank over, its numbers start at 1 again and it may report what the first one has reported.
From then on the rank's rows are *replays*, and the engine drops what it has seen, by seq.

Sessions are numbered here as well: ranks of one session share one clock.

Kept per attempt, in memory: a restarted service starts with an empty engine and no revisions.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Final

from frd.model import AttemptKey, EntryColumns, RankInfo

MAX_PROCESSES: Final = 4
"""Processes of one rank. One runs at a time, but an agent may still report an earlier one."""
MAX_SESSIONS: Final = 65_536
"""Beyond this number, the session that connected least recently is forgotten."""


@dataclass(slots=True)
class ProcessRevision:
    """Revisions of one rank process, shared by all streams that have reported it."""

    session: str
    applied: int = 0
    """Highest revision of `session` that the engine has applied."""
    replay: bool = False
    """Another session has reported this rank process too, and may have sent the same rows; or rows
    may be applied that count as not applied."""

    def news(self, batch: EntryColumns) -> EntryColumns:
        """The rows of a numbered batch that are not applied."""
        cut = min(max(self.applied + 1 - batch.first_revision, 0), len(batch))
        if not cut:
            return batch
        columns = {c.name: getattr(batch, c.name)[cut:] for c in fields(batch)[2:]}
        return replace(batch, first_revision=batch.first_revision + cut, **columns)

    def retract(self, first: int) -> None:
        """The rows from revision `first` on are not applied, or not all of them."""
        self.applied, self.replay = min(self.applied, max(first - 1, 0)), True


class Revisions:
    def __init__(self) -> None:
        self._attempts: dict[AttemptKey, dict[int, dict[int, ProcessRevision]]] = {}
        """By rank and pid, in the order of declaration."""
        self._sessions: dict[tuple[str, str], int] = {}
        self._numbers = itertools.count()

    def session_number(self, key: tuple[str, str]) -> int:
        """The same for all streams of an agent session, named by boot id and session."""
        known = self._sessions.pop(key, None)
        self._sessions[key] = next(self._numbers) if known is None else known
        if len(self._sessions) > MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return self._sessions[key]

    def of_process(self, key: AttemptKey, info: RankInfo, session: str) -> ProcessRevision:
        """The revisions of a rank process as `session` numbers them."""
        processes = self._attempts.setdefault(key, {}).setdefault(info.rank, {})
        known = processes.pop(info.pid, None)
        if known is None or known.session != session:
            if known is not None:
                known.replay = True  # its last rows may come later than those of the new session
            known = ProcessRevision(session, replay=known is not None)
        processes[info.pid] = known
        if len(processes) > MAX_PROCESSES:
            del processes[next(iter(processes))]
        return known

    def ranks(self, key: AttemptKey) -> set[int]:
        """All ranks of an attempt that an agent has reported."""
        return set(self._attempts.get(key, ()))

    def keep(self, attempts: Collection[AttemptKey]) -> None:
        """Forget all other attempts."""
        for key in [key for key in self._attempts if key not in attempts]:
            del self._attempts[key]
