"""Watermarks: how watermark messages and entry rows move them.

Watermark messages are authoritative, but entry rows often arrive first; a watermark is therefore
never below the entries that were applied. Watermarks only rise, and with each goes the earliest
time by which a report shows it, so reports may come in any order: no time is one of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from frd.engine.state.attempt_tables import AttemptTables
from frd.engine.state.entry_batch import PairRuns
from frd.engine.state.tables import PairTable, RankTable
from frd.errors import WireError
from frd.model import HIDDEN, UNKNOWN_SEQ, UNSHOWN, Bools, Int32s, Int64s

_FAR: Final = np.iinfo(np.int64).max


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
        if (unshown := pairs.unshown[rows.pair]).any():
            _believe_ends(tables, rows.pair[unshown])
    if len(seen := rows.seen_rank):
        if (other := ranks.as_of_session[seen] != ranks.session[seen]).any():
            _take_over(ranks, pairs, seen[other])
        ranks.as_of[seen] = np.maximum(ranks.as_of[seen], rows.as_of_ns)


def _raise(ranks: RankTable, pairs: PairTable, rows: WatermarkRows, as_of: Int64s) -> None:
    """`as_of` is by row."""
    pair, rank = rows.pair, pairs.rank[rows.pair]
    was_enqueued, was_completed = pairs.enqueued[pair], pairs.completed[pair]
    pairs.hidden[pair] = rows.started == HIDDEN
    pairs.unshown[pair] |= rows.started == UNSHOWN
    hides = pairs.unshown[pair] & (rows.completed < rows.enqueued)
    rows = replace(rows, completed=np.where(hides, was_completed, rows.completed))
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


def _believe_ends(tables: AttemptTables, pair: Int32s) -> None:
    """If no entry shows when ops end, an op is over once all members have joined it, as far as can
    be known, and not before."""
    pairs, every = tables.pairs, np.arange(tables.pairs.count)
    for group in np.unique(pairs.group[pair]).tolist():
        rows = every[tables.groups.rows(group)]
        come, first = pairs.enqueued[rows], tables.groups.first_seq[group]
        # A member without a report has joined what the others could not leave without it.
        least = come[(come > UNKNOWN_SEQ) | (come.max() <= first)].min()
        over = rows[pairs.unshown[rows] & (pairs.completed[rows] < least)]
        pairs.completed[over] = least
        pairs.completed_at[over] = tables.ranks.as_of[pairs.rank[over]]
        rows = rows[pairs.unshown[rows] & (pairs.enqueued[rows] <= pairs.completed[rows])]
        pairs.head[rows] = 0


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
    known = seqs[pair]
    _earlier(times, pair, at, seq == known)
    times[pair] = np.where(seq > known, at, times[pair])
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


# -- entry rows: runs of many messages, each pair at most once ---------------------------------


def complete(pairs: PairTable, runs: PairRuns, completed: Int64s, as_of: Int64s) -> None:
    """Raise `completed` (times by row); `as_of` is by run: when it was last known to be lower."""
    pair, last, at = runs.pair, runs.last, _last_of(runs, completed)
    if not (shown := ~pairs.unshown[pair]).all():
        pair, last, at, as_of = pair[shown], last[shown], at[shown], as_of[shown]
    known = pairs.completed[pair]
    _earlier(pairs.completed_at, pair, at, last == known)
    if not (more := last > known).all():
        pair, last, at, as_of = pair[more], last[more], at[more], as_of[more]
    pairs.completed[pair], pairs.completed_at[pair] = last, at
    pairs.idle_until[pair] = np.maximum(as_of, pairs.idle_until[pair])
    joined = pairs.enqueued[pair]
    pairs.head[pair[last >= joined]] = 0
    beyond = last > joined
    pairs.enqueued[pair[beyond]] = last[beyond]
    pairs.enqueued_at[pair[beyond]] = at[beyond]


def join(pairs: PairTable, runs: PairRuns, created: Int64s) -> None:
    """Raise `enqueued`, and find out when the oldest outstanding op was enqueued.

    Where no row shows the exact time, an earlier time is used until the next watermark message.
    """
    pair, first, last, latest = runs.pair, runs.first, runs.last, _last_of(runs, created)
    done, known = pairs.completed[pair], pairs.enqueued[pair]
    _earlier(pairs.enqueued_at, pair, latest, last == known)
    more = last > known
    pairs.enqueued[pair[more]], pairs.enqueued_at[pair[more]] = last[more], latest[more]
    head = np.maximum(done + 1, first)
    open_ = ((more | (done < known)) & (head <= last)).nonzero()[0]
    if not len(open_):
        return
    pair, head, done = pair[open_], head[open_], done[open_]
    at = runs.start[open_] + np.minimum(head - first[open_], runs.count[open_] - 1)
    exact = (runs.seq[at] == head) & (head == done + 1)
    known_better = exact | (pairs.head[pair] == 0)
    pairs.head[pair[known_better]] = created[at[known_better]]


def start(pairs: PairTable, pair: Int32s, seq: Int64s, at: Int64s) -> None:
    """Raise `started`, by row; where `at` is 0, the next watermark message shows when."""
    known = pairs.started[pair]
    np.maximum.at(pairs.started, pair, seq)
    row = ((seq == pairs.started[pair]) & (seq >= known)).nonzero()[0]
    pair, at, is_new = pair[row], at[row], seq[row] > known[row]
    pairs.started_at[pair[is_new]] = 0
    when = np.where(pairs.started_at[pair] == 0, _FAR, pairs.started_at[pair])
    pairs.started_at[pair] = when
    np.minimum.at(pairs.started_at, pair, np.where(at == 0, _FAR, at))
    when = pairs.started_at[pair]
    pairs.started_at[pair] = np.where(when == _FAR, 0, when)


def _earlier(times: Int64s, pair: Int32s, at: Int64s, rows: Bools) -> None:
    """Another report of what is known: the earlier of the two times counts, 0 is unknown."""
    if rows.any():
        pair, at = pair[rows], at[rows]
        known = times[pair]
        unknown = (known == 0) | (at == 0)
        times[pair] = np.where(unknown, np.maximum(known, at), np.minimum(known, at))


def _last_of(runs: PairRuns, times: Int64s) -> Int64s:
    """The time of the last row of each run."""
    last: Int64s = times[runs.start + runs.count - 1]
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
