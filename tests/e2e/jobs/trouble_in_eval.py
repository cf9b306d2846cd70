"""A gloo job of two ranks. Rank 1 gets into trouble two seconds after the beginning of its eval.

The argument is the trouble: `late` (in each step) or `killed`.
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


def main() -> None:
    trouble = sys.argv[1]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    ones = torch.ones(16)
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
                time.sleep(3 * STEP_S)
            dist.all_reduce(ones)
            time.sleep(STEP_S)


main()
