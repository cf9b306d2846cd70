"""Clocks of an attempt: the ranks of one agent session share one clock.

Knows the line that leads from node times of each clock to aligned ones, and how uncertain it is.
Both are estimated elsewhere (`frd.engine.clocks`). What is known of a rank keeps its moments if its
clock changes: because another session reports it, whose clock may show other times, or because
the clock has jumped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.engine.clocks.alignment import Alignment, ClockJump
from frd.engine.clocks.uncertain_time import UNKNOWN_NS
from frd.engine.state.attempt_tables import AttemptTables
from frd.model import AlignedNs, RankInfo

_SAME_CLOCK_NS: Final = 12_000_000_000
"""Two sessions whose clocks show the same to within this read the same clock. A line without bounds
is late by what a message took, and a connection may take 10 s to stand; and the wall clock of the
service, to which lines lead, may be set between two sessions. Clocks of two time namespaces mostly
differ by far more."""


@dataclass(slots=True)
class _Takeover:
    """A rank that another session reports, whose line has no bounds yet."""

    at_ns: int
    """Node time of the takeover, by the first line."""
    ahead_ns: int
    """How much more the new clock shows, by the newest line."""
    moved_ns: int = 0
    """By how much the times of the rank were moved."""


class SessionClocks:
    def __init__(self, tables: AttemptTables) -> None:
        self.revision = 0
        """Changes with every line."""
        self._tables = tables
        self._ranks = tables.ranks
        self._takeovers: dict[int, _Takeover] = {}
        """By rank."""
        self._jumps: dict[int, ClockJump] = {}
        """The last jump of each rank's clock."""

    def set(
        self,
        ranks: Sequence[int],
        session: int,
        uncertainty_ns: int | None,
        now: AlignedNs,
        alignment: Alignment | None = None,
    ) -> None:
        """How well the clock of these ranks is known; None while it is unsynchronized.

        `session` is the number of their agent session. Without an `alignment`, node times are
        aligned times. Call it again after a rank was declared again, which forgets the clock.
        """
        rank = np.asarray(ranks, np.int64)
        bound = UNKNOWN_NS if uncertainty_ns is None else uncertainty_ns
        is_bounded = uncertainty_ns is not None
        line, jump = (0, 0, 0.0), None
        if alignment is not None:
            line, jump = (alignment.at_ns, alignment.aligned_ns, alignment.rate), alignment.jump
        sessions, before = self._ranks.session[rank].tolist(), self._ranks.to_node(rank, now)
        self._ranks.set_clock(rank, session, bound, now, line)
        after = self._ranks.to_node(rank, now)
        for one, last, was, shows in zip(
            rank.tolist(), sessions, before.tolist(), after.tolist(), strict=True
        ):
            if last == session:
                self._follow(one, shows - was, is_bounded=is_bounded)
                if jump is not None and jump != self._jumps.get(one):
                    self._tables.move_times(one, jump.by_ns, jump.at_ns)
            elif last >= 0:
                self._take_over(one, shows, shows - was, is_bounded=is_bounded)
            else:
                self._takeovers.pop(one, None)
            if jump is not None:
                self._jumps[one] = jump
        self.revision += 1

    def _take_over(self, rank: int, shows: int, ahead_ns: int, *, is_bounded: bool) -> None:
        """Another session reports the rank from now on; its clock shows so much more."""
        takeover = _Takeover(shows, ahead_ns)
        if abs(ahead_ns) > _SAME_CLOCK_NS:
            takeover.moved_ns = ahead_ns
            self._tables.move_times(rank, ahead_ns)
        self._takeovers.pop(rank, None)
        if not is_bounded:
            self._takeovers[rank] = takeover

    def _follow(self, rank: int, ahead_ns: int, *, is_bounded: bool) -> None:
        """The session has another line, by which its clock shows so much more. The first one with
        bounds decides by how much the times from before the takeover had to be moved."""
        if (takeover := self._takeovers.get(rank)) is None:
            return
        takeover.ahead_ns += ahead_ns
        if is_bounded:
            del self._takeovers[rank]
            is_same = abs(takeover.ahead_ns) <= _SAME_CLOCK_NS
            by_ns = (0 if is_same else takeover.ahead_ns) - takeover.moved_ns
            self._tables.move_times(rank, by_ns, takeover.at_ns)

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
