"""From an entry of a dump to a row for the service: what a row holds, and what an entry says.

Backends differ in how an entry tells its end; that knowledge is here, and only here. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from frd.flight import Entry, judges, parse_profiling_name
from frd.model import EntryColumns, Flags
from frd_agent.recorder.progress import Item, Progress

LATEST_NS: Final = 7_258_118_399_000_000_000
"""The wire carries times up to the year 2200."""

MAX_SEQ: Final = 1 << 53
"""And seqs below this."""

Find: TypeAlias = Callable[[int], Entry | None]
GroupKey: TypeAlias = tuple[int, str, str]
"""pg_id, name and backend of a group: a name may have a group for every backend."""
Row: TypeAlias = list[int]
"""Group, seq, signature, flags, created_ns, started_ns, completed_ns."""

JOINED, STARTED = int(Flags.JOINED), int(Flags.STARTED)
COMPLETED, FAILED = int(Flags.COMPLETED), int(Flags.FAILED)


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


def group_key(entry: Entry) -> GroupKey:
    return (
        entry.pg_id,
        entry.group_name,
        parse_profiling_name(entry.profiling_name).backend,
    )


def record_id_of(entry: Entry) -> int:
    return entry.record_id


def finder(entries: Sequence[Entry]) -> Find:
    """Looks an entry up by record id; by position where the ids have no holes."""
    if not entries:
        return lambda record_id: None
    first = entries[0].record_id
    if entries[-1].record_id - first + 1 != len(entries):
        return {entry.record_id: entry for entry in entries}.get
    return lambda record_id: entries[record_id - first] if record_id >= first else None


def is_done(entry: Entry) -> bool:
    """Gloo tells the end by `retired` alone; a recorder that judges calls that given up."""
    return entry.state == "completed" or (entry.retired and not _judges(entry))


def _judges(entry: Entry) -> bool:
    return judges(parse_profiling_name(entry.profiling_name).backend)


def update(item: Item, entry: Entry) -> int:
    """Bring `item` up to date; the flags that are news, the end aside (see `settle`)."""
    flags = 0
    if entry.state != "scheduled" and entry.time_discovered_started_ns and not item.started:
        item.started = True
        item.started_ns = entry.time_discovered_started_ns
        flags |= STARTED
    if is_done(entry):
        item.done = True
        item.completed_ns = entry.time_discovered_completed_ns
        return 0
    if entry.retired and not item.failed:
        item.failed = True
        flags |= FAILED
    return flags


def row_of(progress: Progress, seq: int, item: Item, flags: int) -> Row:
    return [progress.group, seq, item.signature, flags, item.created_ns, item.started_ns, 0]


def settle(progress: Progress, rows: list[Row]) -> None:
    """Completions in order, on the JOINED row where that is still to be sent."""
    for seq, item in progress.settle():
        if item.row < 0:
            item.row = len(rows)
            rows.append(row_of(progress, seq, item, 0))
        rows[item.row][3] |= COMPLETED
        rows[item.row][5] = item.started_ns
        rows[item.row][6] = item.completed_ns
