"""Which stream speaks for a rank: the one that declared it last, of those that count.

An agent that reconnects may have its new stream before its old one is noticed to be dead; when
the old one ends, its ranks have not lost their agent.
"""

from __future__ import annotations

from frd.model import AttemptKey
from frd.service.ingest.session import DeclaredRank, Session


class RankOwners:
    def __init__(self) -> None:
        self._owners: dict[tuple[AttemptKey, int], tuple[Session, int]] = {}

    def claim(self, session: Session) -> list[DeclaredRank]:
        """The ranks that have come into the engine through `session` since the last call are its
        own. What is reported of processes that had these ranks before is dropped from now on."""
        claimed = []
        for index in session.take_entered():
            rank = session.ranks[index]
            before = self._owners.get((rank.key, rank.info.rank))
            self._owners[rank.key, rank.info.rank] = (session, index)
            claimed.append(rank)
            if before is not None:
                former = before[0].ranks[before[1]].info
                if (former.boot_id, former.pid) != (rank.info.boot_id, rank.info.pid):
                    before[0].supersede(before[1])
        return claimed

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
