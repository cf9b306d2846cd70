"""A job that trains until it gets SIGTERM, and then saves a checkpoint; or until the file
fault-JOBID in its working directory says what happens, and in which rank.

`read 1`: rank 1 reads what never comes. `exit 1`: it ends with exit code 7. `end`: all ranks end.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

FAULT = Path(f"fault-{os.environ['SLURM_JOB_ID']}")
SAVE_S = 4.0
"""Longer than an agent stays that does not wait for its ranks."""


def read_sample() -> None:
    os.read(os.pipe()[0], 64)


def main() -> None:
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:  # srun has started it
        place = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
        dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world)
    rank = dist.get_rank()
    print(f"rank {rank} trains on {len(os.sched_getaffinity(0))} CPUs", flush=True)
    while True:
        what, _, who = (FAULT.read_text() if FAULT.exists() else "").strip().partition(" ")
        if who == str(rank):
            print(f"rank {rank} breaks at {time.time_ns()}", flush=True)
            if what == "exit":
                sys.exit(7)
            read_sample()
        ends = torch.tensor([bool(asked), what == "end"], dtype=torch.int32)
        dist.all_reduce(ends)
        if ends[0].item():
            time.sleep(SAVE_S)
            print(f"rank {rank} saved", flush=True)
        if ends.any().item():
            break
        time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
