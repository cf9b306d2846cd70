"""Time of `frd analyze --memory` for recorded samples: a file a rank, one job out of memory.

Runs as a separate process with the files in the page cache; its start is not counted. On one core,
then on two for the same files, for gzipped ones, and for one file with the samples of all ranks in
the order of time. The fastest of a few runs counts, because the others measure the machine. Each
event is one sample of a rank; it has five counters, of which two become series.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

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
found = frd.load_memory(sys.argv[2:])
took = time.perf_counter() - begin
(finding,) = found.findings
(suspect,) = finding.suspects
own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
rss = 1024 * (own.ru_maxrss + int(sys.argv[1]) * children.ru_maxrss)
cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
print(took, suspect.rank, rss, cpu)
"""


class Run(NamedTuple):
    wall_s: float
    rss_bytes: int
    """At most: the sum of the peaks of all processes."""
    cpu_s: float
    """Of all processes, their start included."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = recorded_cost(options.samples, options.ranks)
    show(result, as_json=options.json)


def recorded_cost(samples: int = SAMPLES, ranks: int = RANKS) -> dict[str, Any]:
    count = samples // ranks * ranks
    with tempfile.TemporaryDirectory(prefix="frd-bench-") as scratch:
        files = write_files(Path(scratch), samples // ranks, ranks)
        size = sum(path.stat().st_size for path in files)
        one, two = _best(files, 1), _best(files, 2)
        single = _best([_merged(files, Path(scratch) / "all.jsonl")], 2)
        packed = _best([_packed(path) for path in files], 2)
    return {
        "offline_samples": count,
        "offline_bytes": size,
        "offline_s": round(one.wall_s, 3),
        "offline_samples_per_s": round(count / one.wall_s),
        "offline_rss_bytes": one.rss_bytes,
        "offline_cpu_s": round(one.cpu_s, 3),
        **_figures("two_cores", two, count),
        **_figures("single_file", single, count),
        **_figures("gzipped", packed, count),
    }


def _figures(name: str, run: Run, count: int) -> dict[str, Any]:
    return {
        f"offline_{name}_s": round(run.wall_s, 3),
        f"offline_{name}_samples_per_s": round(count / run.wall_s),
        f"offline_{name}_rss_bytes": run.rss_bytes,
        f"offline_{name}_cpu_s": round(run.cpu_s, 3),
    }


def _best(files: list[Path], cores: int) -> Run:
    runs = [_run(files, cores) for _ in range(_RUNS)]
    return Run(
        min(run.wall_s for run in runs),
        max(run.rss_bytes for run in runs),
        min(run.cpu_s for run in runs),
    )


def _run(files: list[Path], cores: int) -> Run:
    use = sorted(os.sched_getaffinity(0))[:cores]
    text = subprocess.run(
        [sys.executable, "-c", _ANALYZE, str(cores), *map(str, files)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, use),
    ).stdout
    took, rank, rss, cpu = text.split()
    if int(rank) != CULPRIT:
        raise SystemExit(f"recorded: rank {rank} named: not the verdict")  # so there is no result
    return Run(float(took), int(rss), float(cpu))


def _merged(files: list[Path], path: Path) -> Path:
    """One file with the lines of all, in the order of time."""
    with ExitStack() as stack:
        inputs = [stack.enter_context(one.open("rb")) for one in files]
        out = stack.enter_context(path.open("wb"))
        for lines in zip(*inputs, strict=True):
            out.writelines(lines)
    return path


def _packed(path: Path) -> Path:
    packed = path.with_suffix(".jsonl.gz")
    with path.open("rb") as text, gzip.open(packed, "wb", compresslevel=1) as file:
        shutil.copyfileobj(text, file)
    path.unlink()
    return packed


def write_files(folder: Path, moments: int, ranks: int = RANKS) -> list[Path]:
    """A file a rank; memory is noise, except that of the culprit in the last third, which rises."""
    return [_write(folder / f"rank_{rank}.jsonl", rank, moments, ranks) for rank in range(ranks)]


def _write(path: Path, rank: int, moments: int, ranks: int) -> Path:
    dice = np.random.default_rng(rank)
    at = _BEGIN_NS + EVERY_NS * np.arange(moments) + dice.integers(0, EVERY_NS // 10, moments)
    reserved = 20 * GIB + dice.integers(0, 1 << 24, moments)
    if rank == CULPRIT:
        reserved[moments * 2 // 3 :] += np.linspace(
            0, 58 * GIB, moments - moments * 2 // 3, dtype=int
        )
    with path.open("w") as file:
        for when, held in zip(at.tolist(), reserved.tolist(), strict=True):
            file.write(json.dumps(_event(rank, when, held, ranks)) + "\n")
    return path


def _event(rank: int, at_ns: int, reserved: int, ranks: int) -> dict[str, Any]:
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
        "world_size": ranks,
    }


if __name__ == "__main__":
    main()
