"""P2P ops in flight in dump files: by channel, with peers as global ranks.

`frd.flight.progress` decides which ops are in flight. If the recorder names no peer, as torchcomms
does not, the op counts as a receive from any source: the rank is known to be busy, and no peer is
blamed for it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from frd.engine.state.snapshot import ChannelSnapshot
from frd.flight.names import Name
from frd.flight.progress import p2p_in_flight
from frd.offline.analysis.rows import Rows

_ANY_SOURCE = -1


def channels_of(rows: Rows, offset_ns: Mapping[int, int]) -> ChannelSnapshot:
    """All sends and receives in flight, in aligned time."""
    facts = rows.facts
    found: dict[tuple[int, int, int, int], tuple[int, int]] = {}
    for rank, one in rows.ranks.items():
        if not one.is_p2p.any():
            continue
        at = np.flatnonzero(one.is_p2p)
        entries, done = one.trace, one.state.done[at]
        is_open = p2p_in_flight(entries, one.current[at], one.series[at], done, facts)
        for row in at[is_open].tolist():
            of = int(one.series[row])
            name = rows.trace.names[int(one.trace.name[one.current[row]])]
            peer, is_send = _peer(rows, of, name)
            created = int(one.trace.created_ns[one.current[row]])
            since = created + offset_ns.get(rank, 0) if created > 0 else 0
            count, oldest = found.get((rank, of, peer, is_send), (0, since))
            found[rank, of, peer, is_send] = count + 1, min(since, oldest)
    keys = np.array(list(found), np.int64).reshape(-1, 4).T
    values = np.array(list(found.values()), np.int64).reshape(-1, 2).T
    return ChannelSnapshot(
        rank=keys[0].astype(np.int32),
        group=keys[1].astype(np.int32),
        peer=keys[2].astype(np.int32),
        is_send=keys[3].astype(np.uint8),
        in_flight=values[0],
        since=values[1],
    )


def _peer(rows: Rows, series: int, name: Name) -> tuple[int, int]:
    """Global rank of the peer, and 1 for a send; an unknown peer counts as any source."""
    is_send = name.op.endswith("send")
    local = name.dst if is_send else name.src
    ranks = rows.series[series].info.ranks
    if local is None or local >= len(ranks) or not rows.series[series].is_known:
        return _ANY_SOURCE, 0
    return ranks[local], int(is_send)
