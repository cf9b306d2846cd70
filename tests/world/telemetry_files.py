"""Files of telemetry events as trackers write them, from simulated jobs whose truth is known."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from frd.model import SeriesKind
from tests.world.memory import EPOCH, GIB, Job, Row, S

COUNTERS = {
    SeriesKind.DEVICE_USED: "device_used_bytes",
    SeriesKind.HOST_USED: "device_used_bytes",
    SeriesKind.TORCH_RESERVED: "allocator_reserved_bytes",
    SeriesKind.TORCH_ALLOCATED: "allocator_allocated_bytes",
}


def event(at_s: float = 0.0, **changes: Any) -> dict[str, Any]:
    """A sample of version 2 as it is written; a change to ... leaves the key out."""
    fields = {
        "schema_version": 2,
        "timestamp_ns": EPOCH + round(at_s * S),
        "event_type": "sample",
        "collector": "stormlog.cuda_tracker",
        "sampling_interval_ms": 100,
        "pid": 4711,
        "host": "n0",
        "device_id": 0,
        "allocator_allocated_bytes": 19 * GIB,
        "allocator_reserved_bytes": 20 * GIB,
        "allocator_active_bytes": 19 * GIB,
        "allocator_inactive_bytes": None,
        "allocator_change_bytes": 0,
        "device_used_bytes": 21 * GIB,
        "device_free_bytes": None,
        "device_total_bytes": 80 * GIB,
        "context": None,
        "metadata": {"backend": "cuda", "tags": [{"a": 1}, {"b": "}, {"}]},
        "job_id": "llama",
        "rank": 0,
        "local_rank": 0,
        "world_size": 2,
    } | changes
    return {name: value for name, value in fields.items() if value is not ...}


def lines(events: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def write(path: Path, data: bytes | Iterable[dict[str, Any]]) -> Path:
    """Gzipped if the name ends with ``.gz``."""
    text = data if isinstance(data, bytes) else lines(data)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def of_job(job: Job, folder: Path) -> list[Path]:
    """A file a rank. Ranks whose clock is wrong are on a separate host."""
    by_rank: dict[int, list[Row]] = defaultdict(list)
    for row in job.rows:
        by_rank[row.rank].append(row)
    folder.mkdir(exist_ok=True)
    return [
        write(folder / f"rank_{rank}.jsonl", _events(job, rows, len(by_rank)))
        for rank, rows in by_rank.items()
    ]


def _events(job: Job, rows: list[Row], world_size: int) -> Iterator[dict[str, Any]]:
    sources = list(dict.fromkeys(row.source for row in rows))
    for row in rows:
        on_host = row.kind is SeriesKind.HOST_USED
        times = row.sampler.times(job.until)
        values = row.curve(times).clip(0, row.capacity).astype(np.int64)
        fields: dict[str, Any] = dict.fromkeys(COUNTERS.values())
        fields |= {
            "pid": 4711 + sources.index(row.source),
            "host": f"n{row.rank}" if row.sampler.clock_error else "n0",
            "device_id": -1 if on_host else row.rank,
            "device_total_bytes": row.capacity,
            "rank": row.rank,
            "world_size": world_size,
        }
        for at, value in zip(times.tolist(), values.tolist(), strict=True):
            fields[COUNTERS[row.kind]] = value
            yield event(at + row.sampler.clock_error, **fields)
