"""Rank 1 dies in the first attempt of a torchrun job; the second attempt runs to its end."""

import os
import signal
import time

import torch
import torch.distributed as dist


def main() -> None:
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    # Without a prefix, Gloo finds the addresses of the first attempt in torchrun's store.
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    own = dist.PrefixStore(attempt, store)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=world)
    first = attempt == "0"
    for step in range(400):
        dist.all_reduce(torch.ones(64))
        if first and dist.get_rank() == 1 and step == 100:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
