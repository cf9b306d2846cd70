"""What the sessions of one service process share: the engine, and who reports which rank.

The live service has one `Shared`, and so has the replay of each service process in a journal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from frd.engine.engine import Engine
from frd.model import AttemptKey
from frd.service.ingest.buffers import EntryBuffer, WatermarkBuffer
from frd.service.ingest.job_runs import JobRuns
from frd.service.ingest.revisions import Revisions

FAULT: Final = "fault"
"""Reason of a stream that ended because of a fault of the service, not of the peer."""

if TYPE_CHECKING:
    from frd.service.ingest.declarations import DeclaredRank
    from frd.service.ingest.session import Session


class RankOwners:
    """Which stream reports a rank: the stream that declared it last, without those of refused runs.

    When an agent reconnects, its new stream may open before the service notices that the old one is
    dead. When the old one ends, its ranks still have an agent.
    """

    def __init__(self) -> None:
        self._owners: dict[tuple[AttemptKey, int], tuple[Session, int]] = {}

    def claim(self, session: Session) -> list[DeclaredRank]:
        """Assign to `session` the ranks that it has entered into the engine since the last call.

        Reports about processes that had these ranks before are dropped from now on.
        """
        claimed = []
        for index in session.declared.take_entered():
            rank = session.ranks[index]
            before = self._owners.get((rank.key, rank.info.rank))
            self._owners[rank.key, rank.info.rank] = (session, index)
            claimed.append(rank)
            if before is not None:
                former, its_index = before
                if former.ranks[its_index].info.process != rank.info.process:
                    former.declared.supersede(its_index)
        return claimed

    def release(self, session: Session) -> list[DeclaredRank]:
        """Called when `session` has ended; returns the ranks that no stream reports any more."""
        self.claim(session)  # a declaration may have failed half way
        owned = [
            rank
            for index, rank in enumerate(session.ranks)
            if self._owners.get((rank.key, rank.info.rank)) == (session, index)
        ]
        for rank in owned:
            del self._owners[rank.key, rank.info.rank]
        return owned

    def of(self, key: AttemptKey, rank: int) -> tuple[Session, int] | None:
        """The session that reports a rank, and the rank's stream index there."""
        return self._owners.get((key, rank))


@dataclass(slots=True)
class Shared:
    engine: Engine
    waiting: EntryBuffer = field(default_factory=EntryBuffer)
    watermarks: WatermarkBuffer = field(default_factory=WatermarkBuffer)
    revisions: Revisions = field(default_factory=Revisions)
    runs: JobRuns = field(default_factory=JobRuns)
    owners: RankOwners = field(default_factory=RankOwners)
    entries: int = 0
    """Entry rows applied; duplicates and rows that were applied before are not counted."""
    duplicates: int = 0
    """Entry rows that an earlier agent session had reported."""

    def flush(self) -> None:
        """Apply all messages that wait. Entries first: what they report was true before the
        watermarks that came after them."""
        self.waiting.flush()
        self.watermarks.flush()
