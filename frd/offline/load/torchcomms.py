"""Sequence numbers for dumps of torchcomms, which numbers ops per process and not per group.

Its recorder has one counter for all communicators of a rank, so the number of a collective differs
from member to member as soon as they share several. Members agree on the order within a group: the
n-th collective of a group is the n-th on every member. If a ring has lost nothing, n is counted
from its first record. Otherwise the dump does not have the number of lost collectives by group; the
rank is then aligned with the rank that has lost the least, where enqueue times are closest and
signatures agree. If they do not agree, the rank's entries of the group are left out with a warning:
a wrong number could accuse a healthy rank.

A dump is recognized as one of torchcomms if it has entries but no `pg_status`, and the description
of every group is the name of the backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from frd.flight.names import Name
from frd.flight.trace import RankTrace
from frd.model import Bools, GroupInfo, Int64s

_AGREE: Final = 0.95
"""Share of collectives with equal signatures at which two rings count as aligned."""
_NEAR: Final = 4
"""Positions that are tried on either side of the one that the times suggest."""


@dataclass(frozen=True, slots=True)
class _Ring:
    """The collectives of one group on one rank."""

    rank: int
    rows: Int64s
    created_ns: Int64s
    signature: Int64s
    is_whole: bool
    """No record was overwritten."""


def numbered(
    ranks: dict[int, RankTrace],
    groups: list[GroupInfo],
    names: Sequence[Name],
    warnings: list[str],
) -> None:
    """Give the collectives in dumps of torchcomms, in `ranks`, numbers that their members share.

    Clears the description of its `groups`, which is the same for all.
    """
    backends = {name.backend: at for at, name in enumerate(names)}
    desc = np.array([backends.get(info.desc, -1) for info in groups], np.int64)
    backend = np.array([backends[name.backend] for name in names], np.int64)
    is_p2p = np.array([name.is_p2p_kind for name in names], np.bool_)
    mine = [
        rank
        for rank, trace in ranks.items()
        if len(trace) and not trace.status and (desc[trace.group] == backend[trace.name]).all()
    ]
    if not mine:
        return
    for group in np.unique(np.concatenate([ranks[rank].group for rank in mine])).tolist():
        groups[group] = GroupInfo(groups[group].name, "", groups[group].ranks)
    seqs = {rank: ranks[rank].seq.copy() for rank in mine}
    kept = {rank: np.ones(len(ranks[rank]), np.bool_) for rank in mine}
    for group in range(len(groups)):
        rings = [ring for rank in mine if (ring := _ring(ranks[rank], group, is_p2p)) is not None]
        for ring, first in _placed(rings):
            if first is None:
                kept[ring.rank][ring.rows] = False
                warnings.append(
                    f"{ranks[ring.rank].source}: group {groups[group].label!r}: {len(ring.rows)} "
                    "entries cannot be numbered, its ring has overrun: left out, use a larger "
                    "TORCHCOMM_FR_BUFFER_SIZE"
                )
            else:
                seqs[ring.rank][ring.rows] = first + np.arange(len(ring.rows))
    for rank in mine:
        ranks[rank] = replace(ranks[rank], seq=seqs[rank]).take(kept[rank])


def _ring(trace: RankTrace, group: int, is_p2p: Bools) -> _Ring | None:
    rows = np.flatnonzero((trace.group == group) & ~is_p2p[trace.name])
    if not len(rows):
        return None
    return _Ring(
        rank=trace.rank,
        rows=rows,
        created_ns=trace.created_ns[rows],
        signature=trace.signature[rows].astype(np.int64),
        is_whole=int(trace.record_id[0]) == 0,
    )


def _placed(rings: list[_Ring]) -> Iterator[tuple[_Ring, int | None]]:
    """Each ring with the number of its first collective, None if it cannot be determined."""
    if not rings:
        return
    # Of the rings that lost records, the one with the oldest record.
    known = min(rings, key=lambda ring: (not ring.is_whole, int(ring.created_ns[0])))
    for ring in rings:
        yield ring, 0 if ring.is_whole or ring is known else _place(ring, known)


def _place(ring: _Ring, known: _Ring) -> int | None:
    """The collective of `known` that is the first one of `ring`."""
    nearest = np.searchsorted(known.created_ns, ring.created_ns)
    about = int(np.median(nearest - np.arange(len(ring.rows))))
    best: tuple[float, float] | None = None
    place = None
    for first in range(max(0, about - _NEAR), about + _NEAR + 1):
        shared = min(len(ring.rows), len(known.rows) - first)
        if shared <= 0:
            continue
        theirs = slice(first, first + shared)
        agree = float((ring.signature[:shared] == known.signature[theirs]).mean())
        apart = float(np.median(np.abs(ring.created_ns[:shared] - known.created_ns[theirs])))
        if agree >= _AGREE and (best is None or (-agree, apart) < best):
            best, place = (-agree, apart), first
    return place
