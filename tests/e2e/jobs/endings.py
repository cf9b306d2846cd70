"""A job that ends in one of the ordinary ways: ``endings.py MODE``, by the environment of a
launcher. A line on stdout when the ranks have stepped together for a while."""

import signal
import sys
import time

import torch
import torch.distributed as dist

STEPS = 60
"""Steps before the mode's event; a second or two, so that all has been seen of the job."""


def load_batch(mode: str, rank: int) -> None:
    if mode == "crash" and rank == 1:
        raise RuntimeError("bad batch")
    if mode == "hang" and rank == 1:
        time.sleep(600)
    if mode == "exit" and rank == 1:
        sys.exit(1)


def save_checkpoint(signum: int, frame: object) -> None:
    time.sleep(3)
    sys.exit(0)


def main(mode: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if mode == "config":
        time.sleep(3)  # an agent that looks once a second sees the ranks
        raise ValueError("no such option: lr_warmup")
    if mode == "preempt" and rank == 0:
        signal.signal(signal.SIGTERM, save_checkpoint)
    ones = torch.ones(64)
    try:
        step = 0
        while True:
            if step >= STEPS:
                load_batch(mode, rank)
                if rank == 1 and mode in ("leave", "catch"):
                    return  # out of the loop, with status 0
            dist.all_reduce(ones)
            step += 1
            if step == STEPS and rank == 0:
                print("steps", flush=True)
            time.sleep(0.02)
    except RuntimeError:
        if mode != "catch":
            raise
        time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1])
