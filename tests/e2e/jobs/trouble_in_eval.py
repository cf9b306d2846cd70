"""A gloo job of two ranks. Rank 1 gets into trouble two seconds after the beginning of its eval.

The argument is the trouble: `grows` (its host memory), `late` (in each step) or `killed`.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from frd_agent import phase

STEP_S = 0.02
KEPT_BYTES = 4 << 20
MOST_KEPT = 80


def main() -> None:
    trouble = sys.argv[1]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    ones = torch.ones(16)
    kept: list[torch.Tensor] = []
    with phase("train"):
        for _ in range(250):
            with phase("step"):
                dist.all_reduce(ones)
            time.sleep(STEP_S)
    with phase("eval"):
        for step in range(1_000_000):
            if dist.get_rank() == 1 and step >= 100:
                if trouble == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if trouble == "late":
                    time.sleep(3 * STEP_S)
                elif len(kept) < MOST_KEPT:
                    kept.append(torch.ones(KEPT_BYTES, dtype=torch.uint8))
            dist.all_reduce(ones)
            time.sleep(STEP_S)


main()
