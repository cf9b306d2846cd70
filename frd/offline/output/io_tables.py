"""The analysis of traces as tables, for files and for the terminal. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from frd.forms import encodable
from frd.offline.io.analysis import IoAnalysis
from frd.offline.io.spans import COLUMNS, spans_of
from frd.offline.output.tables import Batch, Columns, Table, of_objects

_BATCH: Final = 1 << 16
"""Spans at a time."""


def io_tables(io: IoAnalysis) -> list[Table]:
    """The small ones first, the spans last."""
    return [
        of_objects("io_ranks", io.ranks, _RANK),
        of_objects("io_files", [(rank, io.path(file), file) for rank, file in io.files()], _FILE),
        of_objects(
            "io_unclosed", [(rank, io.path(file), file) for rank, file in io.unclosed()], _UNCLOSED
        ),
        of_objects("io_steps", [(one.rank, s) for one in io.ranks for s in one.usage.steps], _STEP),
        Table("spans", COLUMNS, lambda: _span_batches(io)),
    ]


def _span_batches(io: IoAnalysis) -> Iterator[Batch]:
    """Blocks of a trace are small; a batch has many of them."""
    batch: list[list[object]] = [[] for _ in COLUMNS]
    for spans in spans_of(io):
        for column, more in zip(batch, spans.columns(), strict=True):
            column.extend(more)
        if len(batch[0]) >= _BATCH:
            yield batch
            batch = [[] for _ in COLUMNS]
    if batch[0]:
        yield batch


_RANK: Columns = {
    "rank": ("int", lambda one: one.rank),
    "processes": ("str", lambda one: encodable(", ".join(p.label for p in one.processes))),
    "evidence": ("str", lambda one: encodable("; ".join(sorted(set(one.processes.values()))))),
    "events": ("int", lambda one: one.usage.events),
    "first_ns": ("int", lambda one: one.usage.first_ns),
    "last_ns": ("int", lambda one: one.usage.last_ns),
    "fetch_wait_s": ("float", lambda one: one.usage.fetch_ns / 1e9),
    "io_s": ("float", lambda one: one.usage.io_ns / 1e9),
    "compute_s": ("float", lambda one: one.usage.compute_ns / 1e9),
    "unoverlapped_io_s": ("float", lambda one: one.usage.unoverlapped_ns / 1e9),
    "bytes_read": ("int", lambda one: one.usage.bytes_read),
    "bytes_written": ("int", lambda one: one.usage.bytes_written),
}

_FILE: Columns = {
    "rank": ("int", lambda row: row[0]),
    "path": ("str", lambda row: row[1]),
    "io_s": ("float", lambda row: row[2].io_ns / 1e9),
    "bytes": ("int", lambda row: row[2].nbytes),
    "ops": ("int", lambda row: row[2].ops),
}

_UNCLOSED: Columns = {
    "rank": ("int", lambda row: row[0]),
    "path": ("str", lambda row: row[1]),
    "since_ns": ("int", lambda row: row[2].opened_ns or None),
    "used": ("bool", lambda row: row[2].is_used),
}

_STEP: Columns = {
    "rank": ("int", lambda row: row[0]),
    "epoch": ("int", lambda row: None if row[1].epoch < 0 else row[1].epoch),
    "step": ("int", lambda row: row[1].step),
    "begin_ns": ("int", lambda row: row[1].begin_ns),
    "end_ns": ("int", lambda row: row[1].end_ns),
    "fetch_wait_s": ("float", lambda row: row[1].fetch_ns / 1e9),
    "io_s": ("float", lambda row: row[1].io_ns / 1e9),
    "compute_s": ("float", lambda row: row[1].compute_ns / 1e9),
    "unoverlapped_io_s": ("float", lambda row: row[1].unoverlapped_ns / 1e9),
    "bytes_read": ("int", lambda row: row[1].bytes_read),
    "bytes_written": ("int", lambda row: row[1].bytes_written),
}
