"""One rank of `overhead.py`: an ordinary torch script that works on request.

A line on stdin is one order, a line of JSON on stdout the answer. Rank 0's clock ends a segment:
the reduced tensor carries its word to all, so that every rank does the same number of steps.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

BACKEND = sys.argv[1]
DEVICE = torch.device("cuda" if BACKEND == "nccl" else "cpu")
LEFT = torch.rand(1024, 1024, device=DEVICE) if BACKEND == "nccl" else torch.rand(96, 96)


def compute(units: int) -> float:
    """Busy with tensors, which leave the GIL alone, and a tenth of the time with Python, which
    does not."""
    total = 0.0
    for _ in range(units):
        LEFT @ LEFT
        for i in range(40):
            total += i * 0.5
    if BACKEND == "nccl":
        torch.cuda.synchronize()
    return total


def watched_cpu_s() -> tuple[float, float]:
    """CPU time so far of the tap's thread and of torch's worker server; 0 without them."""
    tap = server = 0.0
    for task in Path("/proc/self/task").iterdir():
        used = int((task / "schedstat").read_text().split()[0]) / 1e9
        name = (task / "comm").read_text().strip()
        tap += used if name == "frd-tap" else 0.0
        server += used if name == "pt_workerserver" else 0.0
    return tap, server


def segment(seconds: float, units: int) -> dict[str, Any]:
    """Steps of `units` of work and one all_reduce, until rank 0 has had enough."""
    word = torch.zeros(8, device=DEVICE)
    latencies = []
    over = False
    dist.barrier()
    (tap_s, server_s), start = watched_cpu_s(), time.perf_counter()
    while not over:
        compute(units)
        word[0] = float(dist.get_rank() == 0 and time.perf_counter() - start > seconds)
        before = time.perf_counter()
        dist.all_reduce(word)
        over = word[0].item() > 0  # with NCCL this waits for the device
        latencies.append(time.perf_counter() - before)
    elapsed = time.perf_counter() - start
    tap_end_s, server_end_s = watched_cpu_s()
    return {
        "steps_per_s": len(latencies) / elapsed,
        "latencies_s": latencies,
        "tap_cpu_share": (tap_end_s - tap_s) / elapsed,
        "server_cpu_share": (server_end_s - server_s) / elapsed,
    }


def unit_s(seconds: float) -> dict[str, Any]:
    """What a unit of work takes while the other ranks measure it too."""
    dist.barrier()
    units, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        compute(10)
        units += 10
    return {"unit_s": elapsed / units}


torch.set_num_threads(1)
dist.init_process_group(BACKEND)
for line in sys.stdin:
    match line.split():
        case ["segment", seconds, units]:
            answer = segment(float(seconds), int(units))
        case ["unit", seconds]:
            answer = unit_s(float(seconds))
        case order:
            sys.exit(f"unknown order: {order}")
    print(json.dumps(answer), flush=True)
dist.destroy_process_group()
