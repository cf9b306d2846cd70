"""Global ranks for dumps of torchft, whose replicas each number their ranks from 0.

A replica of N ranks has groups of ranks 0 to N-1. The groups across replicas are called
``torchft_quorum_<id>_rank_<k>``, or have no name for k = 0; their members are rank k of each
replica. Older versions number these by replica, newer ones by global rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from frd.engine.findings import text
from frd.forms import fold_ranks
from frd.model import MAX_WORLD_SIZE, GroupInfo

_ACROSS = re.compile(r"(?:torchft_quorum_\d+_rank_(\d{1,7}))?", re.ASCII)


def global_ranks(info: GroupInfo, first: int, size: int) -> tuple[int, ...]:
    """Of a group in a dump of the replica of `size` ranks that begins with global rank `first`."""
    ranks = info.ranks
    if across := _ACROSS.fullmatch(info.name):
        within = int(across[1] or 0)
        if within < size and any(rank % size != within for rank in ranks):
            ranks = tuple(replica * size + within for replica in ranks)
    elif ranks and ranks[-1] < size:
        ranks = tuple(rank + first for rank in ranks)
    return ranks if not ranks or ranks[-1] < MAX_WORLD_SIZE else info.ranks


def outside_text(outside: Mapping[int, Sequence[GroupInfo]]) -> str:
    """What to do about ranks that recorded in groups, not empty, that exclude them."""
    info = next(iter(outside.values()))[0]
    return (
        f"{text.ranks([*outside])} recorded in groups that exclude them, as in "
        f"{text.clean(info.label)!r} of ranks {fold_ranks(info.ranks)}: these ops are not judged: "
        "for replicas of N ranks of torchft use --transform-ft --group-world-size N, "
        "move files of other jobs away"
    )
