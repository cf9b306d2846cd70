"""P2P ops in flight, as dump files tell them: by channel, with peers as global ranks.

The ops of one channel pair with the peer's by order and complete in order. Sends and receives of a
batch get no end of their own, the ``coalesced`` entry that closes the batch has it. A recorder that
names no peer (torchcomms, a receive from anybody) leaves an op that waits for anybody, so that the
rank is known to be busy and nobody is blamed for it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from frd.engine.state.snapshot import Bools, ChannelSnapshot
from frd.flight import Name
from frd.model import Int64s
from frd.offline.analysis.rows import RankRows, Rows

_ANYBODY = -1


def channels_of(rows: Rows, offset_ns: Mapping[int, int]) -> ChannelSnapshot:
    """All that is in flight, in aligned time."""
    found: dict[tuple[int, int, int, int], tuple[int, int]] = {}
    for rank, one in rows.ranks.items():
        at = np.flatnonzero(one.is_p2p)
        for row in _in_flight(rows, one, at) if len(at) else ():
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


def _in_flight(rows: Rows, one: RankRows, at: Int64s) -> list[int]:
    """Of the P2P rows `at` those that wait, oldest first."""
    trace, row = one.trace, one.current[at]
    names = trace.name[row]
    is_op = np.array([rows.trace.names[n].is_p2p_kind for n in range(len(rows.trace.names))])[names]
    done = one.done[at] | _ended_by_batch(one, at, is_op)
    channel = one.series[at].astype(np.int64) * len(rows.trace.names) + names
    passed: dict[int, int] = dict(zip(channel[done].tolist(), np.flatnonzero(done), strict=True))
    waiting = np.flatnonzero(is_op & ~done).tolist()
    return [int(at[i]) for i in waiting if i > passed.get(int(channel[i]), -1)]


def _ended_by_batch(one: RankRows, at: Int64s, is_op: Bools) -> Bools:
    """Ops of a batch whose last entry is done."""
    trace, row = one.trace, one.current[at]
    ends = np.flatnonzero(~is_op & one.done[at])
    if not len(ends):
        return np.zeros(len(at), np.bool_)
    batches = set(
        zip(trace.pg_id[row[ends]].tolist(), trace.p2p_seq[row[ends]].tolist(), strict=True)
    )
    mine = zip(trace.pg_id[row].tolist(), trace.p2p_seq[row].tolist(), strict=True)
    return np.array([batch in batches for batch in mine], np.bool_)


def _peer(rows: Rows, series: int, name: Name) -> tuple[int, int]:
    """Global rank of the other end, and 1 for a send; of an unknown end, as a receive."""
    is_send = name.op.endswith("send")
    local = name.dst if is_send else name.src
    ranks = rows.series[series].info.ranks
    if local is None or local >= len(ranks) or not rows.series[series].is_told:
        return _ANYBODY, 0
    return ranks[local], int(is_send)
