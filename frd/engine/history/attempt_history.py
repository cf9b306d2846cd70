"""`frd.engine.views.History` of one attempt at one time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from frd.engine.history import group_map, recent_ops
from frd.engine.history.copies import Copies
from frd.engine.views import GroupMap, OpenOp, RankGroup, RecentOps
from frd.model import AlignedNs


@dataclass(frozen=True, slots=True)
class AttemptHistory:
    copies: Copies

    @property
    def at(self) -> AlignedNs:
        return self.copies.now

    def ops(self, ranks: Collection[int], most: int, until: AlignedNs | None = None) -> RecentOps:
        return recent_ops.recent_ops(self.copies, ranks, most, until)

    def group_map(self, most: int) -> GroupMap:
        return group_map.group_map(self.copies, most)

    def open_ops(self, most: int) -> tuple[list[OpenOp], int]:
        return group_map.open_ops(self.copies, most)

    def groups_of(self, rank: int, most: int) -> tuple[list[RankGroup], int]:
        return group_map.groups_of(self.copies, rank, most)
