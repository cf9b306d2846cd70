"""A launcher that forks its ranks: `forked.py PORT END`. Each rank loads data in a forked worker,
forks a helper that never becomes a rank, and all_reduces until the file END is there.

An ordinary torch script that knows nothing of frd.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader


class Threads:
    """A data set of the names of the threads in the worker that loads it."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        return ",".join(thread.name for thread in threading.enumerate())


def help_out(end: str) -> None:
    while not Path(end).exists():
        time.sleep(0.1)
    os._exit(0)  # torch itself cannot end a forked child that inherits a process group


def train(rank: int, port: str, end: str) -> None:
    (names,) = DataLoader(Threads(), num_workers=1, multiprocessing_context="fork")
    print(f"worker {names}", flush=True)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    helper = mp.get_context("fork").Process(target=help_out, args=(end,))
    helper.start()
    print(f"rank {rank} {os.getpid()} helper {helper.pid}", flush=True)
    done = torch.zeros(1)
    while not done.item():
        time.sleep(0.05)
        done = torch.tensor([float(Path(end).exists())])
        dist.all_reduce(done, op=dist.ReduceOp.MIN)
    helper.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("variables", *sorted(name for name in os.environ if "TEMP_FILE" in name), flush=True)
    mp.start_processes(train, args=sys.argv[1:], nprocs=2, start_method="fork")
