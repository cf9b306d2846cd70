"""Clocks of an attempt: the ranks of one agent session share one clock.

Knows how uncertain each clock is, and which times to align again when more is known of it. The
offsets themselves are estimated elsewhere (`frd.engine.clocks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from frd.engine.clocks.uncertain_time import UNKNOWN_NS
from frd.engine.state import watermarks
from frd.engine.state.attempt_tables import AttemptTables
from frd.model import AlignedNs, Int32s, Int64s, RankInfo


class SessionClocks:
    def __init__(self, tables: AttemptTables) -> None:
        self.revision = 0
        """Changes when times are aligned again."""
        self._ranks = tables.ranks
        self._pairs = tables.pairs
        self._channels = tables.channels

    def set(
        self, ranks: Sequence[int], session: int, uncertainty_ns: int | None, now: AlignedNs
    ) -> None:
        """How well the clock of these ranks is known; None while it is unsynchronized.

        `session` is the number of their agent session. Call it again after a rank was declared
        again, which forgets the clock.
        """
        bound = UNKNOWN_NS if uncertainty_ns is None else uncertainty_ns
        self._ranks.set_clock(np.asarray(ranks, np.int64), session, bound, now)

    def realign(
        self, ranks: Sequence[int], pair: Int32s, align: Callable[[Int64s], Int64s]
    ) -> None:
        """More is known of the clock of these ranks: align again since when they wait, in `pair`
        (see `watermarks.realign`) and in P2P ops. `align` converts times of their node's clock."""
        watermarks.realign(self._pairs, pair, ranks, align)
        self._channels.realign(ranks, align)
        self.revision += 1

    def keep_heads(self, ranks: Sequence[int], pair: Int32s) -> None:
        """The clock of these ranks was set: earlier times of it are not aligned again."""
        self._pairs.head_node[pair[np.isin(self._pairs.rank[pair], ranks)]] = 0
        self._channels.keep_heads(ranks)

    def ranks_of_session(self, declared: Iterable[RankInfo], session: int) -> list[int]:
        """The ranks of `declared` that still belong to `session`: no other process and no other
        agent has replaced them."""
        ranks = self._ranks
        return [
            info.rank
            for info in declared
            if ranks.infos.get(info.rank) == info and ranks.session.item(info.rank) == session
        ]

    @property
    def count(self) -> int:
        session = self._ranks.session[: self._ranks.count]
        return len(np.unique(session[session >= 0]))

    def unsynchronized(self) -> list[tuple[int, ...]]:
        """The ranks of each connected agent whose clock is unknown; empty where all ranks share
        one clock, because it is compared with no other."""
        ranks, count = self._ranks, self._ranks.count
        session = ranks.session[:count]
        reported = ranks.declared[:count] & ranks.connected[:count] & (session >= 0)
        unknown = reported & (ranks.uncertainty_ns[:count] == UNKNOWN_NS)
        if not unknown.any() or len(np.unique(session[reported])) < 2:
            return []
        return [
            tuple(np.flatnonzero(unknown & (session == number)).tolist())
            for number in np.unique(session[unknown]).tolist()
        ]
