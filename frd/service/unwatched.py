"""Ranks that no agent reports on: what was last known of them may be long out of date.

The engine keeps the state that an agent reported last, which is evidence. People and metrics must
not take it for the present: a rank that was live when its agent ended is shown as `unwatched`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from frd.model import AlignedNs, RankState
from frd.service.state import NodeView
from frd.views import AttemptView

UNWATCHED: Final = "unwatched"
RANK_STATES: Final = (*(state.value for state in RankState), UNWATCHED)
"""What a rank is shown as."""
_OVER: Final = (RankState.EXITED, RankState.FINISHED)


def unwatched(view: AttemptView, nodes: Iterable[NodeView]) -> Mapping[int, AlignedNs]:
    """Ranks that run as far as is known, without an agent that reports, and since when."""
    watched: set[int] = set()
    heard: dict[int, AlignedNs] = {}
    for node in nodes:
        ranks = node.ranks.get(view.key, ())
        if node.reporting:
            watched.update(ranks)
        else:
            at = node.last_message_at
            heard.update((rank, max(heard.get(rank, at), at)) for rank in ranks)
    return {
        rank.info.rank: max(heard.get(rank.info.rank, AlignedNs(0)), rank.as_of)
        for rank in view.ranks
        if rank.info.rank not in watched and rank.status.state not in _OVER
    }
