"""Three ranks: 1 waits for a DataLoader worker that is stuck, 2 saves a checkpoint to a pipe
without a reader (PIPE), 0 waits for both. A fourth rank computes for ever."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

PIPE = sys.argv[1]
STUCK_AT = 9


class Shards:
    def __len__(self) -> int:
        return 1_000

    def __getitem__(self, index: int) -> int:
        if index == STUCK_AT:
            time.sleep(600)
        return index


def train() -> None:
    for _ in DataLoader(Shards(), num_workers=2):
        pass


def save() -> None:
    os.mkfifo(PIPE)
    with open(os.open(PIPE, os.O_RDWR), "wb") as pipe:
        torch.save({"model": torch.ones(1_000_000)}, pipe)


def compute() -> None:
    while True:
        pass


def main() -> None:
    dist.init_process_group("gloo")
    for _ in range(20):
        dist.all_reduce(torch.ones(4))
    part = {1: train, 2: save, 3: compute}.get(dist.get_rank())
    if part is not None:
        part()
    dist.all_reduce(torch.ones(4))


main()
