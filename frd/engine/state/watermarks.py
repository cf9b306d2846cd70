"""Watermarks: how watermark messages and entry rows move them.

Watermark messages are authoritative, but entry rows often arrive first; a watermark is therefore
never below the entries that were applied. Watermarks only rise, and with each goes the earliest
time by which a report shows it, so reports may come in any order: no time is one of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frd.engine.state.attempt_tables import AttemptTables
from frd.engine.state.entry_batch import PairRuns
from frd.engine.state.tables import PairTable, RankTable
from frd.errors import WireError
from frd.model import UNKNOWN_SEQ, Int32s, Int64s


@dataclass(frozen=True, slots=True)
class WatermarkRows:
    """`frd.model.WatermarkColumns` with the engine's handles; times are node times.

    The columns up to `head_created_ns` have one row per pair, each pair at most once; `seen_rank`
    and `as_of_ns` have one row per rank.
    """

    pair: Int32s
    enqueued: Int64s
    started: Int64s
    completed: Int64s
    head_created_ns: Int64s
    seen_rank: Int32s
    as_of_ns: Int64s


def observe(tables: AttemptTables, rows: WatermarkRows) -> None:
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
        known_until = np.zeros(ranks.count, np.int64)
        known_until[rows.seen_rank] = rows.as_of_ns
        _raise(ranks, pairs, rows, known_until[pairs.rank[rows.pair]])
    if len(seen := rows.seen_rank):
        if (other := ranks.as_of_session[seen] != ranks.session[seen]).any():
            _take_over(ranks, pairs, seen[other])
        ranks.as_of[seen] = np.maximum(ranks.as_of[seen], rows.as_of_ns)


def _raise(ranks: RankTable, pairs: PairTable, rows: WatermarkRows, as_of: Int64s) -> None:
    """`as_of` is by row."""
    pair, rank = rows.pair, pairs.rank[rows.pair]
    was_enqueued, was_completed = pairs.enqueued[pair], pairs.completed[pair]
    head_known = (rows.head_created_ns > 0) | (rows.enqueued <= rows.completed)
    newest = (rows.enqueued >= was_enqueued) & (rows.completed >= was_completed) & head_known
    is_known = rows.enqueued > UNKNOWN_SEQ
    pairs.last_session[pair[is_known]] = ranks.session[rank[is_known]]
    completed = np.maximum(rows.completed, was_completed)
    head = np.where(newest, rows.head_created_ns, pairs.head[pair])
    unknown = (head == 0) & (rows.enqueued > completed)
    head[unknown] = as_of[unknown]  # but no later than this
    pairs.head[pair] = head
    _stay_idle(pairs, pair, rows.completed, ranks.as_of[rank], as_of)
    _reach(pairs.enqueued, pairs.enqueued_at, pair, rows.enqueued, as_of)
    _reach(pairs.started, pairs.started_at, pair, rows.started, as_of)
    _reach(pairs.completed, pairs.completed_at, pair, rows.completed, as_of)


def _stay_idle(
    pairs: PairTable, pair: Int32s, completed: Int64s, known_until: Int64s, as_of: Int64s
) -> None:
    """Raise `idle_until` to the last report before `completed` was reached: the one before this
    report, which was true up to `known_until`; or this one, if it comes late."""
    known, known_at = pairs.completed[pair], pairs.completed_at[pair]
    is_first = (completed == known) & ((known_at == 0) | (known_until < known_at))
    is_late = (completed < known) & (as_of < known_at)
    before = np.where((completed > known) | is_first, known_until, np.where(is_late, as_of, 0))
    pairs.idle_until[pair] = np.maximum(pairs.idle_until[pair], before)


def _reach(seqs: Int64s, times: Int64s, pair: Int32s, seq: Int64s, at: Int64s) -> None:
    """Raise a watermark of these pairs to `seq`, reached by `at`. Of reports of the same seq the
    earliest time counts; 0 is unknown."""
    known, known_at = seqs[pair], times[pair]
    earlier = np.where(
        (known_at == 0) | (at == 0), np.maximum(known_at, at), np.minimum(known_at, at)
    )
    times[pair] = np.where(seq > known, at, np.where(seq == known, earlier, known_at))
    seqs[pair] = np.maximum(known, seq)


def _take_over(ranks: RankTable, pairs: PairTable, rank: Int32s) -> None:
    """A new agent session has reported all that it knows of these ranks. A collective that only
    the session before reported has left the recorder's ring since, and may be over."""
    known = rank[ranks.as_of_session[rank] >= 0]
    ranks.as_of_session[rank] = ranks.session[rank]
    if len(known):
        rows = np.flatnonzero(np.isin(pairs.rank[: pairs.count], known))
        unreported = rows[pairs.last_session[rows] != ranks.session[pairs.rank[rows]]]
        pairs.head[unreported] = 0


# -- entry rows: one step of plain Python for each run of rows, none for each row ----------------


def complete(pairs: PairTable, runs: PairRuns, completed: Int64s, as_of: int) -> None:
    """Raise `completed`; `as_of` is the last time at which it was known to be lower."""
    for pair, last, at in zip(
        runs.pair.tolist(), runs.last.tolist(), _last_of(runs, completed), strict=True
    ):
        known = pairs.completed.item(pair)
        if last <= known:
            if last == known and at:
                pairs.completed_at[pair] = min(at, pairs.completed_at.item(pair) or at)
            continue
        pairs.completed[pair], pairs.completed_at[pair] = last, at
        pairs.idle_until[pair] = max(as_of, pairs.idle_until.item(pair))
        if last >= (joined := pairs.enqueued.item(pair)):
            pairs.head[pair] = 0
            if last > joined:
                pairs.enqueued[pair], pairs.enqueued_at[pair] = last, at


def join(pairs: PairTable, runs: PairRuns, created: Int64s) -> None:
    """Raise `enqueued`, and find out when the oldest outstanding op was enqueued.

    Where no row shows the exact time, an earlier time is used until the next watermark message.
    """
    for pair, first, last, start, count, latest in zip(
        runs.pair.tolist(),
        runs.first.tolist(),
        runs.last.tolist(),
        runs.start.tolist(),
        runs.count.tolist(),
        _last_of(runs, created),
        strict=True,
    ):
        done, known = pairs.completed.item(pair), pairs.enqueued.item(pair)
        if last > known:
            pairs.enqueued[pair], pairs.enqueued_at[pair] = last, latest
        else:
            if last == known:
                at = pairs.enqueued_at.item(pair)
                pairs.enqueued_at[pair] = min(at or latest, latest or at)
            if done >= known:
                continue
        head = max(done + 1, first)
        if head > last:
            continue
        at = start + min(head - first, count - 1)
        if runs.seq.item(at) == head == done + 1 or not pairs.head.item(pair):
            pairs.head[pair] = created.item(at)


def start(pairs: PairTable, pair: Int32s, seq: Int64s, at: Int64s) -> None:
    """Raise `started`, in the order of the rows; where `at` is 0, the next watermark message shows
    when."""
    for one, reached, when in zip(pair.tolist(), seq.tolist(), at.tolist(), strict=True):
        known = pairs.started.item(one)
        if reached > known:
            pairs.started[one], pairs.started_at[one] = reached, when
        elif reached == known and when:
            pairs.started_at[one] = min(when, pairs.started_at.item(one) or when)


def _last_of(runs: PairRuns, times: Int64s) -> list[int]:
    """The time of the last row of each run."""
    last: list[int] = times[runs.start + runs.count - 1].tolist()
    return last


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
