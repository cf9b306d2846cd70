"""Finds the entries that close a batch of sends and receives.

torch issues a batch (``batch_isend_irecv``, a pipeline schedule) as one NCCL group call. It records
each send and receive, whose state never changes, and then an entry ``coalesced``, which alone
reports the start and the end of the batch. Up to format 2.9 that entry is marked as P2P. From 2.10
on (torch 2.11 with NCCL 2.32 recorded this) it is not, and it repeats the seq of the collective
before the batch, so it looks like a second part of that collective. The neighbours decide: in
recording order, the last entry of the same group before it is a send or receive with the same
`p2p_seq_id`.

The parts of a coalesced collective do not change state either. A dump of only the active entries
therefore has the parts of all batches and coalesced collectives, long after their end, but the
entry that closes them only while they last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from frd.flight.entry import Entry
from frd.flight.names import END_OF_BATCH
from frd.model import Bools, Int64s

_SUFFIX = ":" + END_OF_BATCH


def with_batch_ends(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """`entries` in recording order, with `is_p2p` set for those that close a batch."""
    if not any(e.profiling_name.endswith(_SUFFIX) and not e.is_p2p for e in entries):
        return tuple(entries)
    marked: list[Entry] = []
    last: dict[int, Entry] = {}
    for entry in entries:
        before = last.get(entry.pg_id)
        if (
            entry.profiling_name.endswith(_SUFFIX)
            and not entry.is_p2p
            and before is not None
            and before.is_p2p
            and before.p2p_seq_id == entry.p2p_seq_id
        ):
            marked.append(msgspec.structs.replace(entry, is_p2p=True))
        else:
            marked.append(entry)
        last[entry.pg_id] = marked[-1]
    return tuple(marked)


def batch_ends(is_end: Bools, is_p2p: Bools, pg_id: Int64s, p2p_seq: Int64s) -> Int64s:
    """The same over columns: the rows that close a batch. `is_end`: the op is `END_OF_BATCH`."""
    if not (is_end & ~is_p2p).any():
        return np.empty(0, np.int64)
    order = np.argsort(pg_id, kind="stable")
    here, before = order[1:], order[:-1]
    closes = is_end[here] & ~is_p2p[here] & is_p2p[before]
    closes &= (pg_id[here] == pg_id[before]) & (p2p_seq[here] == p2p_seq[before])
    return here[closes]


def closing_rows(is_end: Bools, is_p2p: Bools, pg_id: Int64s, number: Int64s) -> Int64s:
    """For each row the row that closes its batch or coalesced collective, else the row itself.

    `number`: the `p2p_seq_id` of a send or receive, else the seq.
    """
    rows = np.arange(len(is_end))
    if not is_end.any():
        return rows
    series = np.stack((is_p2p.astype(np.int64), pg_id, number))
    at = np.unique(series, axis=1, return_inverse=True)[1].reshape(-1)
    last = np.full(int(at.max()) + 1, -1)
    last[at[is_end]] = rows[is_end]
    found: Int64s = np.maximum(last[at], rows)
    return found


def is_over_without_end(
    is_end: Bools, is_part: Bools, is_p2p: Bools, pg_id: Int64s, number: Int64s
) -> Bools:
    """Rows of a dump of only the active entries that belong to a batch or coalesced collective
    which is over, because the entry that closes it is missing.

    `number`: the `p2p_seq_id` of a send or receive, else the seq. `is_part`: the op occurs only in
    a series. A send that was the only one of its batch looks like one outside a batch, and
    is not found.
    """
    series = list(zip(is_p2p.tolist(), pg_id.tolist(), number.tolist(), strict=True))
    size = Counter(series)
    lasts = {series[at] for at in np.flatnonzero(is_end).tolist()}
    is_several = np.array([size[one] > 1 for one in series], np.bool_)
    found: Bools = np.array([one not in lasts for one in series], np.bool_)
    found &= is_several | is_part
    return found
