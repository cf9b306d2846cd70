"""Rank 0 does one all_reduce more than rank 1, of a tensor of another shape."""

import time

import torch
import torch.distributed as dist


def evaluate(seconds: float) -> None:
    time.sleep(seconds)


def main() -> None:
    dist.init_process_group("gloo")
    for _ in range(20):
        dist.all_reduce(torch.ones(1024))
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1024, 1024))
    else:
        evaluate(3600)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
