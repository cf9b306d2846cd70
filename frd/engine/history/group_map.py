"""How each rank is doing in each group, and what is waited in: reductions of all pairs.

Of 16,384 ranks in 40 groups these take some tens of milliseconds, all of it in numpy.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from frd.engine.matching.open_collectives import OpsAt
from frd.engine.state.snapshot import run_starts
from frd.engine.state.snapshot_parts import StateAt
from frd.engine.views import CELL_STATES, GroupMap, OpenOp, RankGroup
from frd.model import AlignedNs, Int64s, UInt8s

_NONE, _OK, _UNKNOWN, _WAITING, _STUCK, _MISSING, _GONE = range(len(CELL_STATES))
_HALF: Final = 0.5
"""The share of the stall threshold from which a wait is shown."""
_NEVER: Final = np.iinfo(np.int64).max


def group_map(at: StateAt, late_s: float, world_size: int, most: int) -> GroupMap:
    """See `History.group_map`."""
    pairs, groups, names = at.tables.pairs, at.tables.groups, list(at.tables.groups.labels)
    labels, world = len(names), max(world_size, at.tables.ranks.count)
    state = pair_states(at, late_s)
    label = groups.label[pairs.group]
    worst = np.zeros(labels, np.uint8)
    np.maximum.at(worst, label, state)
    members = np.bincount(label, minlength=labels)
    chosen = np.lexsort((np.arange(labels), -members, -worst.astype(np.int64)))[:most]
    chosen.sort()  # rows must not change places when one of them becomes worse
    row = np.full(labels, -1, np.int64)
    row[chosen] = np.arange(len(chosen))
    cells = np.zeros((len(chosen), world), np.uint8)
    shown = np.flatnonzero((row[label] >= 0) & (pairs.rank < world))
    cell = row[label[shown]] * world + pairs.rank[shown]
    np.maximum.at(cells.reshape(-1), cell, state[shown])
    return GroupMap(
        labels=[names[i] for i in chosen.tolist()],
        groups=np.bincount(groups.label, minlength=labels)[chosen].tolist(),
        members=np.count_nonzero(cells, axis=1).tolist(),
        cells=cells,
        more=labels - len(chosen),
    )


def pair_states(at: StateAt, late_s: float) -> UInt8s:
    """By pair: index in `CELL_STATES`."""
    group, rank, waits = at.tables.pairs.group, at.tables.pairs.rank, at.waits
    state = np.full(len(group), _OK, np.uint8)
    state[at.is_unknown(rank, late_s)] = _UNKNOWN
    state[waits.row[waits.share >= _HALF]] = _WAITING
    state[waits.row[waits.share >= 1]] = _STUCK
    lasting = waits.lasting(_HALF)
    # The highest op in which a member waits for long, by group, and since when any does.
    waited = np.full(at.tables.groups.count, -1, np.int64)
    since = np.full(at.tables.groups.count, _NEVER, np.int64)
    np.maximum.at(waited, group[lasting.row], lasting.seq)
    np.minimum.at(since, group[lasting.row], lasting.since)
    behind = np.flatnonzero(at.reached.joined < waited[group])
    absent = at.has_not_joined(behind, waited[group[behind]], since[group[behind]])
    state[behind[~absent]] = np.maximum(state[behind[~absent]], _UNKNOWN)
    state[behind[absent]] = _MISSING
    state[at.is_gone(rank)] = _GONE
    return state


def open_ops(at: StateAt, ops: OpsAt, most: int) -> tuple[list[OpenOp], int]:
    """See `History.open_ops`. Only waits that have lasted: see `OpenWaits.lasting`."""
    waits = at.waits.lasting()
    if not len(waits.row):
        return [], 0
    group = at.tables.pairs.group[waits.row].astype(np.int64)
    order = np.lexsort((waits.since, waits.seq, group))
    row, seq, since, group = waits.row[order], waits.seq[order], waits.since[order], group[order]
    first = run_starts(group, seq)
    end = np.append(first[1:], len(order))
    oldest = np.argsort(since[first], kind="stable")
    share = waits.share[order]
    found = [
        _open_op(
            at,
            ops,
            row[first[i] : end[i]],
            int(group[first[i]]),
            int(seq[first[i]]),
            since[first[i]],
            stalled=bool((share[first[i] : end[i]] >= 1).any()),
        )
        for i in oldest[:most].tolist()
    ]
    return found, max(0, len(first) - most)


def _open_op(
    at: StateAt, ops: OpsAt, row: Int64s, group: int, seq: int, since: np.int64, *, stalled: bool
) -> OpenOp:
    pairs, info = at.tables.pairs, at.tables.groups.infos[group]
    members = pairs.layout().rows(group)
    members = members[at.reached.joined[members] < seq]
    absent = at.has_not_joined(members, seq, int(since))
    return OpenOp(
        group_id=info.group_id,
        label=info.label,
        seq=seq,
        op=ops.op(group, seq) or "collective",
        since=AlignedNs(int(since)),
        stalled=stalled,
        waiting=np.sort(pairs.rank[row]).astype(np.int64),
        missing=np.sort(pairs.rank[members[absent]]).astype(np.int64),
        unknown=np.sort(pairs.rank[members[~absent]]).astype(np.int64),
    )


def groups_of(at: StateAt, late_s: float, rank: int, most: int) -> tuple[list[RankGroup], int]:
    """See `History.groups_of`."""
    pairs, come, state = at.tables.pairs, at.reached, pair_states(at, late_s)
    highest = np.full(at.tables.groups.count, -1, np.int64)
    np.maximum.at(highest, pairs.group, come.joined)
    rows = np.flatnonzero(pairs.rank == rank)
    rows = rows[np.argsort(-state[rows].astype(np.int64), kind="stable")]
    found = []
    for row in rows[:most].tolist():
        info = at.tables.groups.infos[pairs.group[row]]
        found.append(
            RankGroup(
                group_id=info.group_id,
                label=info.label,
                size=len(info.ranks),
                enqueued=int(come.joined[row]),
                completed=int(come.completed[row]),
                highest=int(highest[pairs.group[row]]),
                state=CELL_STATES[state[row]],
            )
        )
    return found, max(0, len(rows) - most)
