"""Rows of transitions, and channels, as the columns that the agent sends to the service."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import numpy as np

from frd.model import YEAR_2200_NS, ChannelColumns, EntryColumns
from frd_agent.recorder.group_progress import OpenEntry

LATEST_NS: Final = YEAR_2200_NS - 1

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


def channel_columns(rank: int, in_flight: Iterable[OpenEntry], as_of_ns: int = 0) -> ChannelColumns:
    """Sends and receives in flight, counted by group, peer and direction."""
    created_ns: dict[tuple[int, int, bool], list[int]] = {}
    for entry in in_flight:
        if entry.peer is not None:
            channel = entry.progress.group, entry.peer, entry.is_send
            created_ns.setdefault(channel, []).append(min(entry.created_ns, LATEST_NS))
    channels = sorted(created_ns)
    return ChannelColumns(
        rank=rank,
        group=np.array([group for group, _, _ in channels], np.uint32),
        peer=np.array([peer for _, peer, _ in channels], np.int32),
        is_send=np.array([is_send for _, _, is_send in channels], np.uint8),
        in_flight=np.array([len(created_ns[channel]) for channel in channels], np.uint32),
        head_created_ns=np.array([min(created_ns[channel]) for channel in channels], np.int64),
        as_of_ns=as_of_ns,
    )
