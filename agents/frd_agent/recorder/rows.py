"""Rows of transitions, and channels, as the columns that the agent sends to the service."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import numpy as np

from frd.flight.progress import p2p_runs
from frd.model import YEAR_2200_NS, ChannelColumns, EntryColumns
from frd_agent.recorder.group_progress import OpenEntry

LATEST_NS: Final = YEAR_2200_NS - 1

_CHANNELS: Final = (
    *(("group", "u4"), ("peer", "i4"), ("is_send", "u1"), ("in_flight", "u4")),
    *(("head_created_ns", "i8"), ("batch", "u4"), ("signature", "u4"), ("posted", "i8")),
)
Row: TypeAlias = list[int]
"""Group, seq, signature, flags, created_ns, started_ns, completed_ns."""


def columns(rank: int, first_revision: int, rows: Sequence[Row]) -> EntryColumns:
    table = np.array(rows, dtype=np.int64).reshape(-1, 7)
    times = np.clip(table[:, 4:7], 0, LATEST_NS)
    return EntryColumns(
        rank=rank,
        first_revision=first_revision,
        group=table[:, 0].astype(np.uint32),
        seq=table[:, 1].copy(),
        signature=table[:, 2].astype(np.uint32),
        flags=table[:, 3].astype(np.uint8),
        created_ns=times[:, 0].copy(),
        started_ns=times[:, 1].copy(),
        completed_ns=times[:, 2].copy(),
    )


def channel_columns(rank: int, sends: Iterable[OpenEntry], as_of_ns: int = 0) -> ChannelColumns:
    """Sends and receives in flight, oldest first."""
    table = p2p_runs(
        (
            *(entry.progress.group, entry.peer, entry.is_send, min(entry.since_ns, LATEST_NS)),
            *(entry.batch, entry.signature, entry.posted),
        )
        for entry in sends
        if entry.peer is not None
    )
    columns = {name: row.astype(of) for (name, of), row in zip(_CHANNELS, table, strict=True)}
    return ChannelColumns(rank, as_of_ns=as_of_ns, **columns)
