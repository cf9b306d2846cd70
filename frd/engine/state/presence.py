"""Which ranks are there: gone or silent, with a connected agent, with a known clock.

Pure functions over the tables of one attempt. What an absence means is for the detectors.
"""

from __future__ import annotations

import numpy as np

from frd.engine.clocks.uncertain_time import UNKNOWN_NS
from frd.engine.state.p2p import P2PChannels
from frd.engine.state.tables import (
    EXITED,
    FINISHED,
    SILENT,
    STATES,
    GroupTable,
    PairTable,
    RankTable,
)
from frd.model import UNKNOWN_SEQ, AlignedNs, Int32s, RankState


def all_gone(ranks: RankTable) -> bool:
    """All ranks that were ever declared are gone."""
    rank = ranks.sorted()
    return len(rank) > 0 and bool((ranks.state[rank] >= EXITED).all())


def lost(ranks: RankTable) -> tuple[tuple[int, RankState, AlignedNs], ...]:
    """Ranks that exited uncleanly or are silent, and since when."""
    rank = ranks.sorted()
    state = ranks.state[rank]
    gone = rank[(state == SILENT) | (state == EXITED)]
    return tuple(
        (r, STATES[ranks.state[r]], AlignedNs(int(ranks.state_since[r]))) for r in gone.tolist()
    )


def has_deserters(ranks: RankTable, groups: GroupTable, pairs: PairTable) -> bool:
    """A rank has finished without a collective that other members of its group joined."""
    if not (ranks.state[: ranks.count] == FINISHED).any():
        return False
    n = pairs.count
    finished = ranks.knows(pairs.rank[:n])
    finished[finished] = ranks.state[pairs.rank[:n][finished]] == FINISHED
    layout = pairs.layout()
    highest = np.full(groups.count, UNKNOWN_SEQ, np.int64)
    highest[layout.groups] = np.maximum.reduceat(pairs.enqueued[layout.order], layout.starts)
    row = np.flatnonzero(finished)
    return bool((pairs.enqueued[row] < highest[pairs.group[row]]).any())


def unsynchronized(ranks: RankTable) -> dict[int, tuple[int, ...]]:
    """Ranks whose clock is unknown although their agent is connected, by agent session; empty
    where all share one clock, because nothing is compared with it."""
    count = ranks.count
    there = ranks.declared[:count] & ranks.connected[:count] & (ranks.session[:count] >= 0)
    unknown = there & (ranks.uncertainty_ns[:count] == UNKNOWN_NS)
    if not unknown.any() or len(np.unique(ranks.session[:count][there])) < 2:
        return {}
    by_session: dict[int, list[int]] = {}
    for rank in np.flatnonzero(unknown).tolist():
        by_session.setdefault(int(ranks.session[rank]), []).append(rank)
    return {session: tuple(members) for session, members in by_session.items()}


def are_connected(ranks: RankTable, rank: Int32s) -> bool:
    """The agents of all these ranks are connected."""
    return bool(ranks.knows(rank).all() and ranks.connected[rank].all())


def groups_of(pairs: PairTable, rank: int) -> Int32s:
    groups: Int32s = pairs.group[: pairs.count][pairs.rank[: pairs.count] == rank]
    return groups


def may_send(
    ranks: RankTable, groups: GroupTable, pairs: PairTable, channels: P2PChannels, rank: int
) -> bool:
    """The rank sends or receives, as far as that can be known.

    Gloo's recorder shows no sends and receives, and a group in which all members do nothing else
    shows no collectives.
    """
    if channels.was_seen(rank):
        return True
    info = ranks.infos.get(rank)
    if info is None or "gloo" not in info.backends:
        return False
    watermarks = [pairs.enqueued[groups.rows(g)] for g in groups_of(pairs, rank).tolist()]
    return any(len(enqueued) > 1 and enqueued.max() < 0 for enqueued in watermarks)
