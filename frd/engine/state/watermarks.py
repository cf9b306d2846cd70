"""Watermarks: how watermark messages and entry rows move them.

Watermark messages are authoritative, but entry rows often arrive first; a watermark is therefore
never below the entries that were applied. Watermarks only rise, so messages of different ranks may
come in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from frd.engine.state.attempt_tables import AttemptTables
from frd.engine.state.entry_batch import PairRuns
from frd.engine.state.tables import PairTable, RankTable
from frd.errors import WireError
from frd.model import UNKNOWN_SEQ, AlignedNs, Int32s, Int64s


@dataclass(frozen=True, slots=True)
class WatermarkRows:
    """`frd.model.WatermarkColumns` with the engine's handles and aligned times.

    The columns up to `head_node_ns` have one row per pair, each pair at most once; `seen_rank` and
    `as_of_ns` have one row per rank.
    """

    pair: Int32s
    enqueued: Int64s
    started: Int64s
    completed: Int64s
    head_created_ns: Int64s
    seen_rank: Int32s
    as_of_ns: Int64s
    head_node_ns: Int64s | None = None
    """`head_created_ns` on the node's clock, for `realign`; None: the head stays as it is."""


def observe(tables: AttemptTables, rows: WatermarkRows, now: AlignedNs) -> None:
    """Apply a watermark message; a row below what entries showed is stale.

    Raises:
        WireError: when a row is of a rank that is not a member of its group.
    """
    ranks, pairs = tables.ranks, tables.pairs
    if len(rows.pair):
        if rows.pair.min() < 0:
            at = int(rows.pair.argmin())
            raise WireError(
                "watermarks.group", "disagree", f"row {at}: the rank is not in the group"
            )
        _raise(ranks, pairs, rows, now)
    if len(seen := rows.seen_rank):
        if (other := ranks.as_of_session[seen] != ranks.session[seen]).any():
            _take_over(ranks, pairs, seen[other])
        as_of = np.maximum(ranks.as_of[seen], rows.as_of_ns)
        ranks.as_of[seen] = np.minimum(as_of, now)


def _raise(ranks: RankTable, pairs: PairTable, rows: WatermarkRows, now: AlignedNs) -> None:
    pair, rank = rows.pair, pairs.rank[rows.pair]
    was_enqueued, was_completed = pairs.enqueued[pair], pairs.completed[pair]
    advanced = rows.completed > was_completed
    head_known = (rows.head_created_ns > 0) | (rows.enqueued <= rows.completed)
    newest = (rows.enqueued >= was_enqueued) & (rows.completed >= was_completed) & head_known
    is_known = rows.enqueued > UNKNOWN_SEQ
    pairs.last_session[pair[is_known]] = ranks.session[rank[is_known]]
    enqueued = np.maximum(rows.enqueued, was_enqueued)
    completed = np.maximum(rows.completed, was_completed)
    head = np.where(newest, rows.head_created_ns, pairs.head[pair])
    head[(head == 0) & (rows.enqueued > completed)] = now  # unknown, but no later than this
    pairs.head[pair] = head
    head_node = 0 if rows.head_node_ns is None else rows.head_node_ns
    pairs.head_node[pair] = np.where(newest, head_node, pairs.head_node[pair])
    pairs.idle_until[pair] = np.where(advanced, ranks.as_of[rank], pairs.idle_until[pair])
    pairs.enqueued[pair], pairs.completed[pair] = enqueued, completed
    moved = advanced | (rows.started > pairs.started[pair])
    pairs.started[pair] = np.maximum(rows.started, pairs.started[pair])
    pairs.moved_at[pair[moved]] = now
    pairs.done_at[pair[advanced]] = now
    ranks.moved_at[rank[advanced | (enqueued > was_enqueued)]] = now


def _take_over(ranks: RankTable, pairs: PairTable, rank: Int32s) -> None:
    """A new agent session has reported all that it knows of these ranks. A collective that only
    the session before reported has left the recorder's ring since, and may be over."""
    known = rank[ranks.as_of_session[rank] >= 0]
    ranks.as_of_session[rank] = ranks.session[rank]
    if len(known):
        rows = np.flatnonzero(np.isin(pairs.rank[: pairs.count], known))
        unreported = rows[pairs.last_session[rows] != ranks.session[pairs.rank[rows]]]
        pairs.head[unreported] = pairs.head_node[unreported] = 0


def realign(
    pairs: PairTable, pair: Int32s, ranks: Sequence[int], align: Callable[[Int64s], Int64s]
) -> None:
    """Align the heads of `pair` again, as far as these are pairs of `ranks`: more is known of the
    clock of these ranks. All ops of a rank then keep the order in which it enqueued them."""
    rows = pair[(pairs.head_node[pair] > 0) & (pairs.head[pair] > 0)]
    rows = rows[np.isin(pairs.rank[rows], ranks)]
    pairs.head[rows] = align(pairs.head_node[rows])


# -- entry rows: one step of plain Python for each run of rows, none for each row ----------------


def complete(pairs: PairTable, runs: PairRuns, as_of: int, now: AlignedNs) -> bool:
    """Raise `completed`; `as_of` is the last time at which it was known to be lower."""
    moved = False
    for pair, last in zip(runs.pair.tolist(), runs.last.tolist(), strict=True):
        if last <= pairs.completed.item(pair):
            continue
        moved = True
        pairs.completed[pair] = last
        pairs.head_node[pair] = 0
        pairs.idle_until[pair] = as_of
        pairs.moved_at[pair] = pairs.done_at[pair] = now
        if last >= pairs.enqueued.item(pair):
            pairs.enqueued[pair] = last
            pairs.head[pair] = 0
    return moved


def join(pairs: PairTable, runs: PairRuns, created: Int64s) -> bool:
    """Raise `enqueued`, and find out when the oldest outstanding op was enqueued.

    Where no row shows the exact time, an earlier time is used until the next watermark message.
    """
    moved = False
    for pair, first, last, start, count in zip(
        runs.pair.tolist(),
        runs.first.tolist(),
        runs.last.tolist(),
        runs.start.tolist(),
        runs.count.tolist(),
        strict=True,
    ):
        done = pairs.completed.item(pair)
        if last > pairs.enqueued.item(pair):
            moved = True
            pairs.enqueued[pair] = last
        elif done >= pairs.enqueued.item(pair):
            continue
        head = max(done + 1, first)
        if head > last or pairs.head_node.item(pair):
            continue  # nothing new of the head: a watermark message has set it
        at = start + min(head - first, count - 1)
        if runs.seq.item(at) == head == done + 1 or not pairs.head.item(pair):
            pairs.head[pair] = created.item(at)
    return moved


def count_unread(pairs: PairTable, joined: PairRuns, session: int) -> int:
    """How many entries the recorder's ring dropped between two agent sessions: those between the
    last one that the session before reported and the first one of `session`.

    Runs of one row, or with gaps, do not count: they may be of a recorder that does not number
    each group separately.
    """
    pair = joined.pair
    seen = pairs.joined_row[pair]
    is_whole = (joined.count > 1) & (joined.last - joined.first + 1 == joined.count)
    is_first = (pairs.row_session[pair] != session) & (seen >= 0) & is_whole
    pairs.row_session[pair] = session
    return int(np.maximum(joined.first - seen - 1, 0)[is_first].sum())
