"""Finds the entries that close a batch of sends and receives.

torch issues a batch (``batch_isend_irecv``, a pipeline schedule) as one NCCL group call. It records
each send and receive, whose state never changes, and then an entry ``coalesced``, which alone
reports the start and the end of the batch. Up to format 2.9 that entry is marked as P2P. From 2.10
on (torch 2.11 with NCCL 2.32 recorded this) it is not, and it repeats the seq of the collective
before the batch, so it looks like a second part of that collective. The neighbours decide: in
recording order, the last entry of the same group before it is a send or receive with the same
`p2p_seq_id`. Old formats mark neither: there a send is known by its name. If the recorder has
overwritten what was before it, it counts as the end of a batch as well: a collective without its
parts could not be compared with its peers' anyway.

The parts of a coalesced collective do not change state either. A dump of only the active entries
therefore has the parts of all batches and coalesced collectives, long after their end, but the
entry that closes them only while they last.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from frd.flight.entry import END_OF_BATCH, Entry, parse_profiling_name
from frd.model import Bools, Int64s

_SUFFIX = ":" + END_OF_BATCH


def with_batch_ends(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """`entries` in recording order, with `is_p2p` set for those that close a batch."""
    marked = list(entries)
    distinct = {(e.profiling_name, e.is_p2p) for e in entries}
    if any(name.endswith(_SUFFIX) and not is_p2p for name, is_p2p in distinct):
        names = [parse_profiling_name(e.profiling_name) for e in entries]
        is_end = np.array([name.op == END_OF_BATCH for name in names], np.bool_)
        is_p2p = np.array([e.is_p2p for e in entries], np.bool_)
        is_p2p |= np.array([name.is_p2p_kind for name in names], np.bool_)
        numbers = np.array([(e.pg_id, e.p2p_seq_id) for e in entries], np.int64).T
        for at in batch_ends(is_end, is_p2p, *numbers, has_lost=entries[0].record_id > 0):
            marked[at] = msgspec.structs.replace(entries[at], is_p2p=True)
    return tuple(marked)


def batch_ends(
    is_end: Bools, is_p2p: Bools, pg_id: Int64s, p2p_seq: Int64s, *, has_lost: bool
) -> Int64s:
    """The same over columns: the rows that close a batch. `is_end`: the op is `END_OF_BATCH`;
    `has_lost`: the first record id is not 0."""
    if not (is_end & ~is_p2p).any():
        return np.empty(0, np.int64)
    order = np.argsort(pg_id, kind="stable")
    here, before = order[1:], order[:-1]
    closes = np.empty(len(order), np.bool_)
    closes[1:] = is_p2p[before] & ~is_end[before] & (p2p_seq[here] == p2p_seq[before])
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = pg_id[here] != pg_id[before]
    closes[is_first] = has_lost
    return order[closes & is_end[order] & ~is_p2p[order]]


def closing_rows(is_end: Bools, is_p2p: Bools, pg_id: Int64s, number: Int64s) -> Int64s:
    """For each row the row that closes its batch or coalesced collective, else the row itself.

    `number`: the `p2p_seq_id` of a send or receive, else the seq.
    """
    rows = np.arange(len(is_end))
    if not is_end.any():
        return rows
    series = _series(is_p2p, pg_id, number)
    last = np.full(len(rows), -1)
    last[series[is_end]] = rows[is_end]
    found: Int64s = np.maximum(last[series], rows)
    return found


def is_over_without_end(
    is_end: Bools, is_part: Bools, is_p2p: Bools, pg_id: Int64s, number: Int64s
) -> Bools:
    """Rows of a dump of only the active entries that belong to a batch or coalesced collective
    which is over, because the entry that closes it is missing.

    `number` as above. `is_part`: the op occurs only in a series. A send that was the only one of
    its batch looks like one outside a batch, and is not found.
    """
    series = _series(is_p2p, pg_id, number)
    is_several = np.bincount(series)[series] > 1
    return ~np.isin(series, series[is_end]) & (is_several | is_part)


def _series(is_p2p: Bools, pg_id: Int64s, number: Int64s) -> Int64s:
    """A number for each row, the same for all rows of one batch or coalesced collective."""
    keys = np.stack((is_p2p, pg_id, number), dtype=np.int64)
    return np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)
