"""Time of `frd analyze --memory` for recorded samples: a file a rank, one job out of memory.

Runs as a separate process on one core, with the files in the page cache; its start is not counted.
The fastest of a few runs counts, because the others measure the machine. Each event is one sample
of a rank; it has five counters, of which two become series.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

import numpy as np

from bench.report import show

SAMPLES: Final = 600_000
RANKS: Final = 64
CULPRIT: Final = 5
EVERY_NS: Final = 100_000_000
GIB: Final = 1 << 30
_RUNS: Final = 3
_BEGIN_NS: Final = 1_800_000_000_000_000_000

_ANALYZE: Final = """
import resource, sys, time
import frd, frd.offline.memory.analyze
begin = time.perf_counter()
found = frd.load_memory(sys.argv[1:])
took = time.perf_counter() - begin
(finding,) = found.findings
(suspect,) = finding.suspects
rss = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(took, suspect.rank, rss)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = recorded_cost(options.samples)
    show(result, as_json=options.json)


def recorded_cost(samples: int = SAMPLES) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="frd-bench-") as scratch:
        files = write_files(Path(scratch), samples // RANKS)
        size = sum(len(path.read_bytes()) for path in files)
        runs = [_run(files) for _ in range(_RUNS)]
    count = samples // RANKS * RANKS
    return {
        "offline_samples": count,
        "offline_bytes": size,
        "offline_s": round(min(took for took, _ in runs), 3),
        "offline_samples_per_s": round(count / min(took for took, _ in runs)),
        "offline_rss_bytes": max(rss for _, rss in runs),
    }


def _run(files: list[Path]) -> tuple[float, int]:
    core = min(os.sched_getaffinity(0))
    text = subprocess.run(
        [sys.executable, "-c", _ANALYZE, *map(str, files)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    ).stdout
    took, rank, rss = text.split()
    if int(rank) != CULPRIT:
        raise SystemExit(f"recorded: rank {rank} named: not the verdict")  # so there is no result
    return float(took), int(rss)


def write_files(folder: Path, moments: int) -> list[Path]:
    """A file a rank; memory is noise, except that of the culprit in the last third, which rises."""
    return [_write(folder / f"rank_{rank}.jsonl", rank, moments) for rank in range(RANKS)]


def _write(path: Path, rank: int, moments: int) -> Path:
    dice = np.random.default_rng(rank)
    at = _BEGIN_NS + EVERY_NS * np.arange(moments) + dice.integers(0, EVERY_NS // 10, moments)
    reserved = 20 * GIB + dice.integers(0, 1 << 24, moments)
    if rank == CULPRIT:
        reserved[moments * 2 // 3 :] += np.linspace(
            0, 58 * GIB, moments - moments * 2 // 3, dtype=int
        )
    with path.open("w") as file:
        for when, held in zip(at.tolist(), reserved.tolist(), strict=True):
            json.dump(_event(rank, when, held), file)
            file.write("\n")
    return path


def _event(rank: int, at_ns: int, reserved: int) -> dict[str, Any]:
    return {
        "schema_version": 2,
        "timestamp_ns": at_ns,
        "event_type": "sample",
        "collector": "stormlog.cuda_tracker",
        "sampling_interval_ms": EVERY_NS // 1_000_000,
        "pid": 10_000 + rank,
        "host": "gpu-0",
        "device_id": rank,
        "allocator_allocated_bytes": reserved - GIB,
        "allocator_reserved_bytes": reserved,
        "allocator_active_bytes": reserved - GIB,
        "allocator_inactive_bytes": GIB,
        "allocator_change_bytes": 0,
        "device_used_bytes": reserved + GIB,
        "device_free_bytes": 79 * GIB - reserved,
        "device_total_bytes": 80 * GIB,
        "context": None,
        "metadata": {"backend": "cuda", "sampling_source": "torch"},
        "job_id": "bench",
        "rank": rank,
        "local_rank": rank,
        "world_size": RANKS,
    }


if __name__ == "__main__":
    main()
