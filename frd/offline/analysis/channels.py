"""P2P ops in flight in dump files: by channel, with peers as global ranks.

`frd.flight.progress` decides which ops are in flight. If the recorder names no peer, as torchcomms
does not, the op counts as a receive from any source: the rank is known to be busy, and no peer is
blamed for it. The same holds for an op before an entry that cannot be read: that one may be the
end of its batch. How many ops of a channel came before is known if no record is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from frd.engine.state.snapshot import ChannelSnapshot
from frd.flight.names import Name
from frd.flight.progress import p2p_in_flight, p2p_runs, posted_before
from frd.model import Bools, Int64s
from frd.offline.analysis.rows import RankRows, Rows

_ANY_SOURCE = -1


def channels_of(rows: Rows, offset_ns: Mapping[int, int]) -> ChannelSnapshot:
    """All sends and receives in flight, in aligned time."""
    found = [np.empty((9, 0), np.int64)]
    for rank, one in rows.ranks.items():
        if not one.is_p2p.any():
            continue
        at, is_whole = np.flatnonzero(one.is_p2p), _is_whole(one)
        entries, done = one.trace, one.state.done[at]
        is_open = p2p_in_flight(entries, one.current[at], one.series[at], done, rows.facts)
        if is_open.any():
            ops = _ops(rows, rank, at, is_open, offset_ns.get(rank, 0), is_whole=is_whole)
            runs = p2p_runs(ops)
            found.append(np.vstack([np.full(runs.shape[1], rank), runs]))
        if is_whole and (over := [(rank, *row) for row in _over(rows, rank, at, is_open)]):
            found.append(np.array(over, np.int64).T)
    return ChannelSnapshot.of(np.concatenate(found, axis=1))


def _ops(
    rows: Rows, rank: int, p2p: Int64s, is_open: Bools, offset_ns: int, *, is_whole: bool
) -> Iterator[tuple[int, ...]]:
    """Those in flight. What follows an op is unknown if an entry after it cannot be read."""
    one, facts = rows.ranks[rank], rows.facts
    trace, at, series = one.trace, one.current[p2p], one.series[p2p]
    created = np.where(trace.created_ns[at] > 0, trace.created_ns[at] + offset_ns, 0)
    groups = [rows.trace.groups[of.group] for of in rows.series]
    readable = np.array([trace.unread_before(group) for group in groups])[series] <= at
    name = trace.name[at]
    posted = posted_before(series.astype(np.int64) * len(rows.trace.names) + name)
    columns = (
        series,
        np.where(readable, name, -1),
        created,
        trace.p2p_seq[at].clip(0),
        np.where(trace.damaged[at] != 0, -1, trace.signature[at]),
        np.where(is_whole, posted, -1),
        facts.is_any_source[name],
    )
    wanted = [column[is_open].tolist() for column in columns]
    for of, number, *op, before, takes_any in zip(*wanted, strict=True):
        peer = _peer(rows, of, rows.trace.names[number]) if number >= 0 else (_ANY_SOURCE, 0)
        yield of, *peer, *op, before if takes_any or peer[0] >= 0 else -1


def _over(rows: Rows, rank: int, p2p: Int64s, is_open: Bools) -> Iterator[tuple[int, ...]]:
    """Channels of a whole recorder with nothing in flight, and how many of their ops are over."""
    one = rows.ranks[rank]
    keys = np.stack((one.series[p2p], one.trace.name[one.current[p2p]]))
    channels, which, size = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    idle = np.setdiff1d(np.arange(len(size)), which.reshape(-1)[is_open])
    for of, number, count in zip(*channels[:, idle].tolist(), size[idle].tolist(), strict=True):
        peer, is_send = _peer(rows, of, rows.trace.names[number])
        if peer >= 0:
            yield of, peer, is_send, 0, 0, 0, -1, count


def _is_whole(one: RankRows) -> bool:
    """No record is missing, and the recorder was not reset: no group had sends before."""
    trace, at = one.trace, one.current[one.is_p2p]
    first = at[np.unique(trace.pg_id[at], return_index=True)[1]]
    lacks = one.has_holes or one.resets or trace.holes or (trace.p2p_seq[first] > 1).any()
    return int(trace.record_id[0]) == 0 and not lacks


def _peer(rows: Rows, series: int, name: Name) -> tuple[int, int]:
    """Global rank of the peer, and 1 for a send; an unknown peer counts as any source."""
    is_send = name.op.endswith("send")
    local = name.dst if is_send else name.src
    ranks = rows.series[series].info.ranks
    if local is None or local >= len(ranks) or not rows.series[series].is_known:
        return _ANY_SOURCE, 0
    return ranks[local], int(is_send)
