"""Rises that belong together, and what was decided of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from frd.offline.memory.rises.rank_rise import RankRise


class Outcome(Enum):
    """What is known of rises that belong together."""

    FIRST = auto()
    """One of these ranks rose first."""
    TOGETHER = auto()
    """(Nearly) all ranks rose together."""
    STARTING = auto()
    """They rose together from the beginning on: the job was starting."""
    BEGAN_BEFORE = auto()
    """It rose already when the recording began; when it began to is not in there."""
    UNDECIDED = auto()
    """The recording ends before it is known which rank was first."""


@dataclass(slots=True, eq=False)
class Decision:
    """Rises that belong together."""

    rises: list[RankRise]
    """By the onset; the first ranks, or all that rose together."""
    outcome: Outcome
    doubtful: set[int] = field(default_factory=set)
    """Ranks with a smaller excursion that began as early."""
    silent: set[int] = field(default_factory=set)
    """Ranks without samples at the onset."""
    raised: set[int] = field(default_factory=set)
    """Ranks whose memory was above its usual level for another reason, or for one that cannot be
    trusted: another rise within that may not be seen."""
    follows: bool = False
    """It began soon after an earlier rise of another rank."""
    others_follow: bool = False
    """(Nearly) all other ranks rose soon after."""

    lo: int = field(init=False)
    limit: int = field(init=False)
    """The latest time at which the first of them began."""
    latest: int = field(init=False)
    """The latest time at which any of them began."""
    grown: int = field(init=False)
    """When they last grew."""
    back: int = field(init=False)
    """When all had fallen back."""
    ranks: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self._update()

    def extend(self, rises: Iterable[RankRise]) -> None:
        self.rises = sorted([*self.rises, *rises], key=lambda one: one.hi)
        self._update()

    def _update(self) -> None:
        """What all rises together show is kept: each decision is compared with all before it."""
        self.lo = min(one.lo for one in self.rises)
        self.limit = min(one.hi for one in self.rises)
        self.latest = max(one.hi for one in self.rises)
        self.grown = max(one.grown for one in self.rises)
        self.back = max(one.back for one in self.rises)
        self.ranks = ranks_of(self.rises)


def ranks_of(rises: Iterable[RankRise]) -> set[int]:
    return {one.rank for one in rises}
