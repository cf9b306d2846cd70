"""Dump files by hand: an entry, a document, the bytes of a file; and columns to compare."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from frd.flight.trace import Dictionaries, FileColumns
from frd.flight.write import TorchPickler

T0 = 1_795_190_253_129_820_075
FRAMES = [
    {"name": "all_reduce", "filename": "/site-packages/torch/c10d.py", "line": 3245},
    {"name": "step", "filename": "/app/train.py", "line": 88},
    {"name": "<module>", "filename": "/app/train.py", "line": 3},
]


def entry(at: int = 0, **changes: Any) -> dict[str, Any]:
    """An entry of format 2.10 as a pickle has it; a change to ... leaves the key out."""
    fields = {
        "frames": FRAMES,
        "record_id": at,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "python",
        "thread_id": "140409514490752",
        "collective_seq_id": at + 1,
        "p2p_seq_id": 0,
        "op_id": at + 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": T0 + at * 1_000_000,
        "duration_ms": ...,
        "input_sizes": [[4, 2]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 2]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": T0 + at * 1_000_000 + 500,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
    } | changes
    return {name: value for name, value in fields.items() if value is not ...}


def document(
    entries: Sequence[Any], ranks: Sequence[int] = (0, 1), **changes: Any
) -> dict[str, Any]:
    """A dump of a job of one group."""
    last = len(entries)
    fields = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(ranks))}},
        "comm_lib_version": "2.27.3",
        "pg_status": {
            "0": {
                "last_enqueued_collective": last,
                "last_started_collective": -1,
                "last_completed_collective": last,
            }
        },
        "entries": list(entries),
    } | changes
    return {name: value for name, value in fields.items() if value is not ...}


def as_torch(value: dict[str, Any]) -> bytes:
    """As PyTorch pickles it: frames are shared, strings are numbered."""
    rows = [row for row in value.get("entries", ()) if isinstance(row, dict)]
    frames = {id(frame): frame for row in rows for frame in row.get("frames", ())}
    return TorchPickler(shared=tuple(frames.values())).dumps(value)


def as_json(value: dict[str, Any]) -> bytes:
    """As the handlers of a rank write it: no stacks, absent times are 0."""
    rows = [
        {name: 0 if part is None else part for name, part in row.items() if name != "frames"}
        for row in value.get("entries", ())
    ]
    return json.dumps(value | {"entries": rows}).encode()


def as_gzip(value: dict[str, Any]) -> bytes:
    return gzip.compress(as_torch(value))


def spelled_out(columns: FileColumns, into: Dictionaries) -> list[Any]:
    """The columns with values for indexes: comparable whatever the order of dictionaries."""
    return [
        *(row.tolist() for row in (*columns.wide, *columns.tiny)),
        np.nan_to_num(columns.duration_ms, nan=-1.0).tolist(),
        *(
            [table.items[at] if at >= 0 else None for at in row]
            for table, row in zip(into.tables, columns.narrow.tolist(), strict=True)
        ),
        (columns.version, columns.status, columns.warnings),
        columns.holes,
        [into.groups.items[at] for at in columns.groups],
    ]


class Runs:
    """Makes a folder when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)
