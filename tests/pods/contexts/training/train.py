"""A job that trains until the file FAULT appears, which says what goes wrong, and in which rank.

`read 1`: rank 1 reads a shard that never comes. `gil 1`: it is in C code that keeps the interpreter
lock. `kill 1`: it is killed. `memory 1`: it takes memory until it is killed. `compute 1`: it
computes and never comes back. `end`: all ranks end.
"""

import ctypes
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

FAULT = Path(os.environ.get("FAULT", "/run/frd/fault"))
SHARD = Path(os.environ.get("SHARD", "/data/shard-17.tar"))


def read_sample() -> None:
    file = os.open(SHARD, os.O_RDWR)  # a FIFO into which no process writes, as a hung file system
    os.read(file, 64)


def tokenize() -> None:
    ctypes.PyDLL(None).sleep(3600)  # an extension module that forgot to release the lock


def compute() -> None:
    while True:
        sum(range(10_000))


def grow() -> None:
    kept = []
    while True:
        kept.append(b"x" * (8 << 20))
        time.sleep(0.02)


def main() -> None:
    if os.environ.get("ON_TERM") != "end":
        # As programs that save a checkpoint at their next step: they do not end immediately.
        signal.signal(signal.SIGTERM, lambda *_: None)
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    print(f"rank {rank} trains", flush=True)
    faults = {"read": read_sample, "gil": tokenize, "compute": compute, "memory": grow}
    while True:
        what, _, who = (FAULT.read_text() if FAULT.exists() else "").strip().partition(" ")
        if what in {"kill", *faults} and rank == int(who):
            print(f"rank {rank} breaks at {time.time_ns()}", flush=True)
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            faults[what]()
        ends = torch.tensor([what == "end"], dtype=torch.int32)
        dist.all_reduce(ends)
        if ends.item():
            break
        time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
