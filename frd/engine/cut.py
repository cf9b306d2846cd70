"""What the tables of an attempt look like to those who judge: stalls, and parts of a picture.

Pure functions from tables to fresh arrays. `stalls` runs at every tick over every pair and must
stay cheap: one contiguous pass drops all that is young, and what is left is usually nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypedDict

import numpy as np

from frd.engine.channels import Channels
from frd.engine.moment import RankClocks
from frd.engine.picture import Bools, GroupPicture, StallTable
from frd.engine.tables import EXITED, STATES, Groups, Pairs, Ranks
from frd.model import UNKNOWN_SEQ, AlignedNs, Int32s, Int64s, RankInfo, RankState

_FAR: Final = np.iinfo(np.int64).max


def stalls(
    ranks: Ranks,
    groups: Groups,
    pairs: Pairs,
    channels: Channels,
    latest: AlignedNs,
    ends_early: Callable[[Int32s, Int64s], Bools],
) -> StallTable:
    """Waiting that the ranks' own telemetry confirms to be longer than their group's threshold.

    `latest` is the enqueue time of the youngest op that any threshold could call late. A rank that
    is gone waits no more. The wait counts from the enqueue of the op, or from the last moment at
    which the op before it was not complete, if that is later: a program that runs far ahead of
    its device is not stalled. Nor is one whose agent tells what cannot be; `ends_early` says which
    collectives of groups a member may complete before all have come.
    """
    n = pairs.count
    old = (pairs.enqueued[:n] > pairs.completed[:n]) & (pairs.head[:n] <= latest)
    row = np.flatnonzero(old)
    row = row[pairs.head[row] > 0]
    since = np.maximum(pairs.head[row], pairs.idle_until[row])
    stuck = np.flatnonzero(_confirmed(ranks, groups, pairs.rank[row], pairs.group[row], since))
    if len(stuck):
        stuck = stuck[_is_possible(ranks, groups, pairs, row[stuck], ends_early)]
    row = row[stuck]
    p2p = channels.waiting_before(latest)
    late = _confirmed(ranks, groups, p2p.rank, p2p.group, p2p.since)
    return StallTable(
        np.concatenate((pairs.group[row], p2p.group[late])),
        np.concatenate((pairs.rank[row], p2p.rank[late])),
        np.concatenate((completed(groups, pairs, row) + 1, np.full(late.sum(), UNKNOWN_SEQ))),
        np.concatenate((since[stuck], p2p.since[late])),
    )


def _confirmed(ranks: Ranks, groups: Groups, rank: Int32s, group: Int32s, since: Int64s) -> Bools:
    there: Bools = ranks.state[rank] < EXITED
    return there & (ranks.as_of[rank] - since >= groups.threshold_ns[group])


def _is_possible(
    ranks: Ranks,
    groups: Groups,
    pairs: Pairs,
    row: Int64s,
    ends_early: Callable[[Int32s, Int64s], Bools],
) -> Bools:
    """Nobody completes what another member, who has told of a later time, has not come to."""
    group, done = pairs.group[row], completed(groups, pairs, row)
    layout = pairs.layout()
    come = pairs.enqueued[layout.order]
    least = np.zeros(groups.count, np.int64)
    least[layout.groups] = np.minimum.reduceat(np.where(come < 0, _FAR, come), layout.starts)
    odd = done > least[group]
    if odd.any():
        odd[odd] = ~ends_early(group[odd], done[odd])
        for of in np.unique(group[odd]).tolist():
            mine = np.flatnonzero(odd & (group == of))
            told = _least_told(ranks, pairs, groups.rows(of), pairs.done_at[row[mine]])
            odd[mine] = done[mine] > told
    return ~odd


def _least_told(ranks: Ranks, pairs: Pairs, members: slice | list[int], after: Int64s) -> Int64s:
    """The least that members have come to who have told of a time after each of these."""
    rank, come = pairs.rank[members], pairs.enqueued[members]
    told = ranks.knows(rank) & (come > UNKNOWN_SEQ)
    as_of, come = ranks.as_of[rank[told]], come[told]
    order = np.argsort(-as_of, kind="stable")
    least = np.minimum.accumulate(np.concatenate(([_FAR], come[order])))
    return least[np.searchsorted(-as_of[order], -after)]


def completed(groups: Groups, pairs: Pairs, row: Int64s) -> Int64s:
    """Completed watermarks; a rank in its first collective has completed the one before it."""
    marks = pairs.completed[row]
    first = groups.first_seq[pairs.group[row]]
    return np.where((marks < 0) & (first <= pairs.enqueued[row]), first - 1, marks)


class RankColumns(TypedDict):
    """The fields of a `Picture` that say where the ranks stand."""

    rank: Int32s
    as_of: Int64s
    state: list[RankState]
    state_since: Int64s
    detail: list[str]
    connected: Bools
    gap: Bools
    info: dict[int, RankInfo]
    moved_at: Int64s
    clocks: RankClocks


def ranks(table: Ranks) -> RankColumns:
    rank = table.sorted()
    known = table.statuses
    return RankColumns(
        rank=rank,
        as_of=table.as_of[rank],
        state=[STATES[code] for code in table.state[rank].tolist()],
        state_since=table.state_since[rank],
        detail=[known[r].detail if r in known else "" for r in rank.tolist()],
        connected=table.connected[rank],
        gap=table.gap_at[rank] >= table.as_of[rank],
        info=dict(table.infos),
        moved_at=table.moved_at[rank],
        clocks=RankClocks(table.node[rank], table.uncertainty_ns[rank]),
    )


def groups(table: Groups, pairs: Pairs, ops: Sequence[Callable[[int], str]]) -> list[GroupPicture]:
    """One picture per group, its place in the list being the group's handle."""
    layout = pairs.layout()
    order = layout.order
    members, enqueued, started = pairs.rank[order], pairs.enqueued[order], pairs.started[order]
    done, head, moved = completed(table, pairs, order), pairs.head[order], pairs.moved_at[order]
    bounds = np.searchsorted(pairs.group[order], np.arange(table.count + 1)).tolist()
    return [
        GroupPicture(
            info,
            members[start:end],
            enqueued[start:end],
            started[start:end],
            done[start:end],
            head[start:end],
            op,
            moved_at=moved[start:end],
        )
        for info, start, end, op in zip(table.infos, bounds, bounds[1:], ops, strict=False)
    ]
