"""Sequence numbers by order, for recorders whose own numbers differ between members of a group.

The recorder of torchcomms has one counter for all communicators of a rank. torch before 2.5 counts
batches of sends as collectives, and each member of a group has other batches. Members agree on the
order within a group: the n-th collective of a group is the n-th on every member. If a ring has lost
nothing, n is counted from its first record. Otherwise the dump does not have the number of lost
collectives by group; the rank is then aligned with the rank that has lost the least, where enqueue
times are closest and signatures agree. If they do not agree, or if an entry cannot be read, the
rank's entries of the group are left out with a warning: a wrong number could accuse a healthy rank.
A send gets the number of the collective before it, as torch writes it today.

A dump is recognized as one of torchcomms if it has entries but no `pg_status`, and the description
of every group is the name of the backend. That a group counts its batches is recognized by a send
with a higher number than the entry before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from frd.flight.entry import Name
from frd.flight.trace import RankTrace, minor_version
from frd.model import UNKNOWN_SEQ, GroupInfo, Int64s

_COUNTS_BATCHES: Final = (2, 3)
"""The last format in which a batch may have raised the number of collectives."""
_AGREE: Final = 0.95
"""Share of collectives with equal signatures at which two rings count as aligned."""
_NEAR: Final = 4
"""Positions that are tried on either side of the one that the times suggest."""


@dataclass(frozen=True, slots=True)
class _Ring:
    """The collectives of one group on one rank."""

    rank: int
    rows: Int64s
    """With sends and receives."""
    number: Int64s
    """Of `rows`: how many collectives of the ring precede the row, and are it."""
    created_ns: Int64s
    """Of the collectives, as is `signature`."""
    signature: Int64s
    is_whole: bool
    """No record was overwritten."""
    is_readable: bool

    @classmethod
    def of(cls, trace: RankTrace, group: int, groups: Sequence[GroupInfo]) -> _Ring | None:
        rows = np.flatnonzero(trace.group == group)
        if not len(rows):
            return None
        is_collective = trace.is_p2p[rows] == 0
        collectives = rows[is_collective]
        return cls(
            rank=trace.rank,
            rows=rows,
            number=np.cumsum(is_collective),
            created_ns=trace.created_ns[collectives],
            signature=trace.signature[collectives].astype(np.int64),
            is_whole=int(trace.record_id[0]) == 0,
            is_readable=not trace.unread_before(groups[group]),
        )


def numbered(
    ranks: dict[int, RankTrace],
    groups: list[GroupInfo],
    names: Sequence[Name],
    warnings: list[str],
) -> None:
    """Give the collectives in `ranks` numbers that their members share.

    Clears the description of groups of torchcomms, which is the same for all.
    """
    commed = _of_torchcomms(ranks, groups, names)
    for group in {at for rank in commed for at in np.unique(ranks[rank].group).tolist()}:
        groups[group] = GroupInfo(groups[group].name, "", groups[group].ranks)
    old = [r for r, one in ranks.items() if minor_version(one.version) <= _COUNTS_BATCHES]
    counting = {at for rank in old for at in _counting_batches(ranks[rank])}
    todo = [(group, commed, 0) for group in range(len(groups) if commed else 0)]
    todo += [(group, old, 1) for group in sorted(counting)]
    for group, mine, lowest in todo:
        rings = [ring for r in mine if (ring := _Ring.of(ranks[r], group, groups)) is not None]
        for ring, first in _placed(rings):
            trace = ranks[ring.rank]
            seq = trace.seq.copy()
            seq[ring.rows] = UNKNOWN_SEQ if first is None else lowest + first + ring.number - 1
            trace = ranks[ring.rank] = replace(trace, seq=seq)
            if first is None and (count := len(ring.created_ns)):
                kept = np.ones(len(trace), np.bool_)
                kept[ring.rows] = trace.is_p2p[ring.rows] != 0
                ranks[ring.rank] = trace.take(kept)
                warnings.append(
                    f"{trace.source}: group {groups[group].label!r}: {count} entries cannot be "
                    "numbered, its ring has overrun or is damaged: left out, use a larger "
                    "TORCHCOMM_FR_BUFFER_SIZE or TORCH_NCCL_TRACE_BUFFER_SIZE"
                )


def _of_torchcomms(
    ranks: dict[int, RankTrace], groups: Sequence[GroupInfo], names: Sequence[Name]
) -> list[int]:
    backends = {name.backend: at for at, name in enumerate(names)}
    desc = np.array([backends.get(info.desc, -1) for info in groups], np.int64)
    backend = np.array([backends[name.backend] for name in names], np.int64)
    return [
        rank
        for rank, trace in ranks.items()
        if len(trace) and not trace.status and (desc[trace.group] == backend[trace.name]).all()
    ]


def _counting_batches(trace: RankTrace) -> list[int]:
    """Groups of a rank with a send whose number is not that of the entry before it."""
    order = np.argsort(trace.group, kind="stable")
    group, seq, is_p2p = trace.group[order], trace.seq[order], trace.is_p2p[order] != 0
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = group[1:] != group[:-1]
    before = np.where(is_first, 0, np.roll(seq, 1))
    is_known = ~is_first | (trace.record_id[:1] == 0)
    found: list[int] = np.unique(group[is_p2p & is_known & (seq > before)]).tolist()
    return found


def _placed(rings: list[_Ring]) -> Iterator[tuple[_Ring, int | None]]:
    """Each ring with the position of its first collective, None if it cannot be determined."""
    # Of the rings that lost records, the one with the oldest record.
    known = min(
        (ring for ring in rings if ring.is_readable and len(ring.created_ns)),
        key=lambda ring: (not ring.is_whole, int(ring.created_ns[0])),
        default=None,
    )
    for ring in rings:
        if ring.is_readable and (ring.is_whole or ring is known):
            yield ring, 0
        else:
            yield ring, _place(ring, known) if known and ring.is_readable else None


def _place(ring: _Ring, known: _Ring) -> int | None:
    """The collective of `known` that is the first one of `ring`."""
    count = len(ring.created_ns)
    if not count:
        return None
    nearest = np.searchsorted(known.created_ns, ring.created_ns)
    about = int(np.median(nearest - np.arange(count)))
    best: tuple[float, float] | None = None
    place = None
    for first in range(max(0, about - _NEAR), about + _NEAR + 1):
        shared = min(count, len(known.created_ns) - first)
        if shared <= 0:
            continue
        theirs = slice(first, first + shared)
        agree = float((ring.signature[:shared] == known.signature[theirs]).mean())
        apart = float(np.median(np.abs(ring.created_ns[:shared] - known.created_ns[theirs])))
        if agree >= _AGREE and (best is None or (-agree, apart) < best):
            best, place = (-agree, apart), first
    return place
