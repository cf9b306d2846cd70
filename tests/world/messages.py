"""Messages of agents: columns spelt by ranges, scalars and rows, and what a stream begins with.

A scalar fills a whole column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from frd.model import (
    AttemptKey,
    ChannelColumns,
    EntryColumns,
    Flags,
    GroupInfo,
    NodeNs,
    NodeRawNs,
    RankInfo,
    Signature,
    WatermarkColumns,
)
from frd.wire.messages import AttemptDecl, Declare, GroupDecl, RankDecl, SignatureDecl, Watermarks

Column = int | Sequence[int] | npt.NDArray[Any]
ALL_REDUCE = Signature("gloo", "all_reduce", ((4,),), ((4,),), ("Float",), ("Float",))
KEY = AttemptKey("job", 0)
BOTH = Flags.JOINED | Flags.COMPLETED


def column(values: Any, rows: int, dtype: Any = np.int64) -> Any:
    return np.full(rows, values, dtype)


def entry_columns(
    seq: Iterable[int],
    *,
    rank: int = 0,
    revision: int = 0,
    group: Column = 0,
    signature: Column = 0,
    flags: Column = Flags.JOINED,
    created: Column = 0,
    completed: Column = 0,
) -> EntryColumns:
    seqs = np.array([*seq], np.int64)
    rows = len(seqs)
    return EntryColumns(
        rank=rank,
        first_revision=revision,
        group=column(group, rows, np.uint32),
        seq=seqs,
        signature=column(signature, rows, np.uint32),
        flags=column(flags, rows, np.uint8),
        created_ns=column(created, rows),
        started_ns=column(0, rows),
        completed_ns=column(completed, rows),
    )


def watermarks(
    rank: Sequence[int],
    *,
    enqueued: Column = -1,
    completed: Column = -1,
    head: Column = 0,
    group: Column = 0,
    seen: Sequence[int],
    as_of: Column,
    sent: int,
    attempt: int = 0,
    raw: int = 0,
) -> Watermarks:
    """Where the ranks of these stream indexes stand; `seen` are known up to `as_of`. `raw` is the
    node's raw clock when it was sent, if that is not `sent`."""
    rows = len(rank)
    columns = WatermarkColumns(
        rank=column(rank, rows, np.uint32),
        group=column(group, rows, np.uint32),
        enqueued=column(enqueued, rows),
        started=column(-1, rows),
        completed=column(completed, rows),
        head_created_ns=column(head, rows),
        seen_rank=np.array(seen, np.uint32),
        as_of_ns=column(as_of, len(seen)),
    )
    return Watermarks(attempt, columns, NodeNs(sent), NodeRawNs(raw or sent))


def p2p_ops(rank: int, *rows: tuple[int, int, bool, int, int]) -> ChannelColumns:
    """All P2P ops of a rank: rows of (group, peer, is send, in flight, since)."""
    group, peer, is_send, in_flight, since = np.array(rows, np.int64).reshape(-1, 5).T
    return ChannelColumns(
        rank=rank,
        group=group.astype(np.uint32),
        peer=peer.astype(np.int32),
        is_send=is_send.astype(np.uint8),
        in_flight=in_flight.astype(np.uint32),
        head_created_ns=since,
        signature=column(0, len(since), np.uint32),
        batch=column(0, len(since), np.uint32),
        posted=column(-1, len(since)),
    )


def declare(infos: Sequence[RankInfo], *, key: AttemptKey = KEY) -> Declare:
    """One attempt, its ranks, and the whole world as ``default_pg``."""
    world = infos[0].world_size
    return Declare(
        attempts=(AttemptDecl(0, key, world),),
        ranks=tuple(RankDecl(i, 0, info) for i, info in enumerate(infos)),
        groups=(GroupDecl(0, 0, GroupInfo("0", "default_pg", tuple(range(world)))),),
        signatures=(SignatureDecl(0, ALL_REDUCE),),
    )
