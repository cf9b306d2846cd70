"""`frd.engine.views.History` of one attempt at one time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from frd.engine.history import group_map, recent_ops
from frd.engine.history.recent_entries import EntryColumnsBatch
from frd.engine.matching.open_collectives import OpsAt
from frd.engine.state.state_at import StateAt
from frd.engine.views import GroupMap, OpenOp, RankGroup, RecentOps
from frd.model import AlignedNs


@dataclass(frozen=True, slots=True)
class AttemptHistory:
    state: StateAt
    open: OpsAt
    batches: Sequence[EntryColumnsBatch]
    world_size: int
    late_s: float
    """A rank without a report for so long is not known."""

    @property
    def at(self) -> AlignedNs:
        return self.state.now

    def ops(self, ranks: Collection[int], most: int, until: AlignedNs | None = None) -> RecentOps:
        return recent_ops.recent_ops(self.state, self.open, self.batches, ranks, most, until)

    def group_map(self, most: int) -> GroupMap:
        return group_map.group_map(self.state, self.late_s, self.world_size, most)

    def open_ops(self, most: int) -> tuple[list[OpenOp], int]:
        return group_map.open_ops(self.state, self.open, most)

    def groups_of(self, rank: int, most: int) -> tuple[list[RankGroup], int]:
        return group_map.groups_of(self.state, self.late_s, rank, most)
