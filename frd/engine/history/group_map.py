"""How each rank is doing in each group, and what is waited in: reductions of all pairs.

Of 16,384 ranks in 40 groups these take some tens of milliseconds, all of it in numpy.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from frd.engine.history.copies import Copies
from frd.engine.views import CELL_STATES, GroupMap, OpenOp, RankGroup
from frd.model import AlignedNs, Int64s, UInt8s

_NONE, _OK, _UNKNOWN, _WAITING, _STUCK, _MISSING, _GONE = range(len(CELL_STATES))
_HALF: Final = 0.5
"""The share of the stall threshold from which a wait is shown."""
_NEVER: Final = np.iinfo(np.int64).max


def group_map(copies: Copies, most: int) -> GroupMap:
    """See `History.group_map`."""
    progress, labels = copies.progress, len(copies.labels)
    state = pair_states(copies)
    label = copies.label[progress.group]
    worst = np.zeros(labels, np.uint8)
    np.maximum.at(worst, label, state)
    members = np.bincount(label, minlength=labels)
    chosen = np.lexsort((np.arange(labels), -members, -worst.astype(np.int64)))[:most]
    chosen.sort()  # rows must not change places when one of them becomes worse
    row = np.full(labels, -1, np.int64)
    row[chosen] = np.arange(len(chosen))
    cells = np.zeros((len(chosen), copies.world_size), np.uint8)
    shown = np.flatnonzero((row[label] >= 0) & (progress.rank < copies.world_size))
    at = row[label[shown]] * copies.world_size + progress.rank[shown]
    np.maximum.at(cells.reshape(-1), at, state[shown])
    groups = np.bincount(copies.label, minlength=labels)
    return GroupMap(
        labels=[copies.labels[i] for i in chosen.tolist()],
        groups=groups[chosen].tolist(),
        members=np.count_nonzero(cells, axis=1).tolist(),
        cells=cells,
        more=labels - len(chosen),
    )


def pair_states(copies: Copies) -> UInt8s:
    """By pair: index in `CELL_STATES`."""
    progress = copies.progress
    group, enqueued = progress.group, progress.enqueued
    state = np.full(len(group), _OK, np.uint8)
    state[copies.is_unknown(progress.rank)] = _UNKNOWN
    waits = copies.waits()
    state[waits.row[waits.share >= _HALF]] = _WAITING
    state[waits.row[waits.share >= 1]] = _STUCK
    lasting = waits.lasting(_HALF)
    # The highest op in which a member waits for long, by group, and since when any does.
    waited = np.full(len(copies.infos), -1, np.int64)
    since = np.full(len(copies.infos), _NEVER, np.int64)
    np.maximum.at(waited, group[lasting.row], lasting.seq)
    np.minimum.at(since, group[lasting.row], lasting.since)
    behind = np.flatnonzero(enqueued < waited[group])
    absent = copies.has_not_joined(behind, waited[group[behind]], since[group[behind]])
    state[behind[~absent]] = np.maximum(state[behind[~absent]], _UNKNOWN)
    state[behind[absent]] = _MISSING
    state[copies.is_gone(progress.rank)] = _GONE
    return state


def open_ops(copies: Copies, most: int) -> tuple[list[OpenOp], int]:
    """See `History.open_ops`. Only waits that have lasted: see `OpenWaits.lasting`."""
    progress, waits = copies.progress, copies.waits().lasting()
    if not len(waits.row):
        return [], 0
    group = progress.group[waits.row].astype(np.int64)
    order = np.lexsort((waits.since, waits.seq, group))
    row, seq, since, group = waits.row[order], waits.seq[order], waits.since[order], group[order]
    edge = np.ones(len(order), np.bool_)
    edge[1:] = (group[1:] != group[:-1]) | (seq[1:] != seq[:-1])
    first = np.flatnonzero(edge)
    end = np.append(first[1:], len(order))
    oldest = np.argsort(since[first], kind="stable")
    share = waits.share[order]
    found = [
        _open_op(
            copies,
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
    copies: Copies, row: Int64s, group: int, seq: int, since: np.int64, *, stalled: bool
) -> OpenOp:
    progress, info = copies.progress, copies.infos[group]
    members = _members(copies, group)
    members = members[progress.enqueued[members] < seq]
    absent = copies.has_not_joined(members, seq, int(since))
    signature = int(progress.signature_of(np.array([group], np.int32), np.array([seq]))[0])
    return OpenOp(
        group_id=info.group_id,
        label=info.label,
        seq=seq,
        op=copies.signatures[signature].op if signature >= 0 else "collective",
        since=AlignedNs(int(since)),
        stalled=stalled,
        waiting=np.sort(progress.rank[row]).astype(np.int64),
        missing=np.sort(progress.rank[members[absent]]).astype(np.int64),
        unknown=np.sort(progress.rank[members[~absent]]).astype(np.int64),
    )


def _members(copies: Copies, group: int) -> Int64s:
    """The pairs of a group."""
    layout = copies.progress.layout
    at = int(np.searchsorted(layout.groups, group))
    if at == len(layout.groups) or layout.groups[at] != group:
        return np.zeros(0, np.int64)
    end = layout.starts[at + 1] if at + 1 < len(layout.starts) else len(layout.order)
    return layout.order[layout.starts[at] : end]


def groups_of(copies: Copies, rank: int, most: int) -> tuple[list[RankGroup], int]:
    """See `History.groups_of`."""
    progress = copies.progress
    state, done = pair_states(copies), progress.completed()
    highest = np.full(len(copies.infos), -1, np.int64)
    np.maximum.at(highest, progress.group, progress.enqueued)
    rows = np.flatnonzero(progress.rank == rank)
    rows = rows[np.argsort(-state[rows].astype(np.int64), kind="stable")]
    found = []
    for row in rows[:most].tolist():
        info = copies.infos[progress.group[row]]
        found.append(
            RankGroup(
                group_id=info.group_id,
                label=info.label,
                size=len(info.ranks),
                enqueued=int(progress.enqueued[row]),
                completed=int(done[row]),
                highest=int(highest[progress.group[row]]),
                state=CELL_STATES[state[row]],
            )
        )
    return found, max(0, len(rows) - most)
