"""Which stream speaks for a rank: the one that declared it last.

An agent that reconnects may have its new stream before its old one is noticed to be dead; when
the old one ends, its ranks have not lost their agent.
"""

from __future__ import annotations

from frd.model import AttemptKey
from frd.service.session import DeclaredRank, Session


class Owners:
    def __init__(self) -> None:
        self._owners: dict[tuple[AttemptKey, int], tuple[Session, int]] = {}

    def claim(self, session: Session, first: int) -> None:
        """The ranks that `session` has declared from stream index `first` on are its own."""
        for index, rank in enumerate(session.ranks[first:], first):
            self._owners[rank.key, rank.info.rank] = (session, index)

    def release(self, session: Session) -> list[DeclaredRank]:
        """`session` has ended; gives the ranks for which nobody speaks any more."""
        owned = [
            rank
            for index, rank in enumerate(session.ranks)
            if self._owners.get((rank.key, rank.info.rank)) == (session, index)
        ]
        for rank in owned:
            del self._owners[rank.key, rank.info.rank]
        return owned

    def of(self, key: AttemptKey, rank: int) -> tuple[Session, int] | None:
        """The session that speaks for a rank, and the rank's stream index there."""
        return self._owners.get((key, rank))
