"""Four ranks whose initialization takes long, or never ends: PLACE [GO].

absent     rank 2 does not call init_process_group
new_group  rank 2 does not make the group that the others make
late       rank 2 calls init_process_group once the file GO exists; then all train
helpers    the same, and every rank has started two processes that import torch before it
dies       rank 2 ends with an error once the file GO exists, and has not called it
"""

import multiprocessing
import os
import sys
import time

import torch
import torch.distributed as dist

ONE = torch.ones(4)


def load_model() -> None:
    time.sleep(3600)


def wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.1)


def start_helpers() -> None:
    """They inherit the environment of their rank."""
    spawn = multiprocessing.get_context("spawn")
    for _ in range(2):
        spawn.Process(target=load_model, daemon=True).start()


def train() -> None:
    while True:
        dist.all_reduce(ONE)
        time.sleep(0.05)


def main(place: str) -> None:
    rank = int(os.environ["RANK"])
    if place == "helpers":
        start_helpers()
    if rank == 2 and place == "absent":
        load_model()
    if rank == 2 and place in ("late", "helpers", "dies"):
        wait_for(sys.argv[2])
    if rank == 2 and place == "dies":
        raise FileNotFoundError("no checkpoint")
    dist.init_process_group("gloo")
    if place == "new_group":
        if rank == 2:
            load_model()
        dist.new_group([0, 1, 2, 3])
    train()


if __name__ == "__main__":
    main(sys.argv[1])
