"""One attempt of the engine, without an engine: its ranks do things at given seconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frd.engine.attempt import Attempt
from frd.engine.policy import Policy
from frd.model import (
    UNKNOWN_SEQ,
    AlignedNs,
    AttemptKey,
    GroupInfo,
    NodeNs,
    RankState,
    RankStatus,
    Signature,
)
from tests.world import observe
from tests.world.messages import BOTH
from tests.world.observe import Applied, rank_info

S = 1_000_000_000


def at(seconds: float) -> AlignedNs:
    return AlignedNs(round((1_000 + seconds) * S))


class Job:
    """An attempt whose ranks are all declared and members of ``default_pg``."""

    def __init__(self, world: int = 4, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.attempt = Attempt(AttemptKey("job", 0), world, self.policy, at(0))
        self.ranks = [self.attempt.rank(rank_info(r, world=world)) for r in range(world)]
        self.group = self.attempt.group(GroupInfo("0", "default_pg", tuple(range(world))))
        self.attempt.connection(self.ranks, True)

    def entries(
        self,
        rank: int,
        seqs: Sequence[int],
        flags: int = BOTH,
        *,
        created: float = 0.0,
        completed: float | None = None,
        op: str = "all_reduce",
        size: int = 4,
        group: int | None = None,
        replay: bool = False,
        now: float = 0.0,
    ) -> Applied:
        """Rows of one rank, enqueued a millisecond apart from `created` on; reported at `now`, but
        not before they happened."""
        return observe.entries(
            self.attempt,
            rank,
            self.group if group is None else group,
            seqs,
            flags,
            signature=Signature("nccl", op, ((size,),), ((size,),), ("Float",), ("Float",)),
            created=at(created) + np.arange(len(seqs)) * (S // 1000),
            completed=0 if completed is None else at(completed),
            replay=replay,
            now=at(max(now, created + len(seqs) / 1000, completed or 0)),
        )

    def watermark(
        self,
        rank: int,
        enqueued: int,
        completed: int,
        head: float | None = None,
        *,
        as_of: float = 0.0,
    ) -> None:
        """A watermark row of one rank, true up to `as_of`."""
        pair = self.attempt.pair(rank, self.group)
        row = (pair, enqueued, UNKNOWN_SEQ, completed, 0 if head is None else at(head))
        observe.watermarks(self.attempt, [row], rank, at(as_of))

    def hears(self, as_of: float, ranks: Sequence[int] | None = None) -> None:
        """The ranks report again, without a change."""
        seen = self.ranks if ranks is None else ranks
        observe.watermarks(self.attempt, [], seen, at(as_of))

    def sends(self, rank: int, *rows: tuple[int, bool, int, float], now: float) -> None:
        """All P2P ops of a rank: (peer, is send, in flight, since)."""
        ops = [(self.group, peer, send, count, at(since)) for peer, send, count, since in rows]
        observe.p2p_ops(self.attempt, rank, ops, at(now))

    def status(self, rank: int, state: RankState, when: float, *, gap: int = 0) -> None:
        status = RankStatus(rank, state, NodeNs(at(when)), f"rank {rank} is {state}", gap)
        self.attempt.observe_status(status, at(when))

    def threshold_s(self, now: float, group: int | None = None) -> float:
        snapshot = self.attempt.snapshot(at(now))
        return int(snapshot.threshold_ns[self.group if group is None else group]) / 1e9

    def stalled(self, now: float) -> list[tuple[int, int]]:
        """(rank, seq) of the stalls."""
        table = self.attempt.stalls(at(now))
        return sorted(zip(table.rank.tolist(), table.seq.tolist(), strict=True))
