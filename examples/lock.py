"""A job that writes its checkpoint in turns: one rank keeps the lock of the file, the others wait
for it, and rank 0 waits for all of them."""

import argparse
import fcntl
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist


def save(path: Path, rank: int, stuck: bool) -> None:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        upload(rank, stuck)


def upload(rank: int, stuck: bool) -> None:
    if stuck:
        time.sleep(3600)  # a store that does not answer


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split()))
    parser.add_argument("--rank", type=int, default=3, help="the rank that keeps the lock")
    parser.add_argument("--step", type=int, default=60, help="the step at which it does")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    path = Path(tempfile.gettempdir()) / f"frd-checkpoint-{os.environ['MASTER_PORT']}.lock"
    for step in range(args.step + 1):
        dist.all_reduce(torch.ones(1024))
        time.sleep(0.02)
        is_stuck = rank == args.rank and step == args.step
        if step == args.step and rank not in (0, args.rank):
            time.sleep(0.5)  # the lock is taken by then
        if rank > 0:
            save(path, rank, is_stuck)
    dist.barrier()


if __name__ == "__main__":
    main()
