"""The part of an analysis that `--ranks` and `--groups` select for tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from frd.errors import ConfigError
from frd.flight.trace import RankTrace
from frd.forms import fold_ranks
from frd.model import GroupInfo, Int64s
from frd.offline.analysis.analyze import Analysis

_SHOWN = 12
"""Groups that an error lists."""


@dataclass(frozen=True, slots=True)
class Selection:
    analysis: Analysis
    ranks: tuple[int, ...]
    """Selected ranks that have a dump."""
    without_dump: tuple[int, ...]
    groups: frozenset[int] | None
    """Indexes; None for all."""
    all_ranks: bool

    def rows(self, of: RankTrace) -> Int64s:
        """The selected rows of one rank, in recording order."""
        if self.groups is None:
            return np.arange(len(of))
        return np.flatnonzero(np.isin(of.group, list(self.groups)))

    def collectives(self) -> list[int]:
        """Indexes of the collectives of selected groups with selected ranks."""
        group = self.analysis.collectives.group
        members = {
            at
            for at, info in enumerate(self.analysis.trace.groups)
            if self.all_ranks or not set(info.ranks).isdisjoint(self.ranks + self.without_dump)
        }
        chosen = members if self.groups is None else members & self.groups
        return [int(at) for at in np.flatnonzero(np.isin(group, list(chosen)))]


def select(
    analysis: Analysis, ranks: Sequence[int] | None, patterns: Sequence[str] | None
) -> Selection:
    """`None` picks all; a pattern names a group by its name, description or id, ``*`` fits.

    Raises:
        ConfigError: none of the ranks has a dump, or a pattern that fits no group.
    """
    dumped = analysis.trace.ranks
    wanted = sorted(dumped) if ranks is None else ranks
    found = tuple(rank for rank in wanted if rank in dumped)
    if not found:
        raise ConfigError(
            f"ranks: {fold_ranks(wanted)}: no dump of them: there are dumps of {fold_ranks(dumped)}"
        )
    return Selection(
        analysis=analysis,
        ranks=found,
        without_dump=tuple(rank for rank in wanted if rank not in dumped),
        groups=None if patterns is None else _groups(analysis.trace.groups, patterns),
        all_ranks=ranks is None,
    )


def _groups(groups: Sequence[GroupInfo], patterns: Sequence[str]) -> frozenset[int]:
    chosen: set[int] = set()
    for pattern in patterns:
        fits = {at for at, info in enumerate(groups) if _fits(info, pattern)}
        if not fits:
            raise ConfigError(f"groups: {pattern!r}: no such group: there are {_labels(groups)}")
        chosen |= fits
    return frozenset(chosen)


def _fits(info: GroupInfo, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (info.name, info.desc, info.group_id))


def _labels(groups: Sequence[GroupInfo]) -> str:
    labels = sorted({info.label for info in groups})
    more = f" and {len(labels) - _SHOWN} more" if len(labels) > _SHOWN else ""
    return ", ".join(labels[:_SHOWN]) + more
