"""Rank 1 dies in the first attempt of a torchrun job; the second attempt runs to its end."""

import os
import signal
import time

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    for step in range(400):
        dist.all_reduce(torch.ones(64))
        if first and dist.get_rank() == 1 and step == 100:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
