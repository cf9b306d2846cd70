"""Steps, and some checkpoints of rank 0 while all others wait: CHECKPOINTS SECONDS [hang].

With ``hang``, rank 0 hangs at the end.
"""

import sys
import time

import torch
import torch.distributed as dist


def steps(count: int) -> None:
    for _ in range(count):
        dist.all_reduce(torch.ones(64))
        time.sleep(0.05)


def save_checkpoint(seconds: float) -> None:
    time.sleep(seconds)


def load_batch() -> None:
    time.sleep(3600)


def main(checkpoints: int, seconds: float, *, hangs: bool) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for _ in range(checkpoints):
        steps(20)
        if dist.get_rank() == 0:
            save_checkpoint(seconds)
    steps(60)
    if hangs and dist.get_rank() == 0:
        load_batch()
    dist.barrier()
    dist.destroy_process_group()


main(int(sys.argv[1]), float(sys.argv[2]), hangs=sys.argv[3:] == ["hang"])
