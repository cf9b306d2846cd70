"""How far each rank process has been told, so that nothing is counted twice.

An agent process (a *session*) numbers a rank's transitions from 1 and sends what is not
acknowledged again after a reconnect; rows up to `applied` are cut off. When another agent process
takes a rank over, its numbers start anew and it may tell what the first one has told already:
from then on the rank's rows are *replays*, and the engine drops what it has seen, by seq.

Kept per attempt, in memory: a restarted service starts with an empty engine and an empty ledger.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from frd.model import AttemptKey, RankInfo


@dataclass(slots=True)
class Progress:
    """Of one rank process, shared by all streams that ever spoke for it."""

    session: str
    applied: int = 0
    """Highest revision of `session` that the engine has taken."""
    replay: bool = False
    """Another session has spoken for this rank process before."""


class Ledger:
    def __init__(self) -> None:
        self._attempts: dict[AttemptKey, dict[tuple[int, int], Progress]] = {}

    def progress(self, key: AttemptKey, info: RankInfo, session: str) -> Progress:
        """The progress of a rank process as `session` counts it."""
        ranks = self._attempts.setdefault(key, {})
        known = ranks.get((info.rank, info.pid))
        if known is None or known.session != session:
            known = Progress(session, replay=known is not None)
            ranks[info.rank, info.pid] = known
        return known

    def ranks(self, key: AttemptKey) -> set[int]:
        """All ranks of an attempt that any agent ever spoke for."""
        return {rank for rank, _ in self._attempts.get(key, ())}

    def keep(self, attempts: Collection[AttemptKey]) -> None:
        """Forget all attempts but these."""
        for key in [key for key in self._attempts if key not in attempts]:
            del self._attempts[key]
