"""Traces of I/O: events a second of ours and of plain `json.loads`, memory, Dask's local cluster.

Traces are made for the bench (`bench/trace_files.py`). `json.loads` is what every line costs any
program that parses it so, before anything is computed. Ours is the whole report: read, unpack,
parse, join, measure. The command runs as a separate process, with the files in the page cache;
memory is the largest sum over it and its children, looked at every few milliseconds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

from bench.program import Run
from bench.report import show
from bench.trace_files import write_traces
from frd.offline.io.analysis import analyze_traces
from frd.offline.io.discovery import find_traces
from frd.offline.io.engine import Distributed, InProcess, local_cluster

_LINES: Final = 200_000
"""Lines for `json.loads`."""
_FILES: Final = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=4_000_000, help="for speed")
    parser.add_argument("--memory-events", type=int, default=20_000_000, help="0: leave it out")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=3, help="runs of each; the best counts")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="frd-bench-") as scratch:
        plain, packed = Path(scratch, "plain"), Path(scratch, "packed")
        events = write_traces(plain, _FILES, options.events // _FILES, packed=False)
        write_traces(packed, _FILES, options.events // _FILES, packed=True)
        result |= {"events": events, **speed(plain, packed, options.repeat)}
        result |= on_dask(plain, packed, options.workers, options.repeat)
    if options.memory_events:
        with tempfile.TemporaryDirectory(prefix="frd-bench-") as scratch:
            folder = Path(scratch, "large")
            events = write_traces(folder, _FILES, options.memory_events // _FILES, packed=True)
            result |= memory(folder, events, options.workers)
    show(result, as_json=options.json)


def speed(plain: Path, packed: Path, repeat: int) -> dict[str, Any]:
    """Of one process. Each kind has its turn in every round, so that all see the same machine."""
    rates: dict[str, list[float]] = {}
    for _ in range(repeat):
        rates.setdefault("json_loads_per_s", []).append(_json_loads(plain))
        rates.setdefault("json_loads_gz_per_s", []).append(_json_loads(packed))
        rates.setdefault("frd_per_s", []).append(_rate(plain, InProcess))
        rates.setdefault("frd_gz_per_s", []).append(_rate(packed, InProcess))
    best = {name: max(values) for name, values in rates.items()}
    return {
        **{name: round(value) for name, value in best.items()},
        "all": {name: [round(value) for value in values] for name, values in rates.items()},
        "ratio_to_json_loads": round(best["frd_per_s"] / best["json_loads_per_s"], 2),
        "ratio_to_json_loads_gz": round(best["frd_gz_per_s"] / best["json_loads_gz_per_s"], 2),
    }


def _json_loads(folder: Path) -> float:
    path = next(iter(folder.iterdir()))
    begin = time.perf_counter()
    count = 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for line in file:
            json.loads(line)
            count += 1
            if count == _LINES:
                break
    return count / (time.perf_counter() - begin)


def _rate(folder: Path, engine: Callable[[], Any]) -> float:
    """Events a second; the report must be that of all ranks."""
    files, _ = find_traces([folder])
    begin = time.perf_counter()
    found = analyze_traces(files, engine())
    seconds = time.perf_counter() - begin
    if len(found.ranks) != _FILES or found.broken_lines or found.warnings:
        sys.exit(f"bench: {folder}: {len(found.ranks)} ranks: not the report: {found.warnings}")
    return found.events / seconds


def on_dask(plain: Path, packed: Path, workers: list[int], repeat: int) -> dict[str, Any]:
    """Without the start of the cluster, which takes a second and does not grow with the traces."""
    rates: dict[int, list[float]] = {}
    rates_gz: dict[int, list[float]] = {}
    for _ in range(repeat):
        for count in workers:
            with local_cluster(count) as client:
                rates.setdefault(count, []).append(_rate(plain, lambda c=client: Distributed(c)))  # type: ignore[misc]
                rates_gz.setdefault(count, []).append(
                    _rate(packed, lambda c=client: Distributed(c))  # type: ignore[misc]
                )
    first, last = min(workers), max(workers)
    return {
        "dask_per_s": {str(count): round(max(values)) for count, values in rates.items()},
        "dask_all_per_s": {str(n): [round(v) for v in values] for n, values in rates.items()},
        "dask_gz_per_s": {str(count): round(max(values)) for count, values in rates_gz.items()},
        "dask_scaling": round(max(rates[last]) / max(rates[first]) / (last / first), 2),
    }


def memory(folder: Path, events: int, workers: list[int]) -> dict[str, Any]:
    """Of `frd analyze` as users run it, by one process and by several."""
    out: dict[str, Any] = {
        "memory_events": events,
        "memory_file_bytes": sum(path.stat().st_size for path in folder.iterdir()),
    }
    for count in workers:
        os.environ["FRD_DASK_WORKERS"] = str(count)
        run = Run([sys.executable, "-m", "frd", "analyze", "--traces", str(folder), "--json"])
        if run.code:
            sys.exit(f"bench: frd analyze: {run.code}: {run.output[-500:].decode()}")
        name = f"{count}_process{'es' * (count > 1)}"
        out[f"rss_bytes_{name}"] = run.peak_bytes
        out[f"command_per_s_{name}"] = round(events / run.seconds)
    return out


if __name__ == "__main__":
    main()
