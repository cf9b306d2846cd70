"""Observations for an `Attempt`, spelt by ranges and scalars; a scalar fills a whole column.

This module is the only place of the tests that knows the columns of `Attempt.observe_*`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from frd.engine.attempt import Attempt
from frd.engine.state.entry_batch import EntryMessage, EntryRows
from frd.engine.state.watermarks import WatermarkRows
from frd.model import AlignedNs, RankInfo, Signature
from tests.world import messages
from tests.world.messages import BOTH, Column, column

ALL_REDUCE = Signature("nccl", "all_reduce", ((4,),), ((4,),), ("Float",), ("Float",))


@dataclass(frozen=True, slots=True)
class Applied:
    """What one batch of entries changed."""

    rows: int
    duplicates: int
    """Rows that report nothing new."""


def rank_info(
    rank: int, world: int = 4, *, per_node: int = 1, pid: int | None = None, first_pid: int = 100
) -> RankInfo:
    node = rank // per_node
    return RankInfo(rank, world, f"node{node}", f"boot{node}", pid or first_pid + rank)


def entries(
    attempt: Attempt,
    rank: int,
    group: Column,
    seq: Column | Iterable[int],
    flags: Column = BOTH,
    *,
    signature: Signature | Sequence[Signature] = ALL_REDUCE,
    created: Column,
    started: Column = 0,
    completed: Column = 0,
    replay: bool = False,
    session: int = -1,
    now: AlignedNs,
) -> Applied:
    """Entry rows of one rank; `group` and `signature` may differ from row to row."""
    seqs = np.array([seq] if isinstance(seq, int) else [*seq], np.int64)
    signatures = [signature] if isinstance(signature, Signature) else signature
    groups = np.atleast_1d(np.asarray(group))
    pairs = [attempt.pair(rank, int(group)) for group in groups]
    count = len(seqs)
    rows = EntryRows(
        rank=rank,
        pair=column(pairs, count, np.int32),
        seq=seqs,
        signature=column([attempt.signature(s) for s in signatures], count, np.int32),
        flags=column(flags, count, np.uint8),
        created_ns=column(created, count),
        started_ns=column(started, count),
        completed_ns=column(completed, count),
    )
    if not count:
        return Applied(0, 0)
    message = EntryMessage(rows, session, now, is_replay=replay)
    (duplicates,) = attempt.apply_entries([message])
    return Applied(count, duplicates)


def watermarks(
    attempt: Attempt,
    rows: Iterable[tuple[int, ...]],
    seen: Column | Iterable[int],
    as_of: Column,
) -> None:
    """Rows of (pair, enqueued, started, completed, head created); all is known of the ranks `seen`
    up to `as_of`."""
    pair, enqueued, started, completed, head = np.array([*rows], np.int64).reshape(-1, 5).T
    ranks = np.array([seen] if isinstance(seen, int) else [*seen], np.int32)
    as_of_ns = column(as_of, len(ranks))
    attempt.observe_watermarks(
        WatermarkRows(pair.astype(np.int32), enqueued, started, completed, head, ranks, as_of_ns)
    )


def p2p_ops(
    attempt: Attempt, rank: int, rows: Iterable[tuple[int, int, bool, int, int]], now: AlignedNs
) -> None:
    """All P2P ops of a rank in flight: rows of (group, peer, is send, in flight, since)."""
    attempt.observe_channels(messages.p2p_ops(rank, *rows), now)
